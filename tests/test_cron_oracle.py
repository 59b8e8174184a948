"""``@cron`` beside brute force: seeded, and short. By hand and for long: ``tests/cron_oracle.py``."""

import random

import pytest

from .cron_oracle import (
    ODD_MINUTES,
    ODD_SECONDS,
    Line,
    Tally,
    around,
    compare,
    compare_around,
    compare_year,
)

MINUTE = 60


def words(period):
    return f"{period[0]}, {period[2]}"


def assert_no_difference(tally):
    assert tally.differences == [], "\n".join(tally.differences[:5])
    assert tally.looks >= 18 * tally.specs


@pytest.mark.parametrize("period", ODD_MINUTES, ids=words)
def test_minutes_around_a_clock_change_are_what_brute_force_finds(period):
    tally, (zone, day, _) = Tally(), period
    clock = compare_around(tally, zone, day, MINUTE, specs=8, rng=random.Random(day))
    assert_no_difference(tally)
    assert bool(clock.again or clock.left_out) == (zone != "UTC")


@pytest.mark.parametrize("period", ODD_SECONDS, ids=words)
def test_seconds_around_an_odd_clock_change_are_what_brute_force_finds(period):
    tally, (zone, day, _) = Tally(), period
    clock = compare_around(tally, zone, day, 1, specs=3, rng=random.Random(day))
    assert_no_difference(tally)
    assert clock.again or clock.left_out


def test_a_year_of_minutes_is_what_brute_force_finds():
    tally = Tally()
    compare_year(tally, "Africa/Casablanca", 2031, specs=6, rng=random.Random(1))
    assert_no_difference(tally)


def test_brute_force_tells_a_line_from_another():
    tally = Tally()
    clock = around("America/New_York", "2025-03-09", MINUTE)
    values = [{30}, {3}, set(range(1, 32)), {3}, set(range(7))]  # hour 3, but written as 2
    compare(tally, clock, Line(["30", "2", "*", "3", "*"], values), random.Random(1))
    assert len(tally.differences) > 5

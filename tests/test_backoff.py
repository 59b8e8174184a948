import math
from datetime import timedelta
from itertools import pairwise

import pytest

from django_alkstore.backoff import MAX_SECONDS, retry_delay, seconds


@pytest.mark.parametrize(
    ("backoff", "attempts", "delay"),
    [
        (5.0, 1, 5.0),
        (5.0, 2, 10.0),
        (5.0, 3, 20.0),
        (5.0, 10, 2560.0),
        (5.0, 11, 3600.0),
        (0.5, 1, 0.5),
        (0.0, 50, 0.0),
        (3600.0, 1, 3600.0),
        (7200.0, 1, 3600.0),
        (5.0, 10**30, 3600.0),
        (5e-324, 1, 5e-324),
        (5e-324, 1090, 3600.0),
    ],
)
def test_the_delay_doubles_with_each_attempt_up_to_the_maximum(backoff, attempts, delay):
    assert retry_delay(backoff, attempts, 3600.0) == delay


@pytest.mark.parametrize("maximum", [0.0, 1e-9, 3600.0, 1e7, float(MAX_SECONDS)])
@pytest.mark.parametrize("backoff", [0.0, 5e-324, 0.1, 5.0, 2e6, float(MAX_SECONDS)])
def test_the_curve_is_finite_never_falls_and_stays_under_the_maximum(backoff, maximum):
    curve = [retry_delay(backoff, attempts, maximum) for attempts in range(1, 100_001)]
    assert all(one <= next_ for one, next_ in pairwise(curve))
    assert curve[0] == min(backoff, maximum)
    assert curve[-1] == (maximum if backoff else 0.0)


def test_a_backoff_under_a_large_maximum_is_not_taken_for_the_maximum():
    assert retry_delay(2e6, 1, float(MAX_SECONDS)) == 2e6
    assert retry_delay(2e6, 2, float(MAX_SECONDS)) == 4e6


@pytest.mark.parametrize("backoff", [-1.0, -math.inf, math.nan, math.inf, 1e308])
@pytest.mark.parametrize("attempts", [-(10**30), -1, 0, 1, 2, 10**30])
def test_a_row_that_was_edited_by_hand_still_gets_a_delay(backoff, attempts):
    assert 0.0 <= retry_delay(backoff, attempts, 3600.0) <= 3600.0


def test_every_delay_of_the_curve_is_a_duration():
    assert seconds("delay", retry_delay(float(MAX_SECONDS), 99, float(MAX_SECONDS))) == MAX_SECONDS


def test_a_timedelta_is_its_seconds():
    assert seconds("ttl", timedelta(days=1, microseconds=500_000)) == 86_400.5

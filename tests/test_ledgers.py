"""What a schedule did and will do, as people read it."""

from datetime import datetime, timedelta, timezone

import pytest

from django_alkstore.ledgers import GONE, last_fires, upcoming

from .factories import FireFactory, JobFactory, ScheduleFactory
from .ledger import NOON, at

pytestmark = pytest.mark.django_db


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def test_boundaries_are_shown_on_the_clocks_of_the_schedule_and_in_utc():
    ScheduleFactory(name="nightly", spec="@cron 30 2 * * *", timezone="Asia/Kolkata",
                    next_fire_at=utc("2027-01-01T21:00"))  # fmt: skip
    first, second = upcoming("nightly", 2)
    assert first.shown == ("2027-01-02 02:30:00+05:30", "2027-01-01 21:00:00+00:00")
    assert second.shown == ("2027-01-03 02:30:00+05:30", "2027-01-02 21:00:00+00:00")


@pytest.mark.parametrize(
    ("zone", "first", "shown", "change"),
    [
        ("America/New_York", "2027-03-13T07:30", "2027-03-14 03:00:00-04:00", "forward 60 min"),
        ("America/New_York", "2027-11-06T06:30", "2027-11-07 02:30:00-05:00", "back 60 min"),
        ("Australia/Lord_Howe", "2027-10-01T16:00", "2027-10-03 02:30:00+11:00", "forward 30 min"),
    ],
)
def test_the_boundary_after_a_clock_change_says_so(zone, first, shown, change):
    ScheduleFactory(name="nightly", spec="@cron 30 2 * * *", timezone=zone, next_fire_at=utc(first))
    marked = [one for one in upcoming("nightly", 4) if one.change]
    assert [(one.shown[0], one.change) for one in marked] == [(shown, f"clocks {change}")]


def test_the_last_fires_say_how_late_they_were_and_what_became_of_their_jobs():
    jobs = [JobFactory(), JobFactory(running=True), JobFactory(dead=True), JobFactory(done=True)]
    for n, job in enumerate(jobs):
        FireFactory(boundary=at(n), fired_at=at(n + 2), job_id=job.pk)
    FireFactory(boundary=at(4), fired_at=at(4), job_id=10**6)
    FireFactory(schedule="another", boundary=NOON)
    told = last_fires("nightly")
    assert [one.outcome for one in told] == [GONE, "done", "dead", "running", "ready"]
    assert [one.late_seconds for one in told] == [0, 2, 2, 2, 2]


def test_the_newest_come_first_those_fired_by_hand_and_those_dropped_among_them():
    FireFactory(boundary=NOON)
    FireFactory(boundary=None)
    FireFactory(boundary=at(60), job_id=None, skipped=1, why="missed")
    hand = FireFactory(boundary=None)
    told = last_fires("nightly", 3)
    assert [one.fire.boundary for one in told] == [None, at(60), None]
    assert [one.outcome for one in told] == [GONE, None, GONE]
    assert told[0].fire == hand


def test_a_schedule_without_a_boundary_ahead_has_none_to_show():
    ScheduleFactory(name="over", next_fire_at=None, ended_at=NOON)
    assert upcoming("over") == upcoming("nobody") == []


def test_looking_sends_few_statements_however_long_the_ledger_is(statements):
    FireFactory.create_batch(60)
    ScheduleFactory(name="nightly", next_fire_at=NOON + timedelta(days=10**5))
    before = len(statements)
    assert len(last_fires("nightly")) == 20
    upcoming("nightly")
    assert len(statements) - before <= 5

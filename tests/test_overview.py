"""The first page of the app: what it puts first, what it counts, what it sends and to whom."""

import re
from xml.etree import ElementTree

import pytest
from django.contrib.auth.models import Permission
from django.utils.html import escape

from django_alkstore import status
from django_alkstore.overview import HEIGHT, chart

from .factories import (
    CountFactory,
    FireFactory,
    JobFactory,
    LockFactory,
    ScheduleFactory,
    ago,
)  # fmt: skip

pytestmark = pytest.mark.django_db

ADDRESS = "/admin/django_alkstore/"
MARKUP = "<script>alert(1)</script>"
SCHEDULER = "__alkstore_scheduler"


def log_in(client, django_user_model, *permissions, **fields):
    user = django_user_model.objects.create(username="somebody", is_staff=True, **fields)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)


@pytest.fixture
def page(client, django_user_model):
    """The page as a user sees it who may look at everything: ``page()``."""
    log_in(client, django_user_model, "view_job", "view_schedule", "view_lock")

    def get():
        response = client.get(ADDRESS)
        assert response.status_code == 200
        return response.content.decode()

    return get


def cells(page, name):
    """The texts of the row of a table that is headed ``name``."""
    row = next(row for row in page.split("<tr>") if f">{escape(name)}</a></th>" in row)
    return [
        re.sub("<[^>]*>", "", cell).strip() for cell in re.findall("<td.*?</td>", row, re.DOTALL)
    ]


def test_warnings_come_first(page):
    JobFactory(queue="slow", run_at=ago(3600))
    JobFactory(queue="broken", dead=True)
    text = page()
    slow, broken = text.index("slow has a job that has been ready"), text.index("broken: 1 dead")
    assert max(slow, broken) < text.index("Queues and outboxes") < text.index("Schedules</h2>")


def test_without_anything_wrong_the_page_says_so(page):
    JobFactory()
    assert "Nothing: no job waits for too long" in page()


def test_each_queue_has_its_counts(page):
    JobFactory.create_batch(3, queue="mail")
    JobFactory.create_batch(2, queue="mail", scheduled=True)
    JobFactory(queue="mail", lapsed=True)
    JobFactory(queue="mail", dead=True)
    ready, _, dead, running, lapsed, scheduled, due, *_ = cells(page(), "mail")
    assert (ready, scheduled, running, lapsed, dead) == ("3", "2", "1", "1", "1")
    assert due.endswith(" s")


def test_what_the_warnings_are_about_stands_out_of_its_row(page):
    JobFactory(queue="slow", run_at=ago(3_600)), JobFactory(queue="quick")
    JobFactory(queue="broken", dead=True), JobFactory(queue="lost", lapsed=True, due_at=ago(3_600))
    JobFactory(queue="late", scheduled=True, due_at=ago(3_600))
    wanted = {"slow": ["60 min"], "quick": [], "broken": ["1"], "lost": ["1"], "late": ["now"]}
    found = {
        name: re.findall("alkstore-bad.*?>([^<>]+)<", row)
        for row in page().split("<tr>")
        for name in re.findall('<th scope="row"><a [^>]*>(.*?)</a>', row)
        if name in wanted
    }
    assert found == wanted


def test_a_count_that_was_not_finished_is_shown_as_at_least(page, monkeypatch):
    monkeypatch.setattr(status, "COUNTED_UP_TO", 2)
    JobFactory.create_batch(4)
    assert cells(page(), "reports")[0] == "2+"


def test_an_outbox_is_shown_by_its_own_name_and_its_links_find_its_messages(page, client):
    jobs = JobFactory.create_batch(2, queue="__alkstore_outbox:letters")
    JobFactory()
    row = page().split(">outbox letters</a>")[1]
    address = re.search('href="(.*?)">2</a>', row)[1].replace("&amp;", "&")
    assert set(client.get(address).context["cl"].result_list) == set(jobs)


def test_the_charts_say_in_words_what_was_done_and_what_failed(page):
    CountFactory(queue="mail", acked=1200, died=2, retried=1)
    CountFactory(queue="mail", acked=5, minute=ago(5 * 3600).replace(second=0, microsecond=0))
    text = page()
    assert 'aria-label="1,200 done, 3 failed in the last hour"' in text
    assert 'aria-label="1,205 done, 3 failed in the last day"' in text


def test_a_single_failure_among_a_million_can_be_seen():
    assert chart("hour", [(0, 0), (1_000_000, 1)]).failed.endswith("v3h-59z")


@pytest.mark.parametrize("steps", [[], [(0, 0)] * 60, [(7, 0), (0, 9)] * 12, [(10**12, 10**12)]])
def test_a_chart_stays_within_its_frame(steps):
    drawn = chart("day", steps)
    tops = [int(y) for y in re.findall(r"M\d+ (-?\d+)", drawn.done + drawn.failed)]
    assert all(0 <= top < HEIGHT for top in tops)


def test_every_chart_is_well_formed_and_names_itself(page):
    CountFactory(acked=3)
    found = re.findall('<svg role="img".*?</svg>', page(), re.DOTALL)
    assert len(found) >= 2
    for text in found:
        svg = ElementTree.fromstring(text)
        assert svg.get("aria-label") == svg.find("title").text


def test_schedules_show_boundary_lateness_and_what_was_skipped(page):
    ScheduleFactory(name="late", next_fire_at=ago(600))
    FireFactory(schedule="late", skipped=4)
    assert "10 min" in cells(page(), "late")
    assert cells(page(), "late")[-1] == "4"


def test_a_paused_schedule_says_so(page):
    ScheduleFactory(name="nightly", enabled=False)
    assert "paused" in cells(page(), "nightly")


def test_the_leader_is_shown_with_the_age_of_its_lease(page):
    LockFactory(name=SCHEDULER, owner="host:7:aa", acquired_at=ago(3 * 3600 + 60))
    assert "host:7:aa leads, for 3 h" in page()


def test_a_leader_whose_lease_lapsed_is_shown_as_gone(page):
    LockFactory(name=SCHEDULER, owner="host:7:aa", expires_at=ago(600))
    assert "host:7:aa led; its lease lapsed 10 min ago." in page()


def test_the_page_sends_only_reads_and_no_more_for_many_queues(page, statements):
    JobFactory()
    page()
    before = len(statements)
    page()
    for_one = len(statements) - before
    for n in range(20):
        JobFactory(queue=f"queue-{n}")
    page()
    sent = [query["sql"] for query in statements][before:]
    before = len(statements)
    page()
    assert len(statements) - before == for_one
    reads = ("SELECT", "WITH")
    ours = [text for text in sent if "INSERT INTO" not in text]  # the rows of this test
    assert not [text for text in ours if not text.lstrip("( ").startswith(reads)]
    assert not [text for text in ours if "FOR UPDATE" in text]


def test_a_strict_content_security_policy_has_nothing_to_forbid(page):
    JobFactory(dead=True)
    CountFactory(acked=3)
    text = page()
    assert "<style" not in text
    assert not re.findall(r"<[^>]*\s(?:style|on\w+)=", text)
    assert not re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", text)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)


def test_names_are_no_markup_to_the_browser(page):
    JobFactory(queue=MARKUP, dead=True)
    ScheduleFactory(name=MARKUP, spec=MARKUP, queue=MARKUP)
    LockFactory(name=SCHEDULER, owner=MARKUP)
    text = page()
    assert MARKUP not in text
    assert escape(MARKUP) in text


def test_who_may_not_look_at_jobs_sees_no_overview(client, django_user_model):
    log_in(client, django_user_model, "view_lock")
    JobFactory(queue="secret")
    text = client.get(ADDRESS).content.decode()
    assert "secret" not in text
    assert "Queues and outboxes" not in text


@pytest.mark.parametrize("led", [True, False], ids=["led", "without a leader"])
def test_who_may_not_look_at_schedules_sees_none_and_no_warning_of_one(
    client, django_user_model, led
):
    log_in(client, django_user_model, "view_job")
    ScheduleFactory(name="secret", next_fire_at=ago(7_300))
    if led:
        LockFactory(name=SCHEDULER)
    text = client.get(ADDRESS).content.decode()
    assert "Queues and outboxes" in text
    assert "Nothing: no job waits for too long, none died in the last hour." in text
    assert "secret" not in text
    assert "Schedules</h2>" not in text


def test_who_may_look_at_schedules_alone_sees_no_queue_and_no_warning_of_one(
    client, django_user_model
):
    log_in(client, django_user_model, "view_schedule")
    JobFactory(queue="secret", run_at=ago(7_300))
    JobFactory(queue="secret", dead=True)
    ScheduleFactory(name="nightly", next_fire_at=ago(7_300))
    text = client.get(ADDRESS).content.decode()
    assert "No scheduler leads, and schedules are due (1)" in text
    assert "nightly" in text
    assert "secret" not in text
    assert "Queues and outboxes" not in text


@pytest.mark.parametrize("lease", [{}, {"expires_at": ago(600)}], ids=["leads", "led"])
def test_who_may_not_look_at_locks_is_told_no_holder(client, django_user_model, lease):
    log_in(client, django_user_model, "view_job", "view_schedule")
    LockFactory(name=SCHEDULER, owner="host:7:aa", **lease)
    text = client.get(ADDRESS).content.decode()
    assert "A scheduler le" in text
    assert "host:7:aa" not in text


def test_the_overview_asks_for_a_login(client):
    assert client.get(ADDRESS).status_code == 302


def test_the_list_of_jobs_links_to_the_overview(client, django_user_model):
    log_in(client, django_user_model, "view_job")
    text = client.get(f"{ADDRESS}job/").content.decode()
    assert f'<a href="{ADDRESS}">Overview</a>' in text


def test_the_page_opens_without_time_zones(page, settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"
    JobFactory()
    ScheduleFactory()
    assert "reports" in page()

"""The admin in a real browser, under a strict Content-Security-Policy."""

from datetime import datetime, timedelta, timezone

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from django_alkstore.models import Job, Lock

from .browser import ENTER, MISSING, Browser
from .factories import CountFactory, FireFactory, JobFactory, LockFactory, ScheduleFactory, ago

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
]

APP = "/admin/django_alkstore/"


@pytest.fixture
def site(transactional_db, settings):
    """The address of a server of the project that sends the policy with every page."""
    settings.MIDDLEWARE = ["tests.browser.strict_policy", *settings.MIDDLEWARE]
    server = LiveServer("127.0.0.1")
    yield server.url
    server.stop()


@pytest.fixture
def browser(site, tmp_path, request):
    """Logged in as a superuser. A test that fails leaves a screenshot."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password=None))
    browser = Browser(tmp_path)
    failed_before = request.session.testsfailed
    try:
        browser.open(f"{site}/admin/login/")
        browser.set_cookie("sessionid", client.cookies["sessionid"].value)
        yield browser
        if request.session.testsfailed > failed_before:
            browser.screenshot(tmp_path / "failed.png")
            print(f"screenshot: {tmp_path / 'failed.png'}")
    finally:
        browser.close()


def trouble():
    """A night on which something of everything is wrong."""
    JobFactory.create_batch(3, queue="thumbnails", run_at=ago(4000))
    JobFactory(queue="mail", dead=True, last_error="ConnectionRefusedError: mail:25")
    JobFactory(queue="a-queue-whose-name-is-" + "long-" * 12 + "indeed", scheduled=True)
    for minutes in range(0, 50, 3):
        minute = ago(60 * minutes).replace(second=0, microsecond=0)
        CountFactory(queue="mail", minute=minute, acked=40 + 3 * minutes, died=minutes % 2)
    ScheduleFactory(name="nightly-report", next_fire_at=ago(900))
    LockFactory(name="__alkstore_scheduler", owner="host:7:aa", expires_at=ago(600))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("device", ["desk", "phone"])
def test_the_overview_fits_the_screen_and_has_the_warnings_in_view(browser, site, theme, device):
    trouble()
    if theme == "dark":
        browser.be_dark()
    if device == "phone":
        browser.be_a_phone()
    browser.open(site + APP)
    browser.until_says("thumbnails has a job that has been ready for")
    top = "document.querySelector('.alkstore-overview .warning').getBoundingClientRect().top"
    assert browser.run(f"return {top} < innerHeight")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.complaints() == []


def test_the_charts_are_drawn_in_a_colour_that_is_not_the_background_s(browser, site):
    trouble()
    browser.be_dark()
    browser.open(site + APP)
    fill = "getComputedStyle(document.querySelector('.alkstore-{}')).fill"
    done, failed = (browser.run(f"return {fill.format(name)}") for name in ("done", "failed"))
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert len({done, failed, background}) == 3


def test_a_dead_job_is_requeued_with_the_keyboard_alone(browser, site):
    job = JobFactory(dead=True)
    browser.open(f"{site}{APP}job/{job.pk}/change/")
    browser.tab_to("button[value=requeue]")
    browser.press(ENTER)
    browser.until_says(f"1 job requeued: {job.pk}.")
    assert browser.address_shown.endswith(f"job/{job.pk}/change/")
    assert Job.objects.get().state == "ready"
    assert browser.complaints() == []


def test_the_priority_of_selected_jobs_is_changed_over_the_page_between(browser, site):
    job, other = JobFactory.create_batch(2)
    browser.open(f"{site}{APP}job/")
    browser.click(f"input[name=_selected_action][value='{job.pk}']")
    browser.click("select[name=action] option[value=set_priority]")
    browser.click("button[name=index]")
    browser.until_says("Change the priority")
    browser.type("input[name=priority]", "12")
    browser.click("input[type=submit].default")
    browser.until_says(f"1 job given priority 12: {job.pk}.")
    assert [row.priority for row in Job.objects.order_by("pk")] == [12, other.priority]
    assert browser.complaints() == []


def test_a_lock_is_released_after_its_holder_was_shown(browser, site):
    lock = LockFactory(name="rates", owner="host:1:aa")
    browser.open(f"{site}{APP}lock/{lock.pk}/change/")
    browser.click("button[value=release]")
    browser.until_says("rates, held by host:1:aa")
    browser.click("input[type=submit].default")
    browser.until_says("Lock rates was released.")
    assert Lock.objects.get().owner == ""


@pytest.mark.parametrize("device", ["desk", "phone"])
def test_a_schedule_s_page_shows_what_it_did_and_will_do_and_fits_the_screen(browser, site, device):
    at = datetime(2027, 3, 13, 7, 30, tzinfo=timezone.utc)
    row = ScheduleFactory(name="nightly", spec="@cron 30 2 * * *", timezone="America/New_York",
                          next_fire_at=at)  # fmt: skip
    days = [at - timedelta(days=n) for n in range(1, 9)]
    jobs = [JobFactory(done=True), JobFactory(dead=True), JobFactory(running=True)]
    for n, day in enumerate(days):
        job_id = jobs[n % 3].pk if n % 4 else None
        why = {"skipped": 2, "why": "missed"} if job_id is None else {}
        FireFactory(boundary=day, fired_at=day + timedelta(seconds=n), job_id=job_id, **why)
    if device == "phone":
        browser.be_a_phone()
    browser.open(f"{site}{APP}schedule/{row.pk}/change/")
    browser.until_says("clocks forward 60 min")
    assert "2: missed" in browser.text()
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.complaints() == []

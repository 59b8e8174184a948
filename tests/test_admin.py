"""The admin through the test client: what it shows, what it lets be changed, what it sends."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.urls import reverse
from django.utils.html import escape

from django_alkstore import lists, reads, sql
from django_alkstore.models import InstantField, Job, Schedule
from django_alkstore.scheduler import Scheduler

from .factories import FireFactory, JobFactory, LockFactory, ScheduleFactory, ago

pytestmark = pytest.mark.django_db

FACTORIES = [JobFactory, ScheduleFactory, FireFactory, LockFactory]
LOOKED_AT = [JobFactory, FireFactory, LockFactory]
WRITE_BUTTONS = ['type="submit" value="Save', "deletelink", 'name="action"']
MARKUP = "<script>alert(1)</script>"
TOMORROW = ago(-25 * 3600)
LAST_INSTANT = datetime.max.replace(tzinfo=timezone.utc)
COMPARED = {"updated_at", "next_fire_at", "last_fired_at", "payload", "enabled", *Schedule.OPTIONS}


def url(model, verb, *args, **query):
    return reverse(f"admin:django_alkstore_{model}_{verb}", args=args, query=query)


def list_url(factory, **query):
    return url(factory._meta.model._meta.model_name, "changelist", **query)


def page_url(row, verb="change"):
    return url(row._meta.model_name, verb, row.pk)


def text(response):
    assert response.status_code == 200
    return response.content.decode()


def write_buttons(page, row):
    """The buttons and links of a page by which such a row could be added, changed or deleted."""
    return [mark for mark in (*WRITE_BUTTONS, url(row._meta.model_name, "add")) if mark in page]


def listed(response):
    assert response.status_code == 200
    return list(response.context["cl"].result_list)


def spoil(row, payload):
    """Write a payload that is no JSON, as a hand with SQL could."""
    on, off = {
        "sqlite": ("PRAGMA ignore_check_constraints = ON", "PRAGMA ignore_check_constraints = OFF"),
        "mysql": ("SET check_constraint_checks = 0", "SET check_constraint_checks = 1"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(on)
        table = row._meta.db_table
        cursor.execute(f"UPDATE {table} SET payload = %s WHERE id = %s", [payload, row.pk])
        cursor.execute(off)


@pytest.fixture
def admin_client(client, django_user_model):
    """A superuser's client; without a password, since hashing one takes long."""
    client.force_login(
        django_user_model.objects.create(username="admin", is_staff=True, is_superuser=True)
    )
    return client


@pytest.fixture
def viewer(client, django_user_model):
    """A client whose user may look at everything and change nothing."""
    user = django_user_model.objects.create(username="viewer", is_staff=True)
    ours = Permission.objects.filter(content_type__app_label="django_alkstore")
    user.user_permissions.set(ours.filter(codename__startswith="view_"))
    client.force_login(user)
    return client


def typed(**fields):
    """What a browser sends from the form of a schedule."""
    blank = dict.fromkeys(("payload_text", *Schedule.OPTIONS), "")
    form = {"name": "nightly", "spec": "@every 1h", "queue": "reports", "enabled": "on"}
    return {**blank, **form, **fields}


def as_shown(client, row):
    """What a browser sends back from the page of a schedule if nobody edits it."""
    form = client.get(page_url(row)).context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    sent = {name: "" if value is None else value for name, value in values.items()}
    for name in ("starts_at", "ends_at"):  # a date and a time, each with an input of its own
        context = form[name].field.widget.get_context(name, values[name], {})["widget"]
        sent |= {part["name"]: part["value"] or "" for part in context["subwidgets"]}
    sent["payload_text"] = sent["payload_text"].replace("\n", "\r\n")
    return {name: value for name, value in sent.items() if value is not False}


@pytest.fixture
def save(admin_client):
    """Send the form of a schedule, a new one or ``row``'s: what it complained of, by field."""

    def send(fields, row=None):
        response = admin_client.post(page_url(row) if row else url("schedule", "add"), fields)
        if response.status_code == 302:
            return {}
        return dict(response.context["adminform"].form.errors)

    return send


# -- looking ------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_opening_a_page_sends_selects_and_nothing_else(admin_client, factory, statements):
    row = factory()
    before = len(statements)
    text(admin_client.get(list_url(factory)))
    text(admin_client.get(page_url(row)))
    texts = [query["sql"] for query in statements][before:]
    assert len(texts) > 2
    harmless = ("SELECT", "WITH RECURSIVE", "SAVEPOINT", "RELEASE SAVEPOINT")  # ATOMIC_REQUESTS
    assert not [sent for sent in texts if not sent.startswith(harmless)]
    assert not [sent for sent in texts if "FOR UPDATE" in sent]


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_list_of_many_rows_takes_no_more_statements_than_a_list_of_one(
    admin_client, factory, django_assert_num_queries, statements
):
    factory()
    text(admin_client.get(list_url(factory)))
    before = len(statements)
    text(admin_client.get(list_url(factory)))
    for_one = len(statements) - before
    factory.create_batch(20)
    with django_assert_num_queries(for_one):
        assert len(listed(admin_client.get(list_url(factory)))) == 21


def test_the_job_list_leaves_the_long_columns_in_the_database(admin_client, statements):
    JobFactory(dead=True)
    text(admin_client.get(list_url(JobFactory)))
    asked = " ".join(query["sql"] for query in statements if query["sql"].startswith("SELECT"))
    assert "max_attempts" in asked
    assert not [name for name in ("payload", "last_error", "last_traceback") if name in asked]


def test_jobs_and_fires_are_listed_newest_first(admin_client):
    for factory in (JobFactory, FireFactory):
        rows = factory.create_batch(3)
        assert listed(admin_client.get(list_url(factory))) == rows[::-1]


def test_long_tables_offer_no_order_that_would_sort_them(admin_client):
    for factory in (JobFactory, FireFactory):
        factory()
        assert "sortable" not in text(admin_client.get(list_url(factory)))


def test_a_job_page_shows_its_payload_as_indented_json_and_its_failure(admin_client):
    job = JobFactory(dead=True, payload={"order": 7, "name": "Zoë"}, last_traceback="a\n  b")
    page = text(admin_client.get(page_url(job)))
    assert escape('{\n  "name": "Zoë",\n  "order": 7\n}') in page or (
        escape('{\n  "order": 7,\n  "name": "Zoë"\n}') in page  # jsonb has an order of its own
    )
    assert ">boom</pre>" in page
    assert ">a\n  b</pre>" in page


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "-"),
        ({"due_at": TOMORROW, "expires_at": TOMORROW}, "expires in 2"),
        ({"expired": True}, "expired "),
        ({"scheduled": True, "due_at": TOMORROW}, "ready in 2"),
        ({"scheduled": True, "due_at": ago(600)}, "ready 10 min ago"),
        ({"scheduled": True, "expires_at": TOMORROW, "due_at": TOMORROW}, "expires in"),
        ({"running": True, "due_at": TOMORROW}, "claim lapses in 2"),
        ({"lapsed": True}, "claim lapsed "),
        ({"done": True}, "-"),
    ],
)
def test_the_list_says_what_is_due_and_when(admin_client, row, words):
    JobFactory(**row)
    page = text(admin_client.get(list_url(JobFactory)))
    due = page.split('class="field-due"')[1].split("</td>")[0]
    assert due.startswith(f">{words}")


def test_jobs_are_filtered_by_state_and_by_queue(admin_client):
    JobFactory(queue="mail")
    job = JobFactory(queue="mail", dead=True)
    JobFactory(dead=True)
    query = {"state": "dead", "queue": "mail"}
    assert listed(admin_client.get(list_url(JobFactory, **query))) == [job]


def test_the_queue_filter_offers_each_queue_once_whatever_its_jobs_are_at():
    for state in ("scheduled", "running", "dead", "done"):
        JobFactory.create_batch(2, queue=f"queue-{state}", **{state: True})
    JobFactory.create_batch(2, queue="a")
    JobFactory.create_batch(2, queue="z")
    names = ["a", "queue-dead", "queue-done", "queue-running", "queue-scheduled", "z"]
    assert reads.queue_names(sql.engine()) == names


def test_the_queue_filter_shows_an_outbox_by_its_own_name(admin_client):
    JobFactory(queue="__alkstore_outbox:receipts")
    page = text(admin_client.get(list_url(JobFactory)))
    assert ">outbox receipts</a>" in page


def test_a_filter_by_a_queue_without_jobs_finds_none_of_the_others(admin_client):
    JobFactory()
    response = admin_client.get(list_url(JobFactory, queue="gone"))
    assert listed(response) == []
    assert ">gone</a>" in text(response)


def test_the_queue_names_are_found_without_walking_the_table(only_on):
    only_on("sqlite")
    engine = sql.engine()
    plan = engine.query(f"EXPLAIN QUERY PLAN {reads.Wording.queue_names}", {"limit": 10})
    steps = [step for *_, step in plan if "job" in step]
    assert len(steps) == 6
    assert all(step.startswith("SEARCH") for step in steps)


@pytest.mark.parametrize(
    ("term", "found"),
    [
        ("reports", 1),
        (" reports ", 1),
        ("receipts", 1),
        ("outbox receipts", 1),
        ("__alkstore_outbox:receipts", 1),
        ("report", 0),
        ("REPORTS", 0),
        ("", 2),
        ("9" * 19, 0),
        ("9" * 5_000, 0),
        ("\0", 2),  # refused by the search form
    ],
)
def test_jobs_are_searched_by_the_exact_queue_or_outbox(admin_client, term, found):
    JobFactory(queue="reports")
    JobFactory(queue="__alkstore_outbox:receipts")
    assert len(listed(admin_client.get(list_url(JobFactory, q=term)))) == found


def test_a_job_is_searched_by_its_id(admin_client):
    job, _ = JobFactory.create_batch(2)
    assert listed(admin_client.get(list_url(JobFactory, q=job.pk))) == [job]


@pytest.mark.parametrize("prefix", ["", "outbox ", "__alkstore_outbox:"])
def test_a_message_is_searched_by_its_idempotency_key(admin_client, prefix):
    message, _ = JobFactory.create_batch(2, queue="__alkstore_outbox:receipts")
    key = f"{prefix}receipts:{message.pk}"
    assert listed(admin_client.get(list_url(JobFactory, q=key))) == [message]


def test_a_key_with_another_s_queue_finds_nothing(admin_client):
    job = JobFactory(queue="reports")
    assert listed(admin_client.get(list_url(JobFactory, q=f"mail:{job.pk}"))) == []


@pytest.mark.parametrize(
    ("age", "found"),
    [
        ("newer-hour", [0]),
        ("newer-day", [1, 0]),
        ("older-hour", [3, 2, 1]),
        ("older-day", [3, 2]),
        ("older-week", [3]),
        ("nonsense", [3, 2, 1, 0]),
    ],
)
def test_jobs_are_filtered_by_age(admin_client, age, found):
    jobs = [JobFactory(created_at=ago(3600 * hours)) for hours in (0.5, 2, 48, 240)]
    wanted = [jobs[n] for n in found]
    assert listed(admin_client.get(list_url(JobFactory, age=age))) == wanted


def test_the_page_of_a_schedule_leads_to_its_jobs_and_its_fires(admin_client):
    row = ScheduleFactory(name="a+b")
    on_time, by_hand = JobFactory.create_batch(2, schedule="a+b")
    JobFactory(schedule="other")
    fires = [FireFactory(schedule="a+b", job_id=on_time.pk),
             FireFactory(schedule="a+b", job_id=by_hand.pk, boundary=None)]  # fmt: skip
    page = text(admin_client.get(page_url(row)))
    to_jobs, to_fires = list_url(JobFactory, schedule="a+b"), list_url(FireFactory, q="a+b")
    assert f'href="{escape(to_jobs)}"' in page
    assert f'href="{escape(to_fires)}"' in page
    assert set(listed(admin_client.get(to_jobs))) == {on_time, by_hand}
    assert set(listed(admin_client.get(to_fires))) == set(fires)


def test_the_page_of_a_job_leads_to_its_schedule_and_its_fire(admin_client):
    row = ScheduleFactory(name="nightly")
    boundary = ago(60)
    job = JobFactory(schedule="nightly", scheduled_for=boundary)
    FireFactory(schedule="nightly", job_id=job.pk + 1)
    fire = FireFactory(schedule="nightly", boundary=boundary, job_id=job.pk)
    page = text(admin_client.get(page_url(job)))
    assert page_url(row) in page
    assert page_url(fire) in page
    assert page_url(job) in text(admin_client.get(page_url(fire)))


@pytest.mark.parametrize(
    ("permissions", "shown"),
    [(["view_job"], []), (["view_job", "view_fire"], ["fire"]),
     (["view_job", "view_schedule"], ["schedule"])],
)  # fmt: skip
def test_the_page_of_a_job_leads_to_what_the_user_may_look_at(
    client, django_user_model, permissions, shown
):
    user = django_user_model.objects.create(username="somebody", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    boundary = ago(60)
    job = JobFactory(schedule="nightly", scheduled_for=boundary)
    rows = {
        "schedule": ScheduleFactory(name="nightly"),
        "fire": FireFactory(schedule="nightly", boundary=boundary, job_id=job.pk),
    }
    page = text(client.get(page_url(job)))
    assert [name for name, row in rows.items() if page_url(row) in page] == shown


def test_a_job_of_a_schedule_that_is_gone_has_its_name_still(admin_client):
    job = JobFactory(schedule="gone", scheduled_for=ago(60))
    assert "by the schedule gone" in text(admin_client.get(page_url(job)))


@pytest.mark.parametrize(
    ("row", "sentences"),
    [
        ({}, ["Claimed 0 of at most 3 times.", "Waits for a worker."]),
        ({"scheduled": True}, ["To run from ", "Waits for its time; ready in "]),
        ({"scheduled": True, "attempts": 1, "last_error": "boom\nbang"},
         ["Its last failure: boom", "Waits to be tried again; ready in "]),
        ({"running": True}, ["another has it now; claim lapses in "]),
        ({"lapsed": True}, ["another has it now; claim lapsed "]),
        ({"dead": True}, ["Claimed 3 of at most 3 times.", "Died ", "): boom"]),
        ({"dead": True, "last_error": None}, ["no reason kept"]),
        ({"done": True}, ["Done "]),
        ({"expires_at": TOMORROW}, ["Not to start after "]),
        ({"state": "weird"}, ["Its state, weird, is none"]),
    ],
)  # fmt: skip
def test_the_page_of_a_job_tells_its_history_in_words(admin_client, row, sentences):
    page = text(admin_client.get(page_url(JobFactory(**row))))
    story = page.split('<ol class="alkstore-story">')[1].split("</ol>")[0]
    places = [story.find(sentence) for sentence in sentences]
    assert -1 not in places
    assert places == sorted(places)


def test_a_list_stops_at_its_first_rows_and_says_so(admin_client, monkeypatch):
    monkeypatch.setattr(lists, "COUNTED_UP_TO", 150)
    jobs = JobFactory.create_batch(151)
    last = admin_client.get(list_url(JobFactory, p=2))
    assert listed(last) == jobs[50:0:-1]
    assert "There may be more: a list stops at 150." in text(last)
    assert text(admin_client.get(list_url(JobFactory, q=jobs[0].pk))).count("may be more") == 0


@pytest.mark.parametrize(
    "query",
    [{}, {"p": 2}, {"state": "dead"}, {"queue": "reports"}, {"age": "older-hour"}, {"q": "reports"},
     {"schedule": "nightly"}],
)  # fmt: skip
def test_no_list_of_jobs_counts_the_table(admin_client, statements, query):
    JobFactory.create_batch(101)
    before = len(statements)
    text(admin_client.get(list_url(JobFactory, **query)))
    sent = [query["sql"] for query in statements][before:]
    assert len(sent) <= 12
    assert not [sql for sql in sent if "COUNT(" in sql or "DISTINCT" in sql]


def test_the_scheduler_s_lease_is_told_from_other_locks(admin_client):
    LockFactory(name="__alkstore_scheduler", expires_at=TOMORROW)
    LockFactory(owner="", expires_at=ago(90_000))
    page = text(admin_client.get(list_url(LockFactory)))
    assert "the scheduler&#x27;s lease" in page
    assert "lapses in 2" in page
    assert "released 25 h ago" in page


# -- rows that are odd or hostile ---------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"queue": MARKUP},
        {"payload": {MARKUP: MARKUP}},
        {"last_error": MARKUP},
        {"last_traceback": MARKUP},
        {"worker_id": MARKUP},
        {"schedule": MARKUP},
        {"state": "<script>"},
    ],
)
def test_nothing_that_a_job_carries_is_markup_to_the_browser(admin_client, row):
    job = JobFactory(**row)
    for address in (list_url(JobFactory), page_url(job)):
        assert "<script>alert(1)" not in text(admin_client.get(address))
        assert "<script><" not in text(admin_client.get(address))
    assert "&lt;script&gt;" in text(admin_client.get(page_url(job)))


@pytest.mark.parametrize(
    ("factory", "names"),
    [
        (ScheduleFactory, ["name", "spec", "queue", "payload"]),
        (FireFactory, ["schedule", "leader"]),
        (LockFactory, ["name", "owner"]),
    ],
)
def test_nothing_that_other_rows_carry_is_markup_to_the_browser(admin_client, factory, names):
    row = factory(**dict.fromkeys(names, MARKUP))
    for address in (list_url(factory), page_url(row)):
        page = text(admin_client.get(address))
        assert MARKUP not in page
        assert escape(MARKUP) in page


def test_what_was_typed_comes_back_escaped_in_the_complaint(admin_client):
    fields = typed(name=MARKUP, spec=MARKUP, queue=MARKUP, payload_text=MARKUP)
    page = text(admin_client.post(url("schedule", "add"), fields))
    assert page.count("errorlist") >= 4
    assert MARKUP not in page


@pytest.mark.parametrize(
    "payload", ["{bad", "[" * 100_000, "[" * 3_000 + "]" * 3_000, "9" * 10_000]
)
def test_a_payload_that_is_no_json_leaves_list_and_page_open(admin_client, payload, only_on):
    only_on("sqlite", "mysql")
    job, schedule = JobFactory(), ScheduleFactory()
    for row, factory in ((job, JobFactory), (schedule, ScheduleFactory)):
        spoil(row, payload)
        text(admin_client.get(list_url(factory)))
        assert payload in text(admin_client.get(page_url(row)))


def test_a_lone_surrogate_in_a_payload_leaves_the_page_open(admin_client, only_on):
    only_on("sqlite", "mysql")
    job = JobFactory()
    spoil(job, r'{"a": "\udcff"}')
    assert r"\udcff" in text(admin_client.get(page_url(job)))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
@pytest.mark.parametrize("instant", [LAST_INSTANT, datetime(3000, 1, 1, tzinfo=timezone.utc)])
def test_an_instant_far_beyond_every_clock_reads_as_never(admin_client, settings, zone, instant):
    settings.TIME_ZONE = zone
    job = JobFactory(scheduled=True, run_at=instant, expires_at=instant)
    schedule = ScheduleFactory(next_fire_at=instant)
    fire = FireFactory(boundary=instant)
    lock = LockFactory(expires_at=instant)
    rows = [
        (JobFactory, job),
        (ScheduleFactory, schedule),
        (FireFactory, fire),
        (LockFactory, lock),
    ]
    for factory, row in rows:
        assert f">{instant.year}" not in text(admin_client.get(list_url(factory)))
        assert f">{instant.year}" not in text(admin_client.get(page_url(row)))
    assert '"field-due">-<' in text(admin_client.get(list_url(JobFactory)))


@pytest.mark.parametrize("word", ["infinity", "-infinity"])
def test_an_instant_that_no_datetime_can_hold_leaves_list_and_page_open(
    admin_client, word, only_on
):
    only_on("postgresql", "sqlite")
    for factory in FACTORIES:
        row = factory()
        fields = [f.column for f in row._meta.fields if isinstance(f, InstantField)]
        columns = ", ".join(f"{column} = '{word}'" for column in fields)
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {row._meta.db_table} SET {columns} WHERE id = {row.pk}")
        for address in (list_url(factory), page_url(row)):
            assert "infinity" not in text(admin_client.get(address))
    text(admin_client.get("/admin/django_alkstore/"))


@pytest.mark.parametrize(
    "row",
    [
        {"state": "weird", "due_at": ago(5)},
        {"queue": "not a name at all!"},
        {"dead": True, "last_error": None},
        {"running": True, "due_at": None, "worker_id": None, "claim_token": None},
        {"attempts": -1, "max_attempts": 0},
    ],
)
def test_a_row_that_makes_no_sense_leaves_list_and_page_open(admin_client, row):
    job = JobFactory(**row)
    assert job.state in text(admin_client.get(list_url(JobFactory)))
    assert job.state in text(admin_client.get(page_url(job)))


@pytest.mark.parametrize("factory", FACTORIES)
def test_pages_open_without_time_zones(admin_client, settings, factory):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"
    row = factory()
    text(admin_client.get(list_url(factory)))
    text(admin_client.get(page_url(row)))


def test_instants_are_shown_to_the_second_in_the_current_zone(admin_client, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    job = JobFactory(run_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    assert "2026-01-02 12:04:05+09:00" in text(admin_client.get(page_url(job)))


# -- who may change what ------------------------------------------------------------------------


@pytest.mark.parametrize("factory", LOOKED_AT)
def test_what_workers_own_is_acted_on_but_not_edited(admin_client, factory):
    row = factory()
    model = row._meta.model_name
    for address in (url(model, "add"), page_url(row), page_url(row, "delete")):
        assert admin_client.post(address, {"post": "yes"}).status_code == 403
    for address in (list_url(factory), page_url(row)):
        buttons = write_buttons(text(admin_client.get(address)), row)
        assert buttons in ([], ['name="action"'])
    assert type(row).objects.get() == row


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_user_who_may_only_look_sees_no_button_that_writes(viewer, factory):
    row = factory()
    for address in (list_url(factory), page_url(row)):
        assert write_buttons(text(viewer.get(address)), row) == []


def test_a_user_who_may_change_schedules_sees_every_such_button(admin_client):
    row = ScheduleFactory()
    pages = [
        text(admin_client.get(address)) for address in (list_url(ScheduleFactory), page_url(row))
    ]
    assert len(write_buttons("".join(pages), row)) == len(WRITE_BUTTONS) + 1


def test_a_user_who_may_only_look_cannot_post_a_schedule(viewer):
    row = ScheduleFactory()
    assert viewer.post(url("schedule", "add"), typed()).status_code == 403
    assert viewer.post(page_url(row), typed(spec="@every 1s")).status_code == 403
    assert Schedule.objects.get().spec == row.spec


def test_a_user_who_may_only_look_reads_the_payload_of_a_schedule(viewer):
    row = ScheduleFactory(payload={"a": [1]})
    assert escape('{\n  "a": [\n    1\n  ]\n}') in text(viewer.get(page_url(row)))


# -- schedules ----------------------------------------------------------------------------------


def test_a_schedule_is_added_with_all_that_was_typed(save):
    options = {"priority": "7", "max_attempts": "1", "visibility_timeout": "0.5",
               "backoff": "0", "expires_in": "60"}  # fmt: skip
    assert save(typed(payload_text='{"a": 1}', **options)) == {}
    row = Schedule.objects.get(name="nightly")
    assert (row.spec, row.queue, row.payload, row.enabled) == (
        "@every 1h",
        "reports",
        {"a": 1},
        True,
    )
    assert [getattr(row, name) for name in Schedule.OPTIONS] == [7, 1, 0.5, 0, 60]
    assert row.next_fire_at > row.created_at


def test_what_was_left_empty_is_the_queue_s(save):
    assert save(typed()) == {}
    row = Schedule.objects.get(name="nightly")
    assert [getattr(row, name) for name in ("payload", *Schedule.OPTIONS)] == [None] * 6


def test_a_schedule_can_be_added_paused(save):
    assert save({name: value for name, value in typed().items() if name != "enabled"}) == {}
    assert not Schedule.objects.get(name="nightly").enabled


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("name", "no spaces", "schedule name to be"),
        ("name", "__alkstore_x", "reserved"),
        ("name", "", "required"),
        ("name", "x" * 129, "128"),
        ("spec", "0 0 30 2 *", "spec to be"),
        ("spec", "@every 0s", "spec to be"),
        ("spec", "@every 999999999999d", "spec's interval to be"),
        ("spec", "@every " + "1" * 10_000 + "s", "255"),
        ("queue", "__alkstore_outbox:x", "reserved"),
        ("queue", "é", "queue name to be"),
        ("payload_text", "{bad", "expected payload to be JSON"),
        ("payload_text", "{'a': 1}", "expected payload to be JSON"),
        ("payload_text", '{"a": NaN}', "expected payload.a to be"),
        ("payload_text", r'{"a": "\u0000"}', "expected payload.a to be"),
        ("payload_text", r'["\udc00"]', "expected payload[0] to be"),
        ("payload_text", str(2**63), "expected payload to be"),
        ("payload_text", "9" * 5_000, "expected payload to be"),
        ("payload_text", "[" * 32 + "]" * 32, "levels"),
        ("payload_text", "[" * 100_000, "expected payload to be JSON"),
        ("payload_text", "\0", "Null characters"),
        ("priority", "1.5", "whole number"),
        ("priority", str(2**31), "2147483647"),
        ("max_attempts", "0", "expected max_attempts to be"),
        ("visibility_timeout", "0", "expected visibility_timeout to be"),
        ("backoff", "-1", "expected backoff to be"),
        ("backoff", "nan", "number"),
        ("expires_in", "1e300", "expected expires_in to be"),
    ],
)
def test_a_wrong_field_is_refused_beside_it(save, field, value, complaint):
    errors = save(typed(**{field: value}))
    assert list(errors) == [field]
    assert complaint in errors[field][0]
    assert not Schedule.objects.exists()


def test_adding_a_name_that_exists_is_refused_and_replaces_nothing(save):
    row = ScheduleFactory(name="nightly")
    assert "already exists" in save(typed(spec="@every 1d"))["name"][0]
    assert Schedule.objects.get().spec == row.spec


@pytest.mark.parametrize("overdue", [False, True])
def test_saving_a_schedule_unchanged_changes_nothing(save, admin_client, overdue):
    stated = {"priority": 0, "visibility_timeout": 0.5, "max_attempts": 1, "payload": {"é": [1.0]}}
    row = ScheduleFactory(overdue=overdue, last_fired_at=ago(60), **stated)
    before = Schedule.objects.filter(pk=row.pk).values(*COMPARED).get()
    assert save(as_shown(admin_client, row), row) == {}
    assert Schedule.objects.filter(pk=row.pk).values(*COMPARED).get() == before


def test_the_history_of_a_schedule_names_only_what_was_changed(save, admin_client):
    row = ScheduleFactory(payload={"a": [1, 2]})
    assert save({**as_shown(admin_client, row), "priority": "3"}, row) == {}
    page = text(admin_client.get(page_url(row, "history")))
    assert "Changed Priority." in page


def test_an_edit_that_leaves_the_spec_leaves_the_next_boundary(save, admin_client):
    row = ScheduleFactory(priority=4)
    assert save({**as_shown(admin_client, row), "queue": "mail", "max_attempts": 9}, row) == {}
    stored = Schedule.objects.get()
    assert (stored.queue, stored.max_attempts, stored.priority) == ("mail", 9, 4)
    assert stored.next_fire_at == row.next_fire_at


def test_a_changed_spec_counts_the_next_boundary_from_now(save, admin_client):
    row = ScheduleFactory(overdue=True)
    assert save({**as_shown(admin_client, row), "spec": "@every 1h"}, row) == {}
    assert Schedule.objects.get().next_fire_at > ago(-3500)


def test_the_name_of_a_schedule_stays(save, admin_client):
    row = ScheduleFactory()
    assert save({**as_shown(admin_client, row), "name": "other"}, row) == {}
    assert Schedule.objects.get().name == row.name


def test_a_schedule_that_is_resumed_fires_nothing_for_the_time_it_was_paused(save, admin_client):
    row = ScheduleFactory(enabled=False, spec="@every 1h", next_fire_at=ago(10 * 3600 + 60))
    assert save({**as_shown(admin_client, row), "enabled": "on"}, row) == {}
    resumed = Schedule.objects.get()
    assert resumed.enabled
    assert resumed.next_fire_at == row.next_fire_at + timedelta(hours=11)  # its own grid
    Scheduler().tick()
    assert not Job.objects.exists()


def test_a_paused_schedule_does_not_fire(save, admin_client):
    row = ScheduleFactory(overdue=True)
    fields = as_shown(admin_client, row)
    del fields["enabled"]
    assert save(fields, row) == {}
    Scheduler().tick()
    assert not Job.objects.exists()


def test_a_schedule_is_deleted_from_its_page_and_its_ledger_stays(admin_client):
    row, fire = ScheduleFactory(), FireFactory()
    admin_client.post(page_url(row, "delete"), {"post": "yes"})
    assert not Schedule.objects.exists()
    assert type(fire).objects.get() == fire


def test_a_name_that_was_spoilt_by_hand_is_a_complaint_of_the_form(save, admin_client):
    row = ScheduleFactory(name="no spaces")
    assert "schedule name to be" in save(as_shown(admin_client, row), row)["__all__"][0]


def test_a_spec_that_was_spoilt_by_hand_is_a_complaint_of_the_form(save, admin_client):
    row = ScheduleFactory(spec="every now and then")
    assert "spec to be" in save(as_shown(admin_client, row), row)["spec"][0]


def test_a_payload_that_was_spoilt_by_hand_can_be_mended(save, admin_client, only_on):
    only_on("sqlite")  # MariaDB checks the old payload in the same statement
    row = ScheduleFactory()
    spoil(row, "{bad")
    fields = as_shown(admin_client, row)
    assert "expected payload to be JSON" in save(fields, row)["payload_text"][0]
    assert save({**fields, "payload_text": json.dumps({"a": 1})}, row) == {}
    stored = Schedule.objects.get()
    assert (stored.payload, stored.next_fire_at) == ({"a": 1}, row.next_fire_at)


def test_schedules_are_saved_and_resumed_without_time_zones(save, admin_client, settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/Los_Angeles"
    row = ScheduleFactory(enabled=False, spec="@every 1h", next_fire_at=ago(90 * 60))
    assert save({**as_shown(admin_client, row), "enabled": "on"}, row) == {}
    assert Schedule.objects.get().next_fire_at == row.next_fire_at + timedelta(hours=2)


def test_a_schedule_is_added_with_its_own_zone_and_rules(save):
    times = {"timezone": "Europe/London", "catch_up": "latest", "overlap": "queue", "jitter": "2.5",
             "starts_at_0": "2999-01-01", "starts_at_1": "00:30:00", "max_fires": "9"}  # fmt: skip
    assert save(typed(spec="@cron 30 2 * * *", **times)) == {}
    row = Schedule.objects.get()
    assert [getattr(row, name) for name in ("timezone", "catch_up", "overlap", "jitter")] == [
        "Europe/London", "latest", "queue", 2.5]  # fmt: skip
    assert (row.max_fires, row.ends_at) == (9, None)
    assert row.next_fire_at.isoformat() == "2999-01-01T02:30:00+00:00"


@pytest.mark.parametrize(
    ("field", "fields", "complaint"),
    [
        ("timezone", {"timezone": "Nowhere"}, "timezone to be"),
        ("catch_up", {"catch_up": "some"}, "not one of the available choices"),
        ("jitter", {"jitter": "-1"}, "jitter to be"),
        ("max_fires", {"max_fires": "0"}, "max_fires to be"),
        ("starts_at", {"starts_at_0": "2026-99-01", "starts_at_1": "00:00"}, "valid date"),
        ("__all__", {"starts_at_0": "2999-01-02", "starts_at_1": "00:00", "ends_at_0": "2999-01-01",
                     "ends_at_1": "00:00"}, "ends_at to be no earlier"),
    ],
)  # fmt: skip
def test_a_wrong_time_is_refused_beside_it(save, field, fields, complaint):
    errors = save(typed(**fields))
    assert list(errors) == [field]
    assert complaint in errors[field][0]
    assert not Schedule.objects.exists()


def test_a_start_that_was_not_edited_keeps_its_microseconds_and_the_next_boundary(
    save, admin_client
):
    start = ago(3600).replace(microsecond=123_456)
    row = ScheduleFactory(starts_at=start, next_fire_at=ago(-60))
    assert save({**as_shown(admin_client, row), "priority": "3"}, row) == {}
    stored = Schedule.objects.get()
    assert (stored.starts_at, stored.next_fire_at) == (start, row.next_fire_at)


def test_a_declared_schedule_is_read_only_but_for_pause_and_fire_now(save, admin_client):
    row = ScheduleFactory(name="nightly", declared=True)
    page = text(admin_client.get(page_url(row)))
    assert 'name="_save"' not in page
    assert [f'value="{name}"' in page for name in ("pause", "fire_now", "resume")] == [
        True, True, False]  # fmt: skip
    assert admin_client.post(page_url(row), typed(spec="@every 1s")).status_code == 403
    assert admin_client.post(page_url(row, "delete"), {"post": "yes"}).status_code == 403
    actions = {"action": "fire_now", "index": 0, "_selected_action": row.pk}
    assert "was fired" in text(admin_client.post(list_url(ScheduleFactory), actions, follow=True))
    assert Schedule.objects.get().spec == row.spec


def test_declared_schedules_are_not_deleted_from_the_list(admin_client):
    row = ScheduleFactory(declared=True)
    sent = {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
    admin_client.post(list_url(ScheduleFactory), sent)
    assert Schedule.objects.get() == row


def test_the_page_of_a_schedule_shows_its_ledger_and_its_next_boundaries(admin_client):
    row = ScheduleFactory(name="nightly", spec="@cron 30 2 * * *", timezone="Asia/Kolkata")
    job = JobFactory(dead=True)
    FireFactory(job_id=job.pk)
    FireFactory(job_id=None, skipped=1234, why="the last job was alive")
    page = text(admin_client.get(page_url(row)))
    assert f'<a href="{page_url(job)}">job {job.pk}</a></td><td>dead</td>' in page
    assert "<td>dropped</td><td>1,234: the last job was alive</td>" in page
    assert page.count(" 02:30:00+05:30</td>") == 10


def test_the_page_of_a_schedule_that_was_spoilt_by_hand_says_what_is_wrong(admin_client):
    row = ScheduleFactory(timezone="Nowhere")
    assert "expected timezone to be" in text(admin_client.get(page_url(row)))


@pytest.mark.parametrize("lacking", ["view_fire", "view_job"])
def test_the_ledger_is_for_those_who_may_look_at_fires_and_jobs(viewer, lacking):
    row, _ = ScheduleFactory(name="nightly"), FireFactory()
    assert "host:1:aa" in text(viewer.get(page_url(row)))
    Permission.objects.get(codename=lacking).user_set.clear()
    page = text(viewer.get(page_url(row)))
    assert "next boundaries" in page.lower() and "host:1:aa" not in page

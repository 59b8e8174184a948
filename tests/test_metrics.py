"""What machines ask over HTTP."""

import re

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import Error, connection
from django.test import RequestFactory

from django_alkstore import sql
from django_alkstore.names import SCHEDULER_LOCK, backing_queue
from django_alkstore.views import Metric, exposition, health, metrics

from .factories import JobFactory, LockFactory, ScheduleFactory, ago

pytestmark = pytest.mark.django_db

TOKEN = "a token of enough characters"
NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
LINE = re.compile(
    rf"# HELP {NAME} [^\n]*|# TYPE {NAME} (?:gauge|counter)"
    rf"|{NAME}(?:\{{{LABEL}(?:,{LABEL})*\}})? -?\d+(?:\.\d+)?"
)


@pytest.fixture
def token(settings):
    settings.ALKSTORE = {"METRICS_TOKEN": TOKEN}
    return {"Authorization": f"Bearer {TOKEN}"}


def scraped(client, token):
    """The samples by name and labels, as text."""
    text = client.get("/alkstore/metrics/", headers=token).content.decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


# -- health ---------------------------------------------------------------------------------------


def test_a_healthy_project_says_ok_to_anybody(client):
    response = client.get("/alkstore/health/")
    assert (response.status_code, response.content) == (200, b"ok\n")
    assert response["Content-Type"].startswith("text/plain")
    assert "no-store" in response["Cache-Control"]


def test_due_schedules_without_a_leader_are_unhealthy(client):
    ScheduleFactory(next_fire_at=ago(600))
    response = client.get("/alkstore/health/")
    assert response.status_code == 503
    assert response.content == b"no scheduler leads, and schedules are due\n"


def test_a_leader_that_comes_back_makes_it_healthy_again(client):
    row = ScheduleFactory(next_fire_at=ago(600))
    assert client.get("/alkstore/health/").status_code == 503
    row.next_fire_at = ago(-60)
    row.save()
    assert client.get("/alkstore/health/").status_code == 200


def test_a_database_that_fails_is_unhealthy_and_tells_strangers_no_more(client):
    with connection.execute_wrapper(failing):
        response = client.get("/alkstore/health/")
    assert response.status_code == 503
    assert response.content == b"the database failed: Error\n"


def failing(execute, text, params, many, context):
    raise Error("the host db.internal refused the password")


def test_health_is_cheap(client, statements):
    ScheduleFactory(next_fire_at=ago(600))
    before = len(statements)
    client.get("/alkstore/health/")
    assert len(statements) - before <= 3


@pytest.mark.parametrize("path", ["/alkstore/health/", "/alkstore/metrics/"])
def test_a_probe_opens_no_transaction_though_each_request_has_one(
    client, token, path, monkeypatch, statements
):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert client.get(path, headers=token).status_code == 200
    assert len(statements) > 0
    assert not [query["sql"] for query in statements if "SAVEPOINT" in query["sql"]]


@pytest.mark.parametrize("path", ["/alkstore/health/", "/alkstore/metrics/"])
def test_only_reading_methods_are_answered(client, path):
    assert client.post(path).status_code == 405
    assert client.head(path).status_code in (200, 401)


# -- who may have metrics -------------------------------------------------------------------------


def test_the_right_token_opens_the_metrics(client, token):
    response = client.get("/alkstore/metrics/", headers=token)
    assert response.status_code == 200
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer ", "Bearer None", f"Bearer {TOKEN}x", f"Basic {TOKEN}",
              TOKEN, "Bearer \xe9"]
)  # fmt: skip
def test_without_the_right_token_a_stranger_is_asked_for_it(client, token, given):
    headers = {} if given is None else {"Authorization": given}
    response = client.get("/alkstore/metrics/", headers=headers)
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_no_token_is_right_where_none_is_set(client):
    for given in ("Bearer None", "Bearer ", "Bearer"):
        response = client.get("/alkstore/metrics/", headers={"Authorization": given})
        assert response.status_code == 401


def test_staff_need_no_token(client):
    client.force_login(User.objects.create_user("ada", is_staff=True))
    assert client.get("/alkstore/metrics/").status_code == 200


def test_somebody_who_is_no_staff_is_refused(client):
    client.force_login(User.objects.create_user("bob"))
    assert client.get("/alkstore/metrics/").status_code == 403


def test_staff_who_were_deactivated_are_refused(client):
    client.force_login(User.objects.create_user("ada", is_staff=True, is_active=False))
    assert client.get("/alkstore/metrics/").status_code == 401


def test_a_project_without_users_can_serve_both(token):
    request = RequestFactory().get("/metrics/", headers=token)
    assert (health(request).status_code, metrics(request).status_code) == (200, 200)
    assert metrics(RequestFactory().get("/metrics/")).status_code == 401


def test_an_anonymous_user_is_a_stranger():
    request = RequestFactory().get("/metrics/")
    request.user = AnonymousUser()
    assert metrics(request).status_code == 401


# -- what they say --------------------------------------------------------------------------------


def test_every_line_is_of_the_text_format(client, token):
    JobFactory(dead=True)
    ScheduleFactory(name="a:b@c/d+e", overdue=True)
    LockFactory(name=SCHEDULER_LOCK)
    sql.engine().add_counts("reports", dict.fromkeys(sql.COUNTED, 1))
    text = client.get("/alkstore/metrics/", headers=token).content.decode()
    assert text.endswith("\n")
    assert [line for line in text.splitlines() if not LINE.fullmatch(line)] == []


def test_each_family_is_introduced_once_and_its_samples_follow(client, token):
    JobFactory(queue="mails")
    text = client.get("/alkstore/metrics/", headers=token).content.decode()
    introduced = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    sampled = [re.split(r"[{ ]", line)[0] for line in text.splitlines() if line[0] != "#"]
    assert len(introduced) == len(set(introduced))
    assert list(dict.fromkeys(sampled)) == [name for name in introduced if name in sampled]


def test_depth_is_by_queue_and_state(client, token):
    JobFactory.create_batch(2)
    JobFactory(lapsed=True)
    JobFactory(queue=backing_queue("receipts"), dead=True)
    found = scraped(client, token)
    assert found['alkstore_jobs{queue="reports",kind="queue",state="ready"}'] == "2"
    assert found['alkstore_jobs{queue="reports",kind="queue",state="lapsed"}'] == "1"
    assert found['alkstore_jobs{queue="receipts",kind="outbox",state="dead"}'] == "1"


def test_the_oldest_age_is_zero_where_nothing_waits(client, token):
    JobFactory(run_at=ago(500))
    JobFactory(queue="mails", scheduled=True)
    found = scraped(client, token)
    assert float(found['alkstore_oldest_ready_seconds{queue="reports",kind="queue"}']) >= 500
    assert found['alkstore_oldest_ready_seconds{queue="mails",kind="queue"}'] == "0.000"


def test_counters_are_of_all_times_and_only_grow(client, token):
    for _ in range(2):
        sql.engine().add_counts("reports", dict.fromkeys(sql.COUNTED, 0) | {"acked": 4, "lost": 1})
    found = scraped(client, token)
    assert found['alkstore_acks_total{queue="reports",kind="queue"}'] == "8"
    assert found['alkstore_lost_claims_total{queue="reports",kind="queue"}'] == "2"


def test_leadership_is_one_while_the_lease_lasts(client, token):
    assert scraped(client, token)["alkstore_leader"] == "0"
    row = LockFactory(name=SCHEDULER_LOCK)
    assert scraped(client, token)["alkstore_leader"] == "1"
    type(row).objects.update(expires_at=ago(5))
    assert scraped(client, token)["alkstore_leader"] == "0"


def test_lateness_is_by_schedule(client, token):
    ScheduleFactory(name="nightly", next_fire_at=ago(600))
    found = scraped(client, token)
    assert float(found['alkstore_schedule_late_seconds{schedule="nightly"}']) >= 600


def test_label_values_and_help_are_escaped():
    family = Metric("m", "gauge", "one \\ two\nthree")
    family.add(1, queue='a"b\\c\nd')
    assert exposition([family]) == (
        "# HELP m one \\\\ two\\nthree\n# TYPE m gauge\n" + 'm{queue="a\\"b\\\\c\\nd"} 1\n'
    )

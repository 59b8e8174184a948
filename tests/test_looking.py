"""What looking does to those who work: nothing."""

import logging
import threading
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.test import Client

from django_alkstore import queue
from django_alkstore.models import Job

from .factories import JobFactory, LockFactory, ScheduleFactory
from .processes import held, in_threads
from .workers import made

pytestmark = pytest.mark.django_db(transaction=True)

APP = "/admin/django_alkstore/"
READS = ("SELECT", "WITH")


@pytest.fixture
def client(django_user_model):
    """A superuser's, that any thread may use."""
    client = Client()
    client.force_login(django_user_model.objects.create_superuser("admin", password=None))
    return client


def addresses(job):
    """Every page of the app, and what machines ask."""
    lists = [f"{APP}{name}/" for name in ("job", "schedule", "fire", "lock")]
    filtered = [f"{APP}job/?state=running", f"{APP}job/?q=reports&age=newer-hour"]
    machines = ["/alkstore/health/", "/alkstore/metrics/"]
    return [APP, *lists, *filtered, f"{APP}job/{job}/change/", *machines]


def look(client, job):
    """Open every page; the statements that were sent."""
    sent = []

    def noted(execute, text, params, many, context):
        sent.append(text.lstrip())
        return execute(text, params, many, context)

    with connection.execute_wrapper(noted):
        for address in addresses(job):
            assert client.get(address).status_code == 200
    return sent


def test_pages_refreshed_beside_busy_workers_only_read_and_disturb_none(client, settings, caplog):
    settings.ALKSTORE = {"QUEUES": {"reports": {"retention": 3_600}}}
    ScheduleFactory(), LockFactory()
    ids = queue("reports").enqueue_many(range(300))
    ran, sent, over = [], [], threading.Event()

    def refresh():
        connection.ensure_connection()
        while not over.is_set():
            sent.extend(look(client, ids[min(len(ran), 299)]))

    def work():
        try:
            made(lambda job: ran.append(job.payload), batch_size=3).burst()
        finally:
            over.set()

    with caplog.at_level(logging.WARNING):
        in_threads(refresh, refresh, work, work, work)
    assert sorted(ran) == list(range(300))
    assert set(Job.objects.values_list("state", "attempts")) == {("done", 1)}
    assert len(sent) > 60
    assert not [text for text in sent if not text.startswith(READS)]
    assert not [text for text in sent if "FOR UPDATE" in text or "FOR SHARE" in text]
    assert [record for record in caplog.records if record.name.startswith("django_alkstore")] == []


@contextmanager
def claiming():
    """A claim whose transaction has not ended."""
    with transaction.atomic():
        assert queue("reports").claim("w")
        yield


def test_pages_open_while_a_claim_is_not_committed(client):
    job = JobFactory()
    with held(claiming):
        look(client, job.pk)


def test_workers_claim_while_the_transaction_of_a_page_is_open(client, only_on):
    only_on("postgresql", "mysql")  # on SQLite, "IMMEDIATE" lets any transaction lock
    jobs = JobFactory.create_batch(5)

    @contextmanager
    def looking():
        with transaction.atomic():
            look(client, jobs[0].pk)
            yield

    with held(looking):
        claimed = queue("reports").claim_batch("w", 5)
        assert [job.id for job in claimed] == [job.pk for job in jobs]
        assert queue("reports").ack_batch(claimed) == 5

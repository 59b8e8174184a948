from enum import Enum

import pytest
from django.utils.safestring import SafeString

from django_alkstore import AlkstoreError, InvalidName, ReservedName, get_job, queue, schedule
from django_alkstore.names import BACKING_NAME_MAX, backing_queue, outbox_of, shown_name, valid_name


class Names(str, Enum):
    REPORTS = "reports"


class Specs(str, Enum):
    HOURLY = "@every 1h"


ACCEPTED = {
    "one letter": "a",
    "one digit": "7",
    "one underscore": "_",
    "every other character": "a.b:c@d/e+f-g_h",
    "upper case": "Reports",
    "longest": "n" * 128,
    "almost the prefix": "__alkstore",
    "the prefix in the middle": "a__alkstore_",
    "the prefix in upper case": "__ALKSTORE_x",
}

REFUSED = {
    "empty": "",
    "too long": "n" * 129,
    "10 kB": "n" * 10_240,
    "space": "a b",
    "leading space": " a",
    "tab": "a\tb",
    "trailing newline": "a\n",
    "NUL": "a\0",
    "lone surrogate": "a\ud800",
    "leading dot": ".a",
    "leading dash": "-a",
    "leading slash": "/a",
    "umlaut": "größe",
    "full-width digit": "q１",
    "combining accent": "e\u0301",
    "quote": "a'b",
    "percent": "100%",
    "backslash": "a\\b",
    "asterisk": "a*",
    "bytes": b"reports",
    "None": None,
    "int": 7,
    "bool": True,
    "list": ["reports"],
    "class": str,
}

RESERVED = {
    "the prefix alone": "__alkstore_",
    "the scheduler's lock": "__alkstore_scheduler",
    "an outbox's backing queue": "__alkstore_outbox:receipts",
}


def cases(table):
    return pytest.mark.parametrize("name", table.values(), ids=table.keys())


@cases(ACCEPTED)
def test_a_name_of_the_rule_is_returned_as_it_is(name):
    assert valid_name("queue", name) == name


@cases(REFUSED)
def test_any_other_name_is_refused(name):
    with pytest.raises(InvalidName, match="^expected the queue name to be .*, got ") as caught:
        valid_name("queue", name)
    assert type(caught.value) is InvalidName
    assert len(str(caught.value)) < 300


@cases(RESERVED)
def test_a_name_with_the_packages_prefix_is_reserved(name):
    with pytest.raises(ReservedName, match="^expected the lock name to be .*, got '__alkstore_"):
        valid_name("lock", name)


@pytest.mark.parametrize("error", [InvalidName, ReservedName])
def test_a_name_error_is_a_value_error_and_one_of_ours(error):
    assert issubclass(error, ValueError) and issubclass(error, AlkstoreError)


@pytest.mark.parametrize("name", [SafeString("reports"), Names.REPORTS], ids=["safe", "enum"])
def test_a_subclass_of_str_becomes_a_plain_str(name):
    assert type(valid_name("queue", name)) is str
    assert valid_name("queue", name) == "reports"


def test_a_subclass_cannot_hide_the_reserved_prefix():
    class Sly(str):
        def startswith(self, *args):
            return False

    with pytest.raises(ReservedName):
        valid_name("queue", Sly("__alkstore_scheduler"))


def test_the_longest_outbox_name_fits_its_backing_queue():
    assert len(backing_queue("n" * 128)) == BACKING_NAME_MAX


def test_a_backing_queue_leads_back_to_its_outbox():
    assert outbox_of(backing_queue("receipts")) == "receipts"
    assert outbox_of("receipts") is None


def test_people_read_an_outbox_by_its_own_name():
    assert shown_name(backing_queue("receipts")) == "outbox receipts"
    assert shown_name("reports") == "reports"


@pytest.mark.django_db
@cases(ACCEPTED)
def test_names_are_stored_as_they_are(name):
    assert get_job(queue(name).enqueue(None)).queue == name


@pytest.mark.django_db
def test_names_compare_byte_for_byte():
    for name in ("reports", "Reports"):
        queue(name).enqueue(name)
    assert queue("Reports").claim("w").payload == "Reports"
    assert queue("Reports").claim("w") is None


@pytest.mark.django_db
def test_a_schedule_given_subclasses_of_str_stores_their_plain_text():
    row = schedule(SafeString("nightly"), Specs.HOURLY, Names.REPORTS)
    assert (row.name, row.spec, row.queue) == ("nightly", "@every 1h", "reports")
    row.refresh_from_db()
    assert (row.name, row.spec, row.queue) == ("nightly", "@every 1h", "reports")

import sys

import pytest
from django.utils.safestring import SafeString

from django_alkstore import PermanentError, RetryLater, get_job, queue
from django_alkstore.failures import MESSAGE_MAX, TRACEBACK_MAX, message_of, storable, traceback_of

from .factories import JobFactory


class Silent(Exception):
    def __str__(self):
        return ""


class Sly(str):
    """Text whose own methods are not to be trusted."""

    def __len__(self):
        raise SystemExit

    def encode(self, *args):
        raise SystemExit

    def __str__(self):
        raise SystemExit


class Reflecting(Exception):
    def __str__(self):
        return Sly("sly")


UNFORMATTABLE = SyntaxError("bad", ("file", 1, 1, 404))  # the source line should be text


def failing(raised):
    """An exception that fails whenever it is put into words."""

    class Failing(Exception):
        def __str__(self):
            raise raised

        __repr__ = __str__

    return Failing()


def caught(error):
    """``error`` as a worker gets it: with a traceback."""
    try:
        raise error
    except BaseException as exc:
        return exc


def recursion():
    def again():
        return again()

    try:
        again()
    except RecursionError as exc:
        return exc


def chain(length):
    error = ValueError("the first")
    for n in range(length):
        error = caught(caused(KeyError(n), error))
    return error


def caused(error, cause):
    error.__cause__ = cause
    return error


def circle():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return caught(one)


def group():
    if sys.version_info < (3, 11):
        pytest.skip("exception groups came with Python 3.11")
    inner = ExceptionGroup("inner", [caught(ValueError("a\0")), failing(SystemExit())])  # noqa: F821
    return caught(ExceptionGroup("outer", [inner, caught(KeyError("b"))]))  # noqa: F821


ERRORS = {
    "plain": lambda: caught(ValueError("boom")),
    "never raised": lambda: ValueError("boom"),
    "empty": lambda: caught(Silent()),
    "str() raises": lambda: caught(failing(ValueError())),
    "str() exits": lambda: caught(failing(SystemExit(3))),
    "str() interrupts": lambda: caught(failing(KeyboardInterrupt())),
    "str() returns a sly str": lambda: caught(Reflecting()),
    "SystemExit": lambda: caught(SystemExit(0)),
    "KeyboardInterrupt": lambda: caught(KeyboardInterrupt()),
    "NUL": lambda: caught(ValueError("a\0b")),
    "lone surrogates": lambda: caught(ValueError("\ud83d and \udc00")),
    "emoji": lambda: caught(ValueError("🐢" * 10_000)),
    "NUL alone": lambda: caught(ValueError("\0" * 10_000)),
    "20 MB": lambda: caught(ValueError("x" * 20_000_000)),
    "recursion": recursion,
    "chain": lambda: chain(500),
    "circle": circle,
    "unformattable": lambda: caught(UNFORMATTABLE),
    "group": group,
    "PermanentError": lambda: caught(PermanentError("no such order")),
    "RetryLater": lambda: caught(RetryLater(5)),
}

errors = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, None),
        (ValueError("boom"), "boom"),
        (ValueError(), "ValueError"),
        (Silent(), "Silent"),
        (failing(ValueError()), "Failing"),
        (failing(SystemExit()), "Failing"),
        (failing(KeyboardInterrupt()), "Failing"),
        (Reflecting(), "sly"),
        (RetryLater(5), "retry after 5"),
        (RetryLater(5, "busy"), "busy"),
        ("text", "text"),
        ("", ""),
        (SafeString("<b>"), "<b>"),
        (Sly("sly"), "sly"),
        (404, "404"),
        (b"bytes", "b'bytes'"),
        (ValueError("a\0b\ud800c"), "a\\x00b\\ud800c"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_message_is_what_the_error_says_or_else_its_class(error, message):
    assert message_of(error) == message


@pytest.mark.parametrize("raised", [ValueError(), SystemExit(), KeyboardInterrupt()])
def test_asking_for_a_retry_after_something_without_words_is_no_error(raised):
    assert str(RetryLater(failing(raised))) == "retry after <Failing whose repr() raises>"


# -- tracebacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, "text", 404, ValueError], ids=str)
def test_only_an_exception_has_a_traceback(error):
    assert traceback_of(error) is None


def test_a_traceback_begins_at_the_top_and_ends_with_the_error():
    text = traceback_of(caught(ValueError("boom")))
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: boom\n")


def test_an_endless_recursion_leaves_a_traceback_that_names_it():
    text = traceback_of(recursion())
    assert "RecursionError" in text
    assert "in again" in text


def test_the_cause_of_an_error_is_in_its_traceback():
    text = traceback_of(chain(2))
    assert "ValueError: the first" in text
    assert "direct cause" in text


def test_an_error_without_words_still_leaves_where_it_was_raised():
    text = traceback_of(caught(failing(SystemExit())))
    assert "in caught" in text
    assert "Failing" in text


def test_an_error_that_cannot_be_formatted_still_leaves_its_class():
    text = traceback_of(caught(UNFORMATTABLE))
    assert text == "SyntaxError (its traceback cannot be formatted)"


# -- cutting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [100, 101, MESSAGE_MAX, TRACEBACK_MAX])
@pytest.mark.parametrize("over", [1, 2, 1_000, 20_000_000])
def test_text_beyond_the_limit_is_cut_to_exactly_it_with_both_ends_kept(limit, over):
    text = "first" + "x" * (limit + over - 9) + "last"
    cut = storable(text, limit)
    assert len(cut) == limit
    assert cut.startswith("first") and cut.endswith("last")
    assert f"cut from {len(text)} characters" in cut


def test_text_up_to_the_limit_is_left_alone():
    assert storable("x" * 100, 100) == "x" * 100


def test_text_is_cut_after_it_was_escaped():
    assert len(storable("\0" * 100, 100)) == 100
    assert len(message_of(ValueError("\ud800" * MESSAGE_MAX))) == MESSAGE_MAX


# -- on the row -----------------------------------------------------------------------------------


@pytest.mark.django_db
@errors
def test_whatever_was_raised_is_recorded(error):
    error = error()
    JobFactory(queue="reports")
    job = queue("reports").claim("w")
    assert job.fail(error)
    row = get_job(job.id)
    assert (row.state, row.last_error) == ("dead", message_of(error))
    assert row.last_traceback == traceback_of(error)
    assert 0 < len(row.last_error) <= MESSAGE_MAX
    assert 0 < len(row.last_traceback) <= TRACEBACK_MAX

"""A short run of the torture: the promises hold, and a planted fault is found and told."""

from types import SimpleNamespace

import pytest

from .processes import across_connections
from .torture.nemesis import DEEDS, plan
from .torture.restarting import CannotRestart, restart_command, restarts
from .torture.run import run

pytestmark = across_connections


def test_every_promise_holds_under_torture(tmp_path):
    verdict = run(seed=7, seconds=8, directory=tmp_path)
    assert verdict.holds, "\n".join(verdict.lines())


def test_a_planted_fault_is_found_and_its_story_is_told(tmp_path):
    verdict = run(seed=7, seconds=2, directory=tmp_path, mutant="a_key_for_each_attempt")
    fault = verdict.faults["keys_are_stable"][0]
    told = verdict.evidence.story(fault.subject)
    entered = [line for line in told if " entered " in line]
    assert len(entered) > 1
    assert all(f"id {fault.subject}," in line for line in entered)
    assert {f"  {line}" for line in told} <= set(verdict.lines())


def test_the_plan_comes_from_the_seed():
    assert plan(7, 60) == plan(7, 60) != plan(8, 60)


@pytest.mark.parametrize("seed", range(5))
def test_a_minute_has_every_kind_of_deed(seed):
    assert {(deed.what, deed.whom) for deed in plan(seed, 60)} == set(DEEDS)


# -- restarts of the server -----------------------------------------------------------------------


def server(vendor="postgresql", **conf):
    """As much of a connection as is asked."""
    conf = {"HOST": "127.0.0.1", "PORT": "1", **conf}
    return SimpleNamespace(vendor=vendor, display_name=vendor, settings_dict=conf)


def test_a_given_command_restarts_the_server():
    argv = ["pg_ctl", "-D", "/srv/my data", "restart"]
    assert restart_command(server(), "pg_ctl -D '/srv/my data' restart") == argv


@pytest.mark.parametrize(
    "connection, why",
    [
        (server("mysql"), "expected PostgreSQL to restart, got mysql"),
        (
            server(HOST="db.example.com"),
            "expected a server on this host, got one on db.example.com",
        ),
        (server(), "got (none there|a host without it): name the command"),
    ],
)
def test_a_server_that_cannot_be_restarted_is_refused(connection, why):
    with pytest.raises(CannotRestart, match=why):
        restart_command(connection, "")


@pytest.mark.parametrize("seconds, times", [(8, [4]), (60, [20, 40]), (300, [*range(20, 300, 20)])])
def test_the_server_is_restarted_every_twenty_seconds_but_once_at_least(seconds, times):
    assert restarts(seconds) == times

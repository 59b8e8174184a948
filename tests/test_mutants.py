"""Each rule of the torture's checker fails on a planted fault, and holds without it."""

import pytest

from .processes import across_connections
from .torture.evidence import gather
from .torture.history import JOURNAL, journal
from .torture.mutants import MUTANTS, planted
from .torture.recording import recorded
from .torture.rules import RULES, check

pytestmark = across_connections


@pytest.fixture
def broken_rules(tmp_path, monkeypatch):
    """Play a scenario; the rules that its evidence breaks, with their faults."""
    monkeypatch.setenv(JOURNAL, str(tmp_path / "journal.jsonl"))

    def play(scenario):
        journal().write("begin")
        with recorded(journal()):
            scenario()
        found = check(gather(tmp_path / "journal.jsonl"))
        return {rule: faults for rule, faults in found.items() if faults}

    return play


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_breaks_its_rule(name, broken_rules, only_on):
    mutant = MUTANTS[name]
    only_on(*mutant.on)
    with planted(name):
        assert mutant.rule.__name__ in broken_rules(mutant.scenario)


@pytest.mark.parametrize(
    "name", {mutant.scenario: name for name, mutant in MUTANTS.items()}.values()
)
def test_without_the_fault_every_rule_holds(name, broken_rules):
    assert broken_rules(MUTANTS[name].scenario) == {}


def test_every_rule_has_a_fault_that_breaks_it():
    assert {mutant.rule for mutant in MUTANTS.values()} == set(RULES)

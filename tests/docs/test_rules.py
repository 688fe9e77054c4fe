"""Each rule that the protocol pages name has planted faults, and the page that lists them agrees with the tables."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.docs.rules import PAGE, PAGES, every_fault, kept, planted_for, rules_on, unknown, written
from tests.simulation.mutants import MUTANTS
from tests.simulation.rules import RULES, Rule


@pytest.mark.parametrize("page", PAGES)
def test_the_table_has_the_rules_of_each_page_in_order(page: str) -> None:
    assert list(rules_on(page)) == [rule.name for rule in RULES if rule.page == page]


def test_every_fault_of_a_rule_is_planted_and_no_two_have_one_name() -> None:
    names = Counter(fault.name for fault in every_fault())
    assert [name for name, count in names.items() if count > 1] == []
    assert {name for rule in RULES for name in rule.faults} - names.keys() == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_has_a_fault_that_exploring_finds_where_what_holds_it_is_explored(rule: Rule) -> None:
    assert rule.faults and len(set(rule.faults)) == len(rule.faults)
    assert rule.is_explored == any(fault in MUTANTS for fault in planted_for([rule]))


def test_the_page_lists_the_rules_their_faults_and_what_may_find_them() -> None:
    page = PAGE.read_text()
    found = kept(page)
    unlisted = [fault.name for fault in unknown(planted_for(RULES), found)]
    assert unlisted == [] and written(found) == page, "run `python -m tests.docs.rules`"

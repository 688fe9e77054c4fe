"""A run plants a fault of every rule and a twelfth of the others; all fit the source that they change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.docs.rules import tables
from tests.simulation.drawn_faults import ONE_OF, digest_of, is_drawn, of_rules, place_of, tree_digest
from tests.simulation.importing import ROOT, planted
from tests.simulation.mutants import MUTANTS
from tests.simulation.planting import Mutant
from tests.simulation.rules import RULES

TABLES = tables()
ALL = [mutant for table in TABLES.values() for mutant in table.mutants]


def test_every_rule_has_a_fault_in_every_run() -> None:
    drawn = {mutant.name for mutant in [*ALL, *MUTANTS] if is_drawn(mutant)}
    assert [rule.name for rule in RULES if drawn.isdisjoint(rule.faults)] == []


def test_of_the_others_a_twelfth_is() -> None:
    others = [mutant for mutant in [*ALL, *MUTANTS] if mutant.name not in of_rules(tree_digest())]
    drawn = sum(is_drawn(mutant) for mutant in others)
    assert 0.04 < drawn / len(others) < 0.14 and ONE_OF == 12


def test_over_some_changes_to_the_code_every_fault_is_planted() -> None:
    trees = [digest_of([b"a change", bytes([n])]) for n in range(240)]
    names = {mutant.name for mutant in [*ALL, *MUTANTS]}
    assert {name for name in names for tree in trees if place_of(name, tree) % ONE_OF == 0} == names
    assert {name for tree in trees for name in of_rules(tree)} == {name for rule in RULES for name in rule.faults}


def test_a_tree_draws_the_same_whenever_it_is_asked() -> None:
    first = tree_digest()
    tree_digest.cache_clear()
    assert tree_digest() == first
    assert len({first, digest_of([b"ab", b"c"]), digest_of([b"a", b"bc"]), digest_of([b"c", b"ab"])}) == 4


@pytest.mark.parametrize("faults", [MUTANTS, *(table.mutants for table in TABLES.values())], ids=["explored", *TABLES])
def test_every_fault_fits_the_source_whether_it_is_drawn_or_not(faults: Sequence[Mutant]) -> None:
    texts: dict[str, str] = {}
    for mutant in faults:
        text = texts.setdefault(mutant.file, (ROOT / mutant.file).read_text())
        assert not mutant.edits or planted(text, mutant) != text, mutant.name


def test_a_fault_that_fits_no_more_is_named() -> None:
    with pytest.raises(ValueError, match="update the mutant"):
        planted("nothing of the kind", Mutant("gone", "ops", ("t",), "outbox/app.py", (("what was there", "x"),)))

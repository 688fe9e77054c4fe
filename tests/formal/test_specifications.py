"""The specifications in docs/formal hold, and TLC refutes each of them when one of its rules is switched off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.docs.test_references import names_in
from tests.formal import tlc

pytestmark = pytest.mark.slow


ROOT = tlc.FOLDER.parents[1]
PAGE = tlc.FOLDER / "README.md"
SPECIFICATIONS = ("EngineScope", "PartitionScope", "ItemScope", "Talk")
STALE = {"Kinds": '{"stale"}'}
ONE, TWO = {"Messages": '{"a"}'}, {"Messages": '{"a", "b"}', "FaultsMax": "0"}


class Scope(NamedTuple):
    """What a specification is checked with: constants other than those of its .cfg, and whether it comes to rest."""

    specification: str
    constants: Mapping[str, str]
    is_live: bool = False


class Mutant(NamedTuple):
    """A rule that is switched off, and the promise that this breaks."""

    specification: str
    off: str
    promise: str
    constants: Mapping[str, str] = MappingProxyType({})


SCOPES = [
    Scope("EngineScope", {}),
    Scope("EngineScope", {"Outside": "{}", "Inner": '{"a", "b"}'}),
    Scope("EngineScope", {"FaultsMax": "1"}, is_live=True),
    Scope("PartitionScope", {}),
    Scope("PartitionScope", {**ONE, "Twice": '{"a"}', "Kinds": '{"crash", "late"}', "Aging": '{"a"}'}),
    Scope("PartitionScope", {**ONE, "Twice": '{"a"}', "Kinds": '{"crash"}'}, is_live=True),
    Scope("ItemScope", {}),
    Scope("ItemScope", STALE),
    Scope("ItemScope", {"Kinds": '{"crash", "late"}', "Twice": "{}"}, is_live=True),
    Scope("Talk", {}),
    Scope("Talk", STALE),
    Scope("Talk", {"Kinds": '{"crash"}'}, is_live=True),
]

MUTANTS = [
    Mutant("EngineScope", '"gate"', "NoGhost"),
    Mutant("EngineScope", '"acknowledge"', "EveryMessageEnds"),
    Mutant("EngineScope", '"marker"', "NoDuplicate"),
    Mutant("EngineScope", '"lock"', "NoDuplicate", {"Inner": '{"b"}'}),
    Mutant("EngineScope", '"version"', "OneChangePerVersion", {"Inner": '{"b"}'}),
    Mutant("EngineScope", '"one-record"', "NoDuplicate", {"Inner": '{"b"}'}),
    Mutant("PartitionScope", '"create"', "NoDuplicate", {"Twice": '{"a"}'}),
    Mutant("PartitionScope", '"if-match"', "OneChangePerVersion", TWO),
    Mutant("PartitionScope", '"resolve"', "NoGhost", ONE),
    Mutant("PartitionScope", '"stored"', "NoGhost", {**ONE, "Twice": '{"a"}'}),
    Mutant("PartitionScope", '"push-first", "sweep"', "NoLost", ONE),
    Mutant("PartitionScope", '"keep-pending"', "NoLost", {**ONE, "Aging": '{"a"}'}),
    Mutant("PartitionScope", '"margin"', "NoDuplicate", {**ONE, "Twice": '{"a"}', "Aging": '{"a"}'}),
    Mutant("PartitionScope", '"fence"', "NoDuplicate", {**ONE, "Twice": '{"a"}', "Aging": '{"a"}'}),
    Mutant("ItemScope", '"create"', "NoDuplicate"),
    Mutant("ItemScope", '"keep"', "NoAlarm"),
    Mutant("ItemScope", '"finish-first"', "NoDuplicate"),
    Mutant("ItemScope", '"dispatched"', "NoAlarm"),
    Mutant("ItemScope", '"from-pointers"', "NoGhost"),
    Mutant("ItemScope", '"past"', "NoAlarm"),
    Mutant("ItemScope", '"sweep"', "StagedVanish"),
    Mutant("ItemScope", '"token"', "NoAlarm", STALE),
    Mutant("ItemScope", '"confirm"', "NoAlarm", STALE),
    Mutant("Talk", '"create"', "OneChangePerVersion"),
    Mutant("Talk", '"keep"', "NoDuplicate"),
    Mutant("Talk", '"look-again"', "NoDuplicate", STALE),
    Mutant("Talk", '"token"', "NoDuplicate", STALE),
    Mutant("Talk", '"sweep"', "StagedVanish"),
]

_MUTANT = re.compile(r"^\| (`[^|]+`) \| [^|]+ \| (\w+) \| (\d+) \|$", re.MULTILINE)
_STEP = re.compile(r"^\\\* code: ([\w/]+\.py)(?:::([\w.]+))?.*\n(\w+)(?:\(\w\))? ==", re.MULTILINE)

each = pytest.mark.parametrize("specification", SPECIFICATIONS)
CHECKED = [*SPECIFICATIONS[:3], pytest.param("Talk", marks=pytest.mark.soak)]
"""Talk is no protocol of ours: what it shows changes with the page alone."""


def section(specification: str) -> str:
    """What the page says of a specification."""
    return PAGE.read_text().split(f"\n## {specification}\n", 1)[1].split("\n## ", 1)[0]


@pytest.fixture(scope="module")
def runners() -> Iterator[ThreadPoolExecutor]:
    """Threads that each start a TLC, where there is one; more than cores, because half of a start is waiting."""
    try:
        tlc.command()
    except tlc.NotHere as missing:
        pytest.skip(str(missing))
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.mark.java
@pytest.mark.parametrize("specification", CHECKED)
def test_a_specification_keeps_its_promises_and_comes_to_rest(specification: str, runners: ThreadPoolExecutor) -> None:
    scopes = [scope for scope in SCOPES if scope.specification == specification]
    verdicts = runners.map(lambda scope: tlc.check(scope[0], scope[1], is_live=scope[2]), scopes)
    for scope, verdict in zip(scopes, verdicts, strict=True):
        assert not verdict.broken, f"{scope}:\n{verdict.text}"
        assert verdict.states > 1_000, f"{scope} is too small to say anything:\n{verdict.text}"


@pytest.mark.java
@pytest.mark.soak  # a start of TLC for each rule; that each rule has its mutant is part of every run
@each
def test_tlc_refutes_a_specification_without_any_one_of_its_rules(
    specification: str, runners: ThreadPoolExecutor
) -> None:
    mutants = [mutant for mutant in MUTANTS if mutant.specification == specification]
    verdicts = runners.map(lambda mutant: tlc.check(mutant[0], {**mutant[3], "Off": f"{{{mutant[1]}}}"}), mutants)
    found = {mutant.off: verdict for mutant, verdict in zip(mutants, verdicts, strict=True)}
    assert {off: verdict.broken for off, verdict in found.items()} == {m.off: m.promise for m in mutants}
    reported = {
        off.replace("`", '"'): (promise, int(steps)) for off, promise, steps in _MUTANT.findall(section(specification))
    }
    assert reported == {off: (verdict.broken, verdict.steps) for off, verdict in found.items()}


@each
def test_every_rule_of_a_specification_has_a_mutant(specification: str) -> None:
    rules = set(re.findall(r'On\("([\w-]+)"\)', (tlc.FOLDER / f"{specification}.tla").read_text()))
    refuted = {
        rule
        for mutant in MUTANTS
        if mutant.specification == specification
        for rule in re.findall(r"[\w-]+", mutant.off)
    }
    assert rules - refuted == ({"look-again"} if specification == "ItemScope" else set())


@each
def test_the_steps_of_a_specification_are_steps_of_the_code(specification: str) -> None:
    text = (tlc.FOLDER / f"{specification}.tla").read_text()
    rows = _STEP.findall(text)
    assert len(rows) >= 8 or specification == "Talk"
    assert len(rows) == len(re.findall(r"^.*code: outbox/", text, re.MULTILINE))
    for path, name, step in rows:
        assert (ROOT / path).is_file(), f"{step}: {path}"
        assert not name or name in names_in(ROOT / path), f"{step}: {path}::{name}"

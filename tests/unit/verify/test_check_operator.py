"""Whether an operator is pure, whether it is commutative, and which output says so."""

from __future__ import annotations

import random

import pytest

from outbox.streams import Pipeline
from outbox.streams.pipeline.core import OperatorFailed
from outbox.streams.pipeline.operators import Operator
from outbox.verify import check_operator
from outbox.verify.findings import operators
from outbox.verify.findings.operators import OperatorReport
from tests.unit.streams.pipeline.counting import Counting, Word
from tests.unit.streams.pipeline.selling import Selling
from tests.unit.verify import tried
from tests.unit.verify.tried import ENGINE, LINES, Line, Newest

PROCESSES = {"counted": ("1",), "distinct": ("2",)}
"""Another process takes half a second, so these alone have one."""


def checked(monkeypatch: pytest.MonkeyPatch, operator: Operator, *texts: str) -> OperatorReport:
    monkeypatch.setattr(operators, "HASH_SEEDS", PROCESSES.get(operator.name, ()))
    return check_operator(operator, [Line(text) for text in texts])


@pytest.mark.parametrize("operator", [tried.words, tried.is_long, tried.counted])
def test_what_depends_on_nothing_else_is_pure_and_commutative(
    monkeypatch: pytest.MonkeyPatch, operator: Operator
) -> None:
    report = checked(monkeypatch, operator, "some words", "and", "more of them")
    assert report.pure and report.commutative, report.text
    assert report.text == f"{operator.name} is pure; as far as 3 inputs show it, it is commutative"


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        (tried.pairs, 'output 0 is {"text":"b"}, and {"text":"a"} when input 0 (Line {"text":"b"}) and input 1'),
        (tried.joined, 'output 0 is {"text":"ba"}, and {"text":"ab"} when input 0 (Line {"text":"b"}) and input 1'),
    ],
)
def test_what_the_order_of_inputs_shows_in_is_not_commutative(
    monkeypatch: pytest.MonkeyPatch, operator: Operator, text: str
) -> None:
    report = checked(monkeypatch, operator, "b", "a")
    assert report.pure and not report.commutative
    assert report.text.startswith(f"{operator.name} is pure; not commutative: {text}"), report.text


def test_an_order_that_shows_only_behind_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(monkeypatch, tried.third, "a", "b", "c")
    assert 'when input 1 (Line {"text":"b"}) and input 2' in report.text and not report.commutative


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        (tried.stamped, "on another day; it calls time.time"),
        (tried.drawn, "when it is run again; it calls random"),
        (tried.numbered, 'output 0 is {"text":"a b c d e f g h 1"} of input 0 (Line {"text":"a b c d e f g h"}), and'),
        (tried.distinct, "in a process with PYTHONHASHSEED=2"),
        (tried.noted, "state 0 is all: {"),
        (tried.reads, "it opens the file '/proc/self/status'"),
    ],
)
def test_what_asks_for_something_else_is_not_pure(
    monkeypatch: pytest.MonkeyPatch, operator: Operator, text: str
) -> None:
    tried.remembered.clear()
    before = random.getstate()
    report = checked(monkeypatch, operator, "a b c d e f g h", "x")
    assert not report.pure and not report.commutative
    assert report.text.startswith(f"{operator.name} is not pure: ") and text in report.text, report.text
    assert random.getstate() == before


def test_an_operator_of_a_pipeline_that_a_function_builds_is_found_by_its_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operators, "HASH_SEEDS", ("1",))
    split, count = Counting(ENGINE).pipeline.plan().operators
    assert split.name == "words"
    report = check_operator(count, [Word("a"), Word("b"), Word("a")])
    assert report.pure and report.commutative, report.text


def test_what_cannot_be_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, 33):
        with pytest.raises(ValueError, match=f"{count} values: give 1 to 32"):
            check_operator(tried.words, [Line("x")] * count)
    monkeypatch.setattr(operators, "HASH_SEEDS", ("1",))
    with pytest.raises(ValueError, match=r"here does not run in another process: .*it runs in tests alone"):
        check_operator(tried.here, [Line("x")])
    with pytest.raises(OperatorFailed, match="invalid literal"):
        check_operator(tried.number, [Line("x")])
    timed = next(each for each in Selling(ENGINE).pipeline.plan().operators if each.kind == "window")
    with pytest.raises(ValueError, match="is a window by a time of its values; try it as one by the log's time"):
        check_operator(timed, [Line("x")])
    other = Pipeline("q", source=LINES)
    unnamed = other.reduce(source=LINES, key=lambda line: 1, state=Newest)(tried.counted.function)
    with pytest.raises(ValueError, match=r"cannot find test_what_cannot.*lambda.*; define it at the top of a module"):
        check_operator(unnamed, [Line("x")])

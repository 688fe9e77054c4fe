"""Histories of ordered logs and processors, made by hand: what the judge finds in each."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import (
    Change,
    Commit,
    Emitted,
    Event,
    Fail,
    Found,
    Life,
    Ok,
    Push,
    Quiesce,
    Read,
    Taken,
    Unknown,
)

IN, OUT = "log/numbers/0.0", "log/sums/0.0"
NAME = "processor/adder"


def swap(op: int, serial: int, *outputs: str, taken: tuple[tuple[int, int], tuple[int, int]] | None = None) -> Commit:
    """The swap to a serial that emits these identities to the log of sums."""
    return Commit(
        op=op,
        changes=[Change(NAME, serial, serial + 1, 7)],
        outputs=[Emitted(id, OUT, 5, f"adder#{serial}") for id in outputs],
        staged=True,
        tx=f"nonce{serial}",
        step=f"adder#{serial}",
        taken=[Taken(IN, *taken)] if taken else [],
    )


def push(op: int, id: str, index: int, *, digest: int = 5, cause: str = "adder#1") -> Push:
    return Push(op=op, outputs=[Emitted(id, OUT, digest, cause, index=index)])


def cells(log: str, *there: tuple[int, str, int]) -> Read:
    """A look at cells: where each lies, its identity, and the digest of what it holds."""
    return Read(log=log, cells=list(there))


ENTRIES = cells(IN, (0, "a", 1), (1, "b", 2))
MORE = cells(IN, (2, "c", 3))
BEGUN: list[Event] = [Life(is_empty=True), ENTRIES, swap(1, 0), Ok(op=1)]
STEP = swap(2, 1, "x", taken=((0, 0), (2, 0)))
APPENDED = cells(OUT, (0, "x", 5))
END = Quiesce(queues=[IN, OUT])
SOUND: list[Event] = [*BEGUN, STEP, Ok(op=2), push(3, "x", 0), Ok(op=3), swap(4, 2), Ok(op=4), END]


def at_last(*events: Event) -> list[Event]:
    """All that is sound, and these at the end."""
    return [*SOUND[:-1], *events, END]


def next_takes(*taken: tuple[int, int]) -> list[Event]:
    """All that is sound, with a second step that takes what lies between two places."""
    since, until = taken
    return [*SOUND[:-3], swap(4, 2, taken=(since, until)), Ok(op=4), END]


def found(events: list[Event]) -> dict[str, tuple[str, ...]]:
    """What is found in a history, and the promises that each breaks."""
    return {finding.what: finding.breaks for finding in check(events).findings}


IN_THE_MIDDLE = (swap(4, 2, taken=((2, 0), (2, 3))), Ok(op=4), swap(5, 3, taken=((2, 3), (3, 0))), Ok(op=5))
SOUND_HISTORIES = {
    "a step": SOUND,
    "the reply of an append is lost, and the cell is read": [*SOUND[:7], Unknown(op=3), APPENDED, *SOUND[8:]],
    "another was first at that index": [
        *(*SOUND[:7], Fail(op=3, why="lost"), cells(OUT, (0, "other", 9))),
        *(push(5, "x", 1), Ok(op=5), *SOUND[8:]),
    ],
    "two replicas append it": [*SOUND[:8], push(5, "x", 0), Fail(op=5), APPENDED, *SOUND[8:]],
    "the reply of a swap is lost, and its register is read": [
        *(*BEGUN, STEP, Unknown(op=2), Found(txs=["nonce1"]), *SOUND[6:])
    ],
    "the reply of a swap is lost, and its cell is read": [*BEGUN, STEP, Unknown(op=2), APPENDED, *SOUND[8:]],
    "one replica's swap loses": [*BEGUN, STEP, replace(STEP, op=9), Fail(op=9, why="lost"), *SOUND[5:]],
    "a cell is read again": at_last(ENTRIES),
    "a step in the middle of a cell": [SOUND[0], MORE, *SOUND[1:-3], *IN_THE_MIDDLE, END],
}


@pytest.mark.parametrize("name", SOUND_HISTORIES)
def test_a_sound_history_keeps_every_promise(name: str) -> None:
    verdict = check(SOUND_HISTORIES[name])
    assert verdict.ok, verdict.text


class Broken(NamedTuple):
    """A history, what is found in it, and a promise that this breaks."""

    events: list[Event]
    what: str
    promise: str


BROKEN_HISTORIES = {
    "an identity at two indexes": Broken(at_last(cells(OUT, (4, "x", 5))), "appended twice", "at-most-once"),
    "another cell at the index of one": Broken(at_last(cells(OUT, (0, "y", 5))), "overwritten cell", "at-least-once"),
    "a cell with another payload": Broken(at_last(cells(OUT, (0, "x", 6))), "changed payload", "consistent"),
    "an append with another payload than was committed": Broken(
        [*SOUND[:6], push(3, "x", 0, digest=6), *SOUND[7:]], "changed payload", "consistent"
    ),
    "an append that no step made": Broken([*BEGUN, push(3, "z", 0), Ok(op=3), END], "ghost output", "consistent"),
    "a step before the outputs of the one before": Broken(
        [*SOUND[:6], *SOUND[8:-1], push(5, "x", 0), Ok(op=5), END], "moved on", "at-least-once"
    ),
    "an output that is never appended": Broken([*SOUND[:6], END], "lost output", "at-least-once"),
    "entries that are taken twice": Broken(next_takes((1, 0), (2, 0)), "entries taken twice", "at-most-once"),
    "entries that are left out": Broken(
        [BEGUN[0], cells(IN, (2, "c", 3), (3, "d", 4)), *next_takes((3, 0), (4, 0))[1:]],
        "entries left out",
        "at-least-once",
    ),
    "a cursor that falls": Broken(next_takes((2, 0), (1, 0)), "cursor fell", "consistent"),
    "entries that nobody appended": Broken(next_takes((2, 0), (3, 0)), "ghost entries", "consistent"),
    "some entries of a cell that nobody appended": Broken(next_takes((2, 0), (2, 1)), "ghost entries", "consistent"),
    "entries that nobody takes": Broken(at_last(MORE), "unread entries", "at-least-once"),
    "two swaps to one serial": Broken(
        [*SOUND[:-3], replace(STEP, op=9, tx="other", outputs=[]), Ok(op=9), END], "forked version", "consistent"
    ),
}


@pytest.mark.parametrize("name", BROKEN_HISTORIES)
def test_what_is_wrong_is_found(name: str) -> None:
    events, what, promise = BROKEN_HISTORIES[name]
    findings = found(events)
    assert promise in findings.get(what, ()), findings


def test_a_log_that_is_not_named_may_have_entries_that_nobody_has_taken_yet() -> None:
    events = [*SOUND[:-1], MORE, Quiesce(queues=[OUT])]
    assert check(events).ok

"""Histories of pipelines, made by hand: what the judge finds in each."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import Durable, Emitted, Event, In, Left, Life, Ok, Push, Quiesce, Read, Result
from outbox.verify.recorded.verdict import CONSISTENT, EXACTLY_ONCE, LOST, RECOVERABLE, TWICE

PAGES, CHANGES = "log/pages/0.0", "log/changes/0.0"


def came(index: int) -> In:
    return In(queue=PAGES, messages=[(f"page {index}", index)], index=index)


def made(index: int, *items: int, version: int = 1) -> Result:
    """What a replica has made at a cell; without items that it has come there."""
    place = f"{index}.0"
    return Result(
        id=f"index at {place}, version {version}" if items else "index to changes",
        parents=[f"{PAGES}/{place}"],
        is_ordered=True,
        sink=CHANGES,
        version=version,
        at=(index, 0),
        items=list(items),
    )


def left(index: int, since: int, until: int, *items: int, version: int = 1) -> Left:
    id = f"bundle {since} to {until}, version {version}"
    begin, end = (since, 0), (until, 0)
    return Left(
        id=id, parents=[], sink=CHANGES, version=version, index=index, since=begin, until=end, items=list(items)
    )


def stands(until: int, *, version: int = 1) -> Durable:
    return Durable(id=f"index/{until}", sinks=[CHANGES], version=version, until=(until, 0))


END = Quiesce(queues=[PAGES])
FIRST, SECOND = left(0, 0, 1, 5, 6), left(1, 1, 3, 7)
BEGUN: list[Event] = [Life(is_empty=True), stands(0), came(0), came(1), came(2)]
MADE: list[Event] = [*BEGUN, made(0, 5, 6), made(2, 7), made(3)]
"""The second page gives nothing."""
SOUND: list[Event] = [*MADE, FIRST, SECOND, stands(3), END]


def at_last(*events: Event) -> list[Event]:
    """All that is sound, and these at the end."""
    return [*SOUND[:-1], *events, END]


SOUND_HISTORIES = {
    "one replica": SOUND,
    "two replicas, whose bundles are told by both": [*SOUND[:-1], *MADE[2:], FIRST, SECOND, END],
    "one that begins behind a checkpoint": at_last(came(2), made(2, 7), made(3)),
    "bundles that are told in another order": [*MADE, SECOND, FIRST, END],
    "one that has taken less than another": at_last(made(1)),
    "a newer version, behind what the older has released": [
        *(*MADE, FIRST, stands(0, version=2)),
        *(made(0, 50, version=2), made(2, 70, version=2), made(3, version=2)),
        *(left(1, 1, 3, 70, version=2), stands(3, version=2), END),
    ],
    "a newer version that gives nothing where the older did": [
        *(*MADE, FIRST, stands(0, version=2)),
        *(made(0, 50, version=2), made(3, version=2), stands(3, version=2), END),
    ],
}


@pytest.mark.parametrize("name", SOUND_HISTORIES)
def test_a_sound_history_breaks_no_promise(name: str) -> None:
    verdict = check(SOUND_HISTORIES[name])
    assert verdict.ok, verdict.text


GHOSTS = (CONSISTENT, EXACTLY_ONCE, RECOVERABLE)


class Forged(NamedTuple):
    """A history, what is found in it, and the promises that this breaks."""

    events: list[Event]
    what: str
    breaks: tuple[str, ...]


BROKEN = {
    "an output lies in two bundles": Forged([*MADE, FIRST, left(1, 0, 3, 5, 6, 7), END], "doubled output", TWICE),
    "a bundle lies twice": Forged(
        [*MADE, left(0, 0, 3, 5, 6, 7), left(1, 0, 3, 5, 6, 7), END], "appended twice", TWICE
    ),
    "an output never leaves": Forged([*MADE, FIRST, END], "lost output", LOST),
    "a bundle begins too late": Forged([*MADE, FIRST, left(1, 2, 3, 7), END], "lost output", LOST),
    "a bundle lacks an output": Forged([*MADE, left(0, 0, 3, 5, 7), END], "changed payload", GHOSTS),
    "a bundle has another's output": Forged([*MADE, left(0, 0, 3, 5, 6, 8), END], "changed payload", GHOSTS),
    "a bundle of which nobody made anything": Forged(
        [*MADE, *SOUND[-4:-1], left(2, 3, 4, 9), END], "ghost output", GHOSTS
    ),
    "a bundle of another writer": Forged([*MADE, left(0, 0, 3, 5, 6, 7, version=0), END], "ghost output", GHOSTS),
    "a result is made otherwise": Forged(at_last(made(2, 8)), "attempts differ", ("deterministic", *GHOSTS)),
    "a result has one item less when it is made again": Forged(
        [*MADE, made(0, 5), *SOUND[-4:]], "attempts differ", ("deterministic", *GHOSTS)
    ),
    "a checkpoint stands before all below it has left": Forged(
        [*MADE, FIRST, stands(3), SECOND, END], "moved on", (*LOST, RECOVERABLE)
    ),
    "a bundle that is told behind its next leaves a gap to it": Forged(
        [*MADE, left(1, 2, 3, 7), FIRST, END], "lost output", LOST
    ),
    "a bundle covers again what one far before it has": Forged(
        [*MADE, FIRST, SECOND, left(2, 0, 1, 5, 6), END], "doubled output", TWICE
    ),
    "the source is not read to its end": Forged(at_last(came(3)), "unread entries", LOST),
    "an entry was appended and nobody has taken it": Forged(
        at_last(Push(op=1, outputs=[Emitted("page 3", PAGES, 3, index=3)]), Ok(op=1)), "unread entries", LOST
    ),
    "a cell holds another bundle when it is told again": Forged(
        at_last(Read(log=CHANGES, cells=[(1, "another", 1)])), "overwritten cell", (*LOST, CONSISTENT)
    ),
    "a cell of the source is another when it is taken again": Forged(
        at_last(replace(came(2), messages=[("page 2", 9)])), "changed payload", (CONSISTENT, EXACTLY_ONCE)
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_forged_history_is_found_out(name: str) -> None:
    events, what, breaks = BROKEN[name]
    verdict = check(events)
    found = {finding.what: finding.breaks for finding in verdict.findings}
    assert set(found.get(what, ())) == set(breaks), verdict.text


def test_a_finding_says_where_it_differs() -> None:
    events, _, _ = BROKEN["a bundle has another's output"]
    (finding,) = check(events).findings
    assert finding.text.endswith("holds something else from 0.0 to 3.0 than version 1 has made: item 2 is 8, not 7")


def test_a_result_whose_order_is_free_must_be_recoverable_before_it_leaves() -> None:
    """Theorem 1, over the results that a bundle holds."""
    free = [replace(event, is_ordered=False) if isinstance(event, Result) else event for event in SOUND]
    (finding, _) = check(free).findings
    assert (finding.what, finding.ids[1]) == ("left early", "index at 0.0, version 1")
    assert RECOVERABLE in finding.breaks


def test_a_history_without_a_quiesce_is_not_decided() -> None:
    assert check(SOUND[:-1]).is_open

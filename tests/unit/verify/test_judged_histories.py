"""Short histories, each with all that is found in it and where: nothing, where it is sound."""

from __future__ import annotations

import pytest

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import (
    Buried,
    Change,
    Claim,
    Commit,
    Delivered,
    Emitted,
    Ended,
    Event,
    Fail,
    In,
    Left,
    Life,
    Ok,
    Postponed,
    Push,
    Quiesce,
    Read,
    Result,
    Seen,
    Settled,
    Tally,
    Unknown,
)
from tests.unit.verify.histories import IN, NEXT

TOPIC, PATH = "t", "t/Subscriptions/s"
LOG, OTHER_LOG = "log/a/0.0", "log/b/0.0"
EMPTY, BOOT, AGAIN = Life(is_empty=True), Life(boot="b"), Life(boot="c")
T0, T1 = [Ended(IN, 1, "t0")], [Ended(IN, 2, "t1")]


def comes(id: str = "t0", sequence: int = 1, queue: str = IN, *, outside: bool = True, attempt: int = 0) -> Claim:
    return Claim(deliveries=[Delivered(id, queue, sequence, outside, attempt, 5)])


def sends(queue: str = NEXT, digest: int = 5, cause: str = "x") -> list[Emitted]:
    return [Emitted("k-0", queue, digest, cause)]


def changes(before: int, version: int) -> list[Change]:
    return [Change("A:1", before, version, 7)]


def settled(op: int, how: str, queue: str = IN) -> list[Event]:
    return [Settled(op=op, queue=queue, sequence=1, id="t0", how=how), Ok(op=op)]


def quiet(*queues: str, at_ms: int = 0, tallies: dict[str, Tally] | None = None) -> Quiesce:
    return Quiesce(at_ms=at_ms, queues=list(queues), tallies=tallies or {})


APPLIED: list[Event] = [Commit(op=2, ended=T0, applied=["k"]), Ok(op=2)]
BURIED: list[Event] = [comes(), Commit(op=1, buried=[Buried(IN, 1, "t0")], refused=["k"]), Ok(op=1)]
SENT: list[Event] = [Commit(op=1, outputs=sends(), applied=["k"]), Ok(op=1)]
STORED: list[Event] = [Commit(op=1, outputs=sends(TOPIC), applied=["k"], staged=True), Ok(op=1)]
LAID: list[Event] = [Commit(op=1, outputs=sends(LOG), applied=["k"], staged=True), Ok(op=1)]
ENDS_T0: list[Event] = [Commit(op=3, ended=T0), Ok(op=3)]
"""As a duplicate."""
TWO: list[Event] = [
    Commit(op=1, ended=T0, changes=changes(0, 1), outputs=sends(), applied=["m"]),
    Commit(op=2, ended=T1, changes=changes(0, 1), outputs=sends(), applied=["k"]),
    *(Unknown(op=1), *ENDS_T0),
]
"""Only the second of them may still have taken effect."""

# fmt: off
HISTORIES: dict[str, tuple[list[Event], list[tuple[str, int]]]] = {
    "a dead letter is resubmitted on a bus": (
        [BOOT, comes(), *settled(1, "dead-letter"), comes(attempt=1), *APPLIED, quiet(IN)],
        [],
    ),
    "a dead letter comes again behind its resubmission": (
        [EMPTY, *BURIED, comes(attempt=1), *APPLIED, comes(attempt=1), quiet()],
        [("lost commit", 8)],
    ),
    "two queues complete what one has handled": (
        [EMPTY, comes(), comes(queue=NEXT), Commit(op=9, applied=["k"], staged=True), Ok(op=9),
         *(*settled(1, "complete"), *settled(2, "complete", NEXT), quiet(IN, NEXT))],
        [("completed without a commit", 10)],
    ),
    "a refusal is completed": (
        [EMPTY, comes(), Commit(op=9, refused=["k"]), Ok(op=9), *settled(1, "complete"), quiet(IN)],
        [],
    ),
    "an output is sent again as another": (
        [EMPTY, *SENT, Commit(op=2, outputs=sends(digest=6, cause=""), applied=["m"]), Ok(op=2), quiet()],
        [("doubled output", 5), ("changed payload", 5)],
    ),
    "a copy of what has left goes where it came from": (
        [EMPTY, *STORED, Push(op=2, outputs=sends(TOPIC)), Ok(op=2),
         *(Push(op=3, outputs=sends(PATH)), Ok(op=3), quiet())],
        [],
    ),
    "what is accepted for a topic comes to a subscription": (
        [EMPTY, In(queue=TOPIC, messages=[("t0", 5)]), comes(queue=PATH),
         *(Commit(op=2, ended=[Ended(PATH, 1, "t0")], applied=["k"]), Ok(op=2), quiet(PATH))],
        [],
    ),
    "a cell lies in another log": (
        [EMPTY, *LAID, Read(log=OTHER_LOG, cells=[(0, "k-0", 5)]), quiet()],
        [("changed payload", 4)],
    ),
    "a cell lies with another payload": (
        [EMPTY, *LAID, Read(log=LOG, cells=[(0, "k-0", 6)]), quiet()],
        [("changed payload", 4)],
    ),
    "the system has lost what was sent": (
        [Life(tallies={NEXT: Tally(5, 5)}), *SENT, Life(tallies={NEXT: Tally(5, 5)}), quiet()],
        [("lost commit", 4)],
    ),
    "the system has lost that something has ended": (
        [Life(tallies={IN: Tally(6, 5)}), *APPLIED, Life(tallies={IN: Tally(6, 5)}), quiet()],
        [("lost commit", 4)],
    ),
    "it is lost at the end": (
        [Life(is_empty=True, tallies={IN: Tally(0, 0)}), comes(), *APPLIED, quiet(IN, tallies={IN: Tally(1, 0)})],
        [("lost commit", 5)],
    ),
    "a message is put off and does not come": (
        [EMPTY, comes(), Commit(op=1, postponed=[Postponed(IN, 1, "t0", 50)]), Ok(op=1),
         *(quiet(IN, at_ms=10), quiet(IN, at_ms=60))],
        [("lost message", 6)],
    ),
    "a message comes again behind a power loss": (
        [BOOT, comes(), AGAIN, comes(), quiet(IN)],
        [("lost message", 5)],
    ),
    "a commit is under way at the end": ([EMPTY, comes(), APPLIED[0], quiet(IN)], []),
    "a duplicate was ended in place of a commit without an answer": (
        [EMPTY, comes(), APPLIED[0], Unknown(op=2), *ENDS_T0, quiet(IN)],
        [],
    ),
    "one of two has made a version, and has failed": (
        [EMPTY, *TWO, Commit(op=4, changes=changes(1, 2), applied=["n"]), Ok(op=4), Fail(op=2), quiet()],
        [("ghost commit", 9)],
    ),
    "one of two has sent an output, and has failed": (
        [EMPTY, *TWO, comes("k-0", 9, NEXT, outside=False), Fail(op=2), quiet()],
        [("ghost commit", 8)],
    ),
    "what has no answer is sent as another": (
        [EMPTY, Commit(op=1, outputs=sends(digest=6), applied=["k"]), Unknown(op=1),
         *(comes("k-0", 9, NEXT, outside=False), quiet())],
        [("changed payload", 4)],
    ),
    "outputs that lie elsewhere leave": (
        [EMPTY, Commit(op=1, applied=["k"], staged=True, is_spilled=True), Ok(op=1),
         *(Push(op=2, outputs=sends()), Ok(op=2), quiet())],
        [],
    ),
    "what was made before the recording leaves": ([BOOT, Push(op=2, outputs=sends()), Ok(op=2), quiet()], []),
    "what has no answer leaves for another place": (
        [EMPTY, STORED[0], Unknown(op=1), Push(op=2, outputs=sends()), Ok(op=2), quiet()],
        [("changed payload", 4)],
    ),
    "a change from an unknown version": (
        [EMPTY, Commit(op=1, changes=changes(-1, 5), applied=["k"]), Ok(op=1), quiet()],
        [],
    ),
    "a version that stays": (
        [EMPTY, Commit(op=1, changes=changes(0, 1), applied=["k"]), Ok(op=1),
         *(Commit(op=2, changes=changes(1, 1), applied=["m"]), Ok(op=2), quiet())],
        [("version fell", 5)],
    ),
    "a version that nobody made is seen twice": (
        [EMPTY, Commit(op=1, changes=changes(0, 1), applied=["k"]), Ok(op=1),
         *(Commit(op=2, seen=[Seen("A:1", 3)], refused=["m"]), Ok(op=2)),
         *(Commit(op=3, seen=[Seen("A:1", 3)], refused=["n"]), Ok(op=3), quiet())],
        [("ghost version", 5)],
    ),
}
# fmt: on


@pytest.mark.parametrize("name", HISTORIES)
def test_what_is_wrong_in_a_history_is_found_where_it_shows_and_nothing_else(name: str) -> None:
    events, wrong = HISTORIES[name]
    verdict = check(events)
    assert [(finding.what, finding.line) for finding in verdict.findings] == wrong, verdict.text
    assert verdict.counts.duplicates == sum(event in ENDS_T0 for event in events) // 2


def test_what_left_unseen_is_told_once() -> None:
    tally = Tally(3, 3)
    verdict = check([Life(is_empty=True, tallies={IN: Tally(0, 0)}), *[quiet(IN, tallies={IN: tally})] * 2])
    assert verdict.ok and verdict.counts.unexplained == 3


def test_what_leaves_early_or_is_of_no_commit_is_neither_once_nor_recoverable() -> None:
    early: list[Event] = [EMPTY, Result(id="r"), Left(id="o", parents=["r"]), quiet()]
    ghost: list[Event] = [EMPTY, Push(op=2, outputs=sends()), quiet()]
    for events, what in ((early, "left early"), (ghost, "ghost output")):
        found = check(events).findings[0]
        assert found.what == what and {"exactly-once", "recoverable"} <= set(found.breaks)


def test_attempts_are_at_the_same_where_they_end_the_same_from_the_same_versions() -> None:
    one = Commit(op=1, ended=T0, seen=[Seen("A:1", 1)], applied=["k"])
    other = Commit(op=2, ended=T0, seen=[Seen("A:1", 2)], refused=["k"])
    steps = [Commit(op=op, changes=[Change("B:1", 0, 1, op)], applied=["m"], staged=True) for op in (3, 4)]
    events = [event for commit in (one, other, *steps) for event in (commit, Fail(op=commit.op))]
    assert check([EMPTY, *events, quiet()], guarantees=("deterministic",)).ok

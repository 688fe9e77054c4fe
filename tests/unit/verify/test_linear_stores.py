"""Histories of stores and buses that are apart, and how the verdict is told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import (
    Blob,
    Claim,
    Commit,
    Cut,
    Delivered,
    Emitted,
    Event,
    Fail,
    Found,
    Life,
    Ok,
    Push,
    Quiesce,
    Settled,
    Unknown,
)
from outbox.verify.recorded.verdict import Findings
from tests.unit.verify.histories import IN, NEXT, OUT, calm, changed, first, inserted

# Stores and buses apart


def staged(*after: Event) -> list[Event]:
    commit = Commit(op=1, outputs=[Emitted("k-0", OUT, 5, "t0")], applied=["k"], staged=True)
    return [Life(is_empty=True), commit, *after, Quiesce(queues=[])]


PUSH = Push(op=2, outputs=[Emitted("k-0", OUT, 5, "t0")])
LIFE = Life(boot="b")
"""A process of a machine that goes on: no line before it is missing."""


@pytest.mark.parametrize(
    ("after", "what"),
    [
        ((Ok(op=1), PUSH, Ok(op=2)), None),
        ((Ok(op=1), PUSH, Unknown(op=2), replace(PUSH, op=3), Ok(op=3)), None),
        ((Unknown(op=1), PUSH, Ok(op=2)), None),
        ((PUSH, Ok(op=1), Ok(op=2)), "left early"),
        ((Fail(op=1, why="lost"), PUSH, Ok(op=2)), "ghost output"),
        ((Ok(op=1), PUSH, Fail(op=2)), "lost output"),
        ((Ok(op=1), replace(PUSH, outputs=[Emitted("k-0", OUT, 6, "t0")]), Ok(op=2)), "changed payload"),
        ((Ok(op=1), replace(PUSH, outputs=[Emitted("k-0", NEXT, 5, "t0")]), Ok(op=2)), "changed payload"),
    ],
)
def test_staged_outputs_leave_after_their_commit_and_as_they_were_stored(
    after: tuple[Event, ...], what: str | None
) -> None:
    verdict = check(staged(*after))
    assert verdict.ok if what is None else verdict.findings[0].what == what, verdict.text


def test_a_blob_is_written_with_the_same_bytes_or_found() -> None:
    blob = Blob(op=1, name="b", digest=1, size_bytes=1)
    events: list[Event] = [Life(), blob, replace(blob, op=2), Quiesce(queues=[])]
    assert check(events).ok
    assert first(changed(events, 2, digest=2)).what == "changed blob"


def settled(*answers: Event) -> list[Event]:
    claim = Claim(deliveries=[Delivered("t0", IN, 1)])
    commit = Commit(op=9, applied=["k"], staged=True)
    how = Settled(op=1, queue=IN, sequence=1, id="t0", how="complete")
    return [LIFE, claim, commit, Ok(op=9), how, *answers, Quiesce(queues=[IN])]


def test_a_delivery_is_not_ended_twice() -> None:
    assert check(settled(Ok(op=1))).ok
    again = Settled(op=2, queue=IN, sequence=1, id="t0", how="complete")
    assert first(settled(Ok(op=1), again, Ok(op=2))).what == "ended twice"
    assert first(settled(Fail(op=1))).what == "lost message"


def test_a_delivery_settled_with_an_unknown_outcome_may_be_redelivered() -> None:
    assert check(settled(Unknown(op=1))).ok
    again = Settled(op=2, queue=IN, sequence=1, id="t0", how="complete")
    assert check(settled(Unknown(op=1), Claim(deliveries=[Delivered("t0", IN, 1)]), again, Ok(op=2))).ok


def test_a_delivery_that_was_being_settled_when_its_process_died_may_be_redelivered() -> None:
    died = settled(LIFE)
    assert check(died).ok
    how, claim = died[4], Claim(deliveries=[Delivered("t0", IN, 1)])
    assert check([*died[:-1], claim, how, Ok(op=1), died[-1]]).ok
    assert first([*died[:-1], claim, died[-1]]).what == "lost message"


def test_a_message_completed_without_a_record_is_lost() -> None:
    events = settled(Ok(op=1))
    assert first([*events[:2], *events[4:]]).what == "completed without a commit"
    restarted = [Life(), *events[:2], *events[4:]]
    assert check(restarted).ok, "an earlier life may have handled it, on record or not"


def test_a_record_that_is_read_shows_that_its_commit_took_effect() -> None:
    commit = Commit(op=1, outputs=[Emitted("k-0", OUT, 5, "t0")], applied=["k"], staged=True, tx="x")
    events: list[Event] = [Life(is_empty=True), commit, PUSH, Ok(op=1), Ok(op=2), Quiesce(queues=[])]
    assert first(events).what == "left early"
    assert check(inserted(events, 2, Found(txs=["x"]))).ok


# The verdict


def test_recording_that_stopped_decides_nothing_of_what_came_after() -> None:
    verdict = check([*calm()[:-1], Cut(why="full")])
    assert verdict.first("at-least-once") is not None and "full" in verdict.text
    assert verdict.first("at-most-once") is None


def test_the_text_names_line_ids_and_promise() -> None:
    text = check(inserted(calm(), len(calm()) - 1, Claim(deliveries=[Delivered("late", IN, 10_000)]))).text
    assert f"BROKEN at line {len(calm()) + 1}: message late (transfers 10000) was handed out and never ended" in text
    assert "at-most-once   holds" in text


def test_an_unknown_guarantee_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="at-most-once"):
        check([], guarantees=("exactly-twice",))


def test_what_was_not_asked_for_crowds_nothing_out() -> None:
    ghosts = [Claim(deliveries=[Delivered(f"g{n}-0", NEXT, n, outside=False)]) for n in range(1, 301)]
    commits = [event for op in (1, 2) for event in (Commit(op=op, applied=["k"]), Ok(op=op))]
    events: list[Event] = [Life(is_empty=True), *ghosts, *commits, Quiesce(queues=[])]
    verdict = check(events, guarantees=("at-most-once",))
    assert [finding.what for finding in verdict.findings] == ["applied twice"] and verdict.finding_count == 1


def test_a_verdict_is_open_only_where_nothing_is_broken_and_the_end_is_not_seen() -> None:
    twice = [event for op in (1, 2) for event in (Commit(op=op, applied=["k"]), Ok(op=op))]
    done, open_, broken = Quiesce(queues=[]), [Life(is_empty=True)], [Life(is_empty=True), *twice]
    assert [check(events).is_open for events in ([*open_, done], open_, broken, [*broken, done])] == [
        False, True, False, False,
    ]  # fmt: skip


def test_findings_come_in_the_order_of_the_history() -> None:
    findings = Findings()
    for line in (5, 2, 9):
        findings.add("lost output", "text", at=line)
    assert [finding.line for finding in findings.verdict(findings.counts).findings] == [2, 5, 9]


def test_findings_are_bounded_and_counted() -> None:
    ghosts: list[Event] = [Claim(deliveries=[Delivered(f"g{n}-0", NEXT, n, outside=False)]) for n in range(1, 301)]
    verdict = check([Life(is_empty=True), *ghosts, Quiesce(queues=[])])
    assert (len(verdict.findings), verdict.finding_count) == (100, 300)
    assert "300 findings in all" in verdict.text
    assert "findings in all" not in check([Life(is_empty=True), *ghosts[:100], Quiesce(queues=[])]).text

"""The rows of the table of verdicts in every scope: the facts are made, and what becomes of the message is looked at.

A client refuses to resubmit what was refused for its age, so those two rows are looked at in the table alone.
"""

from __future__ import annotations

from typing import Any

import pytest

from outbox.engine_commit import Refusal
from outbox.resubmission import REJECTED, Replaced
from outbox.runtime.verdict import OnRecord, Verdict, judged, kind_of
from outbox.stored import Record
from tests.unit.messages import resubmit
from tests.unit.runtime.journals import MARGIN_S, RETENTION_S, Journal


async def send(world: Journal, text: str, *, age_s: float = 0, **options: Any) -> None:
    await world.send(text, created=world.harness.now() - age_s, **options)


@pytest.mark.parametrize(
    ("sent", "lines", "dead"),
    [
        ([("a", RETENTION_S - 1)], ["a"], []),
        ([("a", RETENTION_S)], [], ["too-old"]),
        ([("a", 0), ("b", 0)], ["a"], ["payload-differs"]),
        ([("bad", 0), ("bad", 0)], [], ["not a line", "not a line"]),
        ([("bad", 0), ("b", 0)], [], ["not a line", "payload-differs"]),
        ([("a", RETENTION_S), ("a", 0)], [], ["too-old", "too-old"]),  # its sender says that it is young now
        ([("a", RETENTION_S), ("b", 0)], [], ["payload-differs", "too-old"]),
    ],
    ids=["young", "old", "other of applied", "copy of refused", "other of refused", "copy of old", "other of old"],
)
async def test_a_message_has_the_verdict_of_its_age_and_of_what_came_before_it(
    world: Journal, sent: list[tuple[str, float]], lines: list[str], dead: list[str]
) -> None:
    for text, age_s in sent:
        await send(world, text, age_s=age_s)
        world.bad.clear()
    assert (await world.lines(), sorted(world.dead())) == (lines, dead)


@pytest.mark.parametrize("age_s", [0, RETENTION_S + MARGIN_S - 1], ids=["young", "past retention"])
async def test_the_copy_of_an_applied_message_is_a_duplicate(world: Journal, age_s: float) -> None:
    await world.send("a")
    await world.harness.advance(seconds=max(age_s, 1))
    await send(world, "a", age_s=age_s)
    assert (await world.lines(), world.dead()) == (["a"], [])


@pytest.mark.parametrize("age_s", [0, RETENTION_S - 1], ids=["young", "past retention by then"])
async def test_the_resubmission_of_a_refused_message_is_run_at_any_age(world: Journal, age_s: float) -> None:
    await send(world, "bad", age_s=age_s)
    world.bad.clear()
    await world.harness.advance(seconds=10)
    await resubmit(world.harness, "lines", "1")
    assert (await world.lines(), world.dead()) == (["bad"], [])


async def test_what_waited_behind_a_block_is_run_at_any_age(world: Journal) -> None:
    await world.send("bad", queue="strict")
    await world.send("a", queue="strict", id="2")
    await world.harness.advance(seconds=2 * RETENTION_S)
    await world.harness.discard("strict", "1")
    await world.harness.advance(seconds=10)
    assert (await world.lines(), world.dead("strict")) == (["a"], [])


async def test_another_payload_under_the_id_of_what_waits_differs(world: Journal) -> None:
    await world.send("bad", queue="strict")
    await world.send("a", queue="strict", id="2")
    await world.send("b", queue="strict", id="2")
    await world.harness.advance(seconds=2 * RETENTION_S)
    await world.harness.discard("strict", "1")
    await world.harness.advance(seconds=10)
    assert (await world.lines(), world.dead("strict")) == (["a"], ["payload-differs"])


REPLACED = (Replaced(b"e", 0, 1_000),)
RECORDS = {
    OnRecord.NOTHING: None,
    OnRecord.APPLIED: Record("t", b"f", 0, replaced=REPLACED),
    OnRecord.REFUSED: Record("t", b"f", 0, reason="no", description=REJECTED, attempt=1, replaced=REPLACED),
    OnRecord.REFUSED_FOR_AGE: Record("t", b"f", 0, reason="too-old", attempt=1, replaced=REPLACED),
    OnRecord.EDIT_WITHOUT_RECORD: Record("t", b"f", 0, reason="edit-without-record", attempt=1, replaced=REPLACED),
    OnRecord.WAITING: Record("t", b"f", 0, reason="waiting", attempt=-1, replaced=REPLACED),
}


def by_the_rules(record: OnRecord, payload: bytes, replaces: bytes | None, is_later: bool, is_past: bool) -> Verdict:
    """The verdict as the rules of the protocol have it, one after the other."""
    if record is OnRecord.NOTHING:
        if replaces is not None:
            return Verdict.EDIT_WITHOUT_RECORD
        return Verdict.TOO_OLD if is_past else Verdict.FRESH
    if payload not in (b"f", b""):
        return of_another_payload(record, payload, is_edit_of_it=replaces == b"f" and is_later)
    if record is OnRecord.APPLIED:
        return Verdict.DUPLICATE
    if record is OnRecord.WAITING:
        return Verdict.RESUBMISSION
    if not is_later or record is OnRecord.EDIT_WITHOUT_RECORD:
        return Verdict.REFUSED
    return Verdict.TOO_OLD if is_past and record is OnRecord.REFUSED_FOR_AGE else Verdict.RESUBMISSION


def of_another_payload(record: OnRecord, payload: bytes, *, is_edit_of_it: bool) -> Verdict:
    if is_edit_of_it:
        return Verdict.RESUBMISSION if record is OnRecord.REFUSED else Verdict.PAYLOAD_DIFFERS
    if payload == b"e" and record is OnRecord.APPLIED:
        return Verdict.DUPLICATE
    is_refused = record in (OnRecord.REFUSED, OnRecord.REFUSED_FOR_AGE)
    return Verdict.REFUSED if payload == b"e" and is_refused else Verdict.PAYLOAD_DIFFERS


@pytest.mark.parametrize("is_past", [False, True], ids=["young", "past retention"])
@pytest.mark.parametrize("attempt", [0, 1, 2])
@pytest.mark.parametrize("replaces", [None, b"f", b"g", b""], ids=["no edit", "of it", "of another", "of nothing"])
@pytest.mark.parametrize("payload", [b"f", b"g", b"e", b""], ids=["same", "other", "replaced", "any"])
def test_every_combination_has_the_verdict_of_the_rules(
    payload: bytes, replaces: bytes | None, attempt: int, is_past: bool
) -> None:
    for record, stored in RECORDS.items():
        assert kind_of(stored) is record
        is_later = stored is not None and attempt > stored.attempt
        found = judged(stored, fingerprint=payload, attempt=attempt, replaces=replaces, is_past_retention=is_past)
        assert found is by_the_rules(record, payload, replaces, is_later, is_past), record


def test_a_refusal_that_says_waiting_is_a_refusal() -> None:
    """Any handler may say so; only its attempt makes a record one that waits."""
    assert kind_of(Refusal(b"f", "waiting", "", 0)) is OnRecord.REFUSED
    assert kind_of(Refusal(b"f", "no", "", -1)) is OnRecord.REFUSED


def test_a_handler_may_refuse_with_the_words_of_the_protocol() -> None:
    assert kind_of(Refusal(b"f", "edit-without-record", REJECTED, 0)) is OnRecord.REFUSED

"""The playground in plain sentences: what a worker is about to do, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.errors import OutboxError
from outbox.ops.play.gate import Call, Passed, Step
from outbox.ports import Delivery, Lost

CALL: dict[Step, str] = {
    "receive": "the receive",
    "load": "the read of the state",
    "decide": "the look for a record",
    "commit": "the commit",
    "push": "the push",
    "settle": "the settlement",
}
QUEUES: frozenset[Step] = frozenset(("receive", "push", "settle"))
"""The steps that ask the queues; the others ask the store."""


def about_to(call: Call, *, next_id: str) -> str:
    """The next call of a waiting worker, in words; `next_id` is the next free order, empty without one."""
    match call.step:
        case "receive":
            return f"About to receive {next_id}, under a lock." if next_id else "Waits: no order is free."
        case "load":
            return "About to read the state: how many nails, and the ETag."
        case "decide" if call.doubts:
            return f"Does not know whether its commit was written: about to read the record of {call.id} to find out."
        case "decide":
            return f"{call.id} was delivered before: about to look whether it is on record."
        case "commit":
            return (
                f"About to write one batch: {call.pieces} nails if the ETag is still {call.etag}, and a record of "
                f"{call.id} with its parcel if there is none yet."
            )
        case "push" if call.doubts:
            return "Does not know whether the parcel left: about to send it again, under the same id."
        case "push":
            return f"About to send the parcel that the record of {call.id} holds, under the id stored there."
    return f"About to settle {call.id}: the queue drops it."


def said(worker: str, passed: Passed) -> str:
    """The end of a call, in words, and who knows of it."""
    call, is_error = passed.call, isinstance(passed.result, OutboxError)
    what, subject = CALL[call.step] + (f" of {call.id}" if call.id else ""), worker.capitalize()
    match passed.decision:
        case "kill-before":
            return f"{subject} was killed before {what}: nothing of that happened."
        case "refuse":
            whose = "queue" if call.step in QUEUES else "store"
            return f"The {whose} refused {what}, as a busy one does: nothing happened. {subject} tries again."
        case "lose-call":
            return f"The call of {what} is lost on its way: nothing of it happened. {subject} cannot know."
        case "kill-after":
            return f"{subject} was killed after {what}. {_effect(passed)} Nobody alive knows."
        case "lose" if not is_error:
            return f"The reply to {what} is lost. {_effect(passed)} {subject} cannot know."
    return f"{subject} {_went(passed)}"


def _went(passed: Passed) -> str:
    call, result = passed.call, passed.result
    match call.step:
        case "settle" if isinstance(result, OutboxError):
            return f"could not settle {call.id}: its lock is gone. It leaves {call.id} to whoever has it now."
        case _ if isinstance(result, OutboxError):
            return f"could not do {CALL[call.step]}: {result}."
        case "receive":
            return _received(result)
        case "load":
            return "read the state and ran the handler on a copy. Nothing is stored and nothing is sent yet."
        case "decide" if call.doubts and result is not None:
            return f"found the record of {call.id}: it was applied. It goes on from there and does not run again."
        case "decide" if result is not None:
            return f"found {call.id} on record: it was applied before, so the handler does not run again."
        case "decide":
            again = ", so it runs again" if call.doubts else ""
            return f"found no record of {call.id}: it was not applied yet{again}."
        case "commit" if isinstance(result, Lost):
            return f"lost its commit: {_why_lost(call, result)}. Nothing of its batch was written."
        case "commit":
            return f"wrote one batch: {call.pieces} nails, and the record of {call.id} with its parcel."
        case "push":
            return f"sent the parcel of {call.id}."
    return f"settled {call.id}: it is gone from the queue."


def _received(result: object) -> str:
    if not isinstance(result, list) or not result:
        return "found no free order."
    delivery: Delivery = result[0]
    again = f", in delivery {1 + delivery.delivery_count}" if delivery.delivery_count else ""
    return f"received {delivery.message.identity}{again}. It has the lock for a minute."


def _why_lost(call: Call, lost: Lost) -> str:
    """The condition of a batch that failed: of the record, of the state, or of a mark."""
    if lost.operation > 1:
        return "a mark that goes along has been written already, so it writes the batch without that"
    return f"{call.id} is on record already" if lost.operation == 0 else f"the ETag is not {call.etag} any more"


def swept(done: Sequence[str], left: Sequence[str]) -> str:
    """The end of a sweep: the orders whose parcels it sent and marked, and those whose records it left."""
    does = (
        (done, "sent what the unmarked record holds, under the stored ids, and marked the record"),
        (left, "let be what is younger than a minute, because a worker may still be at it"),
    )
    found = [f"{text} ({', '.join(ids)})" for ids, text in does if ids]
    return f"The sweeper {' and '.join(found) or 'found no unmarked record'}."


def _effect(passed: Passed) -> str:
    """The effect of a call that was made, whoever knows of it."""
    call, result = passed.call, passed.result
    if isinstance(result, OutboxError):
        return "It had no effect: the lock was gone."
    match call.step:
        case "receive" if isinstance(result, list) and result:
            return f"{result[0].message.identity} is locked all the same."
        case "commit" if isinstance(result, Lost):
            return f"It had no effect: {_why_lost(call, result)}."
        case "commit":
            return "State, record and parcel are stored, all three in one batch."
        case "push":
            return "The parcel is in its queue."
        case "settle":
            return f"{call.id} is gone from the queue."
    return "That had changed nothing."

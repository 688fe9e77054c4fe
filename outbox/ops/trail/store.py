"""The trail of a message over a store and a bus: queues, dead letters, pending outputs, and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from outbox import stored
from outbox.cancellation import cancelled_ms
from outbox.engine_commit import WAITING, WAITING_ATTEMPT
from outbox.errors import CorruptRecord
from outbox.lineage import Key
from outbox.message import Message
from outbox.ops.dead_letters.views import name_of
from outbox.ops.messages.pending import pending_records
from outbox.ops.messages.store import scan_count
from outbox.ops.shared.held_messages import identity_of, state_of, why
from outbox.ops.shared.names import parse_key, word
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.trail.records import Outcome, Registered, causes, handled_by, key_in, outcomes, reach_unseen, registered
from outbox.ops.trail.tree import Sighting
from outbox.ops.values.requests import BATCH_COUNT_MAX, Answers
from outbox.ops.values.trail import Fact, FindTrail, KnownBy, Place, Trail
from outbox.ports import DeadLetterEntry, HeldMessage
from outbox.runtime.gather import side_by_side
from outbox.runtime.start.notes import HANDLER_PREFIX
from outbox.stored import Inline, Record, Staged, processed_key, record_key, staged_key, state_in, state_key

RECORDS_EXPIRE = (
    "a record is found by the key of its message, and is gone after retention; --key names the key of a message whose "
    "body is not at hand"
)

_Seen = tuple[str, Message, Fact]
"""A queue, a message that was seen there, and the fact that follows."""


async def find_trail(at: StoreSite, asked: FindTrail) -> Trail:
    """Find a message, its causes and its effects in the store and on the bus.

    Raises:
        Refused: several ids have this prefix, or the key is not of its kind.
    """
    key = parse_key(asked.key, asked.kind) if asked.key else None
    handlers = await registered(at.notes(HANDLER_PREFIX))
    sightings, notes, cut = await _sightings(at, handlers, asked)
    keys: Mapping[str, list[Key]] = {each.handler.state: [key] for each in handlers if key is not None}

    def tried(state: str) -> list[Key]:
        return keys.get(state, [])

    reached, linked = reach_unseen(asked, lambda: iter(sightings), handlers, tried, lambda what: what[1])
    seen = [Sighting(each.id, each.cause, each.what[:2]) for each in reached.sightings]
    sent = [each for each in reached.sightings if each.what[2].known_by != "pending output"]
    facts = [*(each.what[2] for each in reached.sightings), *linked]
    facts += causes([Sighting(each.id, each.cause, each.what[:2]) for each in sent], handlers, tried)
    facts += await outcomes(reached.ids, seen, handlers, partial(_look_up, at), key=key)
    if reached.is_cut:
        notes.append("there is more than a trail may hold; trace one of its last messages")
    return Trail(reached.id, facts, [RECORDS_EXPIRE, *notes], reached.near, cut)


async def _sightings(
    at: StoreSite, handlers: Sequence[Registered], asked: FindTrail
) -> tuple[list[Sighting[_Seen]], list[str], dict[str, int]]:
    """Every message that is in sight, notes, and up to which number queues that hold more were looked through.

    Behind the first of a queue only those are kept that the question names, and what these have caused.
    """
    queues, operations, now_ms = await at.queues(), at.operations, at.operations.now_ms()
    found, notes, cut = list[Sighting[_Seen]](), list[str](), dict[str, int]()

    def see(queue: str, message: Message, place: Place, known_by: KnownBy, text: str, at_ms: int, tx: str = "") -> None:
        its = [each.handler for each in handlers if each.takes(queue)]
        given = dict.fromkeys(str(key) for each in its if (key := key_in(each, message)) is not None)
        fact = Fact(
            id=message.identity,
            place=place,
            known_by=known_by,
            why=text,
            cause=message.causation_id,
            queue=queue,
            handler=handled_by(handlers, queue),
            key=message.session_id or ", ".join(given),
            tx=tx,
            correlation_id=message.correlation_id,
            at=at_ms / 1_000,
        )
        found.append(Sighting(fact.id, message.causation_id, (queue, message, fact)))

    async def look(queue: str) -> tuple[list[HeldMessage], int, int, list[DeadLetterEntry]]:
        return *await _held(at, queue, asked, scan_count(len(queues))), await operations.dead_letters(queue)

    for queue, (shown, more, seen, letters) in zip(queues, await side_by_side(queues, look), strict=True):
        if more:
            cut[queue] = more
            notes.append(
                f"{queue} was looked through up to number {more} and holds more; `outbox message show ID --queue "
                f"{word(queue)} --after {more}` looks on"
            )
        if seen > BATCH_COUNT_MAX:
            notes.append(
                f"behind the first {BATCH_COUNT_MAX} messages of {queue} only this one was looked for, and what it sent"
            )
        for held in shown:
            message = msgspec.structs.replace(held.message, outbox_id=identity_of(queue, held))
            see(queue, message, state_of(held, now_ms), "queue", why(held, now_ms), held.enqueued_ms)
        for dead in letters:
            text = f"{dead.reason}: {dead.description.partition(chr(10))[0]}"
            message = msgspec.structs.replace(dead.message, outbox_id=name_of(dead))
            see(queue, message, "dead-letter", "dead letter", text, dead.enqueued_ms)
    async for tx, record in pending_records(at.ports):
        for output in record.outputs:
            text = "committed, and not known to have left"
            see(output.destination, output.message, "pending", "pending output", text, record.at_ms, tx)
        if record.spilled:
            notes.append(f"transaction {tx} has outputs in a blob, which were not looked at")
    return found, notes, cut


async def _held(at: StoreSite, queue: str, asked: FindTrail, scan: int) -> tuple[list[HeldMessage], int, int]:
    """Peek a queue's first messages, and of the later ones the trail's. Return also the number to continue after, and
    how many were seen.
    """
    known, seen = set(asked.known), 0

    def is_wanted(held: HeldMessage) -> bool:
        nonlocal seen
        seen += 1
        its = (identity_of(queue, held), held.message.causation_id)
        return seen <= BATCH_COUNT_MAX or any(each in known or each.startswith(asked.id) for each in its)

    found, more = await at.peek(queue, after=0, count=scan, session="", is_wanted=is_wanted, look_count_max=scan)
    return found, more, seen


async def _look_up(at: StoreSite, state: str | None, inbox: bytes) -> Outcome | None:
    """The record of an inbox key in either scope; of a transaction that a state still points to, too."""
    for place in (record_key(state, inbox), *([] if state is None else [processed_key(state, inbox)])):
        if (found := await at.infrastructure.read(place)) is not None:
            with suppress(CorruptRecord):
                return _outcome(stored.decode(found, Record))
    return None if state is None else await _pointed(at, state, inbox)


async def _pointed(at: StoreSite, state: str, inbox: bytes) -> Outcome | None:
    with suppress(CorruptRecord):
        item = state_in(await at.ports.store.read(state_key(state)))
        if isinstance(item.pending, Inline):
            return _outcome(item.pending.record) if item.pending.inbox == inbox else None
        if item.pending:
            kept = await at.infrastructure.read(staged_key(state, item.pending), session=item.token)
            staged = None if kept is None else stored.decode(kept, Staged)
            return _outcome(staged.record) if staged is not None and staged.inbox == inbox else None
    return None


def _outcome(record: Record) -> Outcome:
    waits = (record.reason, record.attempt) == (WAITING, WAITING_ATTEMPT)
    gone_ms = cancelled_ms(record.replaced)
    return Outcome(record.reason, record.description, record.tx, record.at_ms, waits, gone_ms)


ANSWERS: Answers = {FindTrail: find_trail}

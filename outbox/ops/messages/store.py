"""Messages of a bus beside a store, as on Azure: send, find, cancel, pause, and what lies in all queues.

No application code is needed: types go by their wire names, and a queue's types are registered in the store by its
workers.  Nothing is made or declared here.

A bus is looked through from its first message on, and no further than a limit.  What lies behind it is not said to be
absent: the answer names the number up to which each queue was looked through, and the command that looks on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from outbox.app import CLAIM_CHECK_BYTES
from outbox.errors import Refused, TooLarge
from outbox.ops.dead_letters.views import name_of, type_names, with_body
from outbox.ops.messages.by_due import PageByDue
from outbox.ops.messages.sending import check_sendable, later_ms, outgoing
from outbox.ops.messages.signs import signs_on_store
from outbox.ops.shared.held_messages import found_with_body, identity_of, state_of, view_of, waits_for
from outbox.ops.shared.names import later_id, look_on, scheduled_id, the_id, word
from outbox.ops.shared.on_store import SCAN_COUNT_MAX, SCAN_COUNT_MIN, StoreSite
from outbox.ops.values.dead_letters import Moved
from outbox.ops.values.messages import Cancel, Find, FoundMessage, MakeDue, Pause, Paused, Peek, Peeked, Send
from outbox.ops.values.requests import BATCH_COUNT_MAX, Answers
from outbox.ops.values.status import Check, QueueStatus, ReadMetrics, ReadSigns, ReadStatus, Signs, Status
from outbox.ports import SUBSCRIPTIONS, DeadLetterEntry, HeldMessage, Output
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.gather import side_by_side
from outbox.runtime.scopes import stores_of
from outbox.runtime.start.notes import HANDLER_PREFIX, types_of
from outbox.stored import LEDGER_PREFIX

KEPT_COUNT_MAX = 1_000
UNFINISHED_COUNT_MAX = 1_000
"""The limits to which a status counts stored dead letters and pending transactions: each costs a read."""
LOOKS_MAX = 20
"""The most pages, of up to 1,000 scheduled messages, that are read to list a queue by due time."""
KEYS_LOOKED_UP_MAX = 3
"""How many keys of a page are looked up as blocked one by one; an index finds more of them."""


async def check(at: StoreSite, asked: Check) -> None:
    """Do nothing: the store is asked directly, and there is no host to check."""


async def send(at: StoreSite, asked: Send) -> None:
    """Send messages as `Client.send` does; without the application's code their bodies are not checked."""
    queue, messages = asked.queue, asked.messages
    if SUBSCRIPTIONS in queue:
        topic = queue.partition(SUBSCRIPTIONS)[0]
        raise Refused(f"{queue} is a subscription, which cannot be sent to; send to {topic}, for all of them")
    if len(messages) > BATCH_COUNT_MAX:
        raise TooLarge(f"{len(messages)} messages in one batch; send at most {BATCH_COUNT_MAX} at a time")
    queue = await at.named(queue)
    types = await types_of(queue, at.notes(HANDLER_PREFIX))
    needs_key = not all(message.key for message in messages) and await at.is_ordered(queue)
    outputs, due_ms = [], later_ms(asked.due, at.operations.now_ms())
    for new in messages:
        check_sendable(queue, new, types, needs_key=needs_key)
        message = outgoing(new, types, due_ms or at.operations.now_ms())
        message = await check_in(message, at.ports.blobs, above_bytes=CLAIM_CHECK_BYTES)
        outputs.append(Output(queue, due_ms, message))
    await at.operations.send(outputs)


async def read_status(at: StoreSite, asked: ReadStatus) -> Status:
    """Count the messages on the bus, and the dead letters in the store.

    Raises:
        Refused: the identity lacks the right to manage, which Service Bus needs for counts.
    """
    found = await at.counts()
    kept = Counter[str]()
    for path, count in (await _kept_counts(at, found)).items():
        kept[path.casefold()] += count
    queues = {
        path: QueueStatus(
            active=counted.active,
            scheduled=counted.scheduled,
            deferred=0,
            dead_letters=counted.dead_letters + kept[path.casefold()],
            oldest_s=None,
            paused=counted.paused,
        )
        for path, counted in sorted(found.items())
    }
    return Status(queues, await _unfinished_count(at))


async def _kept_counts(at: StoreSite, queues: Iterable[str]) -> Mapping[str, int]:
    """How many dead letters the store has of these queues: one query, where the store can."""
    kept = StoredDeadLetters(at.infrastructure, at.ports.blobs)
    if at.index is not None:
        return await kept.counts(at.index.holders, count_max=KEPT_COUNT_MAX)
    named = [await at.as_registered(path) for path in queues]
    return {path: await kept.count(path, count_max=KEPT_COUNT_MAX) for path in named}


async def _unfinished_count(at: StoreSite) -> int:
    count = 0
    for store in stores_of(at.ports):
        async for document in store.unfinished():
            count += not document.key.id.startswith(LEDGER_PREFIX)
            if count >= UNFINISHED_COUNT_MAX:
                return count
    return count


async def read_signs(at: StoreSite, asked: ReadSigns) -> Signs:
    return await signs_on_store(at.infrastructure, at.operations.now_ms(), at.counts, at.waiting_since_ms)


async def read_metrics(at: StoreSite, asked: ReadMetrics) -> str:
    raise Refused(
        "on Azure each process has its own metrics, which OpenTelemetry sends where you look at them (docs/how-to/"
        "telemetry.md); only the host of a folder answers for all of its workers"
    )


async def peek(at: StoreSite, asked: Peek) -> Peeked:
    """A page of a queue, and which of the keys on it a dead letter blocks.

    Without an index of the store only the first few keys are looked up.
    """
    queue, now_ms = await at.named(asked.queue), at.operations.now_ms()

    def is_wanted(held: HeldMessage) -> bool:
        return asked.state in ("", "blocked") or state_of(held, now_ms) == asked.state

    if asked.by_due:
        every = await _every(at, queue, is_wanted)
        behind = next((held for held in every if held.sequence == asked.after), None)
        by_due = PageByDue(queue, after=asked.after, behind=behind, count=asked.count)
        by_due.see(every)
        found, more = by_due.page()
    else:
        found, more = await at.peek(queue, after=asked.after, count=asked.count, session=asked.key, is_wanted=is_wanted)
    keys = dict.fromkeys(held.message.session_id for held in found if held.status == "active")
    blocks = await _blocks_of(at, queue, list(filter(None, keys)))
    paused = await at.is_paused(queue)
    taker, shown = waits_for(queue, paused=paused), []
    for held in found:
        one = msgspec.structs.replace(held, blocked_by=blocks.get(held.message.session_id))
        if asked.state != "blocked" or one.blocked_by is not None:
            shown.append(view_of(queue, one, now_ms, taker))
    return Peeked(shown, more, paused)


async def _every(at: StoreSite, queue: str, is_wanted: Callable[[HeldMessage], bool]) -> list[HeldMessage]:
    """All messages of a queue that are wanted.

    Raises:
        Refused: it holds more than may be looked through.
    """
    found: list[HeldMessage] = []
    after = 0
    for _ in range(LOOKS_MAX):
        some, after = await at.peek(queue, after=after, count=BATCH_COUNT_MAX, session="", is_wanted=is_wanted)
        found += some
        if not after:
            return found
    raise Refused(
        f"{queue} holds too many messages to list them by due time; `outbox queue peek {word(queue)} --state "
        "scheduled` lists them by number"
    )


async def _blocks_of(at: StoreSite, queue: str, keys: Sequence[str]) -> Mapping[str, str | None]:
    """The dead letters that block some of these keys, by key."""
    blocked = BlockedSessions(at.infrastructure, at.ports.blobs)
    if at.index is not None and len(keys) > KEYS_LOOKED_UP_MAX:
        return await blocked.identities_of(queue, keys, at.index.among)
    return {key: await blocked.identity_of(queue, key) for key in keys[:KEYS_LOOKED_UP_MAX]}


async def find(at: StoreSite, asked: Find) -> list[FoundMessage]:
    """Every place of a message in these queues, among the messages that are looked through, and dead letters.

    Raises:
        LookupError: it is in none of them.
        Refused: several ids have this prefix; or it was not seen, and not all messages were looked through.
    """
    queues, now_ms = await at.queues(asked.queue), at.operations.now_ms()

    async def look(queue: str) -> tuple[list[HeldMessage], int, list[DeadLetterEntry]]:
        shown, more = await _looked_through(at, queue, asked.id, asked.after, queue_count=len(queues))
        return shown, more, await at.operations.dead_letters(queue)

    looks = list(zip(queues, await side_by_side(queues, look), strict=True))
    held = [(queue, each) for queue, (shown, _, _) in looks for each in shown]
    dead = [(queue, each) for queue, (_, _, letters) in looks for each in letters]
    dead = [(queue, letter) for queue, letter in dead if name_of(letter).startswith(asked.id)]
    cut = {queue: more for queue, (_, more, _) in looks if more}
    ids = {identity_of(queue, each) for queue, each in held} | {name_of(letter) for _, letter in dead}
    try:
        id = the_id(asked.id, ids, queues[0] if asked.queue else "")
    except LookupError:
        if not cut:
            raise
        raise Refused(look_on(asked.id, cut, "outbox message show --queue {queue} --after {after} {id}")) from None
    found = []
    for queue, each in held:
        if identity_of(queue, each) == id:
            view = view_of(queue, each, now_ms, waits_for(queue, paused=await at.is_paused(queue)))
            found.append(await found_with_body(view, each.message, at.ports.blobs))
    its_dead = [(queue, letter) for queue, letter in dead if name_of(letter) == id]
    for queue, letter in its_dead:
        only = (await type_names(queue, at.notes(HANDLER_PREFIX))).only
        is_only = sum(each == queue for each, _ in its_dead) == 1
        found.append(FoundMessage(None, await with_body(id, letter, only, at.ports.blobs, is_only=is_only)))
    return found


async def cancel(at: StoreSite, asked: Cancel) -> Moved:
    """Cancel the scheduled messages of an id.

    Raises:
        LookupError, Refused: as for `find`.
    """
    queue, now_ms = await at.named(asked.queue), at.operations.now_ms()
    found, more = await _looked_through(
        at, queue, asked.id, asked.after, is_meant=lambda held: state_of(held, now_ms) == "scheduled"
    )
    full = _full(queue, asked.id, found, more, scheduled_id, "cancel")
    sequences = [held.sequence for held in found if identity_of(queue, held) == full]
    await at.cancel(queue, sequences)
    return _moved(len(sequences), full, more)


async def make_due(at: StoreSite, asked: MakeDue) -> Moved:
    """Send what a queue holds for later once more, to be taken now, and then cancel that.

    If this is broken off in between, both are there: the second of them is a duplicate.

    Raises:
        LookupError, Refused: as for `find`.
    """
    queue = await at.named(asked.queue)
    found, more = await _looked_through(
        at, queue, asked.id, asked.after, is_meant=lambda held: held.status == "scheduled"
    )
    full = _full(queue, asked.id, found, more, later_id, "now")
    later = [held for held in found if identity_of(queue, held) == full]
    for held in later:
        own = f"{full}~now-{held.sequence}"  # the bus has seen the other, and may drop duplicates
        message = msgspec.structs.replace(held.message, outbox_id=full, message_id=own)
        await at.operations.send([Output(queue, 0, message)])
        await at.cancel(queue, [held.sequence])
    return _moved(len(later), full, more)


def _full(
    queue: str,
    id: str,
    found: Sequence[HeldMessage],
    more: int,
    meant: Callable[[str, str, set[str]], str],
    verb: str,
) -> str:
    """The id that is meant; where not all was looked through, none that only begins so.

    Raises:
        LookupError, Refused: it is not there, or may be among what was not looked through.
    """
    ids = {identity_of(queue, held) for held in found}
    if more and id not in ids:
        raise Refused(look_on(id, {queue: more}, f"outbox schedule {verb} --after {{after}} {{queue}} {{id}}"))
    return meant(queue, id, ids)


async def _looked_through(
    at: StoreSite,
    queue: str,
    id: str,
    after: int,
    *,
    is_meant: Callable[[HeldMessage], bool] = lambda _: True,
    queue_count: int = 1,
) -> tuple[list[HeldMessage], int]:
    """The messages with an id, and some with ids that begin so; and the number to look on after."""
    beginning, count = 0, scan_count(queue_count)

    def is_wanted(held: HeldMessage) -> bool:
        nonlocal beginning
        own = identity_of(queue, held)
        if not own.startswith(id) or not is_meant(held):
            return False
        beginning += own != id
        return own == id or beginning <= BATCH_COUNT_MAX

    return await at.peek(queue, after=after, count=count, session="", is_wanted=is_wanted, look_count_max=count)


def scan_count(queue_count: int) -> int:
    """Return how many messages to look through in each of `queue_count` queues."""
    return max(SCAN_COUNT_MIN, SCAN_COUNT_MAX // max(1, queue_count))


def _moved(count: int, id: str, more: int) -> Moved:
    return Moved(count, id=id, more=more) if more else Moved(count, id=id)


async def pause(at: StoreSite, asked: Pause) -> Paused:
    """Set the entity's status, which takes the right to manage."""
    if at.pause is None:
        raise Refused(f"{asked.queue}: this bus cannot pause a queue; stop its workers")
    queue = await at.named(asked.queue)
    return Paused(queue, asked.paused, await at.pause(queue, paused=asked.paused))


ANSWERS: Answers = {
    Check: check,
    Send: send,
    ReadStatus: read_status,
    ReadSigns: read_signs,
    ReadMetrics: read_metrics,
    Peek: peek,
    Find: find,
    Cancel: cancel,
    MakeDue: make_due,
    Pause: pause,
}

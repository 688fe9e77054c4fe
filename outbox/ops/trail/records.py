"""The records of a trail's messages: the outcome of one that has left its queue, and its handler.

A record lies under the inbox key, a digest over application, handler, state, key and identity.  Names and keys of
handlers are in the framework's notes, so the key is the one thing that may be missing: it is in the message's body,
or given, or (on an engine, for a cause whose output is there) the key of one of the states.  A record that is looked
up under the wrong key is not found; nothing is concluded from that.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from outbox.app import NO_KEY
from outbox.lineage import Key, inbox_key, inbox_prefix, state_id
from outbox.message import Message
from outbox.ops.trail.tree import Reached, Sighting, T, inbox_of_cause, reach
from outbox.ops.values.trail import Fact, FindTrail, Place
from outbox.ports import SUBSCRIPTIONS, Document
from outbox.runtime.start.notes import HandlerName, handlers_in

LOOK_UP_COUNT_MAX = 500
"""How many records of one trail are looked up: each costs a read on Azure."""
TRIED_COUNT_MAX = 20_000
"""How many keys of states are tried for the causes of one trail."""


class Registered(NamedTuple):
    """A handler that an application has registered."""

    app: str
    handler: HandlerName

    def inbox(self, key: Key | None, id: str) -> bytes:
        """The inbox key of a message."""
        own = self.handler
        return inbox_key(inbox_prefix(self.app, f"{own.source}/{own.name}", own.state), key, id)

    def state_of(self, key: Key | None) -> str | None:
        """The state that it has for a key; None without one."""
        return state_id(self.handler.state, key) if self.handler.state and key is not None else None

    def takes(self, queue: str) -> bool:
        """Whether messages of this queue, subscription or topic come to it; an empty name may be any."""
        source = self.handler.source
        return queue in ("", source) or (SUBSCRIPTIONS in source and source.partition(SUBSCRIPTIONS)[0] == queue)


class Outcome(NamedTuple):
    """A record's outcome: applied, or (with a reason) refused, or that it `waits`; `at_ms` 0: not known.

    `cancelled_ms` is above 0 where it was cancelled before it was due.
    """

    reason: str = ""
    description: str = ""
    tx: str = ""
    at_ms: int = 0
    waits: bool = False
    cancelled_ms: int = 0


Seen = tuple[str, Message]
"""A queue or topic, and a message in it."""
ANY_QUEUE = ""
LookUp = Callable[[str | None, bytes], Awaitable[Outcome | None]]
"""The record of an inbox key in the partition of a state (None: of its own)."""


async def registered(notes: AsyncIterable[Document]) -> list[Registered]:
    """All handlers, from the notes."""
    return [Registered(app, handler) async for app, handler in handlers_in(notes)]


def handled_by(handlers: Sequence[Registered], queue: str) -> str:
    """The names of a queue's handlers."""
    return ", ".join(sorted({each.handler.name for each in handlers if each.takes(queue)}))


def key_in(handler: HandlerName, message: Message, given: Key | None = None) -> Key | None:
    """The key that a handler gives a message by a field of its body; else the one that was given."""
    if handler.key_name == NO_KEY:
        return None
    try:
        body: Any = msgspec.json.decode(message.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return given
    found = body.get(handler.key_name) if isinstance(body, dict) else None
    try:
        if handler.key_kind == "uuid":
            return UUID(str(found))
    except ValueError:
        return given
    return found if isinstance(found, str | int) and not isinstance(found, bool) and found != "" else given


async def outcomes(
    ids: Sequence[str],
    seen: Sequence[Sighting[Seen]],
    handlers: Sequence[Registered],
    look_up: LookUp,
    *,
    key: Key | None,
    keys: Callable[[str], Iterable[Key]] | None = None,
) -> list[Fact]:
    """Look up the outcomes of these messages in their records, as far as their keys are known.

    An id that its sender chose may be that of messages in several queues: such a one is looked up for every handler,
    also where it is in sight in another's queue; the key is then that of the body in sight.  `keys` gives keys of a
    state's name to try for a message that is gone, where a look costs nothing.
    """
    found, count, left = list[Fact](), 0, TRIED_COUNT_MAX
    sights: dict[str, list[Seen]] = {}
    for one in seen:
        sights.setdefault(one.id, []).append(one.what)
    for id in ids:
        in_sight = sights.get(id, [])
        places: list[Seen | None] = [*in_sight]
        if not in_sight or inbox_of_cause(id) is None:
            places += [(ANY_QUEUE, message) for _, message in in_sight]
            places.append(None)
        tried = set[bytes]()
        for place in places:
            for each in handlers:
                if any(each.takes(queue) for queue, _ in in_sight) if place is None else not each.takes(place[0]):
                    continue
                keyless = each.handler.key_name == NO_KEY
                its = None if keyless else key if place is None else key_in(each.handler, place[1], key)
                if its is None and not keyless:
                    if place is None and keys is not None and each.handler.state:
                        some = list(islice(keys(each.handler.state), max(0, left)))
                        left -= len(some)
                        found += [fact async for fact in _tried_keys(id, each, some, look_up)]
                    continue
                if (inbox := each.inbox(its, id)) in tried:
                    continue
                tried.add(inbox)
                count += 1
                if count > LOOK_UP_COUNT_MAX:
                    return found
                if (outcome := await look_up(each.state_of(its), inbox)) is not None:
                    found.append(_fact(id, each, its, outcome))
    return found


async def _tried_keys(id: str, by: Registered, keys: Sequence[Key], look_up: LookUp) -> AsyncIterator[Fact]:
    """The record of a message under one of some keys."""
    for key in keys:
        if (outcome := await look_up(by.state_of(key), by.inbox(key, id))) is not None:
            yield _fact(id, by, key, outcome)
            return


def _fact(id: str, by: Registered, key: Key | None, outcome: Outcome) -> Fact:
    more: dict[str, Any] = {"at": outcome.at_ms / 1_000} if outcome.at_ms else {}
    place: Place = "refused" if outcome.reason else "applied"
    why = f"{outcome.reason}: {outcome.description.partition(chr(10))[0]}" if outcome.reason else ""
    if outcome.cancelled_ms:
        why, more = "cancelled before it was due: its handler never ran", {"at": outcome.cancelled_ms / 1_000}
    if outcome.waits:
        place, why = "blocked", "on record as waiting behind a dead letter of its key"
    return Fact(id=id, place=place, known_by="record", why=why, queue=by.handler.source, handler=by.handler.name,
                key="" if key is None else str(key), tx=outcome.tx, **more)  # fmt: skip


def reach_unseen(
    asked: FindTrail,
    sightings: Callable[[], Iterator[Sighting[T]]],
    handlers: Sequence[Registered],
    keys: Callable[[str], Iterable[Key]],
    message_of: Callable[[T], Message],
) -> tuple[Reached[T], list[Fact]]:
    """Extend a trail across messages that are gone but named by others, and return the facts about these.

    From below the way goes on by the correlation id, which is that of the first message.
    """
    first = reach(asked, sightings())
    begun = (message_of(each.what).correlation_id for each in first.sightings)
    found = list(unseen_effects(dict.fromkeys((first.id, *filter(None, begun))), first.unseen, handlers, keys))
    if not found:
        return first, []
    query = msgspec.structs.replace(asked, id=first.id, known=[*asked.known, *(each.id for each in found)])
    again = reach(query, sightings())
    facts = [msgspec.structs.replace(_by_output(each.id), cause=each.cause) for each in found]
    facts += [each.what for each in found]
    return again._replace(ids=list(dict.fromkeys((*again.ids, *(each.cause for each in found))))), facts


def unseen_effects(
    ids: Iterable[str], unseen: Iterable[str], handlers: Sequence[Registered], keys: Callable[[str], Iterable[Key]]
) -> Iterator[Sighting[Fact]]:
    """The outputs of these messages that are gone and that their own effects name: an id shows whose it was."""
    by_inbox: dict[bytes, list[str]] = {}
    for output in unseen:
        if (inbox := inbox_of_cause(output)) is not None:
            by_inbox.setdefault(inbox, []).append(output)
    if not by_inbox:
        return
    left = TRIED_COUNT_MAX
    for id in ids:
        for by in handlers:
            for key in islice(_tried(by, keys), max(0, left)):
                left -= 1
                yield from (
                    Sighting(output, id, _by_output(id, by, key)) for output in by_inbox.get(by.inbox(key, id), ())
                )


def _tried(by: Registered, keys: Callable[[str], Iterable[Key]]) -> Iterable[Key | None]:
    return keys(by.handler.state) if by.handler.key_name != NO_KEY and by.handler.state else (None,)


def causes(
    seen: Iterable[Sighting[Seen]], handlers: Sequence[Registered], keys: Callable[[str], Iterable[Key]]
) -> Iterator[Fact]:
    """Yield the facts that outputs prove: their causes were applied, because only a committed handling sends outputs.

    `keys` gives candidate keys by state; the right one leads to the inbox key in the output's id.
    """
    left, known = TRIED_COUNT_MAX, set[tuple[str, bytes]]()
    for each in seen:
        inbox = inbox_of_cause(each.id)
        if inbox is None or not each.cause or (each.cause, inbox) in known:
            continue
        known.add((each.cause, inbox))
        fact = _by_output(each.cause)
        for by in handlers:
            tried = list(islice(_tried(by, keys), max(0, left)))
            left -= len(tried)
            those = [one for one in tried if by.inbox(one, each.cause) == inbox]
            if those:
                fact = _by_output(each.cause, by, those[0])
                break
        yield fact


def _by_output(id: str, by: Registered | None = None, key: Key | None = None) -> Fact:
    """That a message was applied, by which handler and key if that is known."""
    fact = Fact(id=id, place="applied", known_by="its output", why="what it sent is there, or was handled")
    if by is None:
        return fact
    shown = "" if key is None else str(key)
    return msgspec.structs.replace(fact, queue=by.handler.source, handler=by.handler.name, key=shown)

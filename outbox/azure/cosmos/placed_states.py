"""States in a container of their own, each where the application wants it.

    backend = azure.connect(..., states="games", place=place_of)

`place` says in which partition and under which id a state lies, given the state's id (`outbox.lineage.parse_state_id`
takes that apart); without it a state has a partition of its own.  What is no state lies in the infrastructure and is
never asked of this store.  Two containers cannot be written together, so this is item scope.

*Theory of operation.*  The runtime knows states by their ids, and only this file knows where they lie.  `place` is the
application's, so nothing here believes it: the body of each document names its state, in a member `state`.

    two states in one place      a read that finds another's name raises `CorruptRecord`.  A state is only replaced
                                 after it was read, so neither overwrites the other; the messages of the second
                                 are redelivered, until `place` tells them apart
    a `place` that has changed   the states would begin anew beside the old ones.  A start looks at some of the states
                                 that are there, and is refused if one lies elsewhere than it would be looked for
    the sweeper                  learns the state's id from the body; what lies elsewhere is logged and left alone

So `place` must give the same for ever.  What it gives for states that are not there yet may change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import msgspec
from azure.cosmos.aio import ContainerProxy

from outbox.azure.cosmos.items import from_item
from outbox.azure.cosmos.outcomes import FAILURES, as_error
from outbox.azure.cosmos.store import TIMEOUT_S, CosmosStateStore, KeyRange
from outbox.errors import CorruptRecord, Refused, TooLarge
from outbox.ports import Delete, Document, DocumentKey, Lost, Session, StateStore, Won, Write
from outbox.stored import STATE, state_key

Place = Callable[[str], DocumentKey]
"""Where a state lies, by its id: always the same place, and another one for each state."""

NAME_BYTES_MAX = 4 << 10
"""How much of a body is kept for the name of its state."""
CHECKED_COUNT = 20
"""At how many states a start looks, whichever Cosmos DB gives first."""
_STATES = "SELECT * FROM c"
_NOT_OURS = b'{"pending":true}'
"""A body that is no state, so that the sweeper leaves it alone and logs it."""

log = logging.getLogger("outbox.azure.states")


class PlacedStates:
    """The states of an application in one container, where `place` puts them."""

    def __init__(self, states: CosmosStateStore, place: Place | None = None) -> None:
        self._states = states
        self._place = place or state_key
        known = states.capabilities
        room_bytes = known.item_bytes_max - NAME_BYTES_MAX
        self.capabilities = replace(known, atomic_scope="item", batch_count_max=1, item_bytes_max=room_bytes)

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        """A state.

        Raises:
            CorruptRecord: another state lies in its place, or something that is none.
        """
        found = await self._states.read(self._at(_state_of(key)), session=session)
        return None if found is None else _as_own(found, key)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        if len(operations) != 1:
            raise TooLarge(f"{len(operations)} operations; states that lie apart are written one at a time")
        (operation,) = operations
        key, at = operation.key, self._at(_state_of(operation.key))
        if isinstance(operation, Delete):
            moved: Write = replace(operation, key=at)
        else:
            if len(operation.body) > self.capabilities.item_bytes_max:
                raise TooLarge(
                    f"state {key.partition} takes {len(operation.body)} bytes, there is room for "
                    f"{self.capabilities.item_bytes_max}; move large values to a blob"
                )
            moved = replace(operation, key=at, body=named(operation.body, key.partition))
        answer = await self._states.write([moved])
        if isinstance(answer, Lost) and answer.current is not None:
            return replace(answer, current=_as_own(answer.current, key))
        return answer

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        """To the runtime each state has a partition of its own: that state."""
        found = await self.read(state_key(partition)) if STATE.startswith(prefix) else None
        if found is not None:
            yield found

    async def unfinished(self, within: KeyRange | None = None) -> AsyncIterator[Document]:
        async for document in self._states.unfinished(within):
            try:
                id, body = self._checked(document)
            except (CorruptRecord, Refused) as error:
                fields = {"document": f"{document.key.partition}/{document.key.id}", "error": str(error)}
                log.error("unfinished document cannot be swept", extra=fields)
                yield replace(document, body=_NOT_OURS)
            else:
                yield replace(document, key=state_key(id), body=body)

    async def key_ranges(self) -> list[KeyRange]:
        """By which ranges of hashed partition keys the container lies apart."""
        return await self._states.key_ranges()

    async def check(self, items: ContainerProxy) -> None:
        """Look at some of the states that are there, whether they would be found again.

        Raises:
            Refused: one would not, because `place` is not that with which it was written.
            OutcomeUnknown: the container cannot be asked.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await _first(items)
        except FAILURES as error:
            raise as_error(error, "query for states") from error
        for document in found:
            try:
                self._checked(document)
            except CorruptRecord:
                continue  # no state: a read of its place raises

    def _checked(self, document: Document) -> tuple[str, bytes]:
        """The state that a document of the container names and its body, if it lies in its place.

        Raises:
            CorruptRecord: it names none.
            Refused: it lies elsewhere.
        """
        id, body = unnamed(document)
        at, lies = self._at(id), document.key
        if at != lies:
            raise Refused(
                f"state {id} lies at {lies.partition}/{lies.id} and place= puts it at {at.partition}/{at.id}, where it "
                "would begin anew; states do not move: give the place= that it was written with, or another container"
            )
        return id, body

    def _at(self, id: str) -> DocumentKey:
        """Where a state lies.

        Raises:
            Refused: `place` does not say.
        """
        try:
            at = self._place(id)
        except Exception as error:
            raise Refused(f"place= fails for state {id}: {error!r}; it must name a place for every state") from error
        if not isinstance(at, DocumentKey):
            raise Refused(f"place= gives {at!r} for state {id}; give a DocumentKey, a partition and an id")
        return at


async def _first(items: ContainerProxy) -> list[Document]:
    """Some of what lies in a container and can be read."""
    found = list[Document]()
    seen_count = 0
    async for item in items.query_items(_STATES, max_item_count=CHECKED_COUNT):
        seen_count += 1
        try:
            found.append(from_item(item))
        except CorruptRecord as error:
            log.warning("item is none of ours", extra={"error": str(error)})
        if seen_count == CHECKED_COUNT:
            break
    return found


def _state_of(key: DocumentKey) -> str:
    """The id of the state that a key asks for.

    Raises:
        Refused: it asks for something else.
    """
    if key.id != STATE:
        raise Refused(f"document {key.partition}/{key.id} is no state: it lies with the infrastructure")
    return key.partition


def _as_own(found: Document, key: DocumentKey) -> Document:
    """A document of the container as the state that was asked for.

    Raises:
        CorruptRecord: it is another one's, or no state's.
    """
    id, body = unnamed(found)
    if id != key.partition:
        raise CorruptRecord(
            f"states {id} and {key.partition} are both placed at {found.key.partition}/{found.key.id}; nothing was "
            "written: give a place= that tells them apart"
        )
    return replace(found, key=key, body=body)


# Bodies


class _Named(msgspec.Struct):
    """The part of a body that names its state."""

    state: str


def _head(id: str) -> bytes:
    return b'{"state":' + msgspec.json.encode(id)


def named(body: bytes, id: str) -> bytes:
    """The body of a state, a JSON object, with the state's name as its first member.

    Raises:
        TooLarge: the name is too long.
        Refused: it is no object.
    """
    head = _head(id)
    if len(head) > NAME_BYTES_MAX:
        raise TooLarge(f"state {id[:80]!r} has a name of {len(head)} bytes, over {NAME_BYTES_MAX}; shorten its type's")
    if not body.startswith(b"{"):
        raise Refused(f"state {id} is to be written as {body[:20]!r}, which is no JSON object")
    return head + body[1:] if body == b"{}" else head + b"," + body[1:]


def unnamed(document: Document) -> tuple[str, bytes]:
    """The state that a document is of, and the body that was written.

    Raises:
        CorruptRecord: it names no state.
    """
    body = document.body
    try:
        id = msgspec.json.decode(body, type=_Named).state
        head = _head(id)
        if body.startswith(head + b","):
            return id, b"{" + body[len(head) + 1 :]
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])  # their order is not promised
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = f"{document.key.partition}/{document.key.id}"
        raise CorruptRecord(f"document {where} names no state ({error}); who else writes to this container?") from error
    del members["state"]
    return id, msgspec.json.encode(members)


_conforms: type[StateStore] = PlacedStates

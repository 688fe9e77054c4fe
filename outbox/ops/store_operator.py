"""What an operator does where store and bus are apart, as on Azure: dead letters of both places, states, counts.

No application code is needed: types go by their wire names, and which a queue takes stands in the store, registered by
whoever handles it.  Nothing is made or declared here.  What an engine alone can do is refused, with the way to do it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, Protocol

from outbox.deliveries import is_copy, told_apart
from outbox.errors import PoisonMessage, Refused
from outbox.lineage import state_id
from outbox.ops.operator import listed, parse_key, whole_id, with_body
from outbox.ops.values import (
    BATCH_COUNT_MAX,
    Compacted,
    KeyKind,
    Letter,
    Moved,
    NewMessage,
    Operates,
    QueueStatus,
    Status,
)
from outbox.ports import Buried, StorePorts
from outbox.runtime.delivery.claim_check import redeem
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.scopes import stores_of
from outbox.runtime.start.handler_names import NOTE_PREFIX, NOTES, states_of, types_of
from outbox.runtime.store_operations import StoreOperations
from outbox.runtime.verdict import check_resubmittable

KEPT_COUNT_MAX = 1_000
UNFINISHED_COUNT_MAX = 1_000
"""How far dead letters in the store, and unfinished transactions, are counted for a status: each is read for it."""


_SDKS = ("azure", "aiohttp", "msal")


class Counted(Protocol):
    """What a bus counts in one queue or subscription."""

    @property
    def active(self) -> int: ...

    @property
    def scheduled(self) -> int: ...

    @property
    def dead_letters(self) -> int: ...


Counts = Callable[[], Awaitable[Mapping[str, Counted]]]
"""Count what the bus holds in each of its queues and subscriptions."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where an application's store and bus are; addresses or connection strings, which no text here repeats."""

    cosmos: str
    servicebus: str
    database: str
    container: str
    states: str = ""
    blobs: str = ""

    def __repr__(self) -> str:
        return f"Addresses(database={self.database!r}, container={self.container!r}, states={self.states!r})"


@asynccontextmanager
async def reach_azure(addresses: Addresses) -> AsyncIterator[Operates]:
    """An operator for an application on Azure or on emulators; addresses are asked with an identity.

    Raises:
        Refused: an address cannot be used, or what it names is not there or not allowed.
        OutcomeUnknown: nobody answers.
    """
    try:
        connect = import_module("outbox.azure.connecting").connect
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed; pip install outbox-azure[azure]") from error
    try:
        backend = connect(
            cosmos=addresses.cosmos,
            servicebus=addresses.servicebus,
            database=addresses.database,
            container=addresses.container,
            states=addresses.states or None,
            blobs=addresses.blobs or None,
            user_agent="outbox-cli",
        )
    except ValueError as error:  # ours name the parameter and not its value
        raise Refused(f"{error}; look at --cosmos, --servicebus and --blobs, or at their variables") from None
    async with backend:
        with _no_foreign_errors():
            await backend.operations.declare({}, {})  # looks whether the container is there, and makes nothing
            yield StoreOperator(backend.ports(), backend.operations.counts)


@contextmanager
def _no_foreign_errors() -> Iterator[None]:
    """Let an SDK's complaint about what it was given not out as it is: it may repeat that, and a key is part of it."""
    try:
        yield
    except ValueError as error:
        raise Refused(
            f"an address or a key cannot be used ({type(error).__name__}); look at how it was copied"
        ) from None


class StoreOperator:
    """An operator of an application over the ports of a store and a bus."""

    def __init__(self, ports: StorePorts, counts: Counts) -> None:
        self._ports = ports
        self._infrastructure = ports.infrastructure or ports.store
        self._operations = StoreOperations(ports)
        self._kept = StoredDeadLetters(self._infrastructure, ports.blobs)
        self._counts = counts
        self._listed: list[Letter] = []
        """What was listed last, for its further pages."""

    # Look

    async def check(self) -> None:
        """Nothing stands between this and the store."""

    async def status(self) -> Status:
        """Count what the bus tells, and the dead letters that lie in the store.

        Raises:
            Refused: who asks has no right to manage, without which Service Bus counts nothing.
        """
        queues = {}
        for path, counted in sorted((await self._counts()).items()):
            kept = await self._kept.count(path, count_max=KEPT_COUNT_MAX)
            queues[path] = QueueStatus(
                active=counted.active,
                scheduled=counted.scheduled,
                deferred=0,
                dead_letters=counted.dead_letters + kept,
                oldest_s=None,
            )
        return Status(queues, await self._unfinished_count())

    async def _unfinished_count(self) -> int:
        count = 0
        for store in stores_of(self._ports):
            async for _ in store.unfinished():
                count += 1
                if count >= UNFINISHED_COUNT_MAX:
                    return count
        return count

    async def state(self, type: str, key: str, kind: KeyKind = "text") -> bytes | None:
        """The JSON of a state; None where there is none or it was deleted.

        Raises:
            Refused: the key is not of its kind.
            LookupError: no handler that is registered here has a state of that type.
        """
        found = await self._operations.state(state_id(type, parse_key(key, kind)))
        if found is None:
            known = await states_of(self._infrastructure.scan(NOTES, prefix=NOTE_PREFIX))
            if known and type not in known:
                raise LookupError(f"no state is of type {type[:80]!r}; there are: {listed(known)}.  Check the spelling")
        return found.value if found is not None and found.value else None

    # Dead letters

    async def dead_letters(self, queue: str, *, after: int = 0, count_max: int = BATCH_COUNT_MAX) -> list[Letter]:
        """A page of the dead letters of both places, oldest first; the first page looks, others show what it found."""
        if not after:
            only = await self._only_type(queue)
            self._listed = [_letter(buried, only) for buried in await self._operations.dead_letters(queue)]
        places = [letter.sequence for letter in self._listed]
        first = places.index(after) + 1 if after in places else 0
        return self._listed[first : first + min(count_max, BATCH_COUNT_MAX)]

    async def dead_letter(self, queue: str, id: str) -> Letter:
        """The newest dead letter of an id, with its body.

        Raises:
            LookupError: there is none.
            Refused: its body lies in a blob that is gone, or in a blob store that was not named.
        """
        id, found = await self._of(queue, id)
        buried = found[-1]
        message = buried.message
        if message.claim:
            try:
                message = await redeem(message, self._ports.blobs)
            except PoisonMessage as gone:
                raise Refused(f"{queue}/{id}: {gone.description}; it can only be discarded") from gone
        return with_body(_letter(buried, await self._only_type(queue)), message.body)

    async def resubmit(self, queue: str, id: str | None) -> Moved:
        """Run the newest dead letter of an id again, or (None) all of the queue's but those that were too old.

        Raises:
            LookupError: there is none, or somebody is receiving it.
            Refused: the one that is named was too old.
        """
        if id is not None:
            id, found = await self._of(queue, id)
            newest = next((x for x in reversed(found) if x.reason != "payload-differs"), found[-1])
            check_resubmittable(f"{queue}/{id}", newest.reason, newest.description)
            await self._operations.resubmit(queue, newest.sequence)
            return Moved(1, id=id)
        return await self._move_all(queue, self._operations.resubmit, is_again=True)

    async def discard(self, queue: str, id: str | None) -> Moved:
        """Delete the dead letters of an id, or (None) all of the queue's.

        Raises:
            LookupError: there is none, or somebody is receiving it.
        """
        if id is None:
            return await self._move_all(queue, self._operations.discard, is_again=False)
        id, found = await self._of(queue, id)
        for buried in found:
            await self._operations.discard(queue, buried.sequence)
        return Moved(len(found), id=id)

    async def _move_all(self, queue: str, move: Callable[[str, int], Awaitable[None]], *, is_again: bool) -> Moved:
        """Move every dead letter that may be; a resubmission takes its older copies with it."""
        found = await self._operations.dead_letters(queue)
        moved: list[Buried] = []
        left = 0
        for buried in reversed(found):
            if is_again and any(is_copy(buried.message, other.message) for other in moved):
                continue
            try:
                if is_again:
                    check_resubmittable(f"{queue}/{buried.message.identity}", buried.reason, buried.description)
                await move(queue, buried.sequence)
            except (LookupError, Refused):
                left += 1
            else:
                moved.append(buried)
        return Moved(len(found) - left, left)

    async def _of(self, queue: str, text: str) -> tuple[str, list[Buried]]:
        """The dead letters of an id, or of the one id that begins so, and that id."""
        buried = await self._operations.dead_letters(queue)
        id = whole_id(queue, text, {one.message.identity for one in buried})
        return id, [one for one in buried if one.message.identity == id]

    async def _only_type(self, queue: str) -> str:
        """The type that a queue's handlers take where it is one: what a message without one is to them."""
        types = await types_of(queue, self._infrastructure.scan(NOTES, prefix=NOTE_PREFIX))
        return next(iter(types)) if len(types) == 1 else ""

    # What an engine's folder alone can do

    async def send(self, queue: str, messages: Sequence[NewMessage]) -> None:
        _only_a_folder("send", "send with Client.send, or as any Service Bus sender")

    def export(self, type: str = "") -> AsyncIterator[bytes]:
        _only_a_folder("export", "a store apart from its bus has no single instant; query the container")

    async def compact(self) -> Compacted:
        _only_a_folder("compact", "there is no log")


def _only_a_folder(what: str, instead: str) -> NoReturn:
    raise Refused(f"{what} works on an engine's folder, by --data; {instead}")


def _letter(buried: Buried, only_type: str) -> Letter:
    message = buried.message
    description, stack = told_apart(buried.description)
    return Letter(
        id=message.identity,
        sequence=buried.sequence,
        queue=buried.queue,
        reason=buried.reason,
        description=description,
        type=message.type,
        delivery_count=buried.delivery_count,
        created=(message.created_ms or buried.enqueued_ms) / 1_000,
        key=message.session_id,
        correlation_id=message.correlation_id,
        size_bytes=len(message.body),
        handled_as=message.type or only_type,
        traceback=stack,
    )


_conforms: type[Operates] = StoreOperator

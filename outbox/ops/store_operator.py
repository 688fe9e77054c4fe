"""The operator of a separate store and bus, as on Azure: dead letters of both, states, counts.

No application code is needed: types go by their wire names, and a queue's types are registered in the store by its
workers.  Nothing is made or declared here.  Operations of an engine alone are refused, with the alternative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import NoReturn, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from outbox.app import CLAIM_CHECK_BYTES
from outbox.errors import OutboxError, OutcomeUnknown, Refused, TooLarge, Unreachable
from outbox.lineage import state_id
from outbox.ops.blocked import page_of
from outbox.ops.blocked_places import blocked_on_store
from outbox.ops.by_due import PageByDue
from outbox.ops.held_messages import state_of, waits_for
from outbox.ops.held_messages import view_of as view_of_held
from outbox.ops.names import listed, parse_key, word
from outbox.ops.operator import Operator
from outbox.ops.pending import finish_pending, pending_in
from outbox.ops.pending_values import PendingFinished, PendingView
from outbox.ops.sending import check_sendable, later_ms, outgoing
from outbox.ops.state_values import StateWrites, StateWritten
from outbox.ops.store_dead_letters import DiscardSome, StoreDeadLetters
from outbox.ops.store_messages import Ask, Cancel, Peek, StoreMessages
from outbox.ops.store_names import OnTheBus, StoreNames
from outbox.ops.store_signs import Counts, WaitingSince, signs_on_store
from outbox.ops.store_states import states_of_store, write_states_of_store
from outbox.ops.store_trail import trail_on_store
from outbox.ops.stream_values import (
    StreamQuery,
    Streams,
    StreamTrimmed,
    StreamUnregistered,
    TrimRequest,
    UnregisterRequest,
)
from outbox.ops.streams import StreamPlace, list_streams, on_store, read_stream, trim_stream, unregister_stream
from outbox.ops.trail_values import Trail, TrailQuery
from outbox.ops.values import (
    ANY_DEAD_LETTER,
    BATCH_COUNT_MAX,
    BlockedPage,
    BlockedQuery,
    Compacted,
    DeadAttempt,
    DeadLetterFilter,
    DeadLetterView,
    FindQuery,
    FoundMessage,
    KeyKind,
    Moved,
    NewMessage,
    Paused,
    PauseRequest,
    Peeked,
    PeekQuery,
    QueueStatus,
    Signs,
    Status,
)
from outbox.ports import SUBSCRIPTIONS, Document, HeldMessage, Output, StorePorts
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.scopes import stores_of
from outbox.runtime.start.handler_names import NOTE_PREFIX, NOTES, states_of, types_of
from outbox.runtime.store_operations import StoreOperations
from outbox.stored import LEDGER_PREFIX
from outbox.streams.log_places import Place

KEPT_COUNT_MAX = 1_000
UNFINISHED_COUNT_MAX = 1_000
LOOKS_MAX = 20
"""How many pages of a queue are read to list it by due time, each with up to 1,000 messages that are scheduled."""
"""The limits to which a status counts stored dead letters and pending transactions: each costs a read."""


KEYS_LOOKED_UP_MAX = 3
"""For how many keys on a page of messages the store is read, whether they are blocked; more of them cost a query."""

Asked = TypeVar("Asked", FindQuery, PeekQuery, PauseRequest, BlockedQuery)
_SDKS = ("azure", "aiohttp", "msal")


class StoreIndex(Protocol):
    """What a store finds in all of its partitions with one query, by the index of ids; Cosmos DB does."""

    def holders(self, prefix: str) -> AsyncIterator[str]:
        """The partition of each document whose id begins so."""

    def among(self, partitions: Sequence[str], id: str) -> AsyncIterator[Document]:
        """The documents of this id in some partitions."""


class Pause(Protocol):
    """Let nothing be received from a queue or subscription, or let it go on; whether that was a change."""

    async def __call__(self, queue: str, *, paused: bool) -> bool: ...


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses or connection strings of an application's store and bus, which no text here repeats."""

    cosmos: str
    servicebus: str
    database: str
    container: str
    states: str = ""
    blobs: str = ""
    blob_states: str = ""

    def __repr__(self) -> str:
        return f"Addresses(database={self.database!r}, container={self.container!r}, states={self.states!r})"


def imported(name: str) -> ModuleType:
    """A module of `outbox.azure`, which may not be installed.

    Raises:
        Refused: its SDKs are missing.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed; pip install outbox-azure[azure]") from error


@asynccontextmanager
async def connect_azure_operator(addresses: Addresses) -> AsyncIterator[Operator]:
    """Connect an operator to an application on Azure or on emulators; plain addresses need an identity.

    Raises:
        Refused: an address cannot be used, or its resource is missing or forbidden.
        OutcomeUnknown, Unreachable: the service does not answer.
    """
    connect = imported("outbox.azure.connecting").connect
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
        try:
            try:
                await backend.operations.declare({}, {})  # checks that the container exists, and makes nothing
            except Unreachable:
                raise
            except Refused as error:
                text = f"{error}; look at --cosmos, --database and --container, or at their variables"
                raise Refused(text) from error
            bus = backend.operations
            more = {"pause": bus.pause, "is_paused": bus.is_paused, "is_ordered": bus.is_ordered, "names": bus.names}
            more |= {"discard_some": bus.discard_some, "waiting_since_ms": bus.waiting_since_ms}
            more["index"] = backend.infrastructure or backend.store
            yield StoreOperator(backend.ports(), bus.counts, bus.peek, bus.cancel, **more)
        except ValueError as error:  # an SDK's, whose text may repeat a key
            text = f"an address or a key cannot be used ({type(error).__name__}); look at how it was copied"
            raise Refused(text) from None
        except (OutcomeUnknown, Unreachable) as error:
            where = f"{host_of(addresses.cosmos)} (--cosmos) and {host_of(addresses.servicebus)} (--servicebus)"
            text = f"{error}; see whether {where} answer from here, and look again before you repeat a change"
            raise type(error)(text) from error


def host_of(address: str) -> str:
    """Where an address or a connection string leads, without any key."""
    is_plain = "=" not in address or "//" in address.partition("=")[0]
    parts = {"": address} if is_plain else dict(part.partition("=")[::2] for part in address.split(";"))
    found = next((parts[name] for name in _ADDRESS_PARTS if name in parts), "")
    return urlsplit(found if "//" in found else f"//{found}").netloc.rpartition("@")[2]


_ADDRESS_PARTS = ("AccountEndpoint", "Endpoint", "BlobEndpoint", "AccountName", "")
"""The parts of a connection string that say where it leads, the exact ones first; a plain address has one part."""


class StoreOperator:
    """An operator of an application over the ports of a store and a bus."""

    def __init__(
        self,
        ports: StorePorts,
        counts: Counts,
        peek: Peek,
        cancel: Cancel,
        *,
        pause: Pause | None = None,
        is_paused: Ask | None = None,
        is_ordered: Ask | None = None,
        index: StoreIndex | None = None,
        names: OnTheBus | None = None,
        discard_some: DiscardSome | None = None,
        waiting_since_ms: WaitingSince | None = None,
    ) -> None:
        """Take the ports and what is asked of the bus; without `pause` and `is_paused` its queues cannot be paused.

        Without `is_ordered` it is the bus that refuses a message without a key.

        Without `discard_some` dead letters of the bus are discarded one by one.  Without `names` of the bus, the name
        of a queue without a handler is as it is given.

        Without `waiting_since_ms` it is not known how long messages have waited.

        Without an `index` of the infrastructure's store each queue is counted, and each key looked up, by itself.
        """
        self._ports = ports
        self._infrastructure = ports.infrastructure or ports.store
        self._operations = StoreOperations(ports)
        self._kept = StoredDeadLetters(self._infrastructure, ports.blobs)
        self._counts = counts
        self._peek = peek
        self._pause = pause
        self._asked_paused = is_paused
        self._asked_ordered = is_ordered
        self._index = index
        self._waiting_since_ms = waiting_since_ms
        self._names = StoreNames(self._infrastructure, names)
        self._blocked = BlockedSessions(self._infrastructure, ports.blobs)
        self._dead_letters = StoreDeadLetters(ports, self._operations, discard_some)
        self._messages = StoreMessages(
            peek,
            cancel,
            self._is_paused,
            operations=self._operations,
            dead_letters=self._dead_letters,
            blobs=ports.blobs,
        )

    # Look

    async def check(self) -> None:
        """The store is asked directly; there is no host to check."""

    async def status(self) -> Status:
        """Count the messages on the bus, and the dead letters in the store.

        Raises:
            Refused: the identity lacks the right to manage, which Service Bus needs for counts.
        """
        found = await self._counts()
        kept = Counter[str]()
        for path, count in (await self._kept_counts(found)).items():
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
        return Status(queues, await self._unfinished_count())

    async def _kept_counts(self, queues: Iterable[str]) -> Mapping[str, int]:
        """How many dead letters the store has of these queues: one query, where the store can."""
        if self._index is not None:
            return await self._kept.counts(self._index.holders, count_max=KEPT_COUNT_MAX)
        named = [await self._names.as_registered(path) for path in queues]
        return {path: await self._kept.count(path, count_max=KEPT_COUNT_MAX) for path in named}

    async def signs(self) -> Signs:
        return await signs_on_store(
            self._infrastructure, self._operations.now_ms(), self._counts, self._waiting_since_ms
        )

    async def metrics(self) -> str:
        raise Refused(
            "on Azure each process has its own metrics, which OpenTelemetry sends where you look at them (docs/how-to/"
            "telemetry.md); only the host of a folder answers for all of its workers"
        )

    async def _unfinished_count(self) -> int:
        count = 0
        for store in stores_of(self._ports):
            async for document in store.unfinished():
                count += not document.key.id.startswith(LEDGER_PREFIX)
                if count >= UNFINISHED_COUNT_MAX:
                    return count
        return count

    async def state(self, type: str, key: str, kind: KeyKind = "text") -> bytes | None:
        found = await self._operations.state(state_id(type, parse_key(key, kind)))
        if found is None:
            await self._check_type(type)
        return found.value if found is not None and found.value else None

    async def states(self, type: str = "") -> AsyncIterator[bytes]:
        if type:
            await self._check_type(type)
        async for piece in states_of_store(self._ports.store, type):
            yield piece

    async def write_states(self, asked: StateWrites) -> list[StateWritten]:
        for type in sorted({line.type for line in asked.states}):
            await self._check_type(type)
        return await write_states_of_store(self._ports.store, asked, self._operations.now_ms())

    async def _check_type(self, type: str) -> None:
        """Check that a handler has a state of this type, where any is registered."""
        known = await states_of(self._infrastructure.scan(NOTES, prefix=NOTE_PREFIX))
        if known and type not in known:
            raise LookupError(f"no state is of type {type[:80]!r}; there are: {listed(known)}.  Check the spelling")

    async def peek(self, asked: PeekQuery) -> Peeked:
        """A page of a queue, and which of the keys on it a dead letter blocks.

        Without an index of the store only the first few keys are looked up.
        """
        asked, now_ms = await self._named(asked), self._operations.now_ms()

        def is_wanted(held: HeldMessage) -> bool:
            return asked.state in ("", "blocked") or state_of(held, now_ms) == asked.state

        if asked.by_due:
            every = await self._every(asked.queue, is_wanted)
            behind = next((held for held in every if held.sequence == asked.after), None)
            by_due = PageByDue(asked.queue, after=asked.after, behind=behind, count=asked.count)
            by_due.see(every)
            found, more = by_due.page()
        else:
            found, more = await self._peek(
                asked.queue, after=asked.after, count=asked.count, session=asked.key, is_wanted=is_wanted
            )
        keys = dict.fromkeys(held.message.session_id for held in found if held.status == "active")
        blocks = await self._blocks_of(asked.queue, list(filter(None, keys)))
        paused = await self._is_paused(asked.queue)
        taker, shown = waits_for(asked.queue, paused=paused), []
        for held in found:
            one = msgspec.structs.replace(held, blocked_by=blocks.get(held.message.session_id))
            if asked.state != "blocked" or one.blocked_by is not None:
                shown.append(view_of_held(asked.queue, one, now_ms, taker))
        return Peeked(shown, more, paused)

    async def _every(self, queue: str, is_wanted: Callable[[HeldMessage], bool]) -> list[HeldMessage]:
        """All messages of a queue that are wanted.

        Raises:
            Refused: it holds more than may be looked through.
        """
        found: list[HeldMessage] = []
        after = 0
        for _ in range(LOOKS_MAX):
            some, after = await self._peek(queue, after=after, count=BATCH_COUNT_MAX, session="", is_wanted=is_wanted)
            found += some
            if not after:
                return found
        raise Refused(
            f"{queue} holds too many messages to list them by due time; `outbox queue peek {word(queue)} --state "
            "scheduled` lists them by number"
        )

    async def _blocks_of(self, queue: str, keys: Sequence[str]) -> Mapping[str, str | None]:
        """The dead letters that block some of these keys, by key."""
        if self._index is not None and len(keys) > KEYS_LOOKED_UP_MAX:
            return await self._blocked.identities_of(queue, keys, self._index.among)
        return {key: await self._blocked.identity_of(queue, key) for key in keys[:KEYS_LOOKED_UP_MAX]}

    async def _is_paused(self, queue: str) -> bool:
        """Whether a queue is paused; without the right to manage, or an answer, that is not known."""
        try:
            return self._asked_paused is not None and await self._asked_paused(queue)
        except OutboxError:
            return False

    async def find(self, asked: FindQuery) -> list[FoundMessage]:
        """Look for a message in each queue, and no further than a limit."""
        asked = await self._named(asked)
        return await self._messages.find(asked, [asked.queue] if asked.queue else await self._queues())

    async def trail(self, asked: TrailQuery) -> Trail:
        """Look in each queue, and no further than a limit, in the store and for records."""
        return await trail_on_store(self._ports, self._peek, await self._queues(), asked)

    async def _queues(self) -> list[str]:
        """All queues and subscriptions of the bus, by the names that handlers have for them."""
        return sorted([await self._names.as_registered(path) for path in await self._counts()])

    async def _named(self, asked: Asked) -> Asked:
        """A question about a queue, with the name that is declared."""
        return msgspec.structs.replace(asked, queue=await self._names.declared(asked.queue)) if asked.queue else asked

    async def cancel(self, queue: str, id: str, *, after: int = 0) -> Moved:
        return await self._messages.cancel(await self._names.declared(queue), id, after=after)

    async def make_due(self, queue: str, id: str, *, after: int = 0) -> Moved:
        return await self._messages.make_due(await self._names.declared(queue), id, after=after)

    async def pending(self) -> list[PendingView]:
        return await pending_in(self._ports)

    async def finish(self, tx: str | None) -> PendingFinished:
        return await finish_pending(self._ports, tx)

    # Dead letters

    async def dead_letters(
        self,
        queue: str,
        *,
        after: int = 0,
        count_max: int = BATCH_COUNT_MAX,
        where: DeadLetterFilter = ANY_DEAD_LETTER,
    ) -> list[DeadLetterView]:
        return await self._dead_letters.page(
            await self._names.declared(queue), after=after, count_max=count_max, where=where
        )

    async def dead_among(self, queue: str, ids: Sequence[str]) -> dict[str, list[DeadAttempt]]:
        return await self._dead_letters.among(await self._names.declared(queue), ids)

    async def dead_letter(self, queue: str, id: str, *, sequence: int = 0) -> DeadLetterView:
        return await self._dead_letters.one(await self._names.declared(queue), id, sequence=sequence)

    async def resubmit(self, queue: str, id: str | None, *, body: bytes | None = None, sequence: int = 0) -> Moved:
        return await self._dead_letters.resubmit(await self._names.declared(queue), id, body=body, sequence=sequence)

    async def discard(self, queue: str, id: str | None, *, for_good: bool = False, sequence: int = 0) -> Moved:
        return await self._dead_letters.discard(
            await self._names.declared(queue), id, for_good=for_good, sequence=sequence
        )

    async def discard_some(self, queue: str, sequences: Sequence[int], *, for_good: bool = False) -> Moved:
        queue = await self._names.declared(queue)
        return await self._dead_letters.discard_some(queue, sequences, for_good=for_good)

    async def discarded(self, queue: str) -> list[DeadLetterView]:
        return await self._dead_letters.discarded(await self._names.declared(queue))

    async def restore(self, queue: str, id: str | None) -> Moved:
        return await self._dead_letters.restore(await self._names.declared(queue), id)

    async def pause(self, asked: PauseRequest) -> Paused:
        """Set the entity's status, which takes the right to manage."""
        if self._pause is None:
            raise Refused(f"{asked.queue}: this bus cannot pause a queue; stop its workers")
        asked = await self._named(asked)
        changed = await self._pause(asked.queue, paused=asked.paused)
        return Paused(asked.queue, asked.paused, changed)

    async def blocked(self, asked: BlockedQuery) -> BlockedPage:
        """Look among the keys of dead letters and of the first messages of each queue."""
        asked = await self._named(asked)
        queues = [asked.queue] if asked.queue else await self._queues()
        return page_of(await blocked_on_store(self._ports, self._peek, queues), asked)

    # Ordered logs, in the store alone

    async def streams(self) -> Streams:
        return await list_streams(self._logs())

    def stream(self, asked: StreamQuery) -> AsyncIterator[bytes]:
        return read_stream(self._logs(), asked)

    async def unregister_stream(self, asked: UnregisterRequest) -> StreamUnregistered:
        return await unregister_stream(self._logs(), asked)

    async def trim_stream(self, asked: TrimRequest) -> StreamTrimmed:
        return await trim_stream(self._logs(), asked)

    def _logs(self) -> StreamPlace:
        return on_store(Place(self._infrastructure, self._ports.blobs), "this store")

    # Send

    async def send(self, queue: str, messages: Sequence[NewMessage], *, due: float | None = None) -> None:
        """Send messages as `Client.send` does; without the application's code their bodies are not checked."""
        if SUBSCRIPTIONS in queue:
            topic = queue.partition(SUBSCRIPTIONS)[0]
            raise Refused(f"{queue} is a subscription, which cannot be sent to; send to {topic}, for all of them")
        if len(messages) > BATCH_COUNT_MAX:
            raise TooLarge(f"{len(messages)} messages in one batch; send at most {BATCH_COUNT_MAX} at a time")
        queue = await self._names.declared(queue)
        types = await types_of(queue, self._infrastructure.scan(NOTES, prefix=NOTE_PREFIX))
        needs_key = not all(message.key for message in messages) and await self._is_ordered(queue)
        outputs, due_ms = [], later_ms(due, self._operations.now_ms())
        for new in messages:
            check_sendable(queue, new, types, needs_key=needs_key)
            message = outgoing(new, types, due_ms or self._operations.now_ms())
            message = await check_in(message, self._ports.blobs, above_bytes=CLAIM_CHECK_BYTES)
            outputs.append(Output(queue, due_ms, message))
        await self._operations.send(outputs)

    async def _is_ordered(self, queue: str) -> bool:
        """Whether a queue is ordered by key, as far as that can be asked; the bus refuses a message without one."""
        try:
            return self._asked_ordered is not None and await self._asked_ordered(queue)
        except OutboxError:
            return False

    # Only on an engine's folder

    def export(self, type: str = "") -> AsyncIterator[bytes]:
        _only_a_folder("export", "a store apart from its bus has no single instant; query the container")

    async def seal(self) -> int:
        _only_a_folder("backup", "Cosmos DB and Service Bus have backups of their own")

    async def compact(self) -> Compacted:
        _only_a_folder("compact", "there is no log")


def _only_a_folder(what: str, instead: str) -> NoReturn:
    raise Refused(f"{what} works on an engine's folder, by --data; {instead}")


_conforms: type[Operator] = StoreOperator

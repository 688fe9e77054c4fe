"""The operator of an engine: send, look, resubmit or discard dead letters, without application code.

Types go by their wire names and bodies are JSON.  Nothing is returned before it has passed the engine's gate; answers
are data, so that the same calls work over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

import msgspec

from outbox.app import CLAIM_CHECK_BYTES, App
from outbox.engine.backend.store import EngineStore
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.documents import STATES
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import ACTIVE, DEFERRED, LOCKED, SCHEDULED, Task
from outbox.errors import Refused, TooLarge
from outbox.lineage import parse_state_id, state_id
from outbox.ops import held_messages
from outbox.ops.blocked_places import blocked_on_engine
from outbox.ops.by_due import PageByDue
from outbox.ops.dead_letter_views import (
    discarded,
    matches,
    name_of,
    those_of,
    type_names,
    view_of,
    with_body,
)
from outbox.ops.engine_states import (
    OnWritten,
    large_states_of,
    states_of_engine,
    states_of_one_instant,
    write_states_of_engine,
)
from outbox.ops.engine_trail import trail_on_engine
from outbox.ops.engine_views import at_work, counted, entry_of, held_in, identity_of, is_retried, letters_of
from outbox.ops.held_messages import found_with_body, state_of
from outbox.ops.host_metrics import host_metrics
from outbox.ops.meter import Meter
from outbox.ops.names import declared, discarded_id, full_id, later_id, listed, parse_key, scheduled_id, the_id
from outbox.ops.operator import Operator
from outbox.ops.pending_values import PendingFinished, PendingView
from outbox.ops.sending import as_handled, check_sendable, later_ms, outgoing
from outbox.ops.slices import MOVED_COUNT, Named, first_of, in_slices, is_there, tasks_of
from outbox.ops.state_values import StateWrites, StateWritten
from outbox.ops.stream_values import (
    StreamQuery,
    Streams,
    StreamTrimmed,
    StreamUnregistered,
    TrimRequest,
    UnregisterRequest,
)
from outbox.ops.streams import list_streams, on_engine, read_stream, trim_stream, unregister_stream
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
    MessageView,
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
from outbox.ports import Document
from outbox.resubmission import alike, identified, newest
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.delivery.edits import edit_of
from outbox.runtime.start.handler_names import NOTE_PREFIX, NOTES, states_of, types_of
from outbox.runtime.start.plan import compile_app
from outbox.runtime.start.retention import NOTE_PREFIX as RETENTION_PREFIX
from outbox.runtime.start.retention import longest_retention_ms

_STATUSES: dict[str, tuple[int, ...]] = {
    "waiting": (ACTIVE,),
    "retrying": (ACTIVE, SCHEDULED),
    "blocked": (ACTIVE,),
    "in-hand": (LOCKED,),
    "scheduled": (SCHEDULED,),
    "deferred": (DEFERRED,),
}
"""In which status the engine has messages of a state: most need no closer look."""

_line = msgspec.json.Encoder().encode


class ExportedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an export; for a key too long to be stored in clear `key` is None, and `id` names the state."""

    state: str
    key: str | int | None
    value: msgspec.Raw
    id: str = ""


class EngineOperator:
    """An operator with direct access to an engine; a host with workers passes their `meter` and application."""

    def __init__(
        self,
        engine: Engine,
        meter: Meter | None = None,
        app: App | None = None,
        *,
        on_written: OnWritten | None = None,
    ) -> None:
        """Take the engine; `on_written` gets the id and serial of a state that is imported, for a history."""
        self._engine = engine
        self._on_written = on_written
        self._meter = meter
        self._app = app

    # Send

    async def send(self, queue: str, messages: Sequence[NewMessage], *, due: float | None = None) -> None:
        engine = self._engine
        queue = declared(queue, [*engine.topology.queues, *engine.topology.topics])
        routes = engine.state.routes[queue]
        if len(messages) > BATCH_COUNT_MAX:
            raise TooLarge(f"{len(messages)} messages in one batch; send at most {BATCH_COUNT_MAX} at a time")
        types = await self._types(queue)
        is_keyed = any(route.settings.ordering == "per_key" for route in routes)
        sent, due_ms = [], later_ms(due, engine.now_ms())
        for new in messages:
            checked = new if self._app is None else as_handled(self._app, queue, new, versions=types)
            check_sendable(queue, checked, types, needs_key=is_keyed)
            message = outgoing(checked, types, due_ms or engine.now_ms())
            sent.append(await check_in(message, engine.blobs, above_bytes=CLAIM_CHECK_BYTES))
        engine.broker.send(queue, sent, due_ms=due_ms)
        await engine.core.gate()

    async def _types(self, queue: str) -> dict[str, int]:
        return await types_of(queue, self._notes(NOTE_PREFIX))

    def _notes(self, prefix: str) -> AsyncIterator[Document]:
        """The framework's own notes of a kind."""
        return EngineStore(self._engine.core, self._engine.documents).scan(NOTES, prefix=prefix)

    async def _only_type(self, queue: str) -> str:
        """The only type of a queue's handlers, which a message without a type has; empty if there are several."""
        types = await self._types(queue)
        return next(iter(types)) if len(types) == 1 else ""

    # Look

    async def check(self) -> None:
        """Pass the gate.

        Raises:
            EngineStopped: the engine answers nothing more.
        """
        await self._engine.core.gate()

    async def status(self) -> Status:
        engine, queues, pending = self._engine, {}, 0
        now_ms = engine.now_ms()
        for path in sorted(engine.topology.queues):
            queue, dead = engine.state.paths.get(path), engine.state.paths.get(dead_letter_path(path))
            if queue is None or dead is None:  # deleted meanwhile
                continue
            counts, retried, oldest_ms = await counted(queue)
            pending += counts[LOCKED]
            queues[path] = QueueStatus(
                active=counts[ACTIVE] + counts[LOCKED],
                scheduled=counts[SCHEDULED],
                deferred=counts[DEFERRED],
                dead_letters=len(dead.tasks),
                oldest_s=None if oldest_ms is None else max(0, now_ms - oldest_ms) / 1_000,
                received=queue.received_count,
                standing=len(queue.order.blocked) if isinstance(queue.order, SessionOrder) else 0,
                paused=queue.is_paused,
                unhandled=True if self._is_unhandled(path) and not self._is_read_elsewhere(path) else msgspec.UNSET,
                handled=msgspec.UNSET if self._meter is None else self._meter.handled(path, now_ms),
                retrying=retried,
            )
        streams = await list_streams(on_engine(engine))
        await engine.core.gate()
        handling = None if self._meter is None else self._meter.read()
        guards = [] if self._meter is None else self._meter.guards(now_ms)
        shown = streams if streams.logs or streams.processors else None
        return Status(queues, pending, handling, shown, guards, engine.core.ahead_s() or None)

    async def signs(self) -> Signs:
        found = Signs(await large_states_of(self._engine))
        await self._engine.core.gate()
        return found

    async def metrics(self) -> str:
        if self._meter is None or self._app is None:
            raise Refused("only a host with an application has metrics; start one with `outbox run APP`")
        return host_metrics(self._app.name, self._meter.counts, await self.status())

    async def state(self, type: str, key: str, kind: KeyKind = "text") -> bytes | None:
        found = self._engine.documents.read(STATES, state_id(type, parse_key(key, kind)))
        await self._engine.core.gate()
        if found is None:
            await self._check_types({type})
        return found.value if found is not None and found.value else None

    async def export(self, type: str = "") -> AsyncIterator[bytes]:
        prefix = f"{type}:" if type else ""
        pages = states_of_one_instant(self._engine)
        await self._engine.core.gate()
        if type:
            await self._check_types({type})
        async for page in pages:
            lines = [_line(_exported(id, each.value)) for id, each in page if each.value and id.startswith(prefix)]
            if lines:
                yield b"\n".join(lines) + b"\n"

    async def states(self, type: str = "") -> AsyncIterator[bytes]:
        if type:
            await self._check_types({type})
        async for piece in states_of_engine(self._engine, type):
            yield piece

    async def write_states(self, asked: StateWrites) -> list[StateWritten]:
        await self._check_types({line.type for line in asked.states}, or_there_is_none=True)
        return await write_states_of_engine(self._engine, asked, self._app, self._on_written)

    async def _check_types(self, types: set[str], *, or_there_is_none: bool = False) -> None:
        """Check that states or handlers have these types, so that a misspelt one does not look empty.

        With `or_there_is_none` any will do where no type is known at all.
        """
        known = await states_of(self._notes(NOTE_PREFIX))
        known |= set() if self._app is None else self._app.states().keys()
        if types <= known:
            return
        async for some in in_slices(list(self._engine.state.documents.spaces[STATES])):
            known.update([id.rpartition(":")[0] for id in some])  # a key's own colons are escaped in an id
            if types <= known:
                return
        if known or not or_there_is_none:
            unknown, there = sorted(types - known)[0][:80], listed(known)
            raise LookupError(f"no state is of type {unknown!r}; there are: {there}.  Check the spelling")

    async def peek(self, asked: PeekQuery) -> Peeked:
        engine, path, now_ms = self._engine, self._named(asked.queue), self._engine.now_ms()
        queue, statuses = engine.broker.queue(path), _STATUSES.get(asked.state, ())

        def is_wanted(task: Task) -> bool:
            return task.status in statuses and state_of(held_in(queue, task, now_ms), now_ms) == asked.state

        def is_meant(task: Task) -> bool:
            return (not asked.key or task.message.session_id == asked.key) and (not asked.state or is_wanted(task))

        if asked.by_due:
            last = queue.tasks.get(asked.after)
            behind = last if last is not None and is_meant(last) else None
            by_due = PageByDue(path, after=asked.after, behind=behind, count=asked.count)
            async for some in tasks_of(queue):
                by_due.see(filter(is_meant, some))
            tasks, more = by_due.page()
        else:
            wanted = is_meant if asked.key or asked.state else None
            tasks = await first_of(queue, asked.after, asked.count + 1, wanted)
            more = tasks[asked.count - 1].sequence if len(tasks) > asked.count else 0
        dead, taker, views = engine.broker.queue(dead_letter_path(path)).tasks, self._taker(path), list[MessageView]()
        async for some in in_slices(tasks[: asked.count], MOVED_COUNT):
            busy = at_work()
            held = [held_in(queue, task, now_ms, dead, busy) for task in some if is_there(queue, task)]
            views += [held_messages.view_of(path, each, now_ms, taker) for each in held]
        await engine.core.gate()
        return Peeked(views, more, queue.is_paused)

    async def find(self, asked: FindQuery) -> list[FoundMessage]:
        engine, now_ms = self._engine, self._engine.now_ms()
        paths = [self._named(asked.queue)] if asked.queue else sorted(engine.topology.queues)
        named = Named[tuple[str, str, Task]](asked.id)
        for path in paths:
            await self._see(named, path, path, after=asked.after)
        for path in paths:
            await self._see(named, path, dead_letter_path(path))
        id = the_id(asked.id, named.ids, asked.queue)
        found = []
        its = [(path, place, task) for path, place, task in named.of(id) if self._is_in(place, task)]
        for path, place, task in its:
            queue, letters = engine.broker.queue(path), engine.broker.queue(dead_letter_path(path)).tasks
            if place == path:
                held = held_in(queue, task, now_ms, letters, at_work())
                view = held_messages.view_of(path, held, now_ms, self._taker(path))
                found.append(await found_with_body(view, task.message, engine.blobs))
            else:
                only, is_only = await self._only_type(path), [each for _, each, _ in its].count(place) == 1
                letter = await with_body(id, entry_of(path, task), only, engine.blobs, is_only=is_only)
                found.append(FoundMessage(None, letter))
            await asyncio.sleep(0)
        await engine.core.gate()
        if not found:  # it has gone from where it was seen
            the_id(asked.id, set(), asked.queue)
        return found

    async def _see(self, named: Named[tuple[str, str, Task]], path: str, place: str, *, after: int = 0) -> None:
        """Look through a queue, or its dead letters: at the `place`, its path."""
        queue = self._engine.state.paths.get(place)  # it may be deleted meanwhile
        if queue is not None:
            async for some in tasks_of(queue, after=after):
                for task in some:
                    named.see(identity_of(path, task), (path, place, task))

    def _is_in(self, place: str, task: Task) -> bool:
        """Whether a task that was seen in a queue is still there."""
        queue = self._engine.state.paths.get(place)
        return queue is not None and is_there(queue, task)

    def _taker(self, path: str) -> str:
        """Whom the messages of a queue wait for."""
        unhandled = self._app.name if self._app is not None and self._is_unhandled(path) else ""
        paused = self._engine.broker.queue(path).is_paused
        return held_messages.waits_for(path, paused=paused, app_without_handler=unhandled)

    def _is_unhandled(self, path: str) -> bool:
        """Whether this host's application is known to have no handler for a queue."""
        return self._app is not None and all(handler.source != path for handler in self._app.handlers)

    def _is_read_elsewhere(self, path: str) -> bool:
        """Whether this host's application says that another receiver takes from a queue."""
        return self._app is not None and path in self._app.queues and self._app.queues[path].read_elsewhere

    async def trail(self, asked: TrailQuery) -> Trail:
        return await trail_on_engine(self._engine, asked, self._taker)

    async def cancel(self, queue: str, id: str, *, after: int = 0) -> Moved:
        queue = self._named(queue)

        def is_meant(task: Task) -> bool:
            return task.status == SCHEDULED and not is_retried(task)

        id, numbers = await self._for_later(queue, id, after, is_meant, scheduled_id)
        count = self._engine.broker.cancel(queue, numbers)
        await self._engine.core.gate()
        return Moved(count, id=id)

    async def make_due(self, queue: str, id: str, *, after: int = 0) -> Moved:
        queue = self._named(queue)
        id, numbers = await self._for_later(queue, id, after, lambda task: task.status == SCHEDULED, later_id)
        count = self._engine.broker.make_due(queue, numbers)
        await self._engine.core.gate()
        return Moved(count, id=id)

    async def _for_later(
        self, queue: str, text: str, after: int, is_meant: Callable[[Task], bool], id_of: Callable[..., str]
    ) -> tuple[str, list[int]]:
        """The id that a text stands for of what a queue holds for later, and the numbers that it has now."""
        place, named = self._engine.broker.queue(queue), Named[Task](text)
        async for some in tasks_of(place, after=after):
            for task in filter(is_meant, some):
                named.see(identity_of(queue, task), task)
        id = id_of(queue, text, named.ids)
        numbers = [task.sequence for task in named.of(id) if is_there(place, task) and is_meant(task)]
        return (id, numbers) if numbers else (id_of(queue, text, set()), [])

    async def pending(self) -> list[PendingView]:
        await self._engine.core.gate()
        return []  # outputs are in their queues as soon as the message that emitted them is committed

    async def finish(self, tx: str | None) -> PendingFinished:
        if tx is not None:
            raise LookupError(f"nothing is pending of {tx!r}: on an engine outputs commit with their message")
        return PendingFinished(0, 0, 0)

    # Dead letters

    async def dead_letters(
        self,
        queue: str,
        *,
        after: int = 0,
        count_max: int = BATCH_COUNT_MAX,
        where: DeadLetterFilter = ANY_DEAD_LETTER,
    ) -> list[DeadLetterView]:
        queue, count_max = self._named(queue), min(count_max, BATCH_COUNT_MAX)
        types = await type_names(queue, self._notes(NOTE_PREFIX))

        def is_wanted(task: Task) -> bool:
            return matches(entry_of(queue, task), where, types)

        wanted = None if where == ANY_DEAD_LETTER else is_wanted
        letters = self._engine.broker.queue(dead_letter_path(queue))
        views = list[DeadLetterView]()
        async for some in in_slices(await first_of(letters, after, count_max, wanted), MOVED_COUNT):
            views += [view_of(identity_of(queue, task), entry_of(queue, task), types.only) for task in some]
        await self._engine.core.gate()
        return views

    async def dead_among(self, queue: str, ids: Sequence[str]) -> dict[str, list[DeadAttempt]]:
        queue = self._named(queue)
        found = {}
        async for some in in_slices(dict.fromkeys(ids)):
            found.update({id: letters_of(self._engine.broker.queue(dead_letter_path(queue)), id) for id in some})
        await self._engine.core.gate()
        return {
            id: [DeadAttempt(task.sequence, task.message.attempt) for task in tasks]
            for id, tasks in found.items()
            if tasks
        }

    async def dead_letter(self, queue: str, id: str, *, sequence: int = 0) -> DeadLetterView:
        queue = self._named(queue)
        id, same = await self._of(queue, id)
        dead = newest(those_of(queue, id, same, sequence))
        only = await self._only_type(queue)
        await self._engine.core.gate()
        return await with_body(id, entry_of(queue, dead), only, self._engine.blobs, is_only=len(same) == 1)

    async def resubmit(self, queue: str, id: str | None, *, body: bytes | None = None, sequence: int = 0) -> Moved:
        queue = self._named(queue)
        if id is None:
            return await self._move_all(queue, self._engine.dead_letters.resubmit, is_resubmission=True)
        id, same = await self._of(queue, id)
        dead = newest(those_of(queue, id, same, sequence))
        edit = None
        if body is not None:
            plan = None if self._app is None else compile_app(self._app)
            entry = identified(entry_of(queue, dead))
            edit = await edit_of(entry, body, self._engine.blobs, above_bytes=CLAIM_CHECK_BYTES, plan=plan)
        self._engine.dead_letters.resubmit(queue, dead.sequence, edit=edit)
        await self._engine.core.gate()
        return Moved(1, id=id)

    async def discard(self, queue: str, id: str | None, *, for_good: bool = False, sequence: int = 0) -> Moved:
        queue, move = self._named(queue), await self._discard(for_good=for_good)
        if id is None:
            return await self._move_all(queue, move, is_resubmission=False)
        id, same = await self._of(queue, id)
        found = those_of(queue, id, same, sequence)
        for task in found:
            move(queue, task.sequence)
        await self._engine.core.gate()
        return discarded(id, [each.sequence for each in found])

    async def _discard(self, *, for_good: bool) -> Callable[[str, int], None]:
        """What discards a dead letter of a queue by its number."""
        if for_good:
            return self._engine.dead_letters.discard
        until_ms = self._engine.now_ms() + await longest_retention_ms(self._notes(RETENTION_PREFIX))
        return partial(self._engine.dead_letters.set_aside, until_ms=until_ms)

    async def discard_some(self, queue: str, sequences: Sequence[int], *, for_good: bool = False) -> Moved:
        queue, move, done = self._named(queue), await self._discard(for_good=for_good), list[int]()
        async for some in in_slices(dict.fromkeys(sequences), MOVED_COUNT):
            for number in some:
                with suppress(LookupError):  # it is gone, or a receiver has it
                    move(queue, number)
                    done.append(number)
        await self._engine.core.gate()
        return Moved(len(done), len(set(sequences)) - len(done), numbers=done)

    async def discarded(self, queue: str) -> list[DeadLetterView]:
        queue = self._named(queue)
        only, views = await self._only_type(queue), list[DeadLetterView]()
        async for some in in_slices(self._engine.dead_letters.set_aside_of(queue), MOVED_COUNT):
            views += [view_of(name_of(dead), dead, only) for dead in some]
        await self._engine.core.gate()
        return views

    async def restore(self, queue: str, id: str | None) -> Moved:
        queue = self._named(queue)
        named, numbers, count = Named[int](id or ""), list[int](), 0
        async for some in in_slices(self._engine.dead_letters.set_aside_of(queue), MOVED_COUNT):
            numbers += [dead.sequence for dead in some]
            for dead in some if id is not None else ():
                named.see(name_of(dead), dead.sequence)
        if id is not None:
            id = discarded_id(queue, id, named.ids)
            numbers = named.of(id)
        async for few in in_slices(numbers, MOVED_COUNT):
            for number in few:
                with suppress(LookupError):  # its time ended meanwhile
                    self._engine.dead_letters.restore(queue, number)
                    count += 1
        await self._engine.core.gate()
        return Moved(count) if id is None else Moved(count, id=id)

    async def _move_all(self, queue: str, move: Callable[[str, int], None], *, is_resubmission: bool) -> Moved:
        """Move every dead letter that may be moved, the newest first: a resubmission takes its older copies with it."""
        letters, tasks = self._engine.broker.queue(dead_letter_path(queue)), list[Task]()
        async for some in tasks_of(letters):
            tasks += some
        there, moved, count, left = letters.tasks, set[object](), len(tasks), 0
        while tasks:
            some = [tasks.pop() for _ in tasks[-MOVED_COUNT:]]  # and freed with their slice, not all at the end
            for task in some:
                has_copies = len(letters_of(letters, task.message.identity)) > 1
                if is_resubmission and task.message.identity and alike(task.message) in moved:
                    left += task.sequence in there  # a receiver has it
                    continue
                try:
                    move(queue, task.sequence)
                except (LookupError, Refused):  # refused; or a receiver has it, or settled it between two batches
                    left += 1
                else:
                    moved.update([alike(task.message)] if has_copies else [])
            await asyncio.sleep(0)
        await self._engine.core.gate()
        return Moved(count - left, left)

    async def _of(self, queue: str, text: str) -> tuple[str, list[Task]]:
        """The full id of a text, and its dead letters, oldest first."""
        letters = self._engine.broker.queue(dead_letter_path(queue))
        if same := letters_of(letters, text):
            return text, same
        named = Named[Task](text)
        async for some in tasks_of(letters):
            for task in some:
                named.see(identity_of(queue, task), task)
        id = full_id(queue, text, named.ids)
        same = [task for task in named.of(id) if is_there(letters, task)]
        return (id, same) if same else (full_id(queue, text, set()), [])

    def _named(self, queue: str) -> str:
        """The declared queue or subscription that is given, in any case.

        Raises:
            UnknownDestination: there is none; the text lists those that are near.
        """
        return declared(queue, self._engine.topology.queues)

    async def blocked(self, asked: BlockedQuery) -> BlockedPage:
        queue = self._named(asked.queue) if asked.queue else ""
        page = await blocked_on_engine(self._engine, msgspec.structs.replace(asked, queue=queue))
        await self._engine.core.gate()
        return page

    async def pause(self, asked: PauseRequest) -> Paused:
        queue = self._named(asked.queue)
        changed = self._engine.topology.pause(queue, paused=asked.paused)
        await self._engine.core.gate()
        return Paused(queue, asked.paused, changed)

    # Ordered logs

    async def streams(self) -> Streams:
        return await list_streams(on_engine(self._engine, measured=True))

    def stream(self, asked: StreamQuery) -> AsyncIterator[bytes]:
        return read_stream(on_engine(self._engine), asked)

    async def unregister_stream(self, asked: UnregisterRequest) -> StreamUnregistered:
        return await unregister_stream(on_engine(self._engine), asked)

    async def trim_stream(self, asked: TrimRequest) -> StreamTrimmed:
        return await trim_stream(on_engine(self._engine), asked)

    # Upkeep

    async def compact(self) -> Compacted:
        log = self._engine.log
        before_bytes = 0 if log is None else log.size_bytes
        ordinal = await self._engine.compact_in_background()
        await self._engine.core.gate()
        return Compacted(ordinal, before_bytes, 0 if log is None else log.size_bytes)

    async def seal(self) -> int:
        log = self._engine.log
        ordinal = 0 if log is None else self._engine.core.guarded(log.seal)
        await self._engine.core.gate()
        return ordinal


def _exported(id: str, value: bytes) -> ExportedState:
    known = parse_state_id(id)
    if known is None:
        return ExportedState(id.rpartition(":")[0], None, msgspec.Raw(value), id)
    type, key = known
    return ExportedState(type, str(key) if isinstance(key, UUID) else key, msgspec.Raw(value))


_conforms: type[Operator] = EngineOperator

"""Messages on an engine: send, find, cancel, pause, and what lies in all queues, without application code.

Types go by their wire names and bodies are JSON.  Nothing is returned before it has passed the engine's gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import nlargest

import msgspec

from outbox.app import CLAIM_CHECK_BYTES
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import ACTIVE, DEFERRED, LOCKED, SCHEDULED, Task
from outbox.errors import Refused, TooLarge
from outbox.ops.dead_letters.views import with_body
from outbox.ops.messages.by_due import PageByDue
from outbox.ops.messages.sending import as_handled, check_sendable, later_ms, outgoing
from outbox.ops.shared import held_messages
from outbox.ops.shared.held_messages import found_with_body, state_of
from outbox.ops.shared.meter import host_metrics, note_pipelines
from outbox.ops.shared.names import declared, later_id, scheduled_id, the_id
from outbox.ops.shared.on_engine import (
    MOVED_COUNT,
    EngineSite,
    Named,
    first_of,
    in_slices,
    is_there,
    states_of_one_instant,
    tasks_of,
)
from outbox.ops.shared.tasks import at_work, counted, entry_of, held_in, identity_of, is_retried
from outbox.ops.streams.logs import list_streams, on_engine
from outbox.ops.streams.pipelines import read_pipelines
from outbox.ops.values.dead_letters import Moved
from outbox.ops.values.messages import (
    Cancel,
    Find,
    Finish,
    FoundMessage,
    ListPending,
    MakeDue,
    MessageView,
    Pause,
    Paused,
    Peek,
    Peeked,
    PendingFinished,
    PendingView,
    Send,
)
from outbox.ops.values.requests import BATCH_COUNT_MAX, Answers
from outbox.ops.values.status import Check, LargeState, QueueStatus, ReadMetrics, ReadSigns, ReadStatus, Signs, Status
from outbox.ops.values.streams import ReadPipelines
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.shell import LARGE_COUNT_MAX, LARGE_STATE_BYTES

_STATUSES: dict[str, tuple[int, ...]] = {
    "waiting": (ACTIVE,),
    "retrying": (ACTIVE, SCHEDULED),
    "blocked": (ACTIVE,),
    "in-hand": (LOCKED,),
    "scheduled": (SCHEDULED,),
    "deferred": (DEFERRED,),
}
"""In which status the engine has messages of a state: most need no closer look."""


async def check(at: EngineSite, asked: Check) -> None:
    """Pass the gate.

    Raises:
        EngineStopped: the engine answers nothing more.
    """
    await at.engine.core.gate()


async def send(at: EngineSite, asked: Send) -> None:
    """Send all messages or none; on return they are durable.

    Raises:
        UnknownDestination: no such queue or topic.
        Refused: a body is not JSON or not its handler's message, a key or one type of several is missing, a key is not
            the message's, or the backend takes no more.
    """
    engine = at.engine
    queue, messages = declared(asked.queue, [*engine.topology.queues, *engine.topology.topics]), asked.messages
    routes = engine.state.routes[queue]
    if len(messages) > BATCH_COUNT_MAX:
        raise TooLarge(f"{len(messages)} messages in one batch; send at most {BATCH_COUNT_MAX} at a time")
    types = await at.types(queue)
    is_keyed = any(route.settings.ordering == "per_key" for route in routes)
    sent, due_ms = [], later_ms(asked.due, engine.now_ms())
    for new in messages:
        checked = new if at.app is None else as_handled(at.app, queue, new, versions=types)
        check_sendable(queue, checked, types, needs_key=is_keyed)
        message = outgoing(checked, types, due_ms or engine.now_ms())
        sent.append(await check_in(message, engine.blobs, above_bytes=CLAIM_CHECK_BYTES))
    engine.broker.send(queue, sent, due_ms=due_ms)
    await engine.core.gate()


async def read_status(at: EngineSite, asked: ReadStatus) -> Status:
    engine, queues, pending = at.engine, {}, 0
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
            unhandled=True if at.is_unhandled(path) and not at.is_read_elsewhere(path) else msgspec.UNSET,
            handled=msgspec.UNSET if at.meter is None else at.meter.handled(path, now_ms),
            retrying=retried,
        )
    streams = await list_streams(on_engine(engine))
    await engine.core.gate()
    handling = None if at.meter is None else at.meter.read()
    guards = [] if at.meter is None else at.meter.guards(now_ms)
    shown = streams if streams.logs or streams.processors else None
    return Status(queues, pending, handling, shown, guards, engine.core.ahead_s() or None)


async def read_signs(at: EngineSite, asked: ReadSigns) -> Signs:
    found = Signs(await large_states_of(at.engine))
    await at.engine.core.gate()
    return found


async def read_metrics(at: EngineSite, asked: ReadMetrics) -> str:
    if at.meter is None or at.app is None:
        raise Refused(
            "only a host with an application has metrics; start one with `outbox run APP`, or `outbox pipeline run` "
            "with --metrics-port"
        )
    note_pipelines(at.meter.counts, await read_pipelines(on_engine(at.engine), ReadPipelines()))
    return host_metrics(at.app.name, at.meter.counts, await read_status(at, ReadStatus()))


async def peek(at: EngineSite, asked: Peek) -> Peeked:
    engine, path, now_ms = at.engine, at.named(asked.queue), at.engine.now_ms()
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
    dead, taker, views = engine.broker.queue(dead_letter_path(path)).tasks, at.taker(path), list[MessageView]()
    async for some in in_slices(tasks[: asked.count], MOVED_COUNT):
        busy = at_work()
        held = [held_in(queue, task, now_ms, dead, busy) for task in some if is_there(queue, task)]
        views += [held_messages.view_of(path, each, now_ms, taker) for each in held]
    await engine.core.gate()
    return Peeked(views, more, queue.is_paused)


async def find(at: EngineSite, asked: Find) -> list[FoundMessage]:
    """Find every place of a message, with its body.

    Raises:
        LookupError: it is in no queue, and no dead letter.
        Refused: several ids have this prefix.
    """
    engine, now_ms = at.engine, at.engine.now_ms()
    paths = [at.named(asked.queue)] if asked.queue else sorted(engine.topology.queues)
    named = Named[tuple[str, str, Task]](asked.id)
    for path in paths:
        await _see(at, named, path, path, after=asked.after)
    for path in paths:
        await _see(at, named, path, dead_letter_path(path))
    id = the_id(asked.id, named.ids, asked.queue)
    found = []
    its = [(path, place, task) for path, place, task in named.of(id) if _is_in(at, place, task)]
    for path, place, task in its:
        queue, letters = engine.broker.queue(path), engine.broker.queue(dead_letter_path(path)).tasks
        if place == path:
            view = held_messages.view_of(path, held_in(queue, task, now_ms, letters, at_work()), now_ms, at.taker(path))
            found.append(await found_with_body(view, task.message, engine.blobs))
        else:
            only, is_only = await at.only_type(path), [each for _, each, _ in its].count(place) == 1
            letter = await with_body(id, entry_of(path, task), only, engine.blobs, is_only=is_only)
            found.append(FoundMessage(None, letter))
        await asyncio.sleep(0)
    await engine.core.gate()
    if not found:  # it has gone from where it was seen
        the_id(asked.id, set(), asked.queue)
    return found


async def _see(at: EngineSite, named: Named[tuple[str, str, Task]], path: str, place: str, *, after: int = 0) -> None:
    """Look through a queue, or its dead letters: at the `place`, its path."""
    queue = at.engine.state.paths.get(place)  # it may be deleted meanwhile
    if queue is not None:
        async for some in tasks_of(queue, after=after):
            for task in some:
                named.see(identity_of(path, task), (path, place, task))


def _is_in(at: EngineSite, place: str, task: Task) -> bool:
    """Whether a task that was seen in a queue is still there."""
    queue = at.engine.state.paths.get(place)
    return queue is not None and is_there(queue, task)


async def cancel(at: EngineSite, asked: Cancel) -> Moved:
    """Cancel the scheduled messages of an id.

    Raises:
        LookupError: nothing is scheduled under it: it was delivered, or is tried again.
        Refused: several ids have this prefix.
    """
    queue = at.named(asked.queue)

    def is_meant(task: Task) -> bool:
        return task.status == SCHEDULED and not is_retried(task)

    id, numbers = await _for_later(at, queue, asked.id, asked.after, is_meant, scheduled_id)
    count = at.engine.broker.cancel(queue, numbers)
    await at.engine.core.gate()
    return Moved(count, id=id)


async def make_due(at: EngineSite, asked: MakeDue) -> Moved:
    queue = at.named(asked.queue)
    id, numbers = await _for_later(at, queue, asked.id, asked.after, lambda task: task.status == SCHEDULED, later_id)
    count = at.engine.broker.make_due(queue, numbers)
    await at.engine.core.gate()
    return Moved(count, id=id)


async def _for_later(
    at: EngineSite, queue: str, text: str, after: int, is_meant: Callable[[Task], bool], id_of: Callable[..., str]
) -> tuple[str, list[int]]:
    """Return the full id of a text among the messages that `is_meant` selects, and their numbers."""
    place, named = at.engine.broker.queue(queue), Named[Task](text)
    async for some in tasks_of(place, after=after):
        for task in filter(is_meant, some):
            named.see(identity_of(queue, task), task)
    id = id_of(queue, text, named.ids)
    numbers = [task.sequence for task in named.of(id) if is_there(place, task) and is_meant(task)]
    return (id, numbers) if numbers else (id_of(queue, text, set()), [])


async def list_pending(at: EngineSite, asked: ListPending) -> list[PendingView]:
    await at.engine.core.gate()
    return []  # outputs are in their queues as soon as the message that emitted them is committed


async def finish(at: EngineSite, asked: Finish) -> PendingFinished:
    if asked.tx is not None:
        raise LookupError(f"nothing is pending of {asked.tx!r}: on an engine outputs commit with their message")
    return PendingFinished(0, 0, 0)


async def pause(at: EngineSite, asked: Pause) -> Paused:
    queue = at.named(asked.queue)
    changed = at.engine.topology.pause(queue, paused=asked.paused)
    await at.engine.core.gate()
    return Paused(queue, asked.paused, changed)


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
    ListPending: list_pending,
    Finish: finish,
}


async def large_states_of(engine: Engine) -> list[LargeState]:
    """Return the largest states above `LARGE_STATE_BYTES`."""
    found: list[LargeState] = []
    async for some in states_of_one_instant(engine):
        large = [LargeState(id, len(each.value)) for id, each in some if len(each.value) > LARGE_STATE_BYTES]
        found = nlargest(LARGE_COUNT_MAX, [*found, *large], key=lambda each: each.size_bytes) if large else found
    return found

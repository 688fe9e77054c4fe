"""Port calls as events of a history: inputs, outputs, and the outcome that an exception shows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar
from zlib import crc32

from outbox.errors import Refused, UnknownDestination
from outbox.ports import Delivery, Document, Lost, Output, Won
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.events import Operation, digest_of

Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


async def recorded_call(
    history: History, operation: Operation, call: Awaitable[Result], failure: Callable[[Result], str] = lambda _: ""
) -> Result:
    """Record an operation and its outcome: `failure` says why a result had no effect; some errors leave it unknown."""
    history.begin(operation)
    try:
        result = await call
    except (Refused, UnknownDestination) as error:
        history.fail(operation.op, type(error).__name__)
        raise
    except BaseException as error:
        history.unknown(operation.op, type(error).__name__)
        raise
    why = failure(result)
    if why:
        history.fail(operation.op, why)
    else:
        history.ok(operation.op)
    return result


async def recorded_write(
    history: History, operation: Operation, call: Awaitable[Won | Lost], look: Callable[[Document], None]
) -> Won | Lost:
    """Record a conditional write, and look at the document that it lost to."""
    answer = await recorded_call(history, operation, call, lambda won: "lost" if isinstance(won, Lost) else "")
    if isinstance(answer, Lost) and answer.current is not None:
        look(answer.current)
    return answer


async def recorded_send(
    history: History, outputs: Sequence[Output], send: Callable[[Sequence[Output]], Awaitable[None]]
) -> None:
    """Record messages that are asked to leave."""
    push = events.Push(at_ms=history.now_ms(), op=history.next_op(), outputs=[emitted(output) for output in outputs])
    await recorded_call(history, push, send(outputs))


def remember(known: OrderedDict[Key, Value], key: Key, value: Value, count_max: int) -> None:
    """Remember a value as the newest of up to `count_max`."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > count_max:
        known.popitem(last=False)


def state_digest(value: bytes) -> int:
    """A check number of a state; 0 for none, as a deleted one leaves."""
    return crc32(value) or 1 if value else 0


def emitted(output: Output) -> events.Emitted:
    """An output as a history tells it."""
    message = output.message
    return events.Emitted(
        message.outbox_id or message.message_id,
        output.destination,
        digest_of(message),
        message.causation_id,
        output.due_ms,
    )


def recorded_claim(history: History, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
    """Record deliveries if there are any, with their messages if the history keeps bodies; the same deliveries."""
    if deliveries:
        claim = events.Claim(
            at_ms=history.now_ms(),
            deliveries=[
                events.Delivered(
                    d.message.outbox_id or d.message.message_id,
                    d.queue,
                    d.sequence,
                    d.from_outside,
                    d.message.attempt,
                    digest_of(d.message),
                )
                for d in deliveries
            ],
            wholes=[
                events.Whole(d.message, d.enqueued_ms, d.failures, d.delivery_count, d.from_outside)
                for d in deliveries
                if history.bodies
            ],
        )
        history.append(claim)
    return deliveries

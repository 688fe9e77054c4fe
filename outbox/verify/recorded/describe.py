"""Port calls as events of a history: what goes in, what comes out, and what an exception says of the outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from outbox.errors import Refused, UnknownDestination
from outbox.ports import Delivery, Output
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.events import Operation, digest_of


@contextmanager
def recorded_call(history: History, operation: Operation) -> Iterator[None]:
    """Record an operation around its call: if that raises, that it failed or that nobody knows."""
    history.begin(operation)
    try:
        yield
    except (Refused, UnknownDestination) as error:
        history.fail(operation.op, type(error).__name__)
        raise
    except BaseException as error:
        history.unknown(operation.op, type(error).__name__)
        raise


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


def claimed(deliveries: Sequence[Delivery], history: History) -> events.Claim:
    """Deliveries as a history tells them, with their messages if it keeps bodies."""
    delivered = [
        events.Delivered(
            d.message.outbox_id or d.message.message_id,
            d.queue,
            d.sequence,
            d.from_outside,
            d.message.attempt,
            digest_of(d.message),
        )
        for d in deliveries
    ]
    wholes = [
        events.Whole(d.message, d.enqueued_ms, d.failures, d.delivery_count, d.from_outside)
        for d in deliveries
        if history.bodies
    ]
    return events.Claim(at_ms=history.now_ms(), deliveries=delivered, wholes=wholes)

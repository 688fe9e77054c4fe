"""Messages that clients send: from a transfer to the engine, and the answer back.

A refusal of the engine becomes the condition that the SDK maps to its own exception; nothing of a refused transfer is
kept: a batch is sent whole or not at all (one whose messages become due at different times, due time by due time).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from uuid import uuid4

from outbox.emulator.amqp.deliveries import with_message_id
from outbox.emulator.amqp.errors import (
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_FOUND,
    SERVER_BUSY,
    OperationFault,
)
from outbox.emulator.amqp.link import Delivery
from outbox.emulator.amqp.messages import Incoming, decode_transfer
from outbox.emulator.bus.addresses import missing
from outbox.emulator.bus.filters import wire_facts
from outbox.engine.engine import Engine
from outbox.errors import Throttled, TooLarge, UnknownDestination


@dataclass(slots=True)
class Sender:
    """One link on which a client sends to a queue or a topic."""

    engine: Engine
    path: str
    needs_session: bool

    def on_delivery(self, event: Delivery) -> None:
        """Put a transfer's messages into the engine and answer it."""
        session = event.link.session
        try:
            incoming = decode_transfer(event.payload, event.message_format)
            put(self.engine, self.path, incoming, needs_session=self.needs_session)
        except OperationFault as fault:
            if not event.settled:
                session.reject(event.delivery_id, fault.condition, fault.description)
            return
        if not event.settled:
            session.accept(event.delivery_id)


def put(engine: Engine, path: str, incoming: list[Incoming], *, needs_session: bool) -> list[int]:
    """Send messages, with our own id where they have none, and return the sequence numbers in order.

    Raises: OperationFault.
    """
    if needs_session and not all(item.message.session_id for item in incoming):
        raise OperationFault(INVALID_FIELD, f"{path} requires sessions; give every message a session id")
    sequences: list[int] = []
    try:
        for due_ms, group in groupby(incoming, key=lambda item: item.due_ms):
            messages = [item.message for item in group]
            messages = [one if one.message_id else with_message_id(one, uuid4().hex) for one in messages]
            facts = [wire_facts(message) for message in messages] if engine.state.rules else []
            sequences += engine.broker.send(path, messages, due_ms=due_ms, facts=facts)
    except UnknownDestination as error:
        raise OperationFault(NOT_FOUND, missing(path)) from error
    except TooLarge as error:
        raise OperationFault(MESSAGE_SIZE_EXCEEDED, str(error)) from error
    except Throttled as error:
        raise OperationFault(SERVER_BUSY, str(error)) from error
    return sequences

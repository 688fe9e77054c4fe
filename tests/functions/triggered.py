"""Messages as a trigger hands them over."""

from __future__ import annotations

from datetime import UTC, datetime

from azure.functions.servicebus import ServiceBusMessage


def triggered(id: str, body: bytes, type: str = "", *, count: int = 1) -> ServiceBusMessage:
    """A Service Bus message of a type, or of none, with a delivery count."""
    return ServiceBusMessage(
        body=body,
        trigger_metadata=None,
        application_properties={"outbox-id": id} | ({"outbox-type": type} if type else {}),
        user_properties={},
        message_id=id,
        sequence_number=1,
        delivery_count=count,
        enqueued_time_utc=datetime.now(UTC),
    )

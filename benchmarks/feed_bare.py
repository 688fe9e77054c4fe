"""The shortest loop on the Service Bus SDK that sends what a feed sends: one process, full batches, nothing kept.

python -m benchmarks.feed_bare ROWS QUEUE        the connection is in OUTBOX_SERVICEBUS; one line of JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from benchmarks.feed_rows import TYPE, body_of, id_of
from outbox.message import PROPERTY_CREATED, PROPERTY_ID, PROPERTY_TYPE

ENVELOPE_BYTES = 4_096


def message_of(n: int) -> ServiceBusMessage:
    """The message of a row, as the feed makes it."""
    id, created = id_of(n), {"TYPE": "LONG", "VALUE": 1_700_000_000_000}
    properties: dict[Any, Any] = {PROPERTY_ID: id, PROPERTY_TYPE: TYPE, PROPERTY_CREATED: created}
    return ServiceBusMessage(
        body_of(n), application_properties=properties, message_id=id, content_type="application/json"
    )


def send(connection: str, queue: str, count: int) -> None:
    """Send all, batch by batch."""
    with (
        ServiceBusClient.from_connection_string(connection) as client,
        client.get_queue_sender(queue, keep_alive=0) as sender,
    ):
        limit_bytes = sender.create_message_batch().max_size_in_bytes - ENVELOPE_BYTES
        batch = sender.create_message_batch(limit_bytes)
        for n in range(count):
            message = message_of(n)
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                sender.send_messages(batch)
                batch = sender.create_message_batch(limit_bytes)
                batch.add_message(message)
        sender.send_messages(batch)


def main() -> None:
    count, queue = int(sys.argv[1]), sys.argv[2]
    started_s, cpu_s = time.monotonic(), time.process_time()
    send(os.environ["OUTBOX_SERVICEBUS"], queue, count)
    print(json.dumps({"seconds": time.monotonic() - started_s, "cpu_s": time.process_time() - cpu_s}))


if __name__ == "__main__":
    main()

"""Rows of one partition to a queue: what runs on an executor while `feed` sends.

A batch is filled up to the size that the link allows and sent; one that fails is sent again as it is, on a new
connection, so a reply that was lost only repeats equal ids.  The last thing this does is give back one row of counts:
nothing downstream can make Spark run it again.  An outage that outlasts patience comes back as a text in that row.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from outbox.message import PROPERTY_CREATED, PROPERTY_ID, PROPERTY_TYPE
from spark_jobs.common.arrow_rows import as_batches
from spark_jobs.common.identity import let_go
from spark_jobs.common.ids import broker_id
from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.feeding.shares import RESULT_SCHEMA, Sending

OVERSIZE_COUNT_MAX = 1_000
SEND_S = 60
ENVELOPE_BYTES_MAX = 4_096


def send_partition(settings: Sending, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send all rows {id, body, created_ms, session}; gives one row of `RESULT`."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # an outage is told once, in the result
    outgoing = Outgoing(settings)
    failed = None
    try:
        for part in parts:
            for row in part.to_pylist():
                outgoing.add(row["id"], row["body"], row["created_ms"], row["session"])
        outgoing.flush()
    except GaveUpError as error:
        failed = str(error)
    finally:
        outgoing.close()
    yield result(outgoing, failed)


def result(outgoing: Outgoing, failed: str | None) -> pa.RecordBatch:
    """One row of `RESULT`."""
    row = {name: getattr(outgoing, name) for name in ("accepted", "sent", "batches", "retries", "oversize")}
    return as_batches([row | {"failed": failed}], RESULT_SCHEMA)[0]


def to_message(type: str, identity: str, body: str, created_ms: int, session: str | None) -> ServiceBusMessage:
    """A row on the wire."""
    # The SDK encodes a bare integer as 32 bits and fails on a time in milliseconds; this names the AMQP type.
    created: Any = {"TYPE": "LONG", "VALUE": created_ms}
    return ServiceBusMessage(
        body.encode(),
        application_properties={PROPERTY_ID: identity, PROPERTY_TYPE: type, PROPERTY_CREATED: created},
        message_id=broker_id(identity),
        session_id=session,
        content_type="application/json",
    )


class Outgoing:
    """The batch that is being filled, and the connection that it leaves by."""

    def __init__(self, settings: Sending) -> None:
        self.settings = settings
        self.accepted = self.sent = self.batches = self.retries = 0
        self.oversize: list[str] = []
        self.patience = Patience(settings.timeout_s, time.monotonic, time.sleep, random.random)
        self._client: ServiceBusClient | None = None
        self._sender: ServiceBusSender | None = None
        self._batch: ServiceBusMessageBatch | None = None
        self._session: str | None = None
        self._started_s = time.monotonic()

    def add(self, identity: str, body: str, created_ms: int, session: str | None) -> None:
        """Put a message into the batch; send the batch first if the message does not fit.

        Raises:
            GaveUpError: the queue cannot be reached.
        """
        message = to_message(self.settings.type, identity, body, created_ms, session)
        if session != self._session:  # a partitioned queue takes a batch of one session only
            self.flush()
            self._session = session
        if not self._put(message):
            self.flush()
            if not self._put(message):
                self._set_aside(identity)

    def _put(self, message: ServiceBusMessage) -> bool:
        if self._batch is None:
            self._batch = self._new_batch()
        try:
            self._batch.add_message(message)
        except MessageSizeExceededError:
            return False
        return True

    def _set_aside(self, identity: str) -> None:
        if len(self.oversize) >= OVERSIZE_COUNT_MAX:
            raise GaveUpError(f"more than {OVERSIZE_COUNT_MAX} messages are larger than the queue takes")
        self.oversize.append(identity)

    def flush(self) -> None:
        """Send the batch until the queue has acknowledged it.

        Raises:
            GaveUpError: the queue cannot be reached.
        """
        batch, self._batch = self._batch, None
        if batch is None or not len(batch):
            return
        while True:
            try:
                self.sent += len(batch)
                self._link().send_messages(batch, timeout=SEND_S)
                break
            except (ServiceBusError, OSError) as error:
                self._failed(error)
        self.patience.succeeded()
        self.accepted += len(batch)
        self.batches += 1
        self._pace()

    def _new_batch(self) -> ServiceBusMessageBatch:
        while True:
            try:
                link = self._link()
                limit_bytes = link.create_message_batch().max_size_in_bytes
                # The SDK fills a batch to the limit and adds an envelope with the first message's properties then.
                return link.create_message_batch(limit_bytes - min(ENVELOPE_BYTES_MAX, limit_bytes // 4))
            except (ServiceBusError, OSError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.close()
        self.retries += 1
        self.patience.failed(error)

    def _link(self) -> ServiceBusSender:
        if self._sender is None:
            self._client = self.settings.access.client()
            # keep_alive=0: without it closing waits for a thread that sleeps.
            self._sender = self._client.get_queue_sender(self.settings.queue, keep_alive=0)
        return self._sender

    def _pace(self) -> None:
        if self.settings.rate_per_s > 0:
            due_s = self._started_s + self.accepted / self.settings.rate_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))

    def close(self) -> None:
        """Close the connection; messages in the batch stay."""
        sender, client = self._sender, self._client
        self._sender = self._client = None
        let_go(sender, client)

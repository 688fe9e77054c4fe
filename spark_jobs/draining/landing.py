"""Messages of a queue to immutable files: what runs on an executor while `consume` drains.

Theory of operation.  A receiver takes a batch, writes it into one file that appears whole under a name of its own,
and only then completes its messages, one after the other.  The file's name appearing is the commit: a kill before it
leaves messages whose locks run out and that come again; a kill behind it leaves messages that are on disk and come
again, which the merge finds out by their identity.  No lock waits for the driver, so none needs renewal.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
)

from outbox.errors import OutboxError, OutcomeUnknown
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.identity import Access, let_go
from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.common.places import Place
from spark_jobs.draining.received import ROW, as_row

BATCH_COUNT = 200
SETTLE_S = 20
NO_SESSION = (OperationTimeoutError, SessionCannotBeLockedError)
RESULT = "landed bigint, files bigint, completed bigint, lost bigint, idle boolean, failed string"


@dataclass(frozen=True, slots=True)
class Receiving:
    """From where, into which place, and until when; `budgets` holds for each receiver how many messages to take."""

    access: Access
    queue: str
    place: Place
    budgets: tuple[int, ...]
    idle_s: float
    deadline_s: float
    timeout_s: float
    sessions: bool = False
    goes_on: bool = False
    """Wait for messages until the deadline, though none came for `idle_s`."""
    crash_point: CrashPoint = no_crash


def land_partition(settings: Receiving, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Drain with one receiver for each number that comes in; gives one row of `RESULT` each."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # an outage is told once, in the result
    for part in parts:
        for number in part.column(0).to_pylist():
            incoming = Incoming(settings, settings.budgets[number])
            failed = None
            try:
                incoming.drain()
            except (GaveUpError, OutboxError) as error:  # nobody reaches the queue, or the place takes no file
                failed = str(error)
            finally:
                incoming.close()
            yield pa.RecordBatch.from_pylist(
                [
                    {
                        "landed": incoming.landed,
                        "files": incoming.files,
                        "completed": incoming.completed,
                        "lost": incoming.lost,
                        "idle": incoming.idle,
                        "failed": failed,
                    }
                ],
                schema=pa.schema(
                    [(name, pa.int64()) for name in ("landed", "files", "completed", "lost")]
                    + [("idle", pa.bool_()), ("failed", pa.string())]
                ),
            )


class Incoming:
    """One receiver and what it has landed."""

    def __init__(self, settings: Receiving, budget: int) -> None:
        self.settings = settings
        self.budget = budget
        self.landed = self.files = self.completed = self.lost = 0
        self.idle = False
        self.patience = Patience(settings.timeout_s, time.monotonic, time.sleep, random.random)
        self._client: ServiceBusClient | None = None
        self._receiver: ServiceBusReceiver | None = None

    def drain(self) -> None:
        """Receive, land, complete, until the queue is idle, the budget is spent or the time is over.

        An outage goes on behind that time: a receiver that got nothing would pass for one of an idle queue.

        Raises:
            GaveUpError: the queue cannot be reached.
        """
        over_s = time.monotonic() + self.settings.deadline_s
        idle_since_s = time.monotonic()
        while self.landed < self.budget and (time.monotonic() < over_s or self.patience.failures):
            messages = self._receive(over_s)
            if messages:
                self.land(messages)
                self._complete(messages)
                idle_since_s = time.monotonic()
            elif not self.patience.failures and time.monotonic() - idle_since_s >= self.settings.idle_s:
                self.idle = True
                if not self.settings.goes_on:
                    return

    def _receive(self, over_s: float) -> list[ServiceBusReceivedMessage]:
        wanted = min(BATCH_COUNT, self.budget - self.landed)
        wait_s = min(self.settings.idle_s, over_s - time.monotonic()) if self.settings.goes_on else self.settings.idle_s
        try:
            messages = self._link(wanted).receive_messages(wanted, max_wait_time=max(0.1, wait_s))
        except (ServiceBusError, OSError) as error:
            self.close()
            if self.settings.sessions and isinstance(error, NO_SESSION):
                self.patience.succeeded()
            else:
                self.patience.failed(error)
            return []
        self.patience.succeeded()
        if self.settings.sessions and not messages:
            self.close()  # this session is empty; the next one may not be
        self.settings.crash_point("received")
        return messages

    def land(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Write one file that appears whole; its appearing is what allows the messages to be completed.

        Raises:
            Refused: the place does not take it; the messages come again.
            OutcomeUnknown: it may be there; the messages come again, and are duplicates then.
        """
        table = pa.Table.from_pylist([as_row(message) for message in messages], schema=ROW)
        sink, name = pa.BufferOutputStream(), f"{uuid4().hex}.parquet"
        pq.write_table(table, sink)
        self.settings.crash_point("encoded")
        if not self.settings.place.create(name, sink.getvalue().to_pybytes()):
            raise OutcomeUnknown(f"{self.settings.place}/{name} is there already; run the same again")
        self.settings.crash_point("landed")
        self.landed += len(messages)
        self.files += 1

    def _complete(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Complete one after the other; what fails comes again and is found to be a duplicate."""
        for index, message in enumerate(messages):
            receiver = self._receiver
            if receiver is None:
                self.lost += len(messages) - index
                return
            try:
                receiver.complete_message(message)
                self.completed += 1
            except (MessageLockLostError, MessageAlreadySettled):
                self.lost += 1
            except (ServiceBusError, OSError):
                self.lost += 1
                self.close()
            self.settings.crash_point("completing")

    def _link(self, wanted: int) -> ServiceBusReceiver:
        if self._receiver is None:
            self._client = self.settings.access.client()
            options: dict[str, Any] = {"timeout": SETTLE_S}
            if self.settings.sessions:
                options |= {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": max(0.1, self.settings.idle_s)}
            else:
                # Prefetched messages spare a round trip; keep_alive=0: else closing waits for a sleeping thread.
                options |= {"prefetch_count": wanted, "keep_alive": 0}
            self._receiver = self._client.get_queue_receiver(self.settings.queue, **options)
        return self._receiver

    def close(self) -> None:
        """Let the connection go; messages that were fetched and not landed go back."""
        receiver, client = self._receiver, self._client
        self._receiver = self._client = None
        let_go(receiver, client)

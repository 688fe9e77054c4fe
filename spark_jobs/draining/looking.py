"""Looking at messages page by page: nothing is received, so nobody's lock or delivery count changes."""

from __future__ import annotations

from dataclasses import dataclass

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusError

from spark_jobs.common.identity import Access, let_go
from spark_jobs.common.patience import Patience

PAGE_COUNT = 200
PEEK_S = 20
"""How long one page may take."""


def waiting_in(access: Access, queue: str, patience: Patience) -> int:
    """How many of the first messages of a queue wait, or are locked by a receiver; neither deferred nor scheduled.

    Raises:
        GaveUpError: the queue cannot be looked at.
    """
    look = Look(access, queue, patience)
    try:
        while (page := look.page(1)) is None:
            continue
        return sum(message.state == ServiceBusMessageState.ACTIVE for message in page)
    finally:
        look.close()


@dataclass(slots=True)
class Look:
    """A look at a queue, or at its dead letters, and the connection that it goes by."""

    access: Access
    queue: str
    patience: Patience
    sub_queue: ServiceBusSubQueue | None = None
    _client: ServiceBusClient | None = None
    _receiver: ServiceBusReceiver | None = None

    def page(self, after: int) -> list[ServiceBusReceivedMessage] | None:
        """Some from a number on, in order, none behind the last; None where the queue did not answer this time.

        Raises:
            GaveUpError: it has not answered for too long, or never will.
        """
        try:
            page = self._link().peek_messages(PAGE_COUNT, sequence_number=after, timeout=PEEK_S)
        except (ServiceBusError, OSError) as error:
            self.close()
            self.patience.failed(error)
            return None
        self.patience.succeeded()
        return page

    def _link(self) -> ServiceBusReceiver:
        if self._receiver is None:
            self._client = self.access.client()
            self._receiver = self._client.get_queue_receiver(self.queue, sub_queue=self.sub_queue, keep_alive=0)
        return self._receiver

    def close(self) -> None:
        """Let the connection go."""
        receiver, client = self._receiver, self._client
        self._receiver = self._client = None
        let_go(receiver, client)

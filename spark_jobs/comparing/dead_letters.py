"""The dead letters of a queue: looked at page by page, never received, so nobody's lock or delivery count changes.

The id of one is that of the input that caused it: what a handler emits carries that as its correlation id, what `feed`
sends is the input itself.  Ids are held by the driver, so there is a limit to how many.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.identity import Access
from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.draining.received import cause_of, properties_of

QUEUE = "queue:"
"""What a queue's name is told from a file's by; a file that is called so is given as ./queue:..."""
PAGE_COUNT, LETTER_COUNT_MAX = 200, 200_000
PEEK_S = 20
"""How long one page may take."""
OUTAGE_S, WHOLE_S_MAX = 120.0, 900.0


def peeked(
    access: Access,
    queue: str,
    *,
    count_max: int = LETTER_COUNT_MAX,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> set[str]:
    """The inputs that the dead letters of a queue, or of a subscription (topic/Subscriptions/name), were caused by.

    Raises:
        Refused: there are too many to be held.
        OutcomeUnknown: the queue cannot be looked at; the text has the cure.
    """
    look = Look(access, queue, Patience(OUTAGE_S, clock_s, sleep, random.random))
    found, seen, after, over_s = set[str](), 0, 1, clock_s() + WHOLE_S_MAX
    try:
        while seen <= count_max and clock_s() < over_s:
            page = look.page(after)
            if page is not None and not page:  # one that is not full is not the last
                return found
            for message in page or ():
                found.add(cause_of(message, properties_of(message)))
                seen, after = seen + 1, (message.sequence_number or after) + 1
    except GaveUpError as error:
        raise OutcomeUnknown(f"{QUEUE}{queue}: its dead letters cannot be looked at: {error}") from error
    finally:
        look.close()
    if seen <= count_max:
        raise OutcomeUnknown(f"{QUEUE}{queue}: {seen:,} dead letters in {WHOLE_S_MAX:.0f} s and no end; run it again")
    raise Refused(
        f"{QUEUE}{queue} has more than {count_max:,} dead letters; resubmit or discard those that are settled, or give "
        "a file of their ids"
    )


@dataclass(slots=True)
class Look:
    """A look at the dead letters of a queue, and the connection that it goes by."""

    access: Access
    queue: str
    patience: Patience
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
            sub_queue = ServiceBusSubQueue.DEAD_LETTER
            self._receiver = self._client.get_queue_receiver(self.queue, sub_queue=sub_queue, keep_alive=0)
        return self._receiver

    def close(self) -> None:
        """Let the connection go."""
        receiver, client = self._receiver, self._client
        self._receiver = self._client = None
        for part in (receiver, client):
            try:
                if part is not None:
                    part.close()
            except (ServiceBusError, OSError):
                continue  # it is gone already

"""Dead letters of a queue, peeked page by page: no lock and no delivery count changes.

The id of one is that of the input that caused it: what a handler emits carries that as its correlation id, what `feed`
sends is the input itself.  Ids are held by the driver, so there is a limit to how many.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from azure.servicebus import ServiceBusSubQueue

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.identity import Access
from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.draining.looking import Look
from spark_jobs.draining.received import cause_of, properties_of

QUEUE = "queue:"
"""The prefix that tells a queue's name from a file's; such a file is given as ./queue:..."""
LETTER_COUNT_MAX = 200_000
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
    look = Look(access, queue, Patience(OUTAGE_S, clock_s, sleep, random.random), ServiceBusSubQueue.DEAD_LETTER)
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

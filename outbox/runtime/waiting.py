"""What waits behind a dead letter that blocks its key is on record, so that it may be run however long that takes.

A message as old as retention is never run, because the record of an earlier run may be gone by then.  One that waits
behind a block for so long would be refused for its age, and block its key again.  So when a worker is first handed it
there, inside retention, it creates its record as `waiting`, without a time to live.  Of a message that was applied
before there is a record at that time, and the create loses: that is the proof that this one was not.  Whoever runs it
replaces the record, as a resubmission replaces a refusal.  Nothing but the record exempts a message from the age fence.

A create that loses finds what became of the message, and that is followed at once: it may be gone when the key goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from outbox.errors import OutcomeUnknown
from outbox.lineage import fingerprint
from outbox.ports import Create, Document, DocumentKey, Lost, StateStore, Tag
from outbox.runtime import items
from outbox.runtime.access import read, write_one
from outbox.runtime.backoff import Again
from outbox.runtime.items import WAITING, WAITING_ATTEMPT, Record
from outbox.runtime.plan import Plan
from outbox.runtime.step import Work


class Waits(Enum):
    """Says of a message that nothing has become of it yet."""

    WAITS = "waits"


WAITS = Waits.WAITS
KNOWN_COUNT_MAX = 10_000
"""Of how many messages a worker remembers that their record is there; of others it is created in vain."""


class Waiting:
    """The messages that one worker has put on record as waiting."""

    def __init__(self, plan: Plan, store: StateStore, *, now_ms: Callable[[], int], new_tx: Callable[[], str]) -> None:
        self._plan = plan
        self._store = store
        self._now_ms = now_ms
        self._new_tx = new_tx
        self._known: dict[bytes, None] = {}

    async def note(self, work: Work, key: DocumentKey) -> Document | None:
        """Put on record that a message waits; the record that was there instead, None if there was none.

        One that is too old already is left as it is: nobody can tell whether it was applied.

        Raises:
            Again: it is not known to be on record.
        """
        message, now_ms = work.delivery.message, self._now_ms()
        created_ms = message.created_ms or work.delivery.enqueued_ms
        if not work.inbox or work.inbox in self._known or created_ms <= self._plan.memory.oldest_ms(now_ms):
            return None
        digest = work.fingerprint or fingerprint(message.body, message.type)
        record = Record(self._new_tx(), digest, now_ms, reason=WAITING, attempt=WAITING_ATTEMPT)
        tag = Tag("wait", (work.inbox,), record.tx)
        try:
            answer = await write_one(self._store, Create(key, items.encode(record), None, tag))
        except OutcomeUnknown as error:
            raise Again from error
        if isinstance(answer, Lost):
            found = answer.current or await read(self._store, key, answer.session)
            if found is None:
                raise Again
            if not items.decode(found, Record).waits:
                return found
        while len(self._known) >= KNOWN_COUNT_MAX:
            del self._known[next(iter(self._known))]
        self._known[work.inbox] = None
        return None

    def forget(self, work: Work) -> None:
        """Know no more of a message that is handled: a copy of it may wait behind another block."""
        self._known.pop(work.inbox, None)

"""What waits behind a dead letter that blocks its key is on record, so that it may be run however long that takes.

A message as old as retention is never run, because the record of an earlier run may be gone by then.  One that waits
behind a block for so long would be refused for its age, and block its key again.  So when a worker is first handed it
there, inside retention, it creates its record as `waiting`, without a time to live.  Of a message that was applied
before there is a record at that time, and the create loses: that is the proof that this one was not.  Whoever runs it
replaces the record, as a resubmission replaces a refusal.  Nothing but the record exempts a message from the age fence.

A create that loses finds what became of the message, and that is followed at once: it may be gone when the key goes on.

In partition and item scope a record is a document of its own (`Waiting`); in engine scope it is a marker without an
age, in a commit that does nothing else (`waiting_commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from outbox import stored
from outbox.commits import WAITING, WAITING_ATTEMPT
from outbox.errors import OutcomeUnknown
from outbox.lineage import fingerprint
from outbox.ports import (
    Commit,
    Create,
    Document,
    DocumentKey,
    Lost,
    Marker,
    Postponement,
    Refusal,
    StateStore,
    Tag,
)
from outbox.runtime.commit.marker_replies import as_record
from outbox.runtime.commit.store_io import read, write_one
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.start.plan import Plan
from outbox.runtime.verdict import OnRecord, Verdict, kind_of
from outbox.runtime.work import Work
from outbox.stored import Record


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
            NothingCommitted: it is not known to be on record.
        """
        now_ms = self._now_ms()
        if not work.inbox or work.inbox in self._known or work.created_ms <= self._plan.memory.oldest_ms(now_ms):
            return None
        record = Record(self._new_tx(), _digest(work), now_ms, reason=WAITING, attempt=WAITING_ATTEMPT)
        tag = Tag("wait", (work.inbox,), record.tx)
        try:
            answer = await write_one(self._store, Create(key, stored.encode(record), None, tag))
        except OutcomeUnknown as error:
            raise NothingCommitted from error
        if isinstance(answer, Lost):
            found = answer.current or await read(self._store, key, answer.session)
            if found is None:
                raise NothingCommitted
            if kind_of(stored.decode(found, Record)) is not OnRecord.WAITING:
                return found
        while len(self._known) >= KNOWN_COUNT_MAX:
            del self._known[next(iter(self._known))]
        self._known[work.inbox] = None
        return None

    def forget(self, work: Work) -> None:
        """Know no more of a message that is handled: a copy of it may wait behind another block."""
        self._known.pop(work.inbox, None)


# Engine scope


def waiting_commit(plan: Plan, works: Sequence[Work], markers: dict[bytes, Marker], now_ms: int) -> Commit:
    """The commit that says of messages behind a blocked key that they wait, for each that has no marker yet.

    It changes nothing else, and creates only: were there a marker by then, it would not take effect.  A copy of what
    was applied is consumed, because the marker that tells may be gone when the key goes on.  Anything else takes its
    turn: what is too old already, what was refused, what has the id of another message, what nobody can handle.
    """
    commit = Commit(now_ms, 0, [], {}, {}, [], {}, {}, {}, [], [], [])
    oldest_ms, known = plan.memory.oldest_ms(now_ms), {key: as_record(marker) for key, marker in markers.items()}
    for work in works:
        delivery, is_past = work.delivery, work.created_ms <= oldest_ms
        parts = (work, *work.others)
        verdicts = [part.verdict(known.get(part.inbox), is_past_retention=is_past) for part in parts]
        if all(verdict is Verdict.DUPLICATE for verdict in verdicts):
            commit.consumed.append(delivery)
            continue
        commit.postponed.append(Postponement(delivery, 0, delivery.failures))
        for part, verdict in zip(parts, verdicts, strict=True):
            if part.inbox and verdict is Verdict.FRESH:
                waiting = Refusal(_digest(part), WAITING, "", WAITING_ATTEMPT)
                known[part.inbox] = commit.refused[part.inbox] = waiting
    return commit


def _digest(work: Work) -> bytes:
    message = work.delivery.message
    return work.fingerprint or fingerprint(message.body, message.type)

"""Waiting records: messages behind a blocked key are on record, so that they may run however long the block lasts.

A message as old as retention is never run, because the record of an earlier run may be gone.  After a block of that
length the waiting messages would be refused for their age, and block the key again.  So the first worker that gets such
a message, within retention, creates its record as `waiting`, without a time to live.  If the message was applied
before, its record still exists and the create loses: a created record proves that it was not applied.  The attempt that
runs the message replaces the record, as a resubmission replaces a refusal.  Nothing but the record exempts a message
from the age fence.

A create that loses finds the outcome of the message, which is followed at once: it may have expired by the time the key
is unblocked.

In partition and item scope a waiting record is a document (`Waiting`); in engine scope it is a marker without an
expiry, in a commit of its own (`waiting_commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from outbox import stored
from outbox.engine_commit import WAITING, WAITING_ATTEMPT
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
from outbox.runtime.delivery.retrying import NothingCommitted, read, write_known
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.verdict import OnRecord, Verdict, kind_of
from outbox.runtime.work import Work
from outbox.stored import Record


class Waits(Enum):
    """The type of `WAITS`: the message has no outcome yet."""

    WAITS = "waits"


WAITS = Waits.WAITS
KNOWN_COUNT_MAX = 10_000
"""For how many messages a worker knows that their record exists; for others it repeats a create that loses."""


class WaitingRecords:
    """The waiting records of one worker."""

    def __init__(
        self, plan: CompiledApp, store: StateStore, *, now_ms: Callable[[], int], new_tx: Callable[[], str]
    ) -> None:
        self._plan = plan
        self._store = store
        self._now_ms = now_ms
        self._new_tx = new_tx
        self._known: dict[bytes, None] = {}

    async def note(self, work: Work, key: DocumentKey) -> Document | None:
        """Create a waiting record; returns another record that exists already, else None.

        A message past retention gets none: whether it was applied is unknown.  An edit gets none: it may only replace
        the record that it names.

        Raises:
            NothingCommitted: the record is not known to exist.
        """
        now_ms = self._now_ms()
        if not work.inbox or work.inbox in self._known or work.created_ms <= self._plan.retention.oldest_ms(now_ms):
            return None
        if work.delivery.message.replaces is not None:
            return None
        record = Record(self._new_tx(), work.digest, now_ms, reason=WAITING, attempt=WAITING_ATTEMPT)
        tag = Tag("wait", (work.inbox,), record.tx)
        answer = await write_known(self._store, Create(key, stored.encode(record), None, tag))
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

    def remembered(self) -> list[bytes]:
        """The inbox keys whose record is known to exist, the earliest first."""
        return list(self._known)

    def forget(self, work: Work) -> None:
        """Forget a message that runs: a copy of it may wait behind another block."""
        self._known.pop(work.inbox, None)


# Engine scope


def waiting_commit(plan: CompiledApp, works: Sequence[Work], markers: dict[bytes, Marker], now_ms: int) -> Commit:
    """The commit that creates a waiting marker for each message behind a blocked key without a marker.

    It only creates: with a marker written meanwhile it is a conflict.  A duplicate of an applied message is consumed,
    because the marker may have expired by the time the key is unblocked.  Every other message stays: too old already,
    refused, with the id of another message, without a handler.
    """
    commit = Commit(now_ms, 0, [], {}, {}, [], {}, {}, {}, [], [], [])
    oldest_ms, known = plan.retention.oldest_ms(now_ms), {key: as_record(marker) for key, marker in markers.items()}
    for work in works:
        delivery, is_past = work.delivery, work.created_ms <= oldest_ms
        branches = (work, *work.others)
        verdicts = [branch.verdict(known.get(branch.inbox), is_past_retention=is_past) for branch in branches]
        if all(verdict is Verdict.DUPLICATE for verdict in verdicts):
            commit.consumed.append(delivery)
            continue
        commit.postponed.append(Postponement(delivery, 0, delivery.failures))
        for branch, verdict in zip(branches, verdicts, strict=True):
            if branch.inbox and verdict is Verdict.FRESH:
                waiting = Refusal(branch.digest, WAITING, "", WAITING_ATTEMPT)
                known[branch.inbox] = commit.refused[branch.inbox] = waiting
    return commit

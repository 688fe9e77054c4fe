"""The store scopes' transaction: the messages of one partition, the state that they change, and a record for each.

A batch starts from one state as read.  Each applied or refused message adds its record, and the next message sees its
state; a message whose handler raises adds nothing.  No I/O and no port: the scopes make the writes.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from outbox.cancellation import cancelled
from outbox.context import ABSENT, Context
from outbox.errors import PoisonMessage
from outbox.guards import BrokenOff
from outbox.http import Reply
from outbox.ports import Document, Output, Version
from outbox.runtime.commit.run_handler import Life, run_branch
from outbox.runtime.commit.state_cache import Loaded
from outbox.runtime.delivery.claim_check import checked_outputs
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.verdict import Verdict, edit_without_record, replaced_over
from outbox.runtime.work import Attempt, Outcome, Work
from outbox.stored import NO_VALUE, Record, StateItem


class Entry(msgspec.Struct):
    """One message of a batch: its full record, the record as stored (outputs may be spilled), and its version."""

    attempt: Attempt
    record: Record
    stored: Record
    version: Version = ""


class Premature(BrokenOff):
    """A handler is about to make an external call on an uncommitted state; not for the handler to catch."""


class Superseded(BrokenOff):
    """The message in a handler is on record already; not for the handler to catch."""

    def __init__(self, record: Document) -> None:
        super().__init__()
        self.record = record


async def never_durable() -> None:
    """The wait before an external call where no record has to be read first."""


class StoreTransaction:
    """The messages of one partition that commit together, as the transaction `tx`."""

    __slots__ = (
        "_plan",
        "_schema",
        "_value",
        "blobs",
        "durable",
        "entries",
        "is_assumed",
        "is_premature",
        "is_warm",
        "ledger_entries",
        "loaded",
        "may_land",
        "now_ms",
        "superseded",
        "tx",
    )

    def __init__(self, plan: CompiledApp, now_ms: int, tx: str, loaded: Loaded) -> None:
        self._plan = plan
        self.now_ms = now_ms
        self.tx = tx
        self.loaded, self.is_warm, self.is_assumed = loaded
        self._value, self._schema = self.loaded.item.value, self.loaded.item.schema
        self.entries: list[Entry] = []
        self.blobs: list[tuple[str, bytes]] = []
        self.is_premature = False
        """Whether a handler was about to make a call on an uncommitted state."""
        self.ledger_entries: list[str] = []
        """The entries of its records in the dispatch ledger."""
        self.may_land = False
        """Whether its outcome is unknown, and it may be written yet."""
        self.superseded: Document | None = None
        """The record that was found while a handler ran: another worker committed first."""
        self.durable: Callable[[], Awaitable[None]] = never_durable
        """The wait before an external call of a handler."""

    def land_later(self) -> None:
        """Note that it may be written yet; its messages' entries stay open until that is excluded."""
        self.may_land = True
        for entry in self.entries:
            if entry.stored.entry:
                entry.attempt.ledger_entries = (*entry.attempt.ledger_entries, entry.stored.entry)

    def sibling(self) -> StoreTransaction:
        """The batch of a suspended handler: this one, because its messages run in turn."""
        return self

    # What a message finds

    def follow(self, attempt: Attempt) -> PoisonMessage | bool:
        """Apply the age fence, and refuse an edit of nothing; a record that was not read makes the commit lose."""
        attempt.meet(self.loaded.version)
        work = attempt.work
        is_past = work.created_ms <= self._plan.retention.oldest_ms(self.now_ms)
        match work.verdict(attempt.found, is_past_retention=is_past):
            case Verdict.TOO_OLD:
                return self._plan.retention.refusal(work.created_ms, self.now_ms)
            case Verdict.EDIT_WITHOUT_RECORD:
                return edit_without_record(work.delivery.message.identity)
        return False

    def state(self, work: Work) -> Any:
        """Decode the state that a message sees, anew; a fresh one where there is none.

        Raises:
            FormatTooNew: a newer version of the code wrote it.
        """
        codec = work.handler.state if work.handler is not None else None
        if codec is None:
            return None
        value = bytes(self._value)
        return codec.fresh() if value == b"null" else codec.decode(value, self._schema)

    # What a message does

    def apply(self, attempt: Attempt, state: Any, context: Context | None) -> None:
        """Add a handled message: its state, outputs and blobs; an encoding error adds nothing."""
        work, handler = attempt.work, attempt.work.handler
        value, schema = self._value, self._schema
        if work.state_id is not None and handler is not None and handler.state is not None:
            if context is not None and context.replaced is not ABSENT:
                state = context.replaced
            value = NO_VALUE if state is None else msgspec.Raw(handler.state.encode(state))
            schema = handler.state.version
        outputs: list[Output] = []
        blobs: list[tuple[str, bytes]] = []
        if context is not None:
            outputs, blobs = checked_outputs(context.outputs, above_bytes=self._plan.claim_check_bytes)
            blobs += context.blobs or []
        self._value, self._schema = value, schema
        self.blobs += blobs
        reply = None if context is None else context.answer
        self._add(attempt, Record("", b"", 0, bool(outputs), tuple(outputs)), reply)

    def refuse(self, attempt: Attempt, poison: PoisonMessage) -> None:
        """Add a refusal: the message's record; the unchanged state is a condition all the same."""
        self._add(attempt, Record("", b"", 0, reason=poison.reason, description=poison.description))

    def cancel(self, attempt: Attempt) -> None:
        """Add what a cancellation leaves: the record of its message, for as long as that may still come."""
        self._add(attempt, Record("", b"", 0))
        entry = self.entries[-1]
        gone = (*entry.record.replaced, cancelled(attempt.work.delivery.message.attempt, self.now_ms))
        life_ms = self._plan.record_life_ms + max(0, attempt.work.cancels_due_ms - self.now_ms)
        entry.record = entry.stored = msgspec.structs.replace(entry.record, replaced=gone, life_ms=life_ms)

    def has_refused(self, attempt: Attempt) -> bool:
        return any(entry.attempt is attempt and entry.record.reason for entry in self.entries)

    def may_be_old(self, attempt: Attempt) -> bool:
        """Whether the age fence does not apply: the message's own record proves that it was not applied."""
        return attempt.work.verdict(attempt.found, is_past_retention=True) is Verdict.RESUBMISSION

    def _add(self, attempt: Attempt, record: Record, reply: Reply | None = None) -> None:
        record = msgspec.structs.replace(
            record,
            tx=self.tx,
            fingerprint=attempt.work.digest,
            at_ms=self.now_ms,
            attempt=attempt.work.delivery.message.attempt,
            reply=reply,
            life_ms=self._plan.record_life_ms,
            replaced=replaced_over(attempt.found, attempt.work.digest, self.now_ms),
        )
        self.entries.append(Entry(attempt, record, record))

    def is_late(self, now_ms: int) -> bool:
        """Whether the attempt is past its deadline and must write nothing: the record that forbids it may be gone."""
        return now_ms - self.now_ms > self._plan.attempt_ms_max

    def is_half_spent(self, now_ms: int) -> bool:
        """Whether half of the attempt's time is over."""
        return 2 * (now_ms - self.now_ms) > self._plan.attempt_ms_max

    # The writes

    @property
    def state_after(self) -> StateItem:
        """The state after the last message: one version further, even if unchanged."""
        before = self.loaded.item
        return StateItem(self._value, self._schema, before.version + 1, self.now_ms, token=before.token)

    @property
    def inboxes(self) -> tuple[bytes, ...]:
        """The inbox keys of the messages with a record here."""
        return tuple(entry.attempt.work.inbox for entry in self.entries)


async def run_in(plan: CompiledApp, batch: StoreTransaction, attempt: Attempt, life: Life) -> Outcome:
    """Run a handler; a record found meanwhile wins, even over a handler that caught its exception.

    Raises:
        Superseded: the message is on record.
        Premature: the handler was about to make a call on an uncommitted state.
    """
    try:
        outcome = await run_branch(plan, batch, attempt, life)
    except CancelledError:
        raise
    except BaseException:
        if batch.superseded is None and not batch.is_premature:
            raise
    if batch.is_premature:
        raise Premature
    if batch.superseded is not None:
        raise Superseded(batch.superseded)
    return outcome

"""What the messages of one partition do together: the state that they see and change, and a record for each.

A batch starts from one state as it was read.  Every message that is applied or refused adds its record, and what it
made of the state is what the next one sees; one that raises adds nothing.  A batch does no I/O and knows no port: the
scopes make writes of it.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from outbox.context import ABSENT, Context
from outbox.errors import PoisonMessage
from outbox.http import Reply
from outbox.lineage import fingerprint
from outbox.ports import Document, Output, Version
from outbox.runtime.commit.run_handler import Life, run_branch
from outbox.runtime.commit.state_cache import CachedState
from outbox.runtime.delivery.claim_check import to_claim
from outbox.runtime.start.plan import Plan
from outbox.runtime.verdict import Verdict
from outbox.runtime.work import Attempt, Outcome, Work
from outbox.stored import NO_VALUE, Record, StateItem


class Entry(msgspec.Struct):
    """One message of a batch and its record: whole, as it is stored, and the store's version of it once it is."""

    attempt: Attempt
    record: Record
    stored: Record
    version: Version = ""


class Premature(BaseException):
    """A handler is about to call something outside on a state that is not committed; not for the handler to catch."""


class Superseded(BaseException):
    """The message that a handler is working on has its record already; not for the handler to catch."""

    def __init__(self, record: Document) -> None:
        super().__init__()
        self.record = record


async def never_durable() -> None:
    """What a call out of a handler waits for where nothing has to be looked up first."""


class StoreTransaction:
    """The messages of one partition that commit together, as the transaction `tx`."""

    __slots__ = (
        "_plan",
        "_schema",
        "_value",
        "blobs",
        "durable",
        "entries",
        "is_premature",
        "loaded",
        "now_ms",
        "superseded",
        "tx",
    )

    def __init__(self, plan: Plan, now_ms: int, tx: str, loaded: CachedState) -> None:
        self._plan = plan
        self.now_ms = now_ms
        self.tx = tx
        self.loaded = loaded
        self._value, self._schema = loaded.item.value, loaded.item.schema
        self.entries: list[Entry] = []
        self.blobs: list[tuple[str, bytes]] = []
        self.is_premature = False
        """Whether a handler was about to make a call on a state that the batch has not committed."""
        self.superseded: Document | None = None
        """The record that was found while a handler ran: somebody else was quicker."""
        self.durable: Callable[[], Awaitable[None]] = never_durable
        """What a call out of a handler waits for."""

    def sibling(self) -> StoreTransaction:
        """The batch that a handler which waits goes on in: this one, for its messages are run one after the other."""
        return self

    # What a message finds

    def follow(self, attempt: Attempt) -> PoisonMessage | bool:
        """The age fence.  Whether there is a record that nobody has found yet, the commit will tell."""
        attempt.meet(self.loaded.version)
        work = attempt.work
        is_past = work.created_ms <= self._plan.memory.oldest_ms(self.now_ms)
        if work.verdict(attempt.found, is_past_retention=is_past) is Verdict.TOO_OLD:
            return self._plan.memory.refusal(work.created_ms, self.now_ms)
        return False

    def state(self, work: Work) -> Any:
        """The state that a message sees, decoded anew; a fresh one where there is none.

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
        """Add a handled message: its state, outputs and blobs.  What cannot be encoded adds nothing."""
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
            for output in context.outputs:
                if len(output.message.body) > self._plan.claim_check_bytes:
                    name, data = to_claim(output.message)
                    blobs.append((name, data))
                    claim = msgspec.structs.replace(output.message, body=b"", claim=name)
                    output = Output(output.destination, output.due_ms, claim)
                outputs.append(output)
            blobs += context.blobs or []
        self._value, self._schema = value, schema
        self.blobs += blobs
        reply = None if context is None else context.answer
        self._add(attempt, Record("", b"", 0, bool(outputs), tuple(outputs)), reply)

    def refuse(self, attempt: Attempt, poison: PoisonMessage) -> None:
        """Add a refusal: the message's record; the state stays as it is and is conditional all the same."""
        self._add(attempt, Record("", b"", 0, reason=poison.reason, description=poison.description))

    def has_refused(self, attempt: Attempt) -> bool:
        """Whether the refusal of a message is in this batch."""
        return any(entry.attempt is attempt and entry.record.reason for entry in self.entries)

    def may_be_old(self, attempt: Attempt) -> bool:
        """Whether no age fence applies to a message: its own record shows that it was not applied."""
        return attempt.work.verdict(attempt.found, is_past_retention=True) is Verdict.RESUBMISSION

    def _add(self, attempt: Attempt, record: Record, reply: Reply | None = None) -> None:
        message = attempt.work.delivery.message
        digest = attempt.work.fingerprint or fingerprint(message.body, message.type)
        record = msgspec.structs.replace(
            record,
            tx=self.tx,
            fingerprint=digest,
            at_ms=self.now_ms,
            attempt=message.attempt,
            reply=reply,
            life_ms=self._plan.record_life_ms,
        )
        self.entries.append(Entry(attempt, record, record))

    def is_late(self, now_ms: int) -> bool:
        """Whether the attempt is past its deadline and must write nothing: records that forbid it may be gone."""
        return now_ms - self.now_ms > self._plan.attempt_ms_max

    def is_half_spent(self, now_ms: int) -> bool:
        """Whether half of the attempt's time is over."""
        return 2 * (now_ms - self.now_ms) > self._plan.attempt_ms_max

    # What is written

    @property
    def state_after(self) -> StateItem:
        """The state behind the last message: one version further, even if it is the same."""
        before = self.loaded.item
        return StateItem(
            self._value,
            self._schema,
            before.version + 1,
            self.now_ms,
            token=before.token,
        )

    @property
    def inboxes(self) -> tuple[bytes, ...]:
        """The inbox keys of the messages that have a record in here."""
        return tuple(entry.attempt.work.inbox for entry in self.entries)


async def run_in(plan: Plan, batch: StoreTransaction, attempt: Attempt, life: Life) -> Outcome:
    """Run a handler; whatever it makes of learning that its message was handled already, that is what counts.

    Raises:
        Superseded: there is a record of its message.
        Premature: it was about to make a call on a state that the batch has not committed.
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

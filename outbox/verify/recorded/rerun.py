"""An application's handlers run again, by the runtime's own code, for the judge of serializability.

The clock is the commit's, chance and identities derive from the message, so what a handler does is fixed by its message
and its state.  A handler that waits for something outside cannot be run again, nor a message whose body lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox.app import App
from outbox.errors import PoisonMessage
from outbox.ports import Delivery, Refusal, StateChange, StateDocument
from outbox.runtime.commit.engine_transaction import EngineTransaction
from outbox.runtime.commit.run_handler import Suspended, start
from outbox.runtime.delivery.admission import admit
from outbox.runtime.start.plan import compile_app
from outbox.runtime.work import Work, attempt_at
from outbox.verify.recorded.events import Change, Commit, Whole
from outbox.verify.recorded.linear import Place, Redone, Rerun
from outbox.verify.recorded.recording import emitted, state_digest


class AppRerun:
    """An application's handlers and the states that they have made so far."""

    def __init__(self, app: App) -> None:
        self._plan = compile_app(app)
        self._states: dict[str, StateDocument] = {}

    def run(self, commit: Commit, deliveries: Sequence[tuple[Place, Whole]]) -> Redone | None:
        """Handle again what a commit did; None if a handler waits for something, or a body is not there."""
        if any(whole.message.claim for _, whole in deliveries):
            return None
        touched = [*(change.state for change in commit.changes), *(seen.state for seen in commit.seen)]
        documents = {id: self._states[id] for id in touched if id in self._states}
        group = EngineTransaction(self._plan, commit.at_ms, documents, {}, _nothing)
        wanted, replacing = {*commit.applied, *commit.refused}, set(commit.replacing)
        for work in admit(self._plan, [_delivery(place, whole) for place, whole in deliveries], commit.at_ms):
            for part in (work, *work.others):
                if part.inbox.hex() in replacing:
                    group.markers[part.inbox] = Refusal(part.fingerprint, "no", "", part.delivery.message.attempt - 1)
                if part.inbox.hex() in wanted and not self._handle(group, part):
                    return None
        return Redone(
            tuple([self._changed(id, change) for id, change in group.commit.states.items()]),
            tuple([emitted(output) for output in group.commit.outputs]),
            tuple([key.hex() for key in group.commit.handled]),
            tuple([key.hex() for key in group.commit.refused]),
        )

    def _handle(self, group: EngineTransaction, work: Work) -> bool:
        """Run one handler's part; False if it waits for something."""
        attempt = attempt_at(work)
        outcome = start(self._plan, group, attempt)
        if isinstance(outcome, Suspended):
            outcome.coroutine.close()
            return False
        if isinstance(outcome, PoisonMessage) and work.inbox not in group.commit.refused:
            group.refuse(attempt, outcome)
        return True

    def _changed(self, id: str, change: StateChange) -> Change:
        known = self._states.get(id)
        self._states[id] = StateDocument(change.value, change.serial, change.schema, change.serial)
        return Change(id, 0 if known is None else known.serial, change.serial, state_digest(change.value))


async def _nothing() -> None:
    """Wait for nothing, because a rerun's commits are durable."""


def _delivery(place: Place, whole: Whole) -> Delivery:
    queue, sequence = place
    return Delivery(
        queue, sequence, whole.message, 0, whole.enqueued_ms, 0, whole.delivery_count, whole.failures, whole.outside
    )


def rerun(app: App) -> Rerun:
    """An application as the judge of histories runs it again: `check(history, rerun=rerun(app))`."""
    return AppRerun(app)

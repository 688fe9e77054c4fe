"""The fast path: one loop handles the plain messages of a batch, without a function call for each step.

A message is plain when it has no known record or refusal, it is no resubmission and no cancellation, it is younger than
retention, its handler has a state, and the handler neither awaits nor replaces the state nor writes blobs.  The loop
takes the same steps in the same order as `run_handler.start` and `EngineTransaction`, which handle every other message.
Both make the same commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox.app import Handler
from outbox.codec import DECODE_ERRORS
from outbox.context import Context
from outbox.encoding import null_in
from outbox.ports import StateChange
from outbox.runtime.commit.engine_transaction import EngineTransaction
from outbox.runtime.commit.run_handler import DONE, Suspended, failed, start, step
from outbox.runtime.failures.error_text import FAILURES
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Attempt, Outcome, Work, attempt_at

Reached = tuple[int, Attempt | None, Outcome | Suspended[EngineTransaction]]
"""The index of a work in its batch, the attempt at it, and its outcome."""


def start_all(plan: CompiledApp, group: EngineTransaction, works: Sequence[Work], first: int, end: int) -> Reached:
    """Handle `works[first:end]` in order, up to the first that is not applied; its index and outcome.

    Those before it are completed.  If all are applied: `end` and None.
    """
    reached = _start(plan, group, works, first, end)
    group.complete_all(works[first : reached[0]])
    return reached


def _start(plan: CompiledApp, group: EngineTransaction, works: Sequence[Work], first: int, end: int) -> Reached:
    commit, documents, markers = group.commit, group.documents, group.markers
    states, if_versions, outputs, handled = commit.states, commit.if_versions, commit.outputs, commit.handled.append
    app, now_ms, durable, oldest_ms = plan.app, group.now_ms, group.durable, plan.retention.oldest_ms(group.now_ms)
    handler: Handler | None = None
    codec = None
    for index in range(first, end):
        work = works[index]
        id, delivery = work.state_id, work.delivery
        if work.handler is not handler:  # most batches have one
            handler = work.handler
            if handler is not None and (codec := handler.state) is not None:
                binding, schema = handler.binding, codec.version
                call, is_async, wants_context = binding.call, binding.is_async, binding.wants_context
                decode, encode = codec.codec.decode, codec.codec.encode
        message, remembered = delivery.message, work.remembered
        if (
            handler is None
            or codec is None
            or id is None
            or work.refusal is not None
            or (message.created_ms or delivery.enqueued_ms) <= oldest_ms
            or (remembered and (message.attempt or work.cancels_due_ms or work.inbox in markers))
        ):
            if (outcome := start(plan, group, attempt := attempt_at(work))) is not None:
                return index, attempt, outcome
            continue
        try:
            loaded = documents.get(id)
            before = states.get(id) or loaded
            known = before.value if before is not None and before.schema == schema else b""
            try:
                state = decode(known) if known else group.state(work)
            except DECODE_ERRORS:
                state = group.state(work)  # once more, for its error
            context = Context(app, work, message, now_ms, durable) if wants_context else None
            result = call(work.value, state, context)
            if result is not None:
                waits_for = next(result.__await__(), DONE) if is_async else step(handler, result)
                if waits_for is not DONE:
                    suspended = Suspended(group.sibling(), attempt_at(work), state, context, result, waits_for)
                    return index, suspended.attempt, suspended
            if context is not None and not context.is_plain:
                group.apply(attempt_at(work), state, context)
                continue
            value = encode(state)
            if null_in(value):
                codec.check(value)
        except FAILURES as error:  # nobody cancels before the first wait: the handler's own
            return index, (attempt := attempt_at(work)), failed(plan, group, attempt, error)
        # From here on nothing raises, so all of it is added.
        if_versions[id] = 0 if loaded is None else loaded.version
        if before is None or before.value != value or before.schema != schema:
            states[id] = StateChange(value, schema, 1 if before is None else before.serial + 1)
        if context is not None:
            outputs += context.outputs
        handled(work.inbox)
        if remembered:
            markers[work.inbox] = commit.applied[work.inbox] = work.fingerprint
    return end, None, None

"""Handle one message in a transaction: follow its record, or run the handler and add its effects.

The same for every commit protocol.  `start` runs a handler up to its first wait, `resume` from there to its end, `run`
does both.  None of them awaits a port; a handler awaits what it likes.

A handler that exceeds its time limit has failed: its context is sealed and its effects are not added, so nothing of it
can be committed, whatever it does afterwards.  A waiting handler is cancelled at the limit; one that holds the event
loop is judged when it yields.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import CancelledError, Future, current_task
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Generic, Protocol, Self, TypeVar

from outbox.app import Handler
from outbox.context import Context, seal
from outbox.errors import FormatTooNew, PoisonMessage
from outbox.generators import check_result
from outbox.middleware import Isolated
from outbox.ports import Delivery
from outbox.registration.handlers import over_limit_text
from outbox.resubmission import REJECTED, RETRY_PAST_RETENTION
from outbox.retries import DELAY_S_MAX, Reject, Retries, Retry
from outbox.runtime.commit.handler_threads import RETRY_AFTER_S
from outbox.runtime.commit.stepping import Patience, cancelled, go_on
from outbox.runtime.delivery.admission import REDELIVER_AFTER_S, value_again
from outbox.runtime.failures.error_text import FAILURES, as_text, brief, described, failure_text, fit, safe_text
from outbox.runtime.failures.failure_log import failure_of
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Attempt, Later, Outcome, Work, outcome_of_all


class Effects(Protocol):
    """A transaction: what a handler finds, and where its effects are added."""

    now_ms: int
    durable: Callable[[], Awaitable[None]]

    def sibling(self) -> Self:
        """The transaction of a suspended handler."""

    def follow(self, attempt: Attempt) -> PoisonMessage | bool:
        """Follow the message's record: True if it was applied, a refusal, or False to run it."""

    def state(self, work: Work) -> Any:
        """Decode the state that a message sees, anew."""

    def apply(self, attempt: Attempt, state: Any, context: Context | None) -> None:
        """Add a handled message; an encoding error adds nothing."""

    def refuse(self, attempt: Attempt, poison: PoisonMessage) -> None:
        """Add a refusal."""

    def cancel(self, attempt: Attempt) -> None:
        """Add what a cancellation leaves: its message is on record as applied, and nothing has changed."""

    def has_refused(self, attempt: Attempt) -> bool:
        """Whether a refusal is on record that this attempt follows."""

    def may_be_old(self, attempt: Attempt) -> bool:
        """Whether the age fence does not apply: the message's own record proves that it was not applied."""


Made = TypeVar("Made", bound=Effects)

COROUTINES = (types.CoroutineType, Isolated)
DONE = object()
"""The sign that a coroutine has ended and waits for nothing."""


@dataclass(frozen=True, slots=True)
class Life:
    """The worker round a handler: its clock, and whether it is stopping."""

    now_ms: Callable[[], int]
    is_stopping: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Suspended(Generic[Made]):
    """A handler that waits, and the transaction whose states it has seen."""

    group: Made
    attempt: Attempt
    state: Any
    context: Context | None
    coroutine: Coroutine[Any, Any, Any]
    waits_for: Any


def start(plan: CompiledApp, group: Made, attempt: Attempt, life: Life | None = None) -> Outcome | Suspended[Made]:
    """Handle one branch of a message up to its handler's first wait.

    Without a `life` neither the time limit nor an earlier run here is checked: a batch checks both once.
    """
    found = group.follow(attempt)
    work = attempt.work
    if found is not False or work.handler is None or work.refusal is not None:
        return _recorded(group, attempt, found)
    if work.cancels_due_ms:
        group.cancel(attempt)
        return None
    began_ms = 0 if life is None else life.now_ms()
    context: Context | None = None
    try:
        binding, value = work.handler.binding, work.value
        if life is not None:
            if work.was_run:
                value = value_again(plan, work)
            attempt.ran()
        state = group.state(work)
        if binding.wants_context:
            context = Context(plan.app, work, work.delivery.message, group.now_ms, group.durable)
        result = binding.call(value, state, context)
        if result is not None:
            waits_for = step(work.handler, result)
            if waits_for is not DONE:
                return Suspended(group.sibling(), attempt, state, context, result, waits_for)
        if life is not None and life.now_ms() - began_ms > plan.limit_ms(work.handler):
            raise over_limit(plan, work.handler, context)
        group.apply(attempt, state, context)
    except FAILURES as error:  # before the first wait a cancellation is the handler's own
        return failed(plan, group, attempt, error)
    return None


def step(handler: Handler, result: Any) -> Any:
    """Run a handler's awaitable up to its first wait: what it waits for, or DONE."""
    is_wrapped = type(result) in COROUTINES and not handler.blocking  # a plain function may wrap an async one
    if handler.binding.is_async or is_wrapped:
        return next(result.__await__(), DONE)  # as `send`, without an exception at the end
    if isawaitable(result):
        raise TypeError(f"handler {handler.name} returned {result!r} unawaited; make it async and await it")
    check_result(f"handler {handler.name}", result)
    return DONE


async def resume(
    plan: CompiledApp, group: Made, suspended: Suspended[Made], life: Life, *, began_ms: int | None = None
) -> Outcome:
    """Run a suspended handler to its end, within its time limit and the rest of its attempt.

    The limit counts from now, or from `began_ms`.  At the limit the handler is cancelled; if it swallows that, its
    coroutine is closed a few seconds later where it waits.
    """
    attempt, work, now_ms = suspended.attempt, suspended.attempt.work, life.now_ms()
    assert work.handler is not None, "only a handler suspends"
    limit_ms = plan.limit_ms(work.handler) - (0 if began_ms is None else now_ms - began_ms)
    limit_ms = min(limit_ms, plan.attempt_ms_max - (now_ms - (group.now_ms if began_ms is None else began_ms)))
    within = asyncio.timeout(max(0, limit_ms) / 1_000)
    patience = Patience(lambda: within.expired() or life.is_stopping())
    try:
        async with within:
            await go_on(suspended.coroutine, suspended.waits_for, patience)
        if not within.expired() and life.now_ms() - now_ms <= limit_ms:
            group.apply(attempt, suspended.state, suspended.context)
            return None
        error: BaseException = over_limit(plan, work.handler, suspended.context)
    except CancelledError as cancelled_error:
        if life.is_stopping():
            _cut_off(suspended, "was cancelled because its worker stops")
            raise
        task = current_task()
        while task is not None and task.cancelling():
            task.uncancel()  # the handler cancelled the task that it runs in
        error = cancelled_error  # or it waited for something that was cancelled
    except Exception as raised:
        error = raised
    finally:
        patience.end()
    if within.expired():
        error = over_limit(plan, work.handler, suspended.context)
    return failed(plan, group, attempt, error)


def over_limit(plan: CompiledApp, handler: Handler, context: Context | None) -> TimeoutError:
    """Seal the context of a handler past its time limit; returns the failure."""
    limit_ms = plan.limit_ms(handler)
    what = "half of App(margin=)" if limit_ms == plan.attempt_ms_max else "its time limit (time_limit_s=)"
    text = over_limit_text(handler.name, limit_ms / 1_000, what)
    if context is not None:
        seal(context, text)
    return TimeoutError(text)


def _cut_off(suspended: Suspended[Made], why: str) -> None:
    """Seal the context of a handler that was cut off."""
    handler = suspended.attempt.work.handler
    if suspended.context is not None and handler is not None:
        seal(suspended.context, f"handler {handler.name} {why}; nothing of it is committed")


async def abandon(suspended: Suspended[Made]) -> None:
    """Cancel a handler where it waits, in its own task, and wait a few seconds for its end."""
    if suspended.context is not None:
        suspended.context.is_broken_off = True
    if isinstance(suspended.waits_for, Future):
        suspended.waits_for.cancel()
    patience = Patience(lambda: True)
    with suppress(Exception, CancelledError):
        await cancelled(suspended.coroutine, patience)
    patience.end()
    _cut_off(suspended, "was cancelled to run again on its own")
    task = current_task()
    if task is not None and task.cancelling():
        raise CancelledError  # the worker stops


async def run_branch(plan: CompiledApp, group: Effects, attempt: Attempt, life: Life) -> Outcome:
    """Run one branch of a message to its end; reschedule it while a thread still runs its key's earlier attempt."""
    if plan.threads is not None and plan.threads.holds(attempt.work):
        return Later(
            RETRY_AFTER_S, attempt.work.delivery.failures, "an earlier attempt of its key still runs in a thread"
        )
    began_ms, attempt.failure = life.now_ms(), None
    outcome = start(plan, group, attempt, life)
    if isinstance(outcome, Suspended):
        outcome = await resume(plan, group, outcome, life, began_ms=began_ms)
    return outcome


async def run(plan: CompiledApp, group: Effects, attempt: Attempt, life: Life) -> Outcome:
    """Run all branches of a message to their end."""
    branches = attempt.branches
    return outcome_of_all(branches, [await run_branch(plan, group, branch, life) for branch in branches])


def _recorded(group: Effects, attempt: Attempt, found: PoisonMessage | bool) -> Outcome:
    """Follow the record; a refusal without one gets it, unless there is no identity to store it under."""
    if found is True:
        attempt.is_duplicate = True
        return None
    poison = found if isinstance(found, PoisonMessage) else attempt.work.refusal
    assert poison is not None, "a work without a handler has a refusal"
    if isinstance(poison, Later):
        return poison
    if attempt.work.inbox and not group.has_refused(attempt) and poison.reason != "payload-differs":
        group.refuse(attempt, poison)
    return poison


def judge(error: BaseException, delivery: Delivery, retries: Retries) -> PoisonMessage | Later:
    """Judge a handler's error: a refusal, a retry, or the last failure."""
    try:
        meant = _meant(error, delivery)
    except BaseException:  # a class of the application may raise anywhere
        meant = None
    if meant is not None:
        return meant
    failures = delivery.failures + 1
    if failures < retries.limit:
        return Later(retries.delay_s(failures), failures, error=brief(error))
    return PoisonMessage("failed", described(failure_text(error), error))


def _meant(error: BaseException, delivery: Delivery) -> PoisonMessage | Later | None:
    """The refusal or the delay that an error asks for by its class; None: it is a failure."""
    match error:
        case FormatTooNew():
            return Later(REDELIVER_AFTER_S, delivery.failures, error=brief(error), is_newer=True)
        case Retry():
            after_s = float(error.after_s)
            return Later(after_s, delivery.failures, error=brief(error)) if 0 <= after_s <= DELAY_S_MAX else None
        case Reject():
            return PoisonMessage(safe_text(as_text(error)) or "rejected", REJECTED)
        case PoisonMessage():
            refusal = fit(error)
            return PoisonMessage(refusal.reason, described(refusal.description, error))
    return None


def _rescheduled(
    plan: CompiledApp, now_ms: int, work: Work, error: BaseException, later: Later
) -> PoisonMessage | Later:
    """Reschedule a message, or refuse it with its handler's text if it would be past retention by then."""
    created_ms = work.delivery.message.created_ms or work.delivery.enqueued_ms
    due_ms = now_ms + round(later.delay_s * 1_000)
    if created_ms > plan.retention.oldest_ms(due_ms) or work.delivery.queue not in plan.sources:
        return later
    text = f"{RETRY_PAST_RETENTION}Retry({as_text(error)!r}, after_s={later.delay_s:g}), "
    return PoisonMessage("too-old", safe_text(text + plan.retention.too_old(created_ms, now_ms)))


def failed(plan: CompiledApp, group: Effects, attempt: Attempt, error: BaseException) -> Outcome:
    """The outcome of a handler's error; a refusal is added, and the attempt keeps the failure for the log."""
    work = attempt.work
    retries = (work.handler.retries if work.handler is not None else None) or plan.retries
    outcome = judge(error, work.delivery, retries)
    if isinstance(outcome, Later) and issubclass(type(error), Retry) and not group.may_be_old(attempt):
        outcome = _rescheduled(plan, group.now_ms, work, error, outcome)  # isinstance(error) could run foreign code
    attempt.failure = failure_of(error, outcome, work, retries)
    if isinstance(outcome, PoisonMessage):
        group.refuse(attempt, outcome)
    return outcome

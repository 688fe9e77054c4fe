"""Breakers and rates under exploration: whether one lets an attempt or a call pass is the explorer's choice.

What a breaker or a rate decides depends on the clock and on all that its process has seen.  Here each decision may fall
either way, up to a number of times that a message is rescheduled in one run; so what is explored holds of every policy
that reschedules messages as `outbox.guards` do.  The decision is asked of a resource that holds how many are left; what
then reschedules the message is the runtime's own way round handlers and calls, with a guard in it that does as was
chosen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from outbox.context import Context
from outbox.guards import Attempted, Guard, GuardView, State
from outbox.retries import Retry
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.verify.explorer.ops import NO_LOCKS, Event, Locks, Op, Outcome, Reach
from outbox.verify.explorer.run import Calls

AFTER_S = 1.0
"""For how long a message is rescheduled; time passes only where nothing else can happen, so any length is alike."""

_calls: ContextVar[Calls] = ContextVar("_calls")
"""The calls by which the running program reaches the outside."""


def begin(calls: Calls) -> None:
    """Say how the program under way, and the tasks that it starts, call the outside."""
    _calls.set(calls)


class GuardModel:
    """How often guards may still reschedule a message; each that is asked does so or lets it pass."""

    name = "guards"

    def __init__(self, count: int) -> None:
        self._count = count

    def initial(self) -> int:
        return self._count

    def reach(self, verb: str) -> Reach:
        return "read"

    def is_private(self, op: Op) -> bool:
        return False

    def is_spent(self, state: int, op: Op) -> bool:
        return True

    def outcomes(self, state: int, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        passes = Outcome("-> lets it pass", state, False)
        return [passes, Outcome("-> reschedules it", state - 1, True)] if state else [passes]

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset()

    def events(self, state: int, now_ms: int) -> list[Event]:
        return []

    def due_ms(self, state: int, now_ms: int) -> int | None:
        return None

    def moments_ms(self, state: int, now_ms: int) -> tuple[int, ...]:
        return ()

    def describe(self, op: Op) -> str:
        return f"ask a guard of {op.args[0]}"

    def show(self, state: int, now_ms: int) -> list[str]:
        return [f"messages may be rescheduled {state} times more"]


class ChosenGuards:
    """Finds a guard for every declaration, in place of a process' own; they decide as the explorer has chosen."""

    def __init__(self, resource: int) -> None:
        self._resource = resource
        self._chosen: dict[int, bool] = {}
        """Whether the next question of an attempt reschedules it, by the attempt's context."""

    def __call__(self, declared: Any) -> Guard:
        return _Chosen(declared, self._chosen)

    async def choose(self, context: Context) -> None:
        """Let the explorer choose what the next guard of this attempt does; where it cannot be asked, it lets pass."""
        self._chosen[id(context)] = False
        with suppress(*MAY_RETRY):
            self._chosen[id(context)] = await _calls.get()(self._resource, "ask", context.work.handler.name)


class _Chosen:
    """A guard that does once as was chosen."""

    rescheduled_count = 0
    name = "chosen"
    state: State = "closed"

    def __init__(self, declared: Any, chosen: dict[int, bool]) -> None:
        self.declared = declared
        self._chosen = chosen

    @contextmanager
    def around(self, attempt: Attempted, *, earlier: int = 0) -> Iterator[None]:
        if self._chosen.pop(id(getattr(attempt, "_context", attempt)), False):
            raise Retry("the explorer reschedules it", after_s=AFTER_S)
        yield

    def view(self, now_ms: int) -> GuardView:
        return GuardView(self.name, "breaker", self.state, "", 0.0, 0)

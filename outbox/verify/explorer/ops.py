"""The words of the explorer: calls and their results, the faults that may come between, worlds, and who watches.

A program issues an `Op`, a model says what may become of it: a list of `Outcome`s, each with the model's next state
and the result.  Everything is a value, so that equal ones are the same small number (`Table`).

A world is a tuple of small numbers: what the monitor knows, the calls in flight, the faults that are left, the time,
each resource's state, each process's node.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec

from outbox.ports import Commit, Conflict, Delivery

Value = TypeVar("Value")

FaultKind = Literal["crash", "lost", "delay", "error", "expire", "stale", "jump", "timeout", "power"]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
"""Each has a budget.

crash    a worker dies before its next call, and starts anew with nothing
lost     the call took effect, its reply is lost: `OutcomeUnknown`
delay    `OutcomeUnknown` now, and the call lands at any time later, or never
error    nothing happened: `Throttled`
expire   a lock runs out under an owner that still works (one whose owner is gone runs out for nothing)
stale    a read answers from the past, as far as its session allows
jump     time passes, to the next moment at which something expires
timeout  a handler's own timer beats the call that it waits for
power    power is lost, and with it whatever an engine has not synced; every process starts anew
"""

Locks = frozenset[Hashable]
"""Locks that were handed out, by the names that a model has for them."""
NO_LOCKS: Locks = frozenset()

Reach = Literal["read", "take", "write"]
"""The effect that a call can have on its resource, which decides how it can fail."""


class Op(msgspec.Struct, frozen=True):
    """A call of a port that has been issued and not answered; `key` is what tells it from others."""

    resource: int
    verb: str
    args: tuple[Any, ...]
    key: bytes


class Raised(msgspec.Struct, frozen=True):
    """A result that is an error."""

    error: str
    text: str


class Outcome(NamedTuple):
    """A possible outcome of a call: the resource's next state, and the caller's result."""

    label: str
    state: Hashable
    result: Any
    fault: FaultKind | None = None
    note: Any = None
    """A further fact for a monitor."""


class Event(NamedTuple):
    """An event of a resource by itself; with a `token` it costs a fault only while a process holds that."""

    label: str
    state: Hashable
    token: Hashable = None
    fault: FaultKind | None = None
    meaning: Hashable = None
    ends_all: bool = False
    """Whether every process dies of it, and all calls in flight are lost."""


class Model(Protocol):
    """A resource as pure functions over immutable states."""

    @property
    def name(self) -> str:
        """The name in traces."""

    def initial(self) -> Hashable:
        """The state in which an exploration begins."""

    def reach(self, verb: str) -> Reach:
        """The effect that a call can have."""

    def is_private(self, op: Op) -> bool:
        """Whether a call is independent of everything that others may do, now and later: it can be taken first."""

    def outcomes(self, state: Any, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        """The outcomes of a call now; none where it would wait.

        A call that takes learns which locks are `in_use` somewhere: held, or named by an id that was made from them.
        """

    def is_spent(self, state: Any, op: Op) -> bool:
        """Whether a call that is still on its way can change nothing any more, whatever happens before it lands."""

    def events(self, state: Any, now_ms: int) -> list[Event]:
        """The events without a call."""

    def tokens(self, result: Any) -> frozenset[Hashable]:
        """The locks that a result hands to its caller."""

    def due_ms(self, state: Any, now_ms: int) -> int | None:
        """When something falls due by itself for which everybody may have to wait."""

    def moments_ms(self, state: Any, now_ms: int) -> tuple[int, ...]:
        """The times ahead at which something expires."""

    def describe(self, op: Op) -> str:
        """The call in a few words, for a trace."""

    def show(self, state: Any, now_ms: int) -> list[str]:
        """Show the state for the end of a trace, a line each."""


_encoder = msgspec.msgpack.Encoder()


def canonical(value: Any) -> bytes:
    """Bytes that are equal for equal values; mappings count as they are ordered, their maker orders them."""
    if isinstance(value, Conflict):
        value = (sorted(value.locks), sorted(value.states), sorted(value.markers))
    return _encoder.encode(value)


class Table(Generic[Value]):
    """Values by number, and the number of each; equal keys are one value."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, value: Value) -> int:
        """The number of a value, known by its key."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(value)
        return found

    def __getitem__(self, number: int) -> Value:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was broken, and how."""

    promise: str
    text: str


def delivery_text(delivery: Delivery) -> str:
    return f"{short(delivery.message.identity)} (delivery {delivery.delivery_count + 1})"


def short(identity: str) -> str:
    """An identity as a trace shows it: an output's by the beginning of its cause and its position."""
    cause, dash, position = identity.rpartition("-")
    return f"{cause[:6]}..-{position}" if dash and len(cause) == 64 else identity


def commit_text(commit: Commit) -> str:
    parts = [
        *(f"{how} {short(d.message.identity)}" for how, d in [("complete", d) for d in commit.consumed]),
        *(f"dead-letter {short(b.delivery.message.identity)} ({b.reason})" for b in commit.dead_lettered),
        *(f"postpone {short(p.delivery.message.identity)}" for p in commit.postponed),
        *(f"{id} {commit.if_versions.get(id, '?')}->{change.value.decode()}" for id, change in commit.states.items()),
        *(f"send {short(output.message.identity)} to {output.destination}" for output in commit.outputs),
    ]
    return ", ".join(parts)


World = tuple[int, ...]
GHOST, FLIGHT, BUDGET, TIME, RESOURCES = range(5)

UNKNOWN = Raised("OutcomeUnknown", "the reply did not come; read before acting")
THROTTLED = Raised("Throttled", "too many requests; nothing was written")


class Monitor(Protocol):
    """Watches the meaning of applied calls and names the promise that is broken."""

    def initial(self) -> Hashable:
        """The knowledge at the beginning."""

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        """The meaning of an applied call; None where it has none."""

    def step(self, ghost: Any, event: Any) -> Hashable:
        """The knowledge after an event, or the `Finding`."""

    def check(self, ghost: Any, states: Sequence[Any]) -> Finding | None:
        """The finding in a world at this moment."""

    def is_over(self, ghost: Any, states: Sequence[Any], now_ms: int) -> bool:
        """Whether all that falls due later is blocked for good, so that waiting for it changes nothing."""

    def final(self, ghost: Any, states: Sequence[Any], now_ms: int) -> list[Finding]:
        """The findings of missing effects when nothing more can happen."""

    def outcome(self, ghost: Any, states: Sequence[Any]) -> Hashable:
        """A final world as outsiders see it, whatever way led to it."""


class Move(NamedTuple):
    """A step of one process, a resource or the network, apart from the world that it is taken in."""

    cost: int
    resource: int
    state: int
    node: int
    event: int
    flight: tuple[int, ...]
    label: str
    fault: FaultKind | None = None
    op: int = -1
    """The call that is answered, by number."""


class Answer(NamedTuple):
    """A possible answer to a call, in numbers."""

    label: str
    state: int
    result: int
    fault: FaultKind | None
    event: int


Step = tuple[World, int, Move]
"""The world after a step, the place of its process in the tuple (0: none), and the step."""


def alike(names: Sequence[str], first: int) -> list[tuple[int, int]]:
    """The places of processes that run the same program, as ranges; the first process is at `first`."""
    found = []
    begin = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[begin]:
            if end - begin > 1:
                found.append((first + begin, first + end))
            begin = end
    return found

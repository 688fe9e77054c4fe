"""One run of a program: a loop of its own, the calls that it has issued, and answers to them."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Coroutine, Hashable
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from outbox.errors import LockLost, OutcomeUnknown, Refused, Throttled, TooLarge, UnknownDestination
from outbox.ports import Commit
from outbox.verify.explorer.loop import Loop, make_loop
from outbox.verify.explorer.ops import Op, Raised, Table, canonical

ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (OutcomeUnknown, Throttled, Refused, LockLost, TooLarge, UnknownDestination)
}
TIMER = -1
"""The position of an answer that is no call's: the program's next timer fires."""


class Calls:
    """The outside, as one run of a program sees it: what it calls, the time, fresh ids."""

    def __init__(self, loop: Loop, ops: Table[Op], now_ms: int) -> None:
        self.pending: list[tuple[int, Future[Any]]] = []
        """The calls that wait for an answer, as (number of the op, future), in the order of their issue."""
        self.time_ms = now_ms
        self.digest = b""
        self.made: list[str] = []
        """The ids that were made since the last answer."""
        self.remembered: tuple[bytes, int] | None = None
        """All that the program remembered when it last said so, and the ids made by then; None after an answer."""
        self.is_known = False
        """Whether the next calls are known from an earlier run, and need not be numbered again."""
        self._loop = loop
        self._ops = ops
        self._id_count = 0

    def now_ms(self) -> int:
        """The time of the last answer."""
        return self.time_ms

    def new_id(self) -> str:
        """A unique id: no two attempts are handed one lock; without one, its log identifies it."""
        self._id_count += 1
        id = blake2b(b"%b/%d" % (self.digest, self._id_count), digest_size=8).hexdigest()
        self.made.append(id)
        return id

    def remembers(self, what: bytes) -> None:
        """Declare that only `what` decides the program's further steps; the program must not wait for anything."""
        if not self.pending:
            self.remembered = what, self._id_count

    def __call__(self, resource: int, verb: str, *args: Any) -> Future[Any]:
        """Issue a call."""
        future = self._loop.create_future()
        if self.is_known:
            self.pending.append((-1, future))
            return future
        key = b"%d.%b.%b" % (resource, verb.encode(), canonical(args))
        number = self._ops.number(key, Op(resource, verb, tuple(map(_frozen, args)), key))
        self.pending.append((number, future))
        return future


def _frozen(value: Any) -> Any:
    """An argument that its caller cannot change any more."""
    if isinstance(value, Commit):
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Commit)
    return tuple(value) if isinstance(value, list) else value


class Alarms(logging.Handler):
    """Keeps what a program logs from the console, and the alarms among it: what calls for a person."""

    def __init__(self) -> None:
        super().__init__(logging.CRITICAL)
        self.messages: list[str] = []
        self._log = logging.getLogger("outbox")
        self._propagated = True

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> Alarms:
        self.messages.clear()
        self._propagated, self._log.propagate = self._log.propagate, False
        self._log.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._propagated


class Program(Protocol):
    """A program that a process runs over and over."""

    @property
    def name(self) -> str:
        """Programs of one name are interchangeable."""

    def run(self, calls: Calls, carried: Any) -> Coroutine[Any, Any, Hashable]:
        """One attempt, from what the last one handed on to what this one does; a fresh process begins with `None`."""


class Run:
    """A program under way; it goes on when it is answered, and only then."""

    def __init__(self, program: Program, carried: Hashable, ops: Table[Op], now_ms: int) -> None:
        self.loop = make_loop()
        self.calls = Calls(self.loop, ops, now_ms)
        self._main = self.loop.create_task(program.run(self.calls, carried))

    def answer(self, position: int, value: Any, now_ms: int, digest: bytes) -> None:
        """Answer a pending call, or let the next timer fire; `digest` is what new ids are made from."""
        self.calls.time_ms, self.calls.digest, self.calls.remembered = now_ms, digest, None
        if position == TIMER:
            self.loop.fire_timer()
            return
        _, future = self.calls.pending.pop(position)
        if isinstance(value, Raised):
            future.set_exception(ERRORS[value.error](value.text))
        else:
            future.set_result(value)

    def settle(self) -> tuple[int, ...]:
        """Let the program run on as far as it can; the calls that it gave up.

        Raises:
            ProgramSpins, LeavesLoop: it does what cannot be explored.
        """
        self.loop.run_ready()
        calls, is_finished = self.calls, self.loop.is_finished
        dropped = tuple(number for number, future in calls.pending if is_finished or future.cancelled())
        if dropped:
            calls.pending = [] if is_finished else [pair for pair in calls.pending if not pair[1].cancelled()]
        return dropped

    def settle_as(self, ops: tuple[int, ...]) -> bool:
        """Let the program run on to where it is known to issue these calls; whether it issues as many."""
        calls = self.calls
        calls.is_known = True
        self.settle()
        calls.is_known = False
        calls.pending = [(op, future) for op, (_, future) in zip(ops, calls.pending, strict=False)]
        return len(calls.pending) == len(ops)

    def made(self) -> list[str]:
        """The ids that the program has made since this was last asked."""
        found, self.calls.made = self.calls.made, []
        return found

    @property
    def pending(self) -> tuple[int, ...]:
        """The calls that wait for an answer, by number."""
        return tuple(number for number, _ in self.calls.pending)

    def outcome(self) -> tuple[BaseException | None, Hashable]:
        """The error that ended the program, or what it hands on."""
        error = self._main.exception()
        return error, None if error is not None else self._main.result()

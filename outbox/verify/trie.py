"""Programs as tries of what they were told.

A program is one restartable attempt: a coroutine that issues calls, and at its end hands on a hashable value, what a
process keeps from one attempt to the next.  asyncio being deterministic, what a program does next follows from what it
was told so far, so its local state is its log of answers.  Equal logs are one `Node`.  The code of a program runs once
for each distinct log; from then on a step of it is a look into a dict.

A replay that issues other calls than the log's first run did is a finding: something that is not a port's answer has a
say, such as a wall clock, unseeded randomness or a variable of a module.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from outbox.errors import LockLost, OutcomeUnknown, Refused, Throttled, TooLarge, UnknownDestination
from outbox.ports import Commit
from outbox.verify.loop import LeavesLoop, Loop, ProgramSpins, make_loop
from outbox.verify.ops import Finding, Op, Raised, Table, canonical

ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (OutcomeUnknown, Throttled, Refused, LockLost, TooLarge, UnknownDestination)
}
TIMER = -1
"""The position of an answer that is no call's: the program's next timer fires."""

DEPTH_MAX = 400
"""How many answers one attempt may take; more is an attempt that goes round in circles."""


class Calls:
    """The outside, as one run of a program sees it: what it calls, the time, fresh ids."""

    def __init__(self, loop: Loop, ops: Table[Op], now_ms: int) -> None:
        self.pending: list[tuple[int, Future[Any]]] = []
        """The calls that wait for an answer, as (number of the op, future), in the order of their issue."""
        self.time_ms = now_ms
        self.digest = b""
        self._loop = loop
        self._ops = ops
        self._id_count = 0

    def now_ms(self) -> int:
        """The time at which the program was last told anything."""
        return self.time_ms

    def new_id(self) -> str:
        """An id that nobody else makes: no two attempts are handed one lock; where there is none its log tells it apart."""
        self._id_count += 1
        return blake2b(b"%b/%d" % (self.digest, self._id_count), digest_size=8).hexdigest()

    def __call__(self, resource: int, verb: str, *args: Any) -> Future[Any]:
        """Issue a call."""
        key = b"%d.%b.%b" % (resource, verb.encode(), canonical(args))
        number = self._ops.number(key, Op(resource, verb, tuple(map(_frozen, args)), key))
        future = self._loop.create_future()
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
        self.told: list[str] = []
        self._log = logging.getLogger("outbox")
        self._propagated, self._log.propagate = self._log.propagate, False
        self._log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())

    def remove(self) -> None:
        """Let the log be as it was."""
        self._log.removeHandler(self)
        self._log.propagate = self._propagated


class Program(Protocol):
    """What a process does over and over."""

    @property
    def name(self) -> str:
        """Programs of one name are interchangeable."""

    def run(self, calls: Calls, carried: Any) -> Coroutine[Any, Any, Hashable]:
        """One attempt, from what the last one handed on to what this one does; a fresh process begins with `None`."""


@dataclass(slots=True, eq=False)
class Node:
    """What a program is doing after a log of answers."""

    number: int
    program: int
    carried: Hashable
    parent: Node | None
    answer: tuple[int, int, int]
    """How it came here: which pending call was answered, the number of the result, the time."""
    digest: bytes
    depth: int
    ops: tuple[int, ...] = ()
    """The calls that wait, by number, in the order of their issue."""
    dropped: tuple[int, ...] = ()
    """Calls that were given up at this very step: whether they arrive nobody can tell."""
    timer: bool = False
    held: frozenset[Hashable] = frozenset()
    """The locks that it was handed in this attempt."""
    finding: Finding | None = None
    ends: bool = False
    handed_on: Hashable = None
    children: dict[tuple[int, int, int], Node] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> list[Node]:
        """The nodes from the root to this one."""
        found, at = [self], self
        while at.parent is not None:
            at = at.parent
            found.append(at)
        return found[::-1]


Tokens = Callable[[Op, Any], frozenset[Hashable]]


class Trie:
    """All that programs do, as far as it was asked for."""

    def __init__(
        self, programs: Sequence[Program], tokens: Tokens, *, start_ms: int, allows_alarms: bool = False
    ) -> None:
        self.programs = programs
        self.nodes: list[Node] = []
        self.ops: Table[Op] = Table()
        self.results: Table[tuple[Any, bytes]] = Table()
        """Results with the bytes that they are known by."""
        self.run_count = 0
        self._tokens = tokens
        self._start_ms = start_ms
        self._allows_alarms = allows_alarms
        self._roots: dict[tuple[int, Hashable], Node] = {}

    def result(self, value: Any) -> int:
        """The number of a result."""
        key = type(value).__name__.encode() + canonical(value)
        return self.results.number(key, (value, key))

    def root(self, program: int, carried: Hashable = None) -> Node:
        """What a program does first."""
        found = self._roots.get((program, carried))
        if found is None:
            found = Node(len(self.nodes), program, carried, None, (0, 0, 0), b"", 0)
            self.nodes.append(found)
            self._roots[program, carried] = found
            self._run(found)
        return found

    def child(self, node: Node, position: int, result: int, now_ms: int) -> Node:
        """What a program does when one of its calls is answered; where that ends it, what it does next."""
        answer = (position, result, now_ms)
        found = node.children.get(answer)
        if found is None:
            digest, held = node.digest, node.held
            if position != TIMER:
                value, key = self.results[result]
                digest = blake2b(b"%b%d%b%d" % (digest, position, key, now_ms), digest_size=16).digest()
                held = held | self._tokens(self.ops[node.ops[position]], value)
            fresh = Node(len(self.nodes), node.program, node.carried, node, answer, digest, node.depth + 1, held=held)
            self.nodes.append(fresh)
            self._run(fresh)
            found = fresh
            if fresh.ends and fresh.finding is None and not fresh.dropped:
                found = self.root(node.program, fresh.handed_on)
            node.children[answer] = found
        return found

    def after(self, node: Node) -> Node:
        """Where a program is once what it gave up is accounted for."""
        return self.root(node.program, node.handed_on) if node.ends and node.finding is None else node

    # Running

    def _run(self, node: Node) -> None:
        """Run a program along a node's log, and note in the node what it does then."""
        self.run_count += 1
        path = node.path
        loop = make_loop()
        alarms = Alarms()
        calls = Calls(loop, self.ops, self._start_ms)
        main = loop.create_task(self.programs[node.program].run(calls, node.carried))
        try:
            for at in path:
                alarms.told.clear()
                if at.parent is not None:
                    self._answer(loop, calls, at)
                node.dropped = self._settle(loop, calls)
                if at is not node and tuple(number for number, _ in calls.pending) != at.ops:
                    node.finding = self._differs(at, calls)
                    return
            node.ops = tuple(number for number, _ in calls.pending)
            node.timer = loop.has_timer()
            if loop.is_finished:
                self._end(node, main.exception(), main)
            elif not node.ops and not node.timer:
                node.finding = Finding("Progress", "an attempt waits for something that never comes")
            elif node.depth >= DEPTH_MAX:
                node.finding = Finding("Progress", f"an attempt was answered {DEPTH_MAX} times and does not end")
            if alarms.told and node.finding is None and not self._allows_alarms:
                node.finding = Finding("NoAlarm", f"an alarm is raised: {alarms.told[0]}")
        except (ProgramSpins, LeavesLoop) as error:
            node.finding = Finding("Progress", str(error))
        finally:
            loop.dispose()
            alarms.remove()

    def _answer(self, loop: Loop, calls: Calls, at: Node) -> None:
        position, result, now_ms = at.answer
        calls.time_ms = now_ms
        calls.digest = canonical(sorted(at.held, key=repr)) if at.held else at.digest
        if position == TIMER:
            loop.fire_timer()
            return
        value = self.results[result][0]
        _, future = calls.pending.pop(position)
        if isinstance(value, Raised):
            future.set_exception(ERRORS[value.error](value.text))
        else:
            future.set_result(value)

    @staticmethod
    def _settle(loop: Loop, calls: Calls) -> tuple[int, ...]:
        """Let a program run on as far as it can; the calls that it gave up."""
        loop.run_ready()
        dropped = tuple(number for number, future in calls.pending if future.cancelled() or loop.is_finished)
        if dropped:
            calls.pending = [
                (number, future) for number, future in calls.pending if not future.cancelled() and not loop.is_finished
            ]
        return dropped

    def _differs(self, at: Node, calls: Calls) -> Finding:
        then = [self.ops[number] for number in at.ops]
        now = [self.ops[number] for number, _ in calls.pending]
        return Finding(
            "Deterministic",
            f"told the same, {self.programs[at.program].name} first called {_told(then)} and then {_told(now)}; a wall "
            "clock, randomness that is not ctx.random(), a global variable or the like has a say in it",
        )

    @staticmethod
    def _end(node: Node, error: BaseException | None, main: Future[Hashable]) -> None:
        node.ends = True
        if error is not None:
            node.finding = Finding("AttemptEnds", f"an attempt failed with {type(error).__name__}: {error}")
        else:
            node.handed_on = main.result()


def _told(ops: Sequence[Op]) -> str:
    return ", ".join(f"{op.verb}({blake2b(op.key, digest_size=3).hexdigest()})" for op in ops) or "nothing"

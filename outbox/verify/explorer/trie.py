"""Programs as tries of the answers to their calls.

A program is one restartable attempt: a coroutine that issues calls, and at its end hands on a hashable value, what a
process keeps from one attempt to the next.  asyncio being deterministic, what a program does next follows from the
answers so far, so its local state is its log of answers.  Equal logs are one `Node`.  The code of a program runs once
for each distinct log; from then on a step of it is a look into a dict.  A run is kept for the first answer that comes
to its node; for others, and where too many runs are kept, the log is replayed from its beginning.

A program may say that it remembers so much and no more (`Calls.remembers`), between two tries for example.  Logs with
equal memories are one node from there on, whatever the answers before.

The first thousand replays are compared, call by call, with what was called before; of the logs that end an attempt the
first thousand are replayed once more for that, and some of the others.  A replay that issues other calls is a finding:
something that is not a port's answer has a say, such as a wall clock, unseeded randomness or a variable of a module.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from outbox.verify.explorer.ops import NO_LOCKS, Finding, Locks, Op, Table, canonical
from outbox.verify.explorer.run import TIMER, Alarms, LeavesLoop, Program, ProgramSpins, Run
from outbox.verify.promises.reference import SideEffect, SideEffects

DEPTH_MAX = 400
"""How many answers one attempt may take; more is an attempt that loops."""

AGAIN_FIRST, AGAIN_EVERY = 1_000, 16
"""The ended attempts replayed first, and the interval at which later ones are replayed."""

LIVE_COUNT_MAX = 4_000
"""How many runs are kept to go on with; one is some ten thousand bytes."""


@dataclass(slots=True, eq=False)
class Node:
    """A program's node: its actions after a log of answers."""

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
    """Calls that were given up at this very step: they may arrive or not."""
    side_effects: tuple[SideEffect, ...] = ()
    timer: bool = False
    held: Locks = NO_LOCKS
    """The locks that it was handed in this attempt."""
    known: Locks = NO_LOCKS
    """The locks of `held`, and the ones behind ids in its answers."""
    finding: Finding | None = None
    remembered: tuple[bytes, int] | None = None
    """All that the program still knew at some point of this step, where it said so."""
    ends: bool = False
    handed_on: Hashable = None
    live: Run | None = field(default=None, repr=False)
    children: dict[tuple[int, int, int], Node] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> list[Node]:
        """The nodes from the root to this one."""
        found, at = [self], self
        while at.parent is not None:
            at = at.parent
            found.append(at)
        return found[::-1]


_ID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
"""The form of an id that a program has made."""


class Trie:
    """All that programs do, as far as it was asked for."""

    def __init__(
        self,
        programs: Sequence[Program],
        tokens: Callable[[Op, Any], Locks],
        *,
        start_ms: int,
        allows_alarms: bool = False,
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
        names = [program.name for program in programs]
        self.behind: dict[bytes, Locks] = {}
        """By an id that a program has made: the locks that it held then, from which the id was made."""
        self._first = [names.index(name) for name in names]
        """Programs of one name are one: the first stands for all."""
        self._roots: dict[tuple[int, Hashable], Node] = {}
        self._such: dict[tuple[int, Hashable, Hashable, int], Node] = {}
        """By what a program remembers: the first node at which it does."""
        self._live: deque[Node] = deque()
        self._end_count = 0
        self._alarms = Alarms()
        self._side_effects = SideEffects()

    def result(self, value: Any) -> int:
        """The number of a result."""
        key = type(value).__name__.encode() + canonical(value)
        return self.results.number(key, (value, key))

    def root(self, program: int, carried: Hashable = None) -> Node:
        """The first node of a program."""
        program = self._first[program]
        found = self._roots.get((program, carried))
        if found is None:
            known = NO_LOCKS if carried is None else self.mentioned(canonical(carried))
            found = Node(len(self.nodes), program, carried, None, (0, 0, 0), b"", 0, known=known)
            self.nodes.append(found)
            self._roots[program, carried] = found
            self._replay(found)
        return found

    def child(self, node: Node, position: int, result: int, now_ms: int) -> Node:
        """The node of a program after an answer to one call; after its end, of the next attempt."""
        answer = (position, result, now_ms)
        found = node.children.get(answer)
        if found is None:
            digest, held, known = node.digest, node.held, node.known
            if position != TIMER:
                value, key = self.results[result]
                digest = blake2b(b"%b%d%b%d" % (digest, position, key, now_ms), digest_size=16).digest()
                held = held | self._tokens(self.ops[node.ops[position]], value)
                known = known | held | self.mentioned(key)
            fresh = Node(len(self.nodes), node.program, node.carried, node, answer, digest, node.depth + 1)
            fresh.held, fresh.known = held, known
            self.nodes.append(fresh)
            self._go_on(node, fresh)
            found = fresh
            means_more = fresh.dropped or fresh.side_effects
            if fresh.ends and fresh.finding is None and not means_more:
                found = self.root(node.program, fresh.handed_on)
            elif fresh.remembered is not None and fresh.finding is None and not means_more:
                fresh.known = fresh.held | self.mentioned(fresh.remembered[0])
                found = self._first_such(fresh, now_ms)
            node.children[answer] = found
        return found

    def _first_such(self, fresh: Node, now_ms: int) -> Node:
        """Return the first node with the same memory of this program: runs continue alike from both."""
        first = self._such.setdefault((fresh.program, fresh.carried, fresh.remembered, now_ms), fresh)
        if first is fresh:
            return fresh
        if (first.ops, first.timer) != (fresh.ops, fresh.timer):
            raise AssertionError(f"node {fresh.number} remembers more than it says: it differs from {first.number}")
        if fresh.live is not None:
            fresh.live.loop.dispose()
            fresh.live = None
        return first

    def after(self, node: Node) -> Node:
        """Where a program is once what it gave up and did is accounted for."""
        return self.root(node.program, node.handed_on) if node.ends and node.finding is None else node

    def mentioned(self, data: bytes) -> Locks:
        """The locks behind the ids that occur in some bytes."""
        return NO_LOCKS.union(*[self.behind[id] for id in _ID.findall(data) if id in self.behind])

    # Running

    def _go_on(self, parent: Node, node: Node) -> None:
        """Take a program from a node to the next: by the run that stands there, or from the beginning."""
        run, parent.live = parent.live, None
        if run is None:
            self._replay(node)
            return
        self._drive(run, node, [node])
        if node.ends and node.finding is None:
            self._end_count += 1
            if self._end_count <= AGAIN_FIRST or self._end_count % AGAIN_EVERY == 0:
                self._replay(node, again=True)

    def _replay(self, node: Node, *, again: bool = False) -> None:
        """Run a program along a node's log from the beginning; `again` to see that it does the same."""
        self.run_count += 1
        run = Run(self.programs[node.program], node.carried, self.ops, self._start_ms)
        self._drive(run, node, node.path, again=again)

    def _drive(self, run: Run, node: Node, path: Sequence[Node], *, again: bool = False) -> None:
        """Answer a run along a path, and note in the node at its end what the program does there."""
        is_known = self.run_count > AGAIN_FIRST and not again
        with self._alarms as alarms, self._side_effects as watch:
            dropped: tuple[int, ...] = ()
            try:
                for at in path:
                    alarms.messages.clear()
                    watch.side_effects.clear()
                    if at.parent is not None:
                        position, result, now_ms = at.answer
                        value = None if position == TIMER else self.results[result][0]
                        run.answer(position, value, now_ms, _digest(at))
                    if is_known and at is not node:
                        dropped, same = (), run.settle_as(at.ops)
                    else:
                        dropped = run.settle()
                        same = run.pending == at.ops or (at is node and not again)
                    if not same:
                        node.finding = self._differs(at, run.pending)
                        break
                else:
                    if not again:
                        node.side_effects = tuple(watch.side_effects)
                        self._note(run, node, dropped, alarms)
            except (ProgramSpins, LeavesLoop) as error:
                node.finding = Finding("Progress", str(error))
        if node.ends or node.finding is not None:
            run.loop.dispose()
        else:
            self._keep(run, node)

    def _note(self, run: Run, node: Node, dropped: tuple[int, ...], alarms: Alarms) -> None:
        """Note a program's calls and results at a node."""
        node.dropped, node.ops, node.timer = dropped, run.pending, run.loop.has_timer()
        node.remembered = run.calls.remembered
        self.behind.update((id.encode(), node.held) for id in run.made())
        if run.loop.is_finished:
            node.ends = True
            error, node.handed_on = run.outcome()
            if error is not None:
                node.finding = Finding("AttemptEnds", f"an attempt failed with {type(error).__name__}: {error}")
        elif not node.ops and not node.timer:
            node.finding = Finding("Progress", "an attempt waits for something that never comes")
        elif node.depth >= DEPTH_MAX:
            node.finding = Finding("Progress", f"an attempt was answered {DEPTH_MAX} times and does not end")
        if alarms.messages and node.finding is None and not self._allows_alarms:
            node.finding = Finding("NoAlarm", f"an alarm is raised: {alarms.messages[0]}")

    def _keep(self, run: Run, node: Node) -> None:
        node.live = run
        self._live.append(node)
        if len(self._live) > LIVE_COUNT_MAX:
            oldest = self._live.popleft()
            if oldest.live is not None:
                oldest.live.loop.dispose()
                oldest.live = None

    def _differs(self, at: Node, pending: tuple[int, ...]) -> Finding:
        then, now = [[self.ops[number] for number in numbers] for numbers in (at.ops, pending)]
        return Finding(
            "Deterministic",
            f"with the same answers, {self.programs[at.program].name} first called {_calls_text(then)} and then "
            f"{_calls_text(now)}; a wall clock, randomness that is not ctx.random(), a global variable or the like has "
            "a say in it",
        )


def _digest(node: Node) -> bytes:
    """The seed of the ids that a program draws at a node."""
    return canonical(sorted(node.held, key=repr)) if node.held else node.digest


def _calls_text(ops: Sequence[Op]) -> str:
    return ", ".join(f"{op.verb}({blake2b(op.key, digest_size=3).hexdigest()})" for op in ops) or "nothing"

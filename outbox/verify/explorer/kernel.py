"""Worlds and what may happen next in each: the transition relation that every kind of search walks.

A world is a tuple of small numbers: what the monitors know, the calls in flight, the faults that are left, the time,
each resource's state, each process's node.  One step is one answer to one call, and everything that the caller does
up to its next call: code between two calls takes no steps of its own.  All that a step needs is worked out once
and kept, so that exploring is looking things up.

What may become of a call is what its model says, and what may happen to any call on its way there and back.  Time
passes by leaps, to moments at which something happens.  A queue hands out the smallest lock name that is not in use
somewhere: names that follow from what is in use now, and not from how often a message was handed out before, make one
world of many that differ in nothing else.  A lock is in use while a process holds it, and while an id that its holder
made (a transaction's) stands in a document, in a call in flight, or in an answer that a process has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import product
from typing import Any

from outbox.verify.explorer.budgets import GUARDS, Budgets, cost_of
from outbox.verify.explorer.ops import (
    BUDGET,
    FAULT_KINDS,
    FLIGHT,
    GHOST,
    NO_LOCKS,
    RESOURCES,
    THROTTLED,
    TIME,
    UNKNOWN,
    Answer,
    FaultKind,
    Finding,
    Locks,
    Model,
    Monitor,
    Move,
    Op,
    Step,
    Table,
    World,
    alike,
    canonical,
)
from outbox.verify.explorer.run import TIMER, Program
from outbox.verify.explorer.trie import Node, Trie

TIME_BITS = 24
ALL_ANEW = -1
"""In place of a node: every process begins anew."""

Flight = tuple[int, ...]
"""Calls that are still on their way, by number."""

Prospect = tuple[int, Callable[[], list[Step]]]
"""A possible event: its cost, and a function that tries it and returns its possible steps."""

WaitingCall = tuple[int, int, bool, dict[Hashable, list[Move]]]
"""A call that waits: its resource's place, its position, whether it takes, and the known steps."""


Happening = tuple[Hashable, Move, Move]
"""A resource's own event: a lock that it ends, the step while a process holds that, the step otherwise."""


class Kernel:
    """The transition relation of one scenario."""

    def __init__(
        self,
        models: Sequence[Model],
        programs: Sequence[Program],
        monitor: Monitor,
        budgets: Budgets,
        *,
        start_ms: int,
        symmetric: bool = True,
        ample: bool = True,
        allows_alarms: bool = False,
        flight_ms_max: int = 0,
        patience_ms: int = 0,
    ) -> None:
        self.models = models
        self._flight_ms_max = flight_ms_max
        self._symmetric = symmetric
        self._ample = ample
        self._kinds = {kind for kind in FAULT_KINDS if getattr(budgets, kind)}
        self.monitor = monitor
        self.trie = Trie(programs, self._tokens, start_ms=start_ms, allows_alarms=allows_alarms)
        self.states: list[Table[Any]] = [Table() for _ in models]
        self.ghosts: Table[Any] = Table()
        self.flights: Table[Flight] = Table()
        self.times: Table[int] = Table()
        self.bad: set[int] = set()
        """The ghosts that are findings."""
        self.start: World = self._initial(programs, budgets, start_ms)
        self.first = RESOURCES + len(models)
        self._groups = alike([program.name for program in programs], self.first) if symmetric else []
        self._places = range(self.first, len(self.start))
        self._events: Table[tuple[Any, ...]] = Table()
        self._event()
        self._answers: dict[tuple[int, int, int, Locks], list[Answer]] = {}
        self._moves: list[list[WaitingCall] | None] = []
        self._restart: list[Move | None] = []
        self._first_alone = bytearray()
        """Whether a node's next step is independent of everybody else's."""
        self._landings: dict[tuple[int, int, int], list[Move]] = {}
        self._happenings: list[dict[int, list[Happening]]] = [{} for _ in models]
        self._jump_cost = cost_of("jump") if "jump" in self._kinds else 0
        self._ghost_steps: dict[tuple[int, int], int] = {}
        self._mentions: dict[tuple[int, int], Locks] = {}
        """The locks behind the ids in a resource's state, or in calls that are in flight."""
        self._spent: dict[tuple[int, int], bool] = {}
        self._merged: dict[tuple[int, tuple[int, ...]], int] = {}
        self._jumps: dict[tuple[int, ...], list[Move]] = {}
        self._until_ms = start_ms + patience_ms if patience_ms else 0
        """After this no process waits any longer; 0: there is no end."""

    def _initial(self, programs: Sequence[Program], budgets: Budgets, start_ms: int) -> World:
        ghost = self.ghosts.number(start := self.monitor.initial(), start)
        states = [table.number(s := model.initial(), s) for table, model in zip(self.states, self.models, strict=True)]
        roots = [self.trie.root(program).number for program in range(len(programs))]
        return (
            ghost,
            self.flights.number((), ()),
            budgets.packed(),
            self.times.number(start_ms, start_ms),
            *states,
            *roots,
        )

    def _tokens(self, op: Op, result: Any) -> frozenset[tuple[int, Hashable]]:
        return frozenset((op.resource, token) for token in self.models[op.resource].tokens(result))

    def state(self, world: World, resource: int) -> Any:
        """A resource's state in a world."""
        return self.states[resource][world[RESOURCES + resource]]

    def resource_states(self, world: World) -> list[Any]:
        """The states of all resources in a world."""
        return [self.state(world, resource) for resource in range(len(self.models))]

    def now_ms(self, world: World) -> int:
        """The time in a world."""
        return self.times[world[TIME]]

    def nodes(self, world: World) -> list[Node]:
        """The node of each process in a world."""
        return [self.trie.nodes[number] for number in world[self.first :]]

    # What may happen

    def successors(self, world: World) -> tuple[list[Step], bool]:
        """All that may happen next, and whether any of it needs no fault."""
        steps: list[Step] = []
        budget, time, all_moves = world[BUDGET], world[TIME], self._moves
        places: Sequence[int] = self._places
        for place in places:
            number = world[place]
            if number >= len(all_moves) or all_moves[number] is None:
                self._waiting(number)
            if self._first_alone[number]:
                places = (place,)
                break
        free, previous = False, -1
        for place in places:
            number = world[place]
            if number == previous and self._groups:
                continue  # the same program at the same point: the same steps
            previous = number
            for resource, position, takes, table in all_moves[number] or ():
                key: Hashable = world[resource] << TIME_BITS | time if resource else time
                in_use = NO_LOCKS
                if takes:
                    in_use = self._locks_in_use(world, resource)
                    key = key, in_use
                moves = table.get(key)
                if moves is None:
                    moves = self._worker_moves(number, resource, position, world[resource], time, in_use)
                    table[key] = moves
                for move in moves:
                    if not move.cost:
                        free = True
                    elif (budget - move.cost) & GUARDS:
                        continue
                    steps.append((self._after(world, place, move), place, move))
            crash = self._restart[number]
            if crash is not None and not (budget - crash.cost) & GUARDS:
                steps.append((self._after(world, place, crash), place, crash))
        if len(places) == 1 and self._first_alone[world[places[0]]]:
            return steps, True
        free = self._by_themselves(world, steps) or free
        if not free:
            due = self._due(world)
            if due is not None:
                steps.append((self._at(world, due), 0, due))
                free = True
        return steps, free

    def prospects(self, world: World) -> list[Prospect]:
        """The next events as `successors` has them, untried, for a search that takes one way only."""
        found: list[Prospect] = []
        time = world[TIME]
        for place in range(self.first, len(world)):
            number = world[place]
            node = self.trie.nodes[number]
            for resource, position, takes, _ in self._waiting(number):
                in_use = self._locks_in_use(world, resource) if takes else NO_LOCKS
                for answer, flight in self._answered(node, position, world[resource], time, in_use):
                    moves = partial(self._learn, node, position, resource, answer, time, flight)
                    found.append((cost_of(answer.fault), partial(self._tried, world, place, moves)))
            crash = self._restart[number]
            if crash is not None:
                found.append((crash.cost, partial(self._tried, world, place, [crash].copy)))
        found = [prospect for prospect in found if not (world[BUDGET] - prospect[0]) & GUARDS]
        alone: list[Step] = []
        if not self._by_themselves(world, alone) and all(cost for cost, _ in found):
            due = self._due(world)
            alone += [] if due is None else [(self._at(world, due), 0, due)]
        return found + [(step[2].cost, [step].copy) for step in alone]

    def _tried(self, world: World, place: int, moves: Callable[[], list[Move]]) -> list[Step]:
        return [(self._after(world, place, move), place, move) for move in moves()]

    def _after(self, world: World, place: int, move: Move) -> World:
        after = list(world)
        if move.cost:
            after[BUDGET] -= move.cost
        if move.resource:
            after[move.resource] = move.state
        if place:
            after[place] = move.node
        if move.event:
            after[GHOST] = self._ghost_after(world[GHOST], move.event)
        if move.flight:
            after[FLIGHT] = self._flight_with(world[FLIGHT], move.flight)
        if move.node == ALL_ANEW:
            after[FLIGHT], after[self.first :] = self.start[FLIGHT], self.start[self.first :]
        if after[FLIGHT] and move.resource:
            after[FLIGHT] = self._still_flying(after)
        for begin, end in self._groups:
            if end - begin == 2:
                if after[begin] > after[begin + 1]:
                    after[begin], after[begin + 1] = after[begin + 1], after[begin]
            else:
                after[begin:end] = sorted(after[begin:end])
        return tuple(after)

    def _ghost_after(self, ghost: int, event: int) -> int:
        found = self._ghost_steps.get((ghost, event))
        if found is None:
            after = self.ghosts[ghost]
            for meaning in self._events[event]:
                if not isinstance(after, Finding):
                    after = meaning if isinstance(meaning, Finding) else self.monitor.step(after, meaning)
            found = self._ghost_steps[ghost, event] = self.ghosts.number(after, after)
            if isinstance(after, Finding):
                self.bad.add(found)
        return found

    def _event(self, *meanings: Any) -> int:
        """The number of what happens in one step; 0 is nothing."""
        return self._events.number(meanings, meanings)

    def _flight_with(self, flight: int, ops: tuple[int, ...]) -> int:
        found = self._merged.get((flight, ops))
        if found is None:
            together = tuple(sorted((*self.flights[flight], *ops)))
            found = self._merged[flight, ops] = self.flights.number(together, together)
        return found

    def _still_flying(self, world: Sequence[int]) -> int:
        """The calls in flight that may yet change something; whether others arrive makes no difference."""
        flying = self.flights[world[FLIGHT]]
        left = tuple(op for op in flying if not self._is_spent(op, world[RESOURCES + self.trie.ops[op].resource]))
        return world[FLIGHT] if len(left) == len(flying) else self.flights.number(left, left)

    def _is_spent(self, op: int, state: int) -> bool:
        found = self._spent.get((op, state))
        if found is None:
            called = self.trie.ops[op]
            before = self.states[called.resource][state]
            found = self._spent[op, state] = self._ample and self.models[called.resource].is_spent(before, called)
        return found

    # A process is answered

    def _waiting(self, number: int) -> list[WaitingCall]:
        while len(self._moves) <= number:
            self._moves.append(None)
            self._restart.append(None)
            self._first_alone.append(0)
        found = self._moves[number]
        if found is None:
            node = self.trie.nodes[number]
            found = [(RESOURCES + self.trie.ops[op].resource, i, self._takes(op), {}) for i, op in enumerate(node.ops)]
            if node.timer and (not node.ops or "timeout" in self._kinds):
                found.append((0, TIMER, False, {}))
            self._moves[number] = found
            ops = [self.trie.ops[op] for op in node.ops]
            if self._ample and ops and all(self.models[op.resource].is_private(op) for op in ops):
                self._first_alone[number] = 1
            if node is not (root := self.trie.root(node.program)):
                self._restart[number] = Move(cost_of("crash"), 0, 0, root.number, 0, (), "", "crash")
        return found

    def _answered(self, node: Node, position: int, state: int, time: int, in_use: Locks) -> list[tuple[Answer, Flight]]:
        """The answers to one of a process's calls or its timer, each with the calls in flight after it."""
        if position == TIMER:
            return [(Answer("time passes, a timer fires", 0, 0, "timeout" if node.ops else None, 0), ())]
        number = node.ops[position]
        plain = self._plain_answers(number, state, time, in_use)
        found: list[tuple[Answer, Flight]] = [(answer, ()) for answer in plain]
        if not plain:
            return found
        op = self.trie.ops[number]
        reach = self.models[op.resource].reach(op.verb)
        unknown = self.trie.result(UNKNOWN)
        if reach != "read" and "lost" in self._kinds:
            for answer in plain:
                if not answer.fault:
                    label = f"{answer.label} (the reply is lost)".strip()
                    found.append((Answer(label, answer.state, unknown, "lost", answer.event), ()))
        if reach == "write" and "delay" in self._kinds:
            found.append((Answer("no reply, it is still on its way", state, unknown, "delay", 0), (number,)))
        if reach != "take" and "error" in self._kinds:
            found.append((Answer("-> throttled", state, self.trie.result(THROTTLED), "error", 0), ()))
        return found

    def _plain_answers(self, number: int, state: int, time: int, in_use: Locks = NO_LOCKS) -> list[Answer]:
        """The answers of a call's model, computed once for each state of the resource."""
        key = (number, state, time, in_use)
        found = self._answers.get(key)
        if found is None:
            op = self.trie.ops[number]
            table, now_ms = self.states[op.resource], self.times[time]
            found = []
            for outcome in self.models[op.resource].outcomes(table[state], op, now_ms, in_use):
                if outcome.fault is not None and outcome.fault not in self._kinds:
                    continue
                meaning = self.monitor.observe(op, table[state], outcome, now_ms)
                found.append(
                    Answer(
                        outcome.label,
                        table.number(outcome.state, outcome.state),
                        self.trie.result(outcome.result),
                        outcome.fault,
                        self._event(meaning) if meaning is not None else 0,
                    )
                )
            self._answers[key] = found
        return found

    def _locks_in_use(self, world: World, resource: int) -> Locks:
        """The locks of the resource at a place of the world, by the names that its model has for them."""
        found = NO_LOCKS.union(*[node.known for node in self.nodes(world)])
        for where in (FLIGHT, *range(RESOURCES, self.first)):
            number = world[where]
            mentioned = self._mentions.get((where, number))
            if mentioned is None:
                if where == FLIGHT:
                    data = b"".join(self.trie.ops[op].key for op in self.flights[number])
                else:
                    data = canonical(self.states[where - RESOURCES][number])
                mentioned = self._mentions[where, number] = self.trie.mentioned(data)
            found |= mentioned
        return frozenset(lock[1] for lock in found if isinstance(lock, tuple) and lock[0] == resource - RESOURCES)

    def _worker_moves(self, number: int, place: int, position: int, state: int, time: int, in_use: Locks) -> list[Move]:
        node = self.trie.nodes[number]
        answers = self._answered(node, position, state, time, in_use)
        return [move for answer, flight in answers for move in self._learn(node, position, place, answer, time, flight)]

    def _learn(self, node: Node, position: int, resource: int, result: Answer, time: int, flight: Flight) -> list[Move]:
        """The steps by which a process learns a result: several where it gives up other calls upon it."""
        child = self.trie.child(node, position, result.result, self.times[time])
        event = result.event
        if child.finding is not None:
            event = self._event(child.finding)
        elif child.side_effects:
            event = self._event(*self._events[event], *child.side_effects)
        after = self.trie.after(child).number
        cost = cost_of(result.fault)
        dropped = [op for op in child.dropped if self._is_write(op)]
        return [
            Move(
                cost,
                resource,
                result.state,
                after,
                event,
                (*flight, *(op for op, arrives in zip(dropped, choice, strict=True) if arrives)),
                result.label,
                result.fault,
                -1 if position == TIMER else node.ops[position],
            )
            for choice in product((False, True), repeat=len(dropped))
        ]

    # What happens by itself

    def _by_themselves(self, world: World, steps: list[Step]) -> bool:
        """Calls in flight arrive, locks run out, time jumps; whether any of it needs no fault."""
        free = self._land(world, steps) if world[FLIGHT] else False
        budget, time, held = world[BUDGET], world[TIME], None
        for resource, known in enumerate(self._happenings, RESOURCES):
            key = world[resource] << TIME_BITS | time
            happenings = known.get(key)
            if happenings is None:
                happenings = known[key] = self._find_happenings(resource - RESOURCES, world[resource], time)
            for token, move, lapse in happenings:
                if token is not None:
                    if held is None:
                        nodes = self.trie.nodes
                        held = NO_LOCKS.union(*[nodes[number].held for number in world[self.first :]])
                    if token not in held:
                        move = lapse
                if not move.cost:
                    free = True
                elif (budget - move.cost) & GUARDS:
                    continue
                steps.append((self._after(world, 0, move), 0, move))
        if self._jump_cost and not (budget - self._jump_cost) & GUARDS:
            # No write takes longer than is allowed for, so while one waits for its answer time cannot go far.
            may_be_long = not any(self._is_write(op) for node in self.nodes(world) for op in node.ops)
            for move in self._jumps_from(world):
                is_long = self.times[move.state] - self.times[time] > self._flight_ms_max
                if may_be_long or not is_long:
                    steps.append((self._at(world, move, nothing_flies=is_long), 0, move))
        return free

    def _takes(self, op: int) -> bool:
        """Whether a call is handed a lock; where each is distinct it does not matter which are in use."""
        found = self.trie.ops[op]
        return self._symmetric and self.models[found.resource].reach(found.verb) == "take"

    def _is_write(self, op: int) -> bool:
        found = self.trie.ops[op]
        return self.models[found.resource].reach(found.verb) == "write"

    def _find_happenings(self, resource: int, state: int, time: int) -> list[Happening]:
        table = self.states[resource]
        found: list[Happening] = []
        for event in self.models[resource].events(table[state], self.times[time]):
            after = table.number(event.state, event.state)
            if event.fault == "power" and event.fault not in self._kinds:
                continue
            token = None if event.token is None else (resource, event.token)
            meaning = 0 if event.meaning is None else self._event(event.meaning)
            node = ALL_ANEW if event.ends_all else 0
            place, cost = RESOURCES + resource, cost_of(event.fault)
            move = Move(cost, place, after, node, meaning, (), event.label, event.fault)
            found.append((token, move, move._replace(cost=0, fault=None)))
        return found

    def _land(self, world: World, steps: list[Step]) -> bool:
        flying = self.flights[world[FLIGHT]]
        for index, op in enumerate(flying):
            if index and flying[index - 1] == op:
                continue
            place = RESOURCES + self.trie.ops[op].resource
            rest = flying[:index] + flying[index + 1 :]
            left = self.flights.number(rest, rest)
            key = (op, world[place], world[TIME])
            landings = self._landings.get(key)
            if landings is None:
                landings = self._landings[key] = [
                    Move(0, place, r.state, 0, r.event, (), f"a late call arrives: {self.describe(op)}{r.label}")
                    for r in self._plain_answers(*key)
                    if not r.fault
                ]
            for move in landings:
                steps.append((self._after((*world[:FLIGHT], left, *world[FLIGHT + 1 :]), 0, move), 0, move))
        return bool(flying)

    def describe(self, op: int) -> str:
        """A call as a trace shows it."""
        found = self.trie.ops[op]
        return f"{self.models[found.resource].describe(found)} "

    # Time

    def _jumps_from(self, world: World) -> list[Move]:
        """Leaps to whatever expires: a fault, because no process does anything meanwhile."""
        key, now_ms = world[TIME : self.first], self.now_ms(world)
        found = self._jumps.get(key)
        if found is None:
            pairs = zip(self.models, self.resource_states(world), strict=True)
            moments = {moment for model, state in pairs for moment in model.moments_ms(state, now_ms)}
            found = self._jumps[key] = [self._leap(ms, now_ms, "jump") for ms in sorted(moments)]
        return found

    def _due(self, world: World) -> Move | None:
        """Nothing else can happen: time goes on to what falls due next, if that changes anything."""
        states, now_ms = self.resource_states(world), self.now_ms(world)
        pairs = zip(self.models, states, strict=True)
        due_ms = min((due for model, state in pairs if (due := model.due_ms(state, now_ms)) is not None), default=None)
        if due_ms is None or 0 < self._until_ms < due_ms:
            return None
        return None if self.monitor.is_over(self.ghosts[world[GHOST]], states, now_ms) else self._leap(due_ms, now_ms)

    def _leap(self, ms: int, now_ms: int, fault: FaultKind | None = None) -> Move:
        label = f"{(ms - now_ms) / 1_000:g} s pass"
        return Move(cost_of(fault), 0, self.times.number(ms, ms), 0, 0, (), label, fault)

    def _at(self, world: World, move: Move, *, nothing_flies: bool = False) -> World:
        after = list(world)
        after[TIME], after[BUDGET] = move.state, after[BUDGET] - move.cost
        if nothing_flies:
            after[FLIGHT] = self.flights.number((), ())
        return tuple(after)

"""A queue with peek-lock, and a place to send to, as a model: just what the older algorithms need of one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from outbox.verify.explorer.ops import NO_LOCKS, Event, Locks, Op, Outcome, Reach
from tests.simulation.prior_art.small import Resource


class Delivery(NamedTuple):
    """A message as a receiver holds it: its id, which copy of it, how often that was delivered earlier."""

    message: str
    copy: int
    earlier: int


class Task(NamedTuple):
    """A copy in the queue."""

    delivery: Delivery
    locked: bool = False


Tasks = tuple[Task, ...]


class Inbox(Resource):
    """Messages by id, each in so many copies; what is sent is for a monitor to see."""

    name = "queue"

    def __init__(self, copies: Mapping[str, int]) -> None:
        self._initial = tuple(Task(Delivery(id, copy, 0)) for id, n in sorted(copies.items()) for copy in range(n))

    def initial(self) -> Tasks:
        return self._initial

    def reach(self, verb: str) -> Reach:
        return "take" if verb == "receive" else "write"

    def outcomes(self, state: Tasks, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        match op.verb:
            case "receive":
                return [
                    Outcome(f"-> {task.delivery.message}", _changed(state, task, task._replace(locked=True)), delivery)
                    for task, delivery in ((task, task.delivery) for task in state if not task.locked)
                ]
            case "complete":
                rest = tuple(task for task in state if task != Task(op.args[0], True))
                return [Outcome("", rest, None)]
        return [Outcome("", state, None)]

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset([result]) if isinstance(result, Delivery) else frozenset()

    def events(self, state: Tasks, now_ms: int) -> list[Event]:
        return [
            Event(f"the lock of {task.delivery.message} runs out", _lapsed(state, task), task.delivery, "expire")
            for task in state
            if task.locked
        ]

    def describe(self, op: Op) -> str:
        match op.verb:
            case "receive":
                return "receive"
            case "complete":
                return f"complete {op.args[0].message}"
        return f"{op.verb} {' '.join(map(str, op.args))}"


def _lapsed(state: Tasks, task: Task) -> Tasks:
    delivery = task.delivery
    return _changed(state, task, Task(delivery._replace(earlier=delivery.earlier + 1)))


def _changed(state: Tasks, old: Task, new: Task) -> Tasks:
    return tuple(sorted(new if task == old else task for task in state))

"""Tasks in several processes without the processes: workers as objects, and their messages in any order of channels."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count as counter
from typing import Any

from outbox.engine.engine import Engine
from outbox.streams import Emit, MapState, OrderedLog, Pipeline, Position, Value, Window
from outbox.streams.pipeline.cores import core_of, states_of
from outbox.streams.pipeline.exchange import SINK, Begin, Exchange, FromWorker, Moved, ToWorker, Unframed, framed
from outbox.streams.pipeline.grouping import Buffered, Speculative
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import BUFFERED
from outbox.streams.pipeline.tasks import LocalTasks
from outbox.streams.pipeline.worker import TaskWorker, failure_of
from outbox.streams.pipeline.workers import WorkerDied, WorkerTasks
from tests.unit.streams.pipeline.counting import Change, Count, Page, Word, count, text_of, words

TIME_MS = 1_000_000


def letter_of(change: Change) -> str:
    return change.word[0]


def is_odd(change: Change) -> bool:
    return change.n % 2 == 1


@dataclass
class Letter:
    """The state of a letter, of which changes are followed."""

    n: Value[int] = field(default_factory=lambda: Value(0))
    words: MapState[str, int] = field(default_factory=MapState)


def by_letter(state: Letter, change: Change, emit: Emit[Change]) -> None:
    state.n.value = state.n.value * 7 % 1_000 + change.n  # another order makes another number
    state.words[change.word] = state.n.value
    emit(Change(f"{change.word[0]}.", state.n.value))
    emit(Change(f"{change.word}.", len(state.words)))


def lately(window: Window, words: Sequence[Word]) -> Iterator[Change]:
    yield Change(f"{window.key}?", len(words))


class Letters:
    """Words counted, what is odd of that by letters, and words in windows: two reduces, a window, three sinks."""

    def __init__(self, place: Any) -> None:
        self.pages = OrderedLog("pages", place, type=Page)
        self.changes = OrderedLog("changes", place, type=Change)
        self.letters = OrderedLog("letters", place, type=Change)
        self.lately = OrderedLog("lately", place, type=Change)
        made = self.pipeline = Pipeline("letters", source=self.pages)
        split = made.flat_map(source=self.pages, emits=Word)(words)
        counted = made.reduce(split, key=text_of, state=Count, emits=Change)(count)
        odd = made.filter(counted)(is_odd)
        made.sink(counted, self.changes)
        made.sink(made.reduce(odd, key=letter_of, state=Letter)(by_letter), self.letters)
        made.sink(made.window(split, key=text_of, size_s=2)(lately), self.lately)


def frames_of(texts: Sequence[str]) -> list[Frame]:
    """A frame for each text, a second apart."""
    frames = []
    for number, text in enumerate(texts):
        at, at_ms = Position(number), TIME_MS + 1_000 * number
        frames.append(Frame([(at, (), at_ms, Page(text))], Position(number + 1), [(at, at_ms)]))
    return frames


async def in_order(plan: PipelinePlan, frames: Sequence[Frame]) -> dict[str, list[Any]]:
    """What comes out of each sink in one process, as stored."""
    made: dict[str, list[Any]] = defaultdict(list)

    def deliver(sink: str, frame: Frame, is_stored: bool) -> None:
        values = plan.sinks[sink][1].values
        made[sink] += [(record[0], bytes(values.encoded([record[3]])[0][0])) for record in frame.records]

    tasks = LocalTasks(plan, deliver)
    for frame in frames:
        await tasks.feed(frame, [""] * len(frame.records))
    return made


class Wires:
    """Workers, a runner that sends on what they make, and the channels between: first in, first out each."""

    def __init__(self, plan: PipelinePlan, frames: Sequence[Frame], grouping: str, workers: int = 2) -> None:
        self.plan = plan
        self.exchange = Exchange(plan, workers)
        self.workers = [TaskWorker(plan) for _ in range(workers)]
        for number, worker in enumerate(self.workers):
            list(worker.handle(Begin(0, number, workers, Position(0), grouping)))
        self.sinks = {SINK + name: Buffered(workers, Position(0)) for name in plan.sinks}
        self.out: dict[str, list[Any]] = defaultdict(list)
        self.frames = deque(frames)
        self.there: list[deque[ToWorker]] = [deque() for _ in range(workers)]
        self.back: list[deque[FromWorker]] = [deque() for _ in range(workers)]

    def do(self, what: str, number: int) -> None:
        """Let it happen."""
        if what == "feed":
            for entries in self.exchange.entries(self.frames.popleft()):
                self.there[entries.worker].append(Moved(entries.to, 0, entries.frame))
        elif what == "there":
            self.back[number] += self.workers[number].handle(self.there[number].popleft())
        else:
            moved: Any = self.back[number].popleft()
            if not moved.to.startswith(SINK):
                self.there[moved.worker].append(Moved(moved.to, number, moved.frame))
            elif frame := self.sinks[moved.to].feed(number, self.exchange.frame(moved)):
                self.out[moved.to.removeprefix(SINK)] += [(record[0], bytes(record[3])) for record in frame.records]

    def copy(self) -> Wires:
        """Another one in the same state, which goes on by itself."""
        other = copy(self)
        other.workers = [self._copy_of(worker) for worker in self.workers]
        other.sinks = {to: buffered(group) for to, group in self.sinks.items()}
        other.out = defaultdict(list, {sink: list(made) for sink, made in self.out.items()})
        other.there, other.back = list(map(deque, self.there)), list(map(deque, self.back))
        return other

    def _copy_of(self, worker: TaskWorker) -> TaskWorker:
        other = copy(worker)
        other._cores = {operator.name: core_of("letters", operator) for operator in self.plan.operators}
        other._states = {name: found for name, core in other._cores.items() if (found := states_of(core)) is not None}
        for name, states in worker._states.items():
            other._states[name].by_key |= {key: states.copied(state) for key, state in states.all().items()}
        for to, group in worker._groups.items():
            other._groups = {**other._groups, to: copied(group, other._cores.get(to))}
        return other

    def state(self) -> Any:
        """What decides what happens next."""
        channels: list[Any] = [*self.there, *self.back]
        parts: list[Any] = [[framed(each) for each in channel] for channel in channels]
        for worker in self.workers:
            parts += [
                (name, sorted((key, s.encode(state)) for key, state in s.all().items()))
                for name, s in worker._states.items()
            ]
            parts += [held(group) for group in worker._groups.values()]
        return repr([*parts, *map(held, self.sinks.values())])


def copied(group: Buffered | Speculative, core: Any) -> Buffered | Speculative:
    """A grouping in the same state, before another operator at work."""
    if isinstance(group, Buffered):
        return buffered(group, core)
    other = Speculative(0, group.watermark, core)
    other.group = buffered(group.group)
    other.group.run = other._folded
    other.ahead = {key: group.core.states.copied(state) for key, state in group.ahead.items()}
    other.pending = {key: list(records) for key, records in group.pending.items()}
    other.made = dict(group.made)
    return other


def buffered(group: Buffered, core: Any = None) -> Buffered:
    other = copy(group)
    other._watermarks, other._held, other._ticks = list(group._watermarks), list(group._held), set(group._ticks)
    if core is not None:
        other.run = core.feed
    return other


def held(group: Buffered | Speculative) -> Any:
    if isinstance(group, Speculative):
        return held(group.group), sorted(group.made.items())
    return group._watermarks, sorted(record[:2] for record in group._held), sorted(group._ticks)


class Drawn:
    """`Workers` in this process, whose messages are delivered in a drawn order."""

    def __init__(self, plan: PipelinePlan, number: int, chance: random.Random, grouping: str = BUFFERED) -> None:
        self.exchange = Exchange(plan, number)
        self.grouping = grouping
        self.stalled_s, self.restarts, self.ids = 30.0, 0, counter(1)
        self._plan = plan
        self._chance = chance
        self._workers: dict[int, TaskWorker] = {}
        self._tasks: WorkerTasks | None = None
        self._wires: list[tuple[deque[ToWorker], deque[FromWorker]]] = [(deque(), deque()) for _ in range(number)]

    async def begin(self, tasks: WorkerTasks) -> None:
        self._tasks = tasks
        for number in range(self.exchange.count):
            self._workers.setdefault(number, TaskWorker(self._plan))

    async def have_spare(self) -> None: ...

    def look(self) -> None: ...

    def send(self, number: int, message: ToWorker) -> None:
        if number in self._workers:
            self._wires[number][0].extend(through(message, ToWorker))

    async def stop(self) -> None: ...

    def kill(self, number: int) -> None:
        """End a worker, with what is in its channels."""
        self._workers.pop(number, None)
        self._wires[number] = deque(), deque()
        if self._tasks is not None:
            self._tasks.fail(WorkerDied(f"worker {number}"))

    async def deliver(self) -> None:
        """Deliver messages for ever."""
        while True:
            await asyncio.sleep(0)
            number = self._chance.randrange(self.exchange.count)
            there, back = self._wires[number]
            worker = self._workers.get(number)
            if there and worker is not None and self._chance.random() < 0.5:
                try:
                    back += [each for made in worker.handle(there.popleft()) for each in through(made, FromWorker)]
                except Exception as error:
                    back.append(failure_of(error))
            elif worker is not None and worker.has_to_save and self._chance.random() < 0.2:
                back += worker.save()
            elif back and self._tasks is not None and not self._tasks._ended.is_set():  # the next one gets the rest
                self._tasks.take(number, back.popleft())


def through(message: Any, kind: Any) -> list[Any]:
    """A message as it comes out of a socket, byte after byte."""
    unframed: Unframed[Any] = Unframed(kind)
    data = framed(message)
    return [each for part in (data[:3], data[3:]) for each in unframed.feed(part)]


def plan_of_letters() -> PipelinePlan:
    return Letters(Engine.in_memory()).pipeline.plan()


def explored(plan: PipelinePlan, frames: Sequence[Frame], expected: dict[str, list[Any]], grouping: str) -> int:
    """Every order in which what workers send can arrive: the number of states; an error where it makes a difference.

    A worker takes what is there at once: what it makes waits in its channel for as long as it likes.
    """
    first = Wires(plan, frames, grouping)
    while first.frames:
        first.do("feed", 0)
    seen, waiting = set[Any](), [first]
    while waiting:
        wires = waiting.pop()
        while there := [number for number, channel in enumerate(wires.there) if channel]:
            wires.do("there", there[0])
        state = wires.state()
        if state in seen:
            continue
        seen.add(state)
        backs = [number for number, channel in enumerate(wires.back) if channel]
        assert backs or wires.out == expected
        for number in backs:
            after = wires.copy() if number != backs[-1] else wires
            after.do("back", number)
            assert all(made == expected[sink][: len(made)] for sink, made in after.out.items())
            waiting.append(after)
    return len(seen)

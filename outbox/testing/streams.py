"""The streams of a harness: replicas of processors and pipelines, and ingests, stepping in virtual time on its engine.

    async with Harness(streams=[averages], replicas=2, faults=Faults(crashes=((9, "after"),))) as world:
        await world.log("left").append(Reading("boiler", 71.5), id="r1")
        await world.wait_idle()
        assert [entry.value async for entry in world.log("averages").read()] == [Average(71.5)]

Whatever stores they were given, here their logs and registers are documents of the harness's engine: logs of one name
are one log.  All replicas step at once, in an order by the seed.  A pipeline's step is a turn; it makes a checkpoint
when there is nothing more, and, by the seed, behind every fourth turn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from outbox.engine.engine import Engine
from outbox.errors import OtherLog, OutcomeUnknown, Refused
from outbox.ports import StorePorts
from outbox.streams.failures import delay_s
from outbox.streams.ingest import Ingest
from outbox.streams.log import OrderedLog
from outbox.streams.log_places import Place
from outbox.streams.pipeline.graph import Pipeline
from outbox.streams.pipeline.replica import FINAL as FINAL_OF_PIPELINES
from outbox.streams.pipeline.running import PipelineLoop
from outbox.streams.pipeline.tasks import BeginAgain
from outbox.streams.plan import QueueOutput
from outbox.streams.processor import FINAL, Processor
from outbox.streams.replica import Progress, Replica
from outbox.verify.faults import FaultPlan, FaultyBlobs, FaultyBus, FaultyStore

Stream = Processor[Any] | Ingest | Pipeline
CHECKPOINTS_SHARE = 0.25
"""How often a turn of a pipeline that fed something is followed by a checkpoint."""
CHECKPOINT_S = 1.0
"""The interval of a loop that the harness lets take its turns; it makes the checkpoints itself."""


@dataclass(eq=False)
class Stepping:
    """A replica, and until when it does not step (milliseconds since 1970)."""

    replica: Replica | PipelineLoop
    stalled_until_ms: int = 0

    @property
    def wake_ms(self) -> int:
        """When it has something to do without input; 0: never."""
        known = self.replica.known if isinstance(self.replica, Replica) else None
        return 0 if known is None else known.register.wake


class Streams:
    """The replicas and ingests of a harness; none of them before `open`."""

    def __init__(self, streams: Sequence[Stream], *, replicas: int, faults: FaultPlan, chance: random.Random) -> None:
        if replicas < 1:
            raise ValueError(f"replicas={replicas}: at least one")
        streams = list(streams)
        names = [stream.name for stream in streams if isinstance(stream, Processor | Pipeline)]
        if len(set(names)) < len(names):
            raise ValueError(f"streams: {', '.join(sorted(names))}: two of one name; they are replicas, see replicas=")
        for stream in streams:
            if not isinstance(stream, Processor | Ingest | Pipeline):
                raise ValueError(
                    f"streams: a {type(stream).__name__} cannot step here; give Processors, Ingests, Pipelines"
                )
        self._given: Sequence[Stream] = streams
        self._count = replicas
        self._faults = faults
        self._chance = chance
        self._make: dict[str, Callable[[], Replica | PipelineLoop]] = {}
        """Makes a new replica, by the name of its stream."""
        self._looks: dict[str, Processor[Any]] = {}
        """The same, as a test looks at them: no fault meets it."""
        self._replicas: dict[str, list[Stepping]] = {}
        self._ingests: list[Ingest] = []
        self._logs: dict[str, OrderedLog[Any]] = {}

    @property
    def queues(self) -> list[str]:
        """The queues that ingests read."""
        return [stream.queue for stream in self._given if isinstance(stream, Ingest)]

    async def open(self, engine: Engine) -> None:
        """Begin as new processes do, on an engine."""
        self._engine = engine
        self._make, self._replicas, self._ingests, self._logs, self._looks = {}, {}, [], {}, {}
        for stream in self._given:
            if isinstance(stream, Ingest):
                self._ingests.append(stream.over(self._ports, self._place))
                await self._ingests[-1].open()
                self._note(stream.log)
                continue
            if isinstance(stream, Pipeline):
                moved = stream.over(self._place)
                self._make[stream.name] = partial(self._loop, moved)
                plan = moved.plan()
                for log in (plan.source.log, *(log for _, log in plan.sinks.values())):
                    self._note(log)
            else:
                self._looks[stream.name] = stream.over(self._apart)
                self._make[stream.name] = stream.over(self._place, self._queue).replica
                for shard in (*stream.plan.inputs.values(), *stream.plan.outputs.values()):
                    if not isinstance(shard, QueueOutput):
                        self._note(shard.log)
            self._replicas[stream.name] = [Stepping(self._make[stream.name]()) for _ in range(self._count)]

    @staticmethod
    def _loop(moved: Pipeline) -> PipelineLoop:
        plan = moved.plan()
        return PipelineLoop(plan, plan.source.log.place, CHECKPOINT_S)

    def _note(self, log: OrderedLog[Any]) -> None:
        self._logs[log.name] = log.on(self._apart(log.place))

    def _apart(self, _: Place) -> Place:
        return Place(self._engine.store(), self._engine.blobs, self._engine.now_ms)

    def _place(self, _: Place) -> Place:
        engine = self._engine
        return Place(FaultyStore(engine.store(), self._faults), FaultyBlobs(engine.blobs, self._faults), engine.now_ms)

    def _ports(self, _: StorePorts) -> StorePorts:
        ports, plan = self._engine.apart(), self._faults
        return StorePorts(FaultyStore(ports.store, plan), FaultyBus(ports.bus, plan), ports.operations, ports.blobs)

    def _queue(self, output: QueueOutput) -> QueueOutput:
        here = self._engine.queue(output.queue.name, key=output.queue.key)
        return QueueOutput(replace(output.queue, send=here.send, blobs=here.blobs))

    # Step

    async def step(self) -> bool:
        """Let every replica and ingest step once; False where none had anything to do.

        Raises:
            HandlerFailed: a processor stands still.
            SimulatedCrash: the process is to die here.
        """
        now_ms = self._engine.now_ms()
        steps: list[Callable[[], Awaitable[bool]]] = [
            partial(self._stepped, each)
            for replicas in self._replicas.values()
            for each in replicas
            if each.stalled_until_ms <= now_ms
        ]
        steps += [partial(self._taken_in, ingest) for ingest in self._ingests]
        self._chance.shuffle(steps)
        found = await asyncio.gather(*(step() for step in steps), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return any(found)

    async def _stepped(self, stepping: Stepping) -> bool:
        replica = stepping.replica
        if isinstance(replica, PipelineLoop):
            return await self._turned(replica)
        try:
            progress = await replica.step()
        except FINAL:
            raise
        except (Refused, OutcomeUnknown):
            replica.known = None
            return True
        rests_s = 0.0 if replica.known is None else delay_s(replica.plan, replica.known.register)
        if rests_s and progress is Progress.WON:
            rests_ms = round(rests_s * 1_000)
            for other in self._replicas[replica.plan.name]:
                other.stalled_until_ms = max(other.stalled_until_ms, self._engine.now_ms() + rests_ms)
        return progress is not Progress.IDLE

    async def _turned(self, loop: PipelineLoop) -> bool:
        """Let a replica of a pipeline take a turn, and make a checkpoint now and then."""
        try:
            has_more = await loop.turn()
            is_due = not has_more or self._chance.random() < CHECKPOINTS_SHARE
            return (is_due and loop.replica is not None and await loop.replica.checkpoint()) or has_more
        except BeginAgain:
            loop.replica = None
        except FINAL_OF_PIPELINES:
            raise
        except (Refused, OutcomeUnknown):
            pass  # the next turn will
        return True

    async def _taken_in(self, ingest: Ingest) -> bool:
        try:
            return await ingest.turn(wait_s=0) > 0
        except OtherLog:
            raise
        except (Refused, OutcomeUnknown):
            self._engine.broker.lapse_locks()
            return True

    def next_due_ms(self) -> int | None:
        """When a replica has something to do without input; None where none will."""
        now_ms = self._engine.now_ms()
        replicas = [each for found in self._replicas.values() for each in found]
        due = [ms for each in replicas for ms in (each.stalled_until_ms, each.wake_ms)]
        return min((ms for ms in due if ms > now_ms), default=None)

    # Arrange and assert

    def kill(self, name: str) -> None:
        """Kill a replica, `<name>/<number from 0>`, wherever it is; a new one begins in its place.

        A pipeline's may be named by a task, too: `<name>/<number>/<operator>`.

        Raises:
            ValueError: there is none.
        """
        stream, _, number = name.partition("/")
        number, _, task = number.partition("/")
        replicas = self._replicas_of(stream)
        if not number.isdecimal() or int(number) >= len(replicas):
            raise ValueError(f"no replica {name!r}; {stream} has 0 to {len(replicas) - 1}")
        loop = replicas[int(number)].replica
        tasks = [operator.name for operator in loop.plan.operators] if isinstance(loop, PipelineLoop) else []
        if task and task not in tasks:
            raise ValueError(f"no task {name!r}; {stream} has {', '.join(tasks) or 'none'}")
        replicas[int(number)] = Stepping(self._make[stream]())

    def stall(self, stream: str, *, replica: int, s: float) -> None:
        """Let a replica pause for some seconds.

        Raises:
            ValueError: there is none.
        """
        replicas = self._replicas_of(stream)
        if not 0 <= replica < len(replicas):
            raise ValueError(f"no replica {replica}; {stream} has 0 to {len(replicas) - 1}")
        replicas[replica].stalled_until_ms = self._engine.now_ms() + round(s * 1_000)

    def _replicas_of(self, stream: str) -> list[Stepping]:
        try:
            return self._replicas[stream]
        except KeyError:
            there = ", ".join(self._replicas) or "none"
            raise ValueError(f"no processor or pipeline {stream!r}; there is {there}") from None

    def log(self, name: str) -> OrderedLog[Any]:
        """A log of the streams, as it lies on the harness's engine; until the next restart.

        Raises:
            ValueError: none of them reads or writes it.
        """
        try:
            return self._logs[name]
        except KeyError:
            raise ValueError(f"no log {name!r}; the streams have {', '.join(sorted(self._logs)) or 'none'}") from None

    async def state(self, processor: str) -> Any:
        """The state of a processor; a fresh one where it has not begun.

        Raises:
            ValueError: there is none.
        """
        if processor not in self._looks:
            raise ValueError(f"no processor {processor!r}; there is {', '.join(self._looks) or 'none'}")
        return await self._looks[processor].state()

"""Replicas that stall: how often an output is late, in virtual time, by the number of replicas.

    python -m tests.simulation.stalling [--steps 100000]

Time is slots, each long enough for a step of a processor.  In a slot one input arrives, every replica that does not
stall goes on from wherever it was, one call of a store at a time and in turns, until it has nothing to do; one that
stalls stays where it is, in the middle of a call for all that others know.  A slot is late when its output is not in
the log at its end.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from outbox.engine.engine import Engine
from outbox.ports import Document, DocumentKey, Lost, NoBlobs, Session, Won, Write
from outbox.streams import Inputs, OrderedLog, Processor, Step
from outbox.streams.log_places import Place
from outbox.streams.replica import Progress, Replica
from outbox.verify.explorer.run import done

TURNS_MAX = 1_000


@dataclass
class Number:
    """An entry."""

    n: int


@dataclass
class Count:
    """A processor's state."""

    n: int = 0


def copy(count: Count, inputs: Inputs, step: Step) -> None:
    """One output for each input."""
    for entry in inputs:
        count.n += 1
        step.emit("out", entry.value)


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Let others go first."""
    yield


class SlowStore:
    """A store whose every call gives way to others before it takes effect."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.capabilities = store.capabilities

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        await turn()
        found: Document | None = await self._store.read(key, session=session)
        return found

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        await turn()
        answer: Won | Lost = await self._store.write(operations)
        return answer


class Walker:
    """A replica under way: it takes one call of a store a turn."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._step: Coroutine[Any, Any, Progress] | None = None

    def goes_on(self) -> bool:
        """Take a turn; False where there was nothing to do."""
        if self._step is None:
            self._step = self.replica.step()
        try:
            self._step.send(None)
        except StopIteration as ended:
            self._step = None
            return ended.value is not Progress.IDLE
        return True


class Line:
    """A processor between two logs, its replicas under way, and how far its output is."""

    def __init__(self, replicas: int) -> None:
        store = Engine.in_memory().store()
        slow: Any = SlowStore(store)
        numbers, out = (OrderedLog(name, Place(slow, NoBlobs()), type=Number) for name in ("numbers", "out"))
        given: Any = {"state": Count, "register": Place(slow, NoBlobs()), "batch_max": 1}
        processor: Processor[Count] = Processor(
            "copy", copy, inputs={"numbers": numbers}, outputs={"out": out}, **given
        )
        self._feed = OrderedLog("numbers", Place(store, NoBlobs()), type=Number)
        self._out = out.on(Place(store, NoBlobs())).row(0, 0)
        self.walkers = [Walker(processor.replica()) for _ in range(replicas)]
        self.end = 0

    def feed(self, n: int) -> None:
        """One more input."""
        done(self._feed.append(Number(n), id=f"{n}"))

    def go_on(self, walkers: Sequence[Walker], random: Random) -> None:
        """Let these replicas take turns until they have nothing to do; `end` is how far the output is then."""
        awake = list(walkers)
        for _ in range(TURNS_MAX):
            random.shuffle(awake)
            awake = [walker for walker in awake if walker.goes_on()]
            if not awake:
                break
        while done(self._out.cells.read(self.end)) is not None:
            self.end += 1


def late_share(replicas: int, stalls: float, steps: int, *, seed: int) -> float:
    """The share of slots whose output is late, where each replica stalls with probability `stalls` in each."""
    random, line, late = Random(f"{seed}/{replicas}/{stalls}"), Line(replicas), 0
    for slot in range(steps):
        line.feed(slot)
        line.go_on([walker for walker in line.walkers if random.random() >= stalls], random)
        late += line.end <= slot
    line.go_on(line.walkers, random)
    assert line.end == steps, "each input has its output, once"
    return late / steps


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.stalling", description="Replicas that stall.")
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    for stalls, most in ((0.1, 3), (0.03, 2)):
        for replicas in range(1, most + 1):
            share = late_share(replicas, stalls, steps, seed=1)
            print(f"{replicas} replicas, each stalls with {stalls}: {share:.6f} late, {stalls**replicas:.6f} expected")


if __name__ == "__main__":
    main()

"""What the benchmarks of streams run: the entries, the processor, and how much of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outbox.streams import Inputs, OrderedLog, Processor, Step

CELL_SIZES = (1, 8, 64, 512)
IDLE_MAX_S = 600.0
TEXT = "x" * 80
"""What fills an entry up to 100 B."""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each thing one repeat does.

    `steps` are appends and steps of an emulated store, `engine_steps` of the engine, `far_steps` a round trip away;
    `idle_s` is how long idle ones are counted.  `paced` entries come one every `pace_s`, `sharded` through shards.
    """

    entries: int = 20_000
    engine_steps: int = 512
    steps: int = 128
    far_steps: int = 32
    idle_s: float = 8.0
    paced: int = 500
    pace_s: float = 0.005
    sharded: int = 4_000
    peer_entries: int = 2_000


@dataclass
class Number:
    """An entry."""

    n: int
    text: str = ""


@dataclass
class Total:
    """A processor's state."""

    sum: int = 0


def add(total: Total, inputs: Inputs, step: Step) -> None:
    """One output for each input."""
    for entry in inputs:
        total.sum += entry.value.n
        step.emit("sums", Number(total.sum, entry.value.text))


def log_of(name: str, place: Any, **options: Any) -> OrderedLog[Number]:
    """A log of numbers."""
    return OrderedLog(name, place, type=Number, **options)


def adder(
    place: Any, batch_max: int, *, prefix: str = "", handler: Callable[[Total, Inputs, Step], None] = add
) -> Processor[Total]:
    """The processor from `numbers` to `sums`, all on one place; a prefix tells several apart."""
    numbers, sums = (log_of(f"{prefix}{name}", place) for name in ("numbers", "sums"))
    ends: dict[str, Any] = {"inputs": {"numbers": numbers}, "outputs": {"sums": sums}}
    return Processor(f"{prefix}sum", handler, state=Total, register=place, batch_max=batch_max, **ends)


async def fill(place: Any, count: int, size: int, *, prefix: str = "", text: str = "") -> None:
    """Append so many entries to `numbers`, so many a cell."""
    numbers = log_of(f"{prefix}numbers", place)
    for begin in range(0, count, size):
        await numbers.extend([Number(n, text) for n in range(begin, min(begin + size, count))], id=f"{begin}")


async def check_sums(place: Any, count: int, *, prefix: str = "") -> None:
    """Check that every entry counts once."""
    found = [entry.value.n async for entry in log_of(f"{prefix}sums", place).read()]
    assert len(found) == count and found[-1] == count * (count - 1) // 2, f"{len(found)} outputs for {count} inputs"


def some(count: int, what: str) -> str:
    """So many of something."""
    return f"{count} {what}{'' if count == 1 else 's'}"


@dataclass(slots=True)
class Laps:
    """The time and whatever else is counted when a processor's steps begin, whichever replica is the first there.

    Between the beginnings of two steps lies all that so many steps ask for, whoever asks.
    """

    first: int
    last: int
    look: Callable[[], Any]
    seen: dict[int, tuple[float, Any]] = field(default_factory=dict)

    def handle(self, total: Total, inputs: Inputs, step: Step) -> None:
        """Note the step if it is one of the two, and add."""
        if step.serial in (self.first, self.last) and step.serial not in self.seen:
            self.seen[step.serial] = time.perf_counter(), self.look()
        add(total, inputs, step)

    @property
    def took_s(self) -> float:
        """From the first to the last."""
        return self.seen[self.last][0] - self.seen[self.first][0]

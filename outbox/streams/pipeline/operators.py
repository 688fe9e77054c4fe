"""The operators of a pipeline: each a pure function of a record, or of a key's state and a record.

A record is (position, path, at_ms, value): the position of the source's entry that it comes from, the child indexes of
each fan-out on its way, and the time of its entry, the greatest `at_ms` of the row up to it; behind a window by a time
of its values, that one.  Position and path order all records of one operator, the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from outbox.codec import StateCodec
from outbox.streams.cells import Position

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

Path = tuple[int | str, ...]
Record = tuple[Position, Path, int, Any]


class Emit(Protocol[T_contra]):
    """The emit of a reduce: `emit(value)`; `emit.at_ms` is the record's time, milliseconds since 1970."""

    at_ms: int

    def __call__(self, value: T_contra, /) -> None:
        """Emit a value."""


class Emitted(list[T], Generic[T]):
    """The values that one call has emitted."""

    at_ms = 0
    __call__ = list.append


class Frame(NamedTuple):
    """The records of one input, and its watermark, a position below which no other record comes.

    `ticks` are the entries at which the time has risen: their positions and times, in order.  `refused` has a `Refusal`
    in place of the value of each record that was refused.
    """

    records: list[Record]
    watermark: Position
    ticks: Sequence[tuple[Position, int]] = ()
    refused: Sequence[Record] = ()


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of a pipeline; calling it calls its function."""

    name: str
    kind: str
    function: Callable[..., Any]
    upstream: Operator | None
    """Whose records it takes; None: the source's entries."""
    emits: Any = None
    key: Callable[[Any], Any] | None = None
    codec: StateCodec | None = None
    window: tuple[int, int, Any] | None = None
    """Of a window its size and slide in milliseconds, and the type of its values."""
    refuses: bool = False
    """Whether a `PoisonMessage` refuses what it was given; else that stops the pipeline."""

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)

    @property
    def determinism(self) -> str:
        """Its class.

        `insensitive`: a result follows from a record, or a span of the log's time; `convergent`: from all of a key.
        """
        return "convergent" if self.kind == "reduce" else "insensitive"

    @property
    def describes(self) -> tuple[str, ...]:
        """The texts by which the digest of a graph knows it."""
        upstream = "" if self.upstream is None else self.upstream.name
        state = "" if self.codec is None else f"{self.codec.codec.name} {self.codec.version}"
        span = "" if self.window is None else f"{self.window[0]} {self.window[1]}"
        return self.name, self.kind, upstream, state, span


def emitted_kind(operator: Operator | None, source: Any) -> Any:
    """The type of what an operator emits, None where it is not declared; `source` is that of the entries."""
    while operator is not None and operator.kind == "filter":
        operator = operator.upstream
    return source if operator is None else operator.emits

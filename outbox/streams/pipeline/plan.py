"""The plan of a pipeline, by which its replicas run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from outbox.errors import NotRegistrable
from outbox.lineage import field
from outbox.streams.log import LogReader, OrderedLog
from outbox.streams.log_places import Place
from outbox.streams.pipeline.barrier import Barrier
from outbox.streams.pipeline.operators import Operator
from outbox.streams.row import Row


class GraphChanged(NotRegistrable):
    """A pipeline's graph is another than the one that has run under this version."""


@dataclass(frozen=True)
class PipelinePlan:
    """The plan of a pipeline: its source, its operators in order, and for each sink an operator and a log."""

    name: str
    version: int
    source: LogReader[Any]
    operators: tuple[Operator, ...]
    sinks: Mapping[str, tuple[Operator, OrderedLog[Any]]]
    barrier: Callable[..., Barrier] = Barrier
    """Makes the barrier of a sink."""

    @property
    def graph(self) -> str:
        """A digest of the graph: 16 hexadecimal digits."""
        parts = [self.source.log.name, str(self.source.reader)]
        parts += [text for operator in self.operators for text in operator.describes]
        parts += [text for name, (operator, _) in self.sinks.items() for text in (name, operator.name)]
        return sha256(b"".join(map(field, parts))).hexdigest()[:16]

    def on(self, place: Callable[[OrderedLog[Any]], Place]) -> PipelinePlan:
        """The same pipeline over its logs on other places, as a process sees them that has just begun."""
        source = replace(self.source, log=self.source.log.on(place(self.source.log)))
        sinks = {name: (operator, log.on(place(log))) for name, (operator, log) in self.sinks.items()}
        return replace(self, source=source, sinks=sinks)

    def source_row(self) -> Row[Any]:
        """The row that it reads."""
        return self.source.rows()[0]

    def sink_rows(self) -> dict[str, Row[Any]]:
        """The rows that it writes, by their logs' names."""
        return {name: log.row(0, 0) for name, (_, log) in self.sinks.items()}

"""The plan of a pipeline, by which its replicas run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from outbox.errors import NotRegistrable, Refused
from outbox.lineage import field
from outbox.streams.log import LogReader, OrderedLog
from outbox.streams.log_places import Place
from outbox.streams.pipeline.barrier import Barrier
from outbox.streams.pipeline.checkpoint import PipelineRegister
from outbox.streams.pipeline.operators import Operator
from outbox.streams.pipeline.release import EPOCH_S_MAX, EPOCH_S_MIN, RELEASES, Release, ReleaseRefused, fitting
from outbox.streams.row import Row


class GraphChanged(NotRegistrable):
    """A pipeline's graph is another than the one that has run under this version."""


class Superseded(Refused):
    """A newer version of the pipeline runs; this one has stopped."""


@dataclass(frozen=True)
class PipelinePlan:
    """The plan of a pipeline: its source, its operators in order, and for each sink an operator and a log."""

    name: str
    version: int
    source: LogReader[Any]
    operators: tuple[Operator, ...]
    sinks: Mapping[str, tuple[Operator, OrderedLog[Any]]]
    exactly_once: frozenset[str] = frozenset()
    """The sinks that no output may come to twice, or never."""
    release: Release = RELEASES[0]
    barrier: Callable[..., Barrier] = Barrier
    """Makes the barrier of a sink."""

    @property
    def graph(self) -> str:
        """A digest of the graph: 16 hexadecimal digits."""
        parts = [self.source.log.name, str(self.source.reader)]
        parts += [text for operator in self.operators for text in operator.describes]
        parts += [text for name, (operator, _) in self.sinks.items() for text in (name, operator.name)]
        return sha256(b"".join(map(field, parts))).hexdigest()[:16]

    def check_release(self, checkpoint_s: float = EPOCH_S_MAX) -> None:
        """Check that its release does for its sinks, and for a checkpoint every `checkpoint_s` seconds.

        Raises:
            ReleaseRefused: it does not.
        """
        if not isinstance(self.release, Release):
            raise ReleaseRefused(f"pipeline {self.name}: release={self.release!r}: call one: release.in_order()")
        if self.exactly_once and not self.release.chained:
            why = "it may repeat or lose outputs, and the sink is declared exactly once"
            raise self.refused(why, f"use {' or '.join(fitting(self.exactly_once))}", *self.exactly_once)
        if self.release.holds and not EPOCH_S_MIN <= checkpoint_s <= EPOCH_S_MAX:
            why = f"outputs wait for the next checkpoint, and checkpoint_s={checkpoint_s:g}"
            raise self.refused(
                why, f"give {EPOCH_S_MIN:g} to {EPOCH_S_MAX:g} seconds, or use in_order, which waits for none"
            )

    def check_goes_on(self, found: PipelineRegister) -> None:
        """Check that it may go on from a register.

        Raises:
            Superseded: a newer version made it.
            GraphChanged: this version's graph is another, or a sink is missing.
            ReleaseRefused: it has run with a release that is no beginning for this one.
        """
        if found.version > self.version:
            raise Superseded(
                f"pipeline {self.name}: version {found.version} runs, this is {self.version}; deploy the newer one"
            )
        if found.version == self.version and found.graph != self.graph:
            raise GraphChanged(
                f"pipeline {self.name}: its graph is another than the one that runs as version {self.version}; give it "
                f"version={self.version + 1}"
            )
        if not set(found.stands.sinks) <= set(self.sinks):
            raise GraphChanged(
                f"pipeline {self.name}: it has written to {', '.join(sorted(found.stands.sinks))}, and its sinks are "
                f"{', '.join(sorted(self.sinks))} now; a pipeline of another name begins anew"
            )
        if found.release != self.release.kind:
            was = found.release or "in_order or by_epoch"
            why = f"the pipeline has run with {was}, and what that has written is no beginning for this"
            raise self.refused(why, f"go on with {was}, or give the pipeline another name and sinks of its own")

    def refused(self, why: str, cure: str, *sinks: str) -> ReleaseRefused:
        """The error of a release that does not fit, with the way to one of these sinks (default: of all)."""
        sink = min(sinks or self.sinks)
        operator, _ = self.sinks[sink]
        way, one = [operator.name, sink], operator.upstream
        while one is not None:
            way, one = [one.name, *way], one.upstream
        return ReleaseRefused(
            f"pipeline {self.name}: {self.release.name} does not fit operator {operator.name}, whose output reaches "
            f"sink {sink} ({' -> '.join(way)}): {why}; {cure}"
        )

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

"""Ordered logs and replicated processors: exactly once without locks, over stores of different kinds.

OrderedLog         entries in order, each appended once under an id, on any store with compare-and-swap
Processor          a handler from logs to logs, as any number of replicas over one register
Ingest             the messages of a queue, each one entry of a log
TransactionalSink  a log into any DB-API database; StoreSink: into documents of a store
Pipeline           pure operators over a log, whose outputs leave at once, in order; `release` says when
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outbox.streams.cells import Position
from outbox.streams.log import LogReader, LogWriter, OrderedLog, RowStatus
from outbox.streams.plan import HandlerFailed, Inputs, RefusedEntry, Skip, Step
from outbox.streams.processor import Processor, ProcessorStatus
from outbox.streams.row import Entry

if TYPE_CHECKING:
    from outbox.streams.ingest import Ingest, IngestShardStatus
    from outbox.streams.pipeline import release
    from outbox.streams.pipeline.barrier import NotDeterministic
    from outbox.streams.pipeline.graph import Pipeline
    from outbox.streams.pipeline.operators import Emit
    from outbox.streams.pipeline.plan import GraphChanged, Superseded
    from outbox.streams.pipeline.release import ReleaseRefused
    from outbox.streams.pipeline.state_types import ListState, MapState, Value
    from outbox.streams.pipeline.window import Window
    from outbox.streams.pipeline.workers import WorkerLost
    from outbox.streams.sinks import StoreSink, TransactionalSink

__all__ = [
    "Emit",
    "Entry",
    "GraphChanged",
    "HandlerFailed",
    "Ingest",
    "IngestShardStatus",
    "Inputs",
    "ListState",
    "LogReader",
    "LogWriter",
    "MapState",
    "NotDeterministic",
    "OrderedLog",
    "Pipeline",
    "Position",
    "Processor",
    "ProcessorStatus",
    "RefusedEntry",
    "ReleaseRefused",
    "RowStatus",
    "Skip",
    "Step",
    "StoreSink",
    "Superseded",
    "TransactionalSink",
    "Value",
    "Window",
    "WorkerLost",
    "release",
]

_LAZY = {
    "Emit": "outbox.streams.pipeline.operators",
    "GraphChanged": "outbox.streams.pipeline.plan",
    "Ingest": "outbox.streams.ingest",
    "IngestShardStatus": "outbox.streams.ingest",
    "ListState": "outbox.streams.pipeline.state_types",
    "MapState": "outbox.streams.pipeline.state_types",
    "NotDeterministic": "outbox.streams.pipeline.barrier",
    "Pipeline": "outbox.streams.pipeline.graph",
    "ReleaseRefused": "outbox.streams.pipeline.release",
    "StoreSink": "outbox.streams.sinks",
    "Superseded": "outbox.streams.pipeline.plan",
    "TransactionalSink": "outbox.streams.sinks",
    "Value": "outbox.streams.pipeline.state_types",
    "Window": "outbox.streams.pipeline.window",
    "WorkerLost": "outbox.streams.pipeline.workers",
    "release": "outbox.streams.pipeline",
}


def __getattr__(name: str) -> Any:
    """Import what not every program needs when it is first used."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'outbox.streams' has no attribute {name!r}")
    return getattr(import_module(module), name)

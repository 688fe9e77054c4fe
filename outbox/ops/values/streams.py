"""Requests and answers on ordered logs, as `outbox stream` has them, in the form of all other values."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from outbox.ops.values.requests import Change, KeyKind, Lines, Name, Read, Seconds
from outbox.runtime.counts import PipelineFigures

WHO_LENGTH_MAX = 300


class StreamRow(msgspec.Struct, frozen=True):
    """One row of an ordered log, `writer.reader`: its floor and end, as cell indexes, and how many cells are between.

    `readers` and `writers` say how many cells before the end each of them is, as they have last reported;
    `size_bytes` is what the row's documents take, where that was measured.
    """

    row: str
    floor: int
    end: int
    cells: int
    readers: dict[str, int]
    writers: dict[str, int]
    size_bytes: int | UnsetType = UNSET


class StreamView(msgspec.Struct, frozen=True, omit_defaults=True):
    """An ordered log: the type of its entries, and its rows; `error` names its fault."""

    name: str
    type: str
    rows: list[StreamRow]
    error: str = ""


class ProcessorView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A register of a processor or an ingest: its last step, and the handler's failures on the next.

    `name` is the register's partition, as logs know it; `phase` is `handling`, or `writing` while what the last step
    emitted may not have been written yet; `at_ms` is that step's time, `lag` how many cells of each row it has to read.
    """

    name: str
    serial: int
    phase: str
    failures: int
    at_ms: int
    lag: dict[str, int]
    error: str = ""


class Streams(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ordered logs in a store, and the registers of processors and ingests; with `more` there are others."""

    logs: list[StreamView]
    processors: list[ProcessorView]
    more: bool = False


class StreamTrimmed(msgspec.Struct, frozen=True):
    """A trim: how many cells it took, and the floor of each row after it."""

    cells: int
    floors: dict[str, int]


class StreamUnregistered(msgspec.Struct, frozen=True):
    """A reader or writer that was forgotten: how many cells before the end it was, by row."""

    behind: dict[str, int]


class StreamExported(msgspec.Struct, frozen=True):
    """An export of a row: where it began, where its table ends now, and counts of entries and files written."""

    log: str
    row: str
    begin: str
    end: str
    entries: int
    files: int


class ChainView(msgspec.Struct, frozen=True):
    """A place in a sink: the bundle at or before a checkpoint, by its index, and where that begins."""

    next: int
    begin: str


class CheckpointView(msgspec.Struct, frozen=True):
    """A checkpoint: its number, its position `c` of the source, the time there, and when it was made.

    Times are milliseconds since 1970; `parts` take `size_bytes`; positions are `index.offset`.
    """

    n: int
    c: str
    time_ms: int
    made_ms: int
    parts: int
    size_bytes: int
    sinks: dict[str, ChainView]


class PipelineView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pipeline by its register: the checkpoint that stands, those `kept` before it, and how far it is.

    `before` are the versions that ran before this one, `source` the row that it reads; `error` names its fault.
    """

    name: str
    serial: int = 0
    version: int = 0
    graph: str = ""
    source: str = ""
    stands: CheckpointView | None = None
    kept: list[CheckpointView] = []
    before: list[int] = []
    figures: PipelineFigures | None = None
    error: str = ""


class PipelineState(msgspec.Struct, frozen=True):
    """The state of a key as checkpoint `n` has it, at `c` of the source; null where it has none."""

    n: int
    c: str
    value: msgspec.Raw


class PipelineAudit(msgspec.Struct, frozen=True):
    """An audit: the checkpoint that stands, how many parts and bundles were read, and the findings.

    `left_over` are the parts that no checkpoint names, of replicas that were killed, or of a checkpoint under way; null
    where blobs cannot be listed.
    """

    name: str
    n: int
    parts: int
    bundles: int
    findings: list[str]
    left_over: list[str] | None


class ReadPipelines(Read[list[PipelineView]], frozen=True):
    """Read the register of a pipeline, or (empty) of all, and how far each is."""

    name: Annotated[str, msgspec.Meta(max_length=1_024)] = ""


class ReadPipelineState(Read[PipelineState], frozen=True):
    """Read the state of a key of an operator as of the checkpoint that stands."""

    name: Name
    operator: Name
    key: Annotated[str, msgspec.Meta(max_length=65_536)]
    kind: KeyKind = "text"


class AuditPipeline(Read[PipelineAudit], frozen=True):
    """Check that a pipeline's register, its parts, the chains of its sinks and the floors agree."""

    name: Name


class ListStreams(Read[Streams], frozen=True):
    """List all ordered logs and registers, with what the logs take."""


class ReadStream(Lines, frozen=True):
    """Read a log's entries: of one row or (empty) all, from a position or (empty) the floor; `limit` 0: all."""

    name: Name
    row: Annotated[str, msgspec.Meta(pattern=r"^(\d{1,3}\.\d{1,3})?$")] = ""
    since: Annotated[str, msgspec.Meta(pattern=r"^(\d{1,15}(\.\d{1,6})?)?$")] = ""
    limit: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] = 0


class TrimStream(Change[StreamTrimmed], frozen=True):
    """Trim a log up to what its readers and writers need, of cells older than an age (null: of any).

    Tombstones last for the margin.
    """

    name: Name
    min_age_s: Seconds | None
    margin_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)]

    @property
    def min_age(self) -> timedelta:
        """The age; 0 where none is given."""
        return timedelta(seconds=self.min_age_s or 0)


class Unregister(Change[StreamUnregistered], frozen=True):
    """Forget a reader or writer of a log, such as `processor/averages` or `audit`: trims wait for it no longer."""

    name: Name
    who: Annotated[str, msgspec.Meta(min_length=1, max_length=WHO_LENGTH_MAX)]

"""The files of an export that an epoch reads, and the time before each."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.errors import Refused
from outbox.streams.cells import Position
from outbox.streams.pipeline.plan import PipelinePlan
from spark_jobs.common.places import Place
from spark_jobs.exporting.files import Export, ExportedFile
from spark_jobs.replaying.tasks import Entries, Replayed, Split, entry_rows


@dataclass(frozen=True)
class Span:
    """The entries of one epoch, how many they are, and the time behind them."""

    entries: Entries
    count: int
    time_ms: int


def end_of(export: Export, place: Place, begin: Position, until: Position, entries_max: int) -> Position:
    """The end of an epoch from a position on: behind whole files, or within the first one."""
    count, end = 0, begin
    for file in export.files:
        if file.end > begin and file.begin < until:
            count += file.rows
            if count > entries_max:
                return end if end > begin else _end_in(file, place, begin, until, entries_max)
            end = min(file.end, until)
    return end


def _end_in(file: ExportedFile, place: Place, begin: Position, until: Position, entries_max: int) -> Position:
    left = entries_max
    for rows in entry_rows(place, Split(file.name, file.size, file.begin, file.end, 0)):
        for index, offset, *_ in rows:
            at = Position(index, offset)
            if at >= begin:
                if not left or at >= until:
                    return at
                left -= 1
    return min(file.end, until)


def span_of(export: Export, place: Place, pipeline: Replayed, begin: Position, end: Position, time_ms: int) -> Span:
    """The entries from one position to before another, where the time was `time_ms`.

    Of a file that is read as a whole its statistics tell the time; of the first and last it is looked up.
    """
    splits: list[Split] = []
    count = 0
    for file in export.files:
        if file.end <= begin or file.begin >= end:
            continue
        split = Split(file.name, file.size, file.begin, file.end, time_ms)
        splits.append(split)
        if begin <= file.begin and file.end <= end:
            count, time_ms = count + file.rows, max(time_ms, file.at_ms_max)
            continue
        for rows in entry_rows(place, split):
            times = [at_ms for index, offset, at_ms, *_ in rows if begin <= Position(index, offset) < end]
            count, time_ms = count + len(times), max([time_ms, *times])
    return Span(Entries(pipeline, place.lend(), splits, begin, end), count, time_ms)


def check_fits(plan: PipelinePlan, export: Export, place: Place, until: Position | None) -> Position:
    """Check that an export is of the pipeline's source, and reaches a position (None: what it has); that position.

    Raises:
        Refused: it is not, or does not.
    """
    source, found = plan.source_row().name, f"log/{export.log}/{export.row}"
    if source != found:
        raise Refused(
            f"{place} has entries of {found}, and pipeline {plan.name} reads {source}; give an export of that"
        )
    if until is not None and until > export.end:
        raise Refused(f"{place} ends at {export.end}, before {until}; export the log again, or give an earlier --until")
    return export.end if until is None else until


def check_begins(plan: PipelinePlan, export: Export, place: Place, begin: Position) -> None:
    """Check that an export begins at or before the checkpoint that stands.

    Raises:
        Refused: there is a hole between.
    """
    if export.begin > begin:
        raise Refused(
            f"pipeline {plan.name}: its checkpoint stands at {begin}, and {place} begins at {export.begin}; export the "
            "log from there on to a new place, or go on live"
        )

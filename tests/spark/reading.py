"""Read files as a feed does, without Spark: every span by itself, then all rows together."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any

from spark_jobs.feeding.grouping import Grouping
from spark_jobs.reading.files import files_at
from spark_jobs.reading.input import valid_rows
from spark_jobs.reading.judging import CheckBody, Judge, Shape
from spark_jobs.reading.kinds import Seen, inferred
from spark_jobs.reading.opened import check, check_unchanged, opened
from spark_jobs.reading.source import Source
from spark_jobs.reading.spans import Survey, begun, edges, judged_span, surveyed


@dataclass(frozen=True)
class Outcome:
    """What becomes of the rows: messages by id, and all judged rows by their position."""

    messages: dict[str, bytes]
    rows: list[dict[str, Any]]
    survey: Survey

    @property
    def sent(self) -> dict[str, Any]:
        """The messages' bodies, decoded."""
        return {id: json.loads(body) for id, body in self.messages.items()}

    @property
    def aside(self) -> list[tuple[str, str]]:
        """Ids and reasons of the rows that the reader itself sets aside."""
        return [(row["id"] or "", row["reason"]) for row in self.rows if row["reason"] is not None]


def outcome(
    source: Source, shape: Shape | None = None, ids: tuple[str, ...] = ("id",), check_body: CheckBody | None = None
) -> Outcome:
    """Read all of an input."""
    judge = Judge(ids, shape or Shape(), check_body)
    found = opened(source, files_at(source.path, os.environ), 4)
    check(found, judge)
    reading, spans = found.reading, list(found.spans)
    if reading.kind != "parquet":
        spans = begun(spans, [edges(reading, span) for span in spans], int(reading.kind == "csv"))
    survey = Survey()
    for span in spans:
        survey.add(surveyed(reading, span, ids))
    if reading.kind == "csv" and reading.kinds is None:
        seen = {name: Seen(*survey.seen[name]) if name in survey.seen else Seen() for name in reading.names}
        reading = replace(reading, kinds=inferred(seen, ids))
    batches = [batch for span in spans for batch in judged_span(reading, span, replace(judge, texts=True))]
    check_unchanged(reading)
    grouping = Grouping()
    for batch in valid_rows(iter(batches)):
        grouping.add(batch)
    rows = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["position"] or 0)
    assert len(rows) == survey.rows
    messages = {row[0].decode(): row[1] for row in grouping.messages() if row[1] is not None}
    return Outcome(messages, rows, survey)

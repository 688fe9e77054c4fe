"""Drawn messy files: what is sent of them and what is set aside is what a judge says who shares none of the code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import pytest

from spark_jobs.feeding.grouping import Grouping
from spark_jobs.reading import source as reading_source
from spark_jobs.reading.files import files_at
from spark_jobs.reading.input import valid_rows
from spark_jobs.reading.judging import Judge
from spark_jobs.reading.opened import opened
from spark_jobs.reading.source import Source
from spark_jobs.reading.spans import Reading, Span, begun, cut, edges, judged_span, surveyed
from tests.spark import judge
from tests.spark.messy import KINDS, LINES, MESS, Messy, csv_file, json_file

PAIRS = list(combinations(MESS, 2))
LINE_PAIRS = list(combinations(LINES, 2))
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())


def drawn() -> Iterator[Messy]:
    """Each kind alone, and as many pairs as make 200 files and more."""
    for seed, kind in enumerate(MESS):
        yield from (csv_file(seed * 7 + shift, (kind,)) for shift in range(7))  # in each dialect
    for seed, pair in enumerate(random.Random(37).sample(PAIRS, 60)):
        yield csv_file(1_000 + seed, pair)
    for seed, kind in enumerate(LINES):
        yield json_file(seed, (kind,))
    for seed, pair in enumerate(random.Random(38).sample(LINE_PAIRS, 60)):
        yield json_file(1_000 + seed, pair)


FILES = list(drawn())


def marks_of(messy: Messy) -> list[pytest.MarkDecorator]:
    """Every other pair is of `make soak`; each kind alone, in each dialect, is of every run."""
    number = int(messy.name.split()[1])
    return [pytest.mark.soak] if number >= 1_000 and number % 2 else []


def spans_of(source: Source, span_bytes: int) -> tuple[Reading, list[Span]]:
    """An input cut into spans of so many bytes, with the state in which each begins."""
    found = opened(source, files_at(source.path, {}), 1)
    [whole] = found.spans
    spans = cut(0, found.reading.listed[0], whole.begin, span_bytes)
    told = [edges(found.reading, span) for span in spans]
    return found.reading, begun(spans, told, int(source.kind == "csv"))


def source_of(tmp_path: Path, messy: Messy) -> Source:
    is_csv = messy.name.startswith("csv")
    path = tmp_path / ("in.csv" if is_csv else "in.jsonl")
    path.write_bytes(messy.data)
    dialect = reading_source.Dialect(**asdict(messy.dialect))
    return Source(str(path), schema=SCHEMA if is_csv else "", dialect=dialect)


def verdicts_of(messy: Messy) -> list[judge.Verdict]:
    if messy.name.startswith("csv"):
        return judge.csv(messy.data, messy.dialect, KINDS)
    return judge.json_lines(messy.data)


def verdict(row: dict[str, object]) -> judge.Verdict:
    """A judged row as the judge would say it; the file and line of one that is set aside are told."""
    if row["reason"] is not None:
        assert row["file"] and row["detail"]
        return judge.Verdict(int(str(row["line"])))
    return judge.Verdict(int(str(row["position"])), str(row["id"]), str(row["body"]).encode())


@pytest.mark.parametrize("messy", [pytest.param(file, marks=marks_of(file), id=file.name) for file in FILES])
def test_each_row_is_sent_as_it_stands_or_set_aside(tmp_path: Path, messy: Messy) -> None:
    wanted = verdicts_of(messy)
    source, rng = source_of(tmp_path, messy), random.Random(messy.name)
    for span_bytes in (1 << 20, rng.randrange(1, 40), rng.randrange(40, 400)):
        reading, spans = spans_of(source, span_bytes)
        batches = [batch for span in spans for batch in judged_span(reading, span, Judge(("id",)))]
        found = sorted(map(verdict, (row for batch in batches for row in batch.to_pylist())), key=lambda row: row.line)
        assert found == wanted
        assert sum(surveyed(reading, span, ()).rows for span in spans) == len(wanted)
    grouping = Grouping()
    for batch in valid_rows(iter(batches)):
        grouping.add(batch)
    sent = {row[0].decode(): row[1] for row in grouping.messages()}
    assert sent == judge.messages(wanted)
    copies = sum(row[5] for row in grouping.messages())
    assert copies + sum(row.body is None or row.id not in sent for row in wanted) == len(wanted)

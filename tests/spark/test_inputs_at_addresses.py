"""Inputs in a folder and in containers: the same rows, whatever they lie in; without Spark."""

from __future__ import annotations

import gzip
import os
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outbox.errors import Refused
from spark_jobs.common.places import Place, joined, place_of
from spark_jobs.reading import opened
from spark_jobs.reading.files import Files, files_at
from spark_jobs.reading.opened import check_unchanged
from spark_jobs.reading.source import Source
from tests.spark.reading import outcome

ROWS = "".join(f"t{number},{number}\n" for number in range(150))


@pytest.fixture
def place(address: str) -> Place:
    return place_of(address, os.environ)


def parquet_of(**columns: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=2)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # bytes


def test_spans_archives_and_row_groups_are_read_in_ranges(
    place: Place, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "SPAN_BYTES_MIN", 300)
    place.create("in.csv", f"id,amount\n{ROWS}".encode())
    place.create("in.csv.gz", gzip.compress(f"id,amount\n{ROWS}".encode()))
    place.create("in.jsonl", "".join(f'{{"id":"t{n}","amount":{n}}}\n' for n in range(150)).encode())
    place.create("in.parquet", parquet_of(id=[f"t{n}" for n in range(150)], amount=list(range(150))))
    wanted = {f"t{n}": {"id": f"t{n}", "amount": n} for n in range(150)}
    for name in ("in.csv", "in.csv.gz", "in.jsonl", "in.parquet"):
        found = outcome(Source(joined(address, f"/{name}")))
        assert (found.sent, found.aside) == (wanted, []), name
        assert found.rows[7]["file"] == joined(address, f"/{name}")


def test_a_folder_of_a_place_is_all_that_lies_below_it(place: Place, address: str) -> None:
    for day in range(5):
        place.create(f"in.csv/day={day}/rows.csv", f"id\nt{day}\n".encode())
    place.create("in.csv/_SUCCESS", b"")
    place.create("in.csv/.hidden/rows.csv", b"id\nno\n")
    place.create("in.csv.bak", b"id\nno\n")
    assert outcome(Source(joined(address, "/in.csv/"))).sent == {f"t{n}": {"day": n, "id": f"t{n}"} for n in range(5)}
    place.create("one", b"id\na\n")
    place.create("one.more", b"id\nb\n")
    assert set(outcome(Source(joined(address, "/one"), "csv")).messages) == {"a"}
    with pytest.raises(Refused, match=r"there is no .*/nowhere.csv, or no file in it; --input takes a file"):
        outcome(Source(joined(address, "/nowhere.csv")))


def test_a_file_that_is_written_again_is_not_read_on(place: Place, address: str) -> None:
    place.create("in.csv/a.csv", b"id\na\n")
    place.create("in.csv/b.csv", b"id\nb\n")
    files = files_at(joined(address, "/in.csv"), os.environ)
    reading = opened.opened(Source(joined(address, "/in.csv")), files, 1).reading
    check_unchanged(reading)
    place.delete("in.csv/b.csv")
    place.create("in.csv/b.csv", b"id\nc\n")  # as long as before
    with pytest.raises(Refused, match=r"b.csv has changed while it was read"):
        list(files.chunks(reading.listed[1]))
    with pytest.raises(Refused, match=r"b.csv has changed since the input was first looked at; nothing was sent"):
        check_unchanged(reading)
    place.delete("in.csv/b.csv")
    with pytest.raises(Refused, match=r"b.csv (is gone|has changed) "):
        list(files.chunks(reading.listed[1]))


def test_a_whole_container_is_a_folder(lake: Any) -> None:
    box = lake.blobs().container_name
    around = place_of(f"az://{box}", lake.environ)
    assert files_at(f"az://{box}/", lake.environ) == Files(around)
    assert place_of(f"az://{box}/a/b.csv", lake.environ).parted() == (place_of(f"az://{box}/a", lake.environ), "b.csv")
    assert place_of(f"az://{box}/b.csv", lake.environ).parted() == (around, "b.csv")

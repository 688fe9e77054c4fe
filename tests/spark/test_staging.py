"""Files that tasks write and a record names: what is in them, and what of a failure comes back; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outbox.errors import CorruptRecord
from spark_jobs.common import staging
from spark_jobs.common.arrow_rows import as_batches
from spark_jobs.common.folder import Folder
from spark_jobs.common.places import Place
from spark_jobs.common.staging import Writing, read_files, write_files


def batches(*rows: list[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    for part in rows:
        columns: list[Any] = list(zip(*part, strict=True)) if part else [[], [], []]
        arrays = [
            pa.array(columns[0], pa.int32()), pa.array(columns[1], pa.string()), pa.array(columns[2], pa.int64())
        ]  # fmt: skip
        yield pa.RecordBatch.from_arrays(arrays, ["chunk", "id", "copies"])


def written(writing: Writing, *rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    found = [row for part in write_files(writing, batches(*rows)) for row in part.to_pylist()]
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def read_back(place: Place, names: list[str]) -> list[dict[str, Any]]:
    numbers = iter([pa.RecordBatch.from_arrays([pa.array(range(len(names)))], ["id"])])
    return [row for part in read_files(place, names, numbers) for row in part.to_pylist()]


def test_a_file_has_rows_of_one_value(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    parts: Any = ([(0, "a", 1), (0, "b", 2)], [], [(0, "c", 3), (2, "d", 1)], [(2, "e", 1), (7, "\u00e9", 5)])
    found = written(Writing(place, "stage/messages", "chunk", "copies"), *parts)
    assert [(file["value"], file["rows"], file["weight"]) for file in found] == [("0", 3, 6), ("2", 2, 2), ("7", 1, 5)]
    names = [file["name"] for file in found]
    assert [item.name for item in place.list()] == sorted(names) and all(n.startswith("stage/messages/") for n in names)
    assert read_back(place, names) == [
        {"id": id, "copies": n} for id, n in zip("abcde\u00e9", (1, 2, 3, 1, 1, 5), strict=True)
    ]


def test_a_file_is_ended_before_it_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "FILE_MAX_BYTES", 1_000)
    parts = [[(0, f"{number}" * 200, 1)] for number in range(9)]
    found = written(Writing(Folder(tmp_path), "s", "chunk"), *parts)
    assert [file["rows"] for file in found] == [4, 4, 1]
    assert [row["id"][0] for row in read_back(Folder(tmp_path), [file["name"] for file in found])] == list("012345678")


def test_without_a_column_to_part_by_all_are_together(tmp_path: Path) -> None:
    (found,) = written(Writing(Folder(tmp_path), "s"), [(0, "a", 1), (1, "b", 1)])
    assert (found["value"], found["rows"], found["weight"]) == ("", 2, 0)
    assert read_back(Folder(tmp_path), [found["name"]])[1] == {"chunk": 1, "id": "b", "copies": 1}
    assert written(Writing(Folder(tmp_path), "s"), []) == [] == written(Writing(Folder(tmp_path), "s"))


def test_what_cannot_be_written_comes_back_as_a_text(tmp_path: Path) -> None:
    class Full(Folder):
        def create(self, name: str, data: bytes) -> bool:
            raise CorruptRecord("the disk is full")

    (found,) = written(Writing(Full(tmp_path), "s"), [(0, "a", 1)])
    assert found == {"failed": "CorruptRecord: the disk is full"}


def test_a_file_that_is_gone_or_damaged_is_named(tmp_path: Path) -> None:
    Folder(tmp_path).create("bad.parquet", b"PAR1")
    with pytest.raises(CorruptRecord, match=r"bad\.parquet cannot be read: .*restore it"):
        read_back(Folder(tmp_path), ["bad.parquet"])
    with pytest.raises(CorruptRecord, match=r"gone\.parquet is gone"):
        read_back(Folder(tmp_path), ["gone.parquet"])


def test_rows_become_arrow_with_every_column_of_the_schema() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    (found,) = as_batches([{"a": 1}, {"b": 'x\n"\u00e9'}], schema)
    assert found.schema == schema and found.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 'x\n"\u00e9'}]

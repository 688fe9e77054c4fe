"""Which rows of a chunk's files each sender has: every row one sender, in equal parts; without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from outbox.errors import CorruptRecord
from spark_jobs.common import staging
from spark_jobs.common.folder import Folder
from spark_jobs.common.staging import StagedFile, Writing, write_files
from spark_jobs.feeding import shares
from spark_jobs.feeding.shares import Sending, Stretch, rows_in, send_shares, shares_of

SETTINGS = Sending(cast(Any, None), "q", "T", 1.0)


def files_of(*rows: int) -> list[StagedFile]:
    return [StagedFile(f"{at}.parquet", "0", count) for at, count in enumerate(rows)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("rows", [(10,), (1, 1, 1), (5, 0, 13, 2), (100, 3)])
def test_each_row_is_in_one_share(rows: tuple[int, ...], count: int) -> None:
    found = shares_of(files_of(*rows), count)
    had = [
        (stretch.name, at)
        for share in found
        for stretch in share
        for at in range(stretch.begin, stretch.begin + stretch.count)
    ]
    assert had == [(f"{at}.parquet", number) for at, size in enumerate(rows) for number in range(size)]
    sizes = [sum(stretch.count for stretch in share) for share in found]
    assert len(sizes) == min(count, sum(rows)) and max(sizes) - min(sizes) <= 1


def test_of_files_without_rows_there_is_no_share() -> None:
    assert shares_of(files_of(0), 2) == [] == shares_of([], 2)


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Folder, list[str]]:
    """Two files of ten rows, read four at once."""
    monkeypatch.setattr(staging, "BATCH_COUNT", 4)
    texts = {"id": [f"i{n}" for n in range(20)], "body": ["{}"] * 20, "session": [None] * 20}
    table = pa.table(
        {**texts, "created_ms": range(20), "position": range(20), "chunk": [f"{n // 10}" for n in range(20)]}
    )
    place = Folder(tmp_path)
    written = write_files(Writing(place, "s", "chunk"), table.to_batches())
    return place, [row["name"] for batch in written for row in batch.to_pylist()]


@pytest.mark.parametrize(("begin", "count"), [(0, 10), (3, 2), (4, 4), (5, 5), (7, 1), (2, 7)])
def test_a_stretch_is_read_over_several_batches(staged: tuple[Folder, list[str]], begin: int, count: int) -> None:
    place, names = staged
    found = list(rows_in(place, [Stretch(names[1], begin, count), Stretch(names[0], 9, 1)]))
    assert [row["id"] for part in found for row in part.to_pylist()] == [
        *(f"i{10 + n}" for n in range(begin, begin + count)), "i9",
    ]  # fmt: skip
    assert {*map(tuple, (part.schema.names for part in found))} == {("id", "body", "created_ms", "session")}
    assert all(part.num_rows for part in found)


def test_a_sender_sends_the_shares_whose_numbers_come(
    staged: tuple[Folder, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, names = staged
    had = list[list[str]]()

    def sent(settings: Sending, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        had.append([row["id"] for part in parts for row in part.to_pylist()])
        yield pa.RecordBatch.from_pylist([{"accepted": len(had[-1])}])

    monkeypatch.setattr(shares, "sent", sent)
    found = shares_of([StagedFile(name, "0", 10) for name in names], 3)
    assert list(send_shares(SETTINGS, place, found, [2, 0])) == [{"accepted": 7}, {"accepted": 6}]
    assert had == [[f"i{n}" for n in range(13, 20)], [f"i{n}" for n in range(6)]]
    gone = [[Stretch("s/gone.parquet", 0, 1)]]
    with pytest.raises(CorruptRecord, match=r"gone\.parquet is gone"):
        list(send_shares(SETTINGS, place, gone, [0]))

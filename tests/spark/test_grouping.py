"""Rows of a partition become messages of a chunk, and conflicts; without a Spark session."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.feeding import grouping
from spark_jobs.feeding.grouping import Chunks, Grouping, grouped, packed, partitions_of
from spark_jobs.reading.arrow import integer_column, text_column

Row = tuple[bytes, bytes, int | None, bytes | None, int]


def batch_of(*rows: Row) -> pa.RecordBatch:
    """Judged rows that can be sent."""
    columns = list(zip(*rows, strict=True))
    makers: Any = (text_column, text_column, integer_column, text_column, integer_column)
    made = [make(column) for make, column in zip(makers, columns, strict=True)]
    return pa.RecordBatch.from_arrays(made, names=["id", "body", "created_ms", "session", "position"])


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


ROWS: list[Row] = [
    (b"b", b"{2}", None, None, 5), (b"a", b"{1}", None, None, 9), (b"c", b"{3}", None, None, 1),
    (b"a", b"{1}", None, None, 3), (b"c", b"{x}", None, None, 2), (b"c", b"{3}", None, None, 7),
]  # fmt: skip


@pytest.mark.parametrize("parts", [1, 2, 6])
def test_a_message_stands_where_its_first_row_stood_and_counts_its_rows(parts: int) -> None:
    found = Grouping()
    for at in range(0, 6, 6 // parts):
        found.add(batch_of(*ROWS[at : at + 6 // parts]))
    assert sorted(found.messages()) == [(b"a", b"{1}", None, None, 3, 2), (b"b", b"{2}", None, None, 5, 1)]
    assert found.conflicts == {b"c"}


def test_times_and_sessions_stay_with_their_rows() -> None:
    found = Grouping()
    found.add(batch_of((b"a", b"{}", 7, b"s", 1), (b"b", b"{}", None, b"t", 2), (b"a", b"{}", 7, b"s", 3)))
    assert found.messages() == [(b"a", b"{}", 7, b"s", 1, 2), (b"b", b"{}", None, b"t", 2, 1)]


def in_bucket(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A packet of rows as the task of a bucket gets it."""
    [packet] = packed(1, [batch])
    return packet.set_column(0, "bucket", integer_column([number]))


@pytest.fixture
def in_partition(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say which partition a task works on."""

    def at(number: int) -> None:
        context = SimpleNamespace(get=lambda: SimpleNamespace(partitionId=lambda: number))
        monkeypatch.setattr(grouping, "TaskContext", context)

    return at


def test_a_bucket_belongs_to_one_chunk_and_its_conflicts_to_none() -> None:
    other = batch_of((b"d", b"{4}", 1, None, 4), (b"d", b"{4}", 1, None, 6))
    packets = [in_bucket(7, batch_of(*ROWS)), in_bucket(5, other), in_bucket(4, batch_of((b"e", b"5", 1, b"s", 8)))]
    found = rows_of(Chunks(3, 42).of_packets(iter(packets)))
    assert [row[-1] for row in found] == ["1", "1", "1", "2", "conflicts"]
    assert sorted(found) == [
        ("a", "{1}", 42, None, 3, 2, "1"), ("b", "{2}", 42, None, 5, 1, "1"),
        ("c", None, None, None, 0, 0, "conflicts"), ("d", "{4}", 1, None, 4, 2, "2"), ("e", "5", 1, "s", 8, 1, "1"),
    ]  # fmt: skip


def test_messages_that_are_grouped_are_staged_as_they_are(in_partition: Any) -> None:
    in_partition(0)
    rows = batch_of(
        (b"a", b"{}", 5, b"s", 1), (b"a", b"{}", 5, b"s", 2), (b"b", b"1", 6, b"s", 3), (b"b", b"2", 6, b"t", 4)
    )
    found = rows_of(Chunks(1, 0).of_packets(iter([in_bucket(0, rows)])))
    assert found == [("a", "{}", 5, "s", 1, 2, "0"), ("b", None, None, None, 0, 0, "conflicts")]
    assert rows_of(Chunks(1, 0).of_messages(grouped([rows]))) == found


@pytest.mark.parametrize("created_ms", [None, 7])
def test_rows_that_are_all_different_are_staged_as_they_come(created_ms: int | None) -> None:
    rows = [(f"id{n}".encode(), b"{}", created_ms, None, n) for n in range(5)]
    packets = [in_bucket(0, batch_of(*rows[:2])), in_bucket(0, batch_of(*rows[2:]))]
    found = rows_of(Chunks(1, 42).of_packets(iter(packets)))
    assert found == [(f"id{n}", "{}", created_ms or 42, None, n, 1, "0") for n in range(5)]


def test_a_partition_without_rows_has_no_messages(in_partition: Any) -> None:
    in_partition(0)
    assert rows_of(Chunks(1, 0).of_packets(iter([]))) == [] == rows_of(Chunks(1, 0).of_messages(iter([])))
    assert list(packed(3, [])) == []


def test_a_row_is_in_the_bucket_of_its_identity_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """In packets of four rows at most, over several tasks."""
    monkeypatch.setattr(grouping, "PACKED_ROWS", 4)
    rows = [(f"id{n % 30}".encode(), b"{%d}" % (n % 30), None, b"s", n) for n in range(120)]
    batches = [batch_of(*rows[at : at + 2]) for at in range(0, 120, 2)]
    found: dict[int, Grouping] = {}
    for task in (batches[:7], batches[7:]):
        for packet in packed(5, task):
            for number, part in zip(packet.column(0).to_pylist(), packet.column(1).to_pylist(), strict=True):
                for batch in pa.ipc.open_stream(part):
                    found.setdefault(number, Grouping()).add(batch)
    messages = sorted(row for each in found.values() for row in each.messages())
    assert messages == sorted((f"id{n}".encode(), b"{%d}" % n, None, b"s", n, 4) for n in range(30))
    assert set(found) == set(range(5))


@pytest.mark.parametrize(
    ("chunks", "size", "wanted"),
    [(1, 0, 1), (20, 1 << 20, 20), (1, 1 << 30, 32), (3, 1 << 30, 33), (256, 1 << 60, 16_384)],
)
def test_a_partition_holds_what_fits_in_memory(chunks: int, size: int, wanted: int) -> None:
    assert partitions_of(chunks, size) == wanted

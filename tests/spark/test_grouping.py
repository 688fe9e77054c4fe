"""Rows of a partition become messages of a chunk, and conflicts; without a Spark session."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.feeding import grouping
from spark_jobs.feeding.grouping import (
    BY_SESSION,
    Chunks,
    Grouping,
    Packet,
    messages_in,
    messages_of,
    packed,
    partitions_of,
    regrouped,
)
from spark_jobs.reading.arrow import integer_column, text_column
from tests.commands import ran

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


def in_bucket(number: int, batch: pa.RecordBatch) -> Packet:
    """A packet of rows as the task of a bucket gets it."""
    [(_, rows)] = packed(1, [batch])
    return number, rows


def messages(chunks: Chunks, packets: Iterable[Packet]) -> list[tuple[Any, ...]]:
    return rows_of(chunks.of_packets(messages_of, packets))


def test_a_bucket_belongs_to_one_chunk_and_its_conflicts_to_none() -> None:
    other = batch_of((b"d", b"{4}", 1, None, 4), (b"d", b"{4}", 1, None, 6))
    packets = [in_bucket(7, batch_of(*ROWS)), in_bucket(5, other), in_bucket(4, batch_of((b"e", b"5", 1, b"s", 8)))]
    found = messages(Chunks(3, 42), packets)
    assert [row[-1] for row in found] == ["1", "1", "1", "2", "conflicts"]
    assert sorted(found) == [
        ("a", "{1}", 42, None, 3, 2, "1"), ("b", "{2}", 42, None, 5, 1, "1"),
        ("c", None, None, None, 0, 0, "conflicts"), ("d", "{4}", 1, None, 4, 2, "2"), ("e", "5", 1, "s", 8, 1, "1"),
    ]  # fmt: skip


def test_messages_that_are_grouped_are_staged_as_they_are() -> None:
    rows = batch_of(
        (b"a", b"{}", 5, b"s", 1), (b"a", b"{}", 5, b"s", 2), (b"b", b"1", 6, b"s", 3), (b"b", b"2", 6, b"t", 4)
    )
    found = messages(Chunks(1, 0), [in_bucket(0, rows)])
    assert found == [("a", "{}", 5, "s", 1, 2, "0"), ("b", None, None, None, 0, 0, "conflicts")]
    again = regrouped(1, [in_bucket(0, rows)])
    assert rows_of(Chunks(1, 0).of_packets(messages_in, again)) == found


def test_the_messages_of_a_session_come_together_from_all_buckets_of_identities() -> None:
    rows = [(f"id{n}".encode(), b"%d" % n, n, f"s{n % 7}".encode(), n) for n in range(60)]
    packets = list(packed(3, [batch_of(*rows, (b"id5", b"other", 5, b"s1", 60))]))
    again = [packet for packet in packets for packet in regrouped(4, [packet])]
    sessions = dict[str, set[int]]()
    for number, part in again:
        for batch in pa.ipc.open_stream(part):
            for row in batch.to_pylist():
                if row["body"] is not None:
                    sessions.setdefault(row["session"], set()).add(number)
    assert {*sessions} == {f"s{n}" for n in range(7)} and all(len(numbers) == 1 for numbers in sessions.values())
    assert len({*map(tuple, sessions.values())}) > 1
    found = [row for number in range(4) for row in rows_of(Chunks(4, 0).of_packets(messages_in, of(number, again)))]
    assert sorted(row[0] for row in found if row[-1] != "conflicts") == sorted(f"id{n}" for n in range(60) if n != 5)
    assert [row for row in found if row[-1] == "conflicts"] == [("id5", None, None, None, 0, 0, "conflicts")]


def of(number: int, packets: list[Packet]) -> list[Packet]:
    """Those of a bucket."""
    return [packet for packet in packets if packet[0] == number]


@pytest.mark.parametrize("created_ms", [None, 7])
def test_rows_that_are_all_different_are_staged_as_they_come(created_ms: int | None) -> None:
    rows = [(f"id{n}".encode(), b"{}", created_ms, None, n) for n in range(5)]
    packets = [in_bucket(0, batch_of(*rows[:2])), in_bucket(0, batch_of(*rows[2:]))]
    found = messages(Chunks(1, 42), packets)
    assert found == [(f"id{n}", "{}", created_ms or 42, None, n, 1, "0") for n in range(5)]


def test_a_partition_without_rows_has_no_messages() -> None:
    assert messages(Chunks(1, 0), []) == [] == list(regrouped(3, [])) == list(packed(3, [], BY_SESSION))


def test_a_row_is_in_the_bucket_of_its_identity_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """In packets of four rows at most, over several tasks."""
    monkeypatch.setattr(grouping, "PACKED_ROWS", 4)
    rows = [(f"id{n % 30}".encode(), b"{%d}" % (n % 30), None, b"s", n) for n in range(120)]
    batches = [batch_of(*rows[at : at + 2]) for at in range(0, 120, 2)]
    found: dict[int, Grouping] = {}
    for task in (batches[:7], batches[7:]):
        for number, part in packed(5, task):
            for batch in pa.ipc.open_stream(part):
                found.setdefault(number, Grouping()).add(batch)
    made = sorted(row for each in found.values() for row in each.messages())
    assert made == sorted((f"id{n}".encode(), b"{%d}" % n, None, b"s", n, 4) for n in range(30))
    assert set(found) == set(range(5))


@pytest.mark.parametrize("limit", [{"PACKED_ROWS": 4}, {"PACKED_BYTES": 2 * batch_of(*ROWS[:2]).nbytes}])
def test_each_packet_is_as_full_as_the_first(limit: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(grouping, name, value)
    packets = packed(1, [batch_of(*ROWS[:2])] * 7)
    assert [len(rows_of(pa.ipc.open_stream(rows))) for _, rows in packets] == [4, 4, 4, 2]


@pytest.mark.parametrize(
    ("chunks", "size", "wanted"),
    [(1, 0, 1), (20, 1 << 20, 20), (1, 1 << 30, 32), (1, (1 << 30) + 1, 33), (3, 1 << 30, 33), (256, 1 << 60, 16_384)],
)
def test_a_partition_holds_what_fits_in_memory(chunks: int, size: int, wanted: int) -> None:
    assert partitions_of(chunks, size) == wanted


STAGES = """
import sys
from pathlib import Path
import spark_jobs.feed
from spark_jobs.common.folder import Folder
from spark_jobs.common.staging import Writing, write_files
from spark_jobs.feeding.grouping import CHUNK, Chunks, messages_of, packed
from spark_jobs.feeding.shares import RESULT_SCHEMA, Stretch, rows_in
from spark_jobs.reading.files import files_at
from spark_jobs.reading.judging import Judge
from spark_jobs.reading.opened import opened
from spark_jobs.reading.kinds import STRING
from spark_jobs.reading.source import Source
from spark_jobs.reading.spans import edges, judged_span, surveyed
from spark_jobs.reading.input import valid_rows
from dataclasses import replace
path, folder = sys.argv[1], Folder(sys.argv[2])
found, judge = opened(Source(path), files_at(path, {}), 1), Judge(("id",))
reading, [span] = replace(found.reading, kinds={"id": STRING}), found.spans
assert edges(reading, span).lines == 2 == surveyed(found.reading, span, []).rows
packets = packed(1, valid_rows(judged_span(reading, span, judge)))
made = Chunks(1, 7).of_packets(messages_of, packets)
[[file]] = [batch.to_pylist() for batch in write_files(Writing(folder, "s", CHUNK, "copies"), made)]
assert [batch.num_rows for batch in rows_in(folder, [Stretch(file["name"], 0, 2)])] == [2]
print(sorted({"pandas", "azure", "azure.servicebus"} & {*sys.modules}))
"""


def test_neither_a_driver_nor_a_task_that_stages_imports_what_only_senders_need(tmp_path: Path) -> None:
    """Pandas takes a second, the SDK half of one, in each worker; one careless `pa.array` of a list imports pandas."""
    (tmp_path / "in.csv").write_text("id\na\nb\n")
    done = ran([sys.executable, "-c", STAGES, tmp_path / "in.csv", tmp_path / "stage"])
    assert (done.stdout, done.stderr) == ("[]\n", "")

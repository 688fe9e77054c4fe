"""What a ledger's files hold is found by their key files, which are made anew where they are missing or damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from outbox.errors import CorruptRecord
from spark_jobs.common.folder import Folder
from spark_jobs.draining import keys
from spark_jobs.draining.judged import CONTRADICTIONS, IDENTITY_BYTES, MESSAGES, Judged, Keyed, judge, order_of_delivery
from spark_jobs.draining.keys import HEADER, Known, hits, key_file
from spark_jobs.draining.merging import Merger
from spark_jobs.draining.parquet import DataFile
from spark_jobs.ledger import merge
from tests.spark.ledgers import ids, land


def rows(*texts: tuple[str, str]) -> pa.Table:
    return pa.table({"message_id": [text[0] for text in texts], "fingerprint": [text[1] for text in texts]})


def names(judged: Judged) -> tuple[list[int], list[int], list[int]]:
    return judged.new, judged.duplicates, judged.conflicts


def test_the_first_delivery_decides_what_its_copies_are() -> None:
    identities, contents = [b"a", b"b", b"a", b"a", b"c"], [b"1", b"1", b"1", b"2", b"9"]
    assert names(judge([3, 0, 1, 2, 4], identities, contents, {b"c": b"9"})) == ([3, 1], [4], [0, 2])
    assert names(judge([0, 1, 2, 3, 4], identities, contents, {b"c": b"8"})) == ([0, 1], [2], [3, 4])
    assert names(judge([], [], [], {})) == ([], [], [])


def test_what_is_known_is_not_written_to() -> None:
    known: dict[bytes, bytes] = {}
    judge([0], [b"a"], [b"1"], known)
    assert known == {}


def test_deliveries_are_in_the_order_of_the_queue() -> None:
    numbers = pa.array([2, 1, None, 1, 1], pa.int64())
    found = pa.table(
        {
            "sequence_number": numbers,
            "delivery_count": pa.array([0, 3, 0, 0, 0], pa.int64()),
            "fingerprint": ["x", "x", "x", "z", "y"],
        }
    )
    assert order_of_delivery(found) == [2, 4, 3, 1, 0]


def test_a_pair_of_texts_is_not_another_pair_of_the_same_letters() -> None:
    first, second, same = CONTRADICTIONS.identities(rows(("ab", "c"), ("a", "bc"), ("ab", "c")))
    assert first != second and first == same and len(first) == IDENTITY_BYTES
    assert MESSAGES.identities(rows(("ab", "c"))) == MESSAGES.identities(rows(("ab", "d")))


@pytest.mark.parametrize("sizes", [(50, 5), (5, 50), (0, 5), (5, 0), (1, 1)])
def test_hits_are_the_places_of_what_is_asked_for(sizes: tuple[int, int]) -> None:
    for seed in range(50):
        chance = random.Random(seed)
        held = np.array(sorted(chance.randrange(20) for _ in range(sizes[0])), np.uint64)
        asked = np.array(sorted({chance.randrange(20) for _ in range(sizes[1])}), np.uint64)
        expected = [at for at, value in enumerate(held.tolist()) if value in set(asked.tolist())]
        assert hits(held, asked).tolist() == expected


def known_of(place: Folder) -> dict[bytes, bytes]:
    """What a merger that knows nothing yet finds of four ids, of which the ledger has three."""
    merger = Merger(place)
    table = merger.table.read()
    assert table is not None
    return merger.known.among(MESSAGES.identities(rows(*((id, "") for id in "abcx"))), table.files)


def filled(path: Path) -> Folder:
    land(path, "one", "a", "b", fingerprint="f1")
    merge(path)
    land(path, "two", "c", fingerprint="f2")
    merge(path)
    return Folder(path)


def test_what_a_ledger_holds_is_known_with_its_content(tmp_path: Path) -> None:
    wanted = rows(("a", "f1"), ("b", "f1"), ("c", "f2"))
    found = known_of(filled(tmp_path))
    assert found == dict(zip(MESSAGES.identities(wanted), MESSAGES.contents(wanted), strict=True))


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "missing": None,
    "empty": lambda data: b"",
    "torn": lambda data: data[:-1],
    "cut in the hashes": lambda data: data[: HEADER.size + 3],
    "another magic": flipped(0),
    "another count": flipped(16),
    "a hash": flipped(HEADER.size),
    "a rest": flipped(-1 + HEADER.size + 2 * 40),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_key_file_is_made_anew_from_its_data_file(tmp_path: Path, damage: str) -> None:
    expected = known_of(filled(tmp_path))
    file = min((tmp_path / "_keys" / "data").iterdir())
    whole, change = file.read_bytes(), DAMAGES[damage]
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(whole))
    land(tmp_path, "again", "a", "b", "c", "d")
    assert known_of(Folder(tmp_path)) == expected
    assert file.read_bytes() == whole
    assert merge(tmp_path).added == 1 and ids(tmp_path) == ["a", "b", "c", "d"]


def test_the_key_file_of_another_data_file_is_not_believed(tmp_path: Path) -> None:
    expected = known_of(filled(tmp_path))
    first, second = sorted((tmp_path / "_keys" / "data").iterdir())
    first.write_bytes(second.read_bytes())  # one row where the data file has two
    assert known_of(Folder(tmp_path)) == expected


def test_a_data_file_that_is_gone_is_named(tmp_path: Path) -> None:
    place = filled(tmp_path)
    file = min((tmp_path / "data").iterdir())
    file.unlink()
    (tmp_path / "_keys" / "data" / f"{file.name}.keys").unlink()
    land(tmp_path, "more", "x")
    with pytest.raises(CorruptRecord, match=rf"data/{file.name} cannot be read: .*restore it from a copy"):
        merge(place.path)


def test_equal_hashes_of_other_identities_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight bytes may be equal by chance or by intent; the other sixteen are compared."""
    digests = Keyed.identities
    monkeypatch.setattr(Keyed, "identities", lambda self, rows: [b"8 bytes!" + id[8:] for id in digests(self, rows)])
    land(tmp_path, "one", "a", "b")
    merge(tmp_path)
    land(tmp_path, "two", "b", "c")
    assert merge(tmp_path).added == 1
    assert ids(tmp_path) == ["a", "b", "c"]


def test_a_large_key_file_is_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "BLOCK_ROWS", 7)
    held = rows(*((f"m{number}", f"f{number}") for number in range(100)))
    known = Known(Folder(tmp_path), MESSAGES)
    known.add("data/x.parquet", held)
    file = DataFile("data/x.parquet", 0, 100)
    sizes = list[int | None]()
    read = Folder.read

    def watched(self: Folder, name: str, start: int = 0, size: int | None = None) -> bytes | None:
        sizes.append(size)
        return read(self, name, start, size)

    monkeypatch.setattr(Folder, "read", watched)
    asked = MESSAGES.identities(held)
    found = Known(Folder(tmp_path), MESSAGES).among(asked[10:30], {file.name: file})
    assert found == dict(zip(asked[10:30], MESSAGES.contents(held)[10:30], strict=True))
    assert None not in sizes and max(size or 0 for size in sizes) == 832  # header and hashes; a block has 224


def test_the_hashes_of_a_file_are_read_once_and_let_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    merger, read = Merger(Folder(tmp_path)), list[str]()
    hashes = keys.read_hashes

    def watched(place: Folder, file: str, count: int | None) -> keys.Hashes:
        read.append(file)
        return hashes(place, file, count)

    monkeypatch.setattr(keys, "read_hashes", watched)
    for name in ("three", "four"):
        land(tmp_path, name, name)
        merger.merge()
    table = merger.table.read()
    assert table is not None and sorted(read) == [key_file(name) for name in sorted(table.files)[:2]]
    assert sum(held.nbytes for held in merger.known.hashes.values()) == 8 * 5
    merger.known.among([], {})
    assert merger.known.hashes == {}

"""Places: the same on a folder, on the Blob Storage emulator over HTTP, and on Azurite where it is installed."""

from __future__ import annotations

import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outbox.errors import Refused
from spark_jobs.common import containers
from spark_jobs.common.places import Place, place_of


@pytest.fixture
def place(address: str) -> Place:
    return place_of(address, os.environ)


def names(place: Place, prefix: str = "", suffix: str = "") -> list[str]:
    return [item.name for item in place.list(prefix, suffix)]


def test_a_file_is_created_once(place: Place) -> None:
    assert place.read("deep/er/a.json") is None
    assert place.create("deep/er/a.json", b"first")
    assert not place.create("deep/er/a.json", b"second")
    assert place.read("deep/er/a.json") == b"first" and names(place) == ["deep/er/a.json"]
    assert (place / "deep" / "er").read("a.json") == b"first" and str(place / "deep").endswith("/deep")


def test_of_several_writers_of_a_name_one_wins(place: Place) -> None:
    lent = place.lend()
    barrier = threading.Barrier(4)

    def contend(writer: int) -> int:
        won = 0
        for number in range(5):
            barrier.wait(30)
            won += lent.create(f"n{number}", b"%d" % writer)
        return won

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(contend, range(4))) == 5


def test_a_large_file_is_of_one_writer_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "PUT_MAX_BYTES", 1_000)
    monkeypatch.setattr(containers, "BLOCK_BYTES", 1_000)
    barrier = threading.Barrier(4)
    for number in range(4):

        def contend(writer: int, name: str = f"n{number}") -> int:
            barrier.wait(30)
            return place.create(name, b"%d" % writer * 3_500)

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(contend, range(4))) == 1
        found = place.read(f"n{number}")
        assert found is not None and len(found) == 3_500 and len(set(found)) == 1


def test_ranges_are_read_as_far_as_there_are_bytes(place: Place) -> None:
    place.create("a", bytes(range(100)))
    place.create("empty", b"")
    for start, size in ((0, None), (0, 10), (10, 10), (95, 10), (100, 1), (100, None), (1_000, 5), (7, None), (5, 0)):
        assert place.read("a", start, size) == bytes(range(100))[start : None if size is None else start + size]
    assert place.read("empty") == place.read("empty", 0, 10) == place.read("empty", 5) == b""


def test_what_stands_for_a_folder_is_no_file(place: Place) -> None:
    if isinstance(place, containers.Container):  # as an account with a hierarchical namespace has it
        client = containers.client_of(place.account, place.container)
        client.upload_blob(f"{place.prefix}deep", b"", metadata={"hdi_isfolder": "true"})
    place.create("deep/a", b"1")
    assert names(place) == ["deep/a"]


def test_lists_are_whole_and_in_order(place: Place) -> None:
    made = ["b", "a/2", "a/10", "a/1", "a-b", "a.b", "c/d/e/f", "\u00e9", "a b%20", "z.json"]
    for name in made:
        place.create(name, name.encode())
    assert names(place) == sorted(made)
    assert names(place, "a/") == ["a/1", "a/10", "a/2"] and names(place, "a/1") == ["a/1", "a/10"]
    assert names(place, "c/d/") == ["c/d/e/f"] and names(place, "c/d/e/f") == ["c/d/e/f"] and names(place, "x") == []
    assert names(place, suffix=".json") == ["z.json"] and names(place / "nowhere") == []
    assert [item.size for item in place.list("a/1")] == [3, 4]
    assert all(place.read(name) == name.encode() for name in made)


def test_times_are_by_the_places_clock(place: Place) -> None:
    before_s = place.now_s()
    place.create("a", b"1")
    (found,) = place.list()
    assert before_s - 1 <= found.changed_s <= place.now_s() + 1 and abs(before_s - time.time()) < 30


def test_a_read_of_one_version_meets_no_other(place: Place) -> None:
    place.create("a", b"first")
    (found,) = place.list()
    assert place.read("a", 1, 3, found.version) == b"irs"
    place.delete("a")
    place.create("a", b"second")
    with pytest.raises(Refused, match="a has changed while it was read"):
        place.read("a", 1, 3, found.version)


def test_what_is_not_there_may_be_removed(place: Place) -> None:
    place.create("a/b", b"1")
    place.create("a/c", b"1")
    for _ in range(2):
        place.delete("a/b")
    place.delete("x/y")
    assert names(place) == ["a/c"] and place.create("a/b", b"2") and place.read("a/b") == b"2"


def test_a_place_goes_to_executors_and_its_key_is_in_no_text(place: Place) -> None:
    place.create("a", b"1")
    sent: Place = pickle.loads(pickle.dumps(place.lend()))  # noqa: S301  pickled by this test, as by Spark
    assert sent.read("a") == b"1" and str(sent) == str(place)
    assert containers.EMULATOR_KEY not in repr(sent)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a\\b", "a\0b"])
def test_a_name_leads_nowhere_else(place: Place, name: str) -> None:
    asked: list[Any] = [lambda: place.create(name, b""), lambda: place.read(name), lambda: place.delete(name)]
    for ask in [*asked, lambda: place / name]:
        with pytest.raises(Refused, match="no name of a file"):
            ask()


def test_delta_rs_writes_where_a_place_is(place: Place) -> None:
    deltalake, pa = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow")
    table = place / "table"
    for number in range(3):
        deltalake.write_deltalake(
            table.uri, pa.table({"n": [number]}), mode="append", storage_options=table.storage_options()
        )
    found = deltalake.DeltaTable(table.uri, storage_options=table.storage_options())
    assert found.version() == 2 and sorted(found.to_pyarrow_table()["n"].to_pylist()) == [0, 1, 2]
    assert "_delta_log/00000000000000000002.json" in names(table)

"""A disk that is full and a folder without rights: one line that names the place, nothing that counts, and then on."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from deltalake import DeltaTable

from outbox.errors import OutboxError, OutcomeUnknown, Refused
from spark_jobs import consume, feed
from spark_jobs.common import folder as folders
from spark_jobs.common.folder import Folder
from spark_jobs.draining import durable, landing, tables
from spark_jobs.draining.landing import Incoming, Receiving
from spark_jobs.draining.leftovers import sweep
from spark_jobs.ledger import merge
from spark_jobs.reading.files import files_at
from tests.spark.ledgers import ids, land, landed, nothing_else_is_left

NOBODY = 65_534
FULL = {errno.ENOSPC: "No space left on device; make room there", errno.EDQUOT: "make room in this user's quota"}


@contextmanager
def without_rights(path: Path, mode: int) -> Iterator[None]:
    """A folder with these rights only, and nobody who passes over them."""
    before = path.stat().st_mode & 0o777
    path.chmod(mode)
    if is_root := os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(before)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that anybody may enter; pytest's own are its user's only."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_folder_whose_files_may_only_be_listed_is_refused(open_path: Path) -> None:
    (open_path / "in").mkdir()
    (open_path / "in" / "a.csv").write_text("id\na\n")
    with (
        without_rights(open_path / "in", 0o444),
        pytest.raises(Refused, match=r"reading \S+/in/a.csv: Permission denied; give this user the rights"),
    ):
        list(Folder(open_path / "in").list())


def test_a_file_in_the_place_of_a_folder_is_told_and_is_no_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(Refused, match=r"Not a directory|a folder above it is a file"):
        Folder(tmp_path / "a").create("b", b"")


@pytest.mark.parametrize("mode", [0o000, 0o111])
def test_an_input_in_a_folder_without_rights_is_refused_before_spark_starts(
    open_path: Path, mode: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "start", lambda *_: pytest.fail("Spark was started"))
    given = open_path / "in"
    given.mkdir()
    (given / "a.csv").write_text("id\na\n")
    kept = ["--progress", str(open_path / "p"), "--quarantine", str(open_path / "q")]
    command = ["--queue", "q", "--type", "T", "--connection", "Endpoint=sb://x", *kept]
    with without_rights(given, mode):
        for place in (given, given / "a.csv"):
            assert feed.main([*command, "--input", str(place)]) == 1
            told = capsys.readouterr().err
            assert re.fullmatch(r"feed: listing \S+/in: Permission denied; give this user the rights .*\n", told)
        with pytest.raises(Refused, match="rights to it and to the folders above it"):
            files_at(str(given), {})


@pytest.mark.parametrize("code", FULL)
def test_a_full_disk_leaves_nothing_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fails(path: Path, data: bytes) -> None:
        path.write_bytes(data[:1])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(folders, "write_synced", fails)
    with pytest.raises(Refused, match=f"writing {tmp_path}/a/b: .*{FULL[code]}"):
        Folder(tmp_path).create("a/b", b"12")
    assert list(Folder(tmp_path).list()) == [] and list((tmp_path / "a").iterdir()) == []


def test_a_file_whose_folder_is_not_synced_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(folders, "sync_path", fails)
    with pytest.raises(OutcomeUnknown, match=f"syncing {tmp_path}: Input/output error; mend that"):
        Folder(tmp_path).create("a", b"12")


def test_a_receiver_on_a_full_disk_says_so_and_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "write_synced", full)
    monkeypatch.setattr(landing, "as_row", lambda message: {"message_id": message})
    settings = Receiving(cast(Any, None), "q", Folder(tmp_path), (9,), 1.0, 1.0, 1.0)
    with pytest.raises(Refused, match="No space left on device; make room there and run the same again"):
        Incoming(settings, 9).land(cast("list[ServiceBusReceivedMessage]", ["a"]))


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["data", "keys", "entry", "sync", "landing"])
def test_a_merge_on_a_full_disk_is_one_line_and_the_next_adds_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    land(tmp_path, "one", "a")
    merge(tmp_path)
    land(tmp_path, "two", "a", "b", first=1)
    with monkeypatch.context() as disk:
        plant(disk, where)
        with pytest.raises(
            OutboxError, match=f"{tmp_path}.*(No space|Permission denied).* and run the same again"
        ) as told:
            merge(tmp_path)
    assert "\n" not in str(told.value)
    assert ids(tmp_path) in (["a"], ["a", "b"])
    assert merge(tmp_path).version == 2 and ids(tmp_path) == ["a", "b"] and landed(tmp_path) == []
    nothing_else_is_left(tmp_path)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Generic error\n  \x1b[31m↳\x1b[0m Unable to copy\n  \x1b[31m↳\x1b[0m No space left (os error 28)\n",
            "Generic error: No space left (os error 28)",
        ),
        ("no rights\nat frame 7", "no rights"),
        ("", "OSError"),
    ],
)
def test_what_delta_rs_draws_over_several_lines_is_one_with_the_cause(said: str, told: str) -> None:
    assert tables.in_one_line(OSError(said)) == told


def plant(disk: pytest.MonkeyPatch, where: str) -> None:
    """Let the disk be full for one kind of file, or a landing file stay."""
    write = folders.write_synced
    if where in ("data", "keys"):
        marks = {"data": ".parquet.", "keys": ".keys."}

        def written(path: Path, data: bytes) -> None:
            (full if marks[where] in path.name and "_landing" not in path.parts else write)(path, data)

        disk.setattr(folders, "write_synced", written)
    elif where == "entry":
        disk.setattr(DeltaTable, "create_write_transaction", full)
    elif where == "sync":
        disk.setattr(durable, "sync_path", full)
    else:
        unlink = Path.unlink

        def stays(path: Path, missing_ok: bool = False) -> None:
            if "_landing" in path.parts:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            unlink(path, missing_ok=missing_ok)

        disk.setattr(Path, "unlink", stays)


def test_leftovers_that_may_not_be_removed_stop_no_consume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land(tmp_path, "one", "a")
    merge(tmp_path)
    monkeypatch.setattr(folders, "older_than", full)
    said = list[str]()
    with pytest.raises(Refused, match=r"clearing .*: No space left"):
        sweep(Folder(tmp_path))
    consume.say_swept(Folder(tmp_path), said.append)
    assert len(said) == 1 and said[0].startswith("consume: leftovers of earlier runs stay: clearing ")

"""A folder as a place: what is on disk when, what killed writers leave, and paths."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from outbox.errors import Refused
from spark_jobs.common import folder as folders
from spark_jobs.common.folder import Folder, local_path, older_than


def test_a_file_is_created_once_and_leaves_nothing_beside_it(disk_path: Path) -> None:
    folder = Folder(disk_path / "deep" / "er")
    assert folder.create("a.json", b"first")
    assert not folder.create("a.json", b"second")
    assert folder.read("a.json") == b"first"
    assert [path.name for path in folder.path.iterdir()] == ["a.json"]


def test_a_file_and_then_its_name_are_on_disk_when_it_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[list[bytes], str]]()
    folder, sync = Folder(tmp_path / "a"), os.fsync

    def synced(handle: int) -> None:
        parts = [path.read_bytes() for path in folder.path.glob("**/a.json.*")]
        path = Path(f"/proc/self/fd/{handle}").readlink()
        seen.append(
            (parts, path.relative_to(tmp_path).as_posix() if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        )
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    assert folder.create("b/c/a.json", b"first")
    assert seen == [([], "."), ([], "a"), ([], "a/b"), ([b"first"], "file"), ([], "a/b/c")]
    seen.clear()
    assert folder.create("b/c/b.json", b"second") and seen == [([], "file"), ([], "a/b/c")]


def test_a_folder_that_goes_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, write, gone = Folder(tmp_path / "a"), folders.write_synced, list[Path]()

    def removed_first(path: Path, data: bytes) -> None:
        if len(gone) < 2:
            gone.append(path)
            path.parent.rmdir()
        write(path, data)

    monkeypatch.setattr(folders, "write_synced", removed_first)
    assert folder.create("b/c", b"1") and len(gone) == 2 and folder.read("b/c") == b"1"


def test_what_is_not_whole_is_not_listed_and_goes_when_it_is_old(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "b").mkdir()
    for name in (f"a.{'0' * 32}.tmp", f"b/a.{'f' * 32}.tmp", "own.tmp"):
        (tmp_path / name).write_bytes(b"1")
    assert [item.name for item in folder.list()] == ["own.tmp"]
    assert folder.sweep_parts(60.0) == 0 and folder.sweep_parts(-1.0) == 2
    assert sorted(path.name for path in tmp_path.rglob("*.tmp")) == ["own.tmp"]


def test_a_file_whose_folder_goes_each_time_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*paths: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(Refused, match="No such file or directory"):
        Folder(tmp_path).create("a", b"1")


def test_a_place_stays_when_its_last_file_goes(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a" / "b")
    folder.create("c/d", b"1")
    folder.delete("c/d")
    assert list((tmp_path / "a").rglob("*")) == [folder.path]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_told_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*paths: object) -> None:
        raise OSError(number, "no")  # FUSE mounts of containers answer that an operation is not permitted

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(Refused, match=r"takes no file or no link .*the address of a container \(abfss://"):
        Folder(tmp_path).create("a", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_be_given_as_an_address_and_what_goes_meanwhile_is_not_old(tmp_path: Path) -> None:
    assert local_path(f"file://{tmp_path}/x") == local_path(f"file:{tmp_path}/x") == tmp_path / "x"
    assert local_path("ledger") == Path.cwd() / "ledger"
    (tmp_path / "old").touch()
    assert older_than([tmp_path / "gone", tmp_path / "old"], 0.0) == [tmp_path / "old"]


def test_an_address_is_no_folder() -> None:
    with pytest.raises(Refused, match=r"abfss://\.\.\. is no folder of this machine"):
        Folder("abfss://ledger@account.dfs.core.windows.net/ledger")


def test_links_of_an_input_are_followed_and_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "a").write_bytes(b"1")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "given")
    (tmp_path / "in" / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "in" / "pipe")
    assert [item.name for item in Folder(tmp_path / "in", follow=True).list()] == ["linked/a"]
    assert list(Folder(tmp_path / "in").list()) == []  # what is listed may be swept, and that is somebody else's
    (tmp_path / "given" / "again").symlink_to(tmp_path / "given")
    with pytest.raises(Refused, match="more than 32 folders deep; is one of them linked to itself"):
        list(Folder(tmp_path / "in", follow=True).list())

"""What a killed backup or restore has left beside its target is removed by the next one; nothing else is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.disk import hold
from outbox.ops.folder.backup import back_up, restore, scratch

ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from outbox.ops.folder import backup
from outbox.ops.folder import backup_files

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

{where} = die
{call}
"""


@pytest.fixture
def folder(disk_path: Path) -> Path:
    disk_path.mkdir(exist_ok=True)
    with closing(Engine.open(disk_path / "data")) as engine:
        engine.declare(QueueSettings("orders"))
    return disk_path


def killed(where: str, call: str) -> None:
    """Have a process die in the middle of a backup or restore."""
    code = KILLED.format(where=where, call=call)
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)
    assert done.returncode == -9


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_backup_leaves_nothing_for_long(folder: Path) -> None:
    asked = f"asyncio.run(backup.back_up(Path({str(folder / 'data')!r}), Path({str(folder / 'kept.tar')!r})))"
    killed("backup.checked", asked)
    killed("backup_files._pack", asked.replace("kept", "other"))
    assert len(names(folder)) == 3 and "kept.tar" not in names(folder)
    asyncio.run(back_up(folder / "data", folder / "kept.tar"))
    assert [name for name in names(folder) if name.startswith(".kept")] == []
    assert [name for name in names(folder) if name.startswith(".other")] != []  # of another target


def test_a_killed_restore_leaves_nothing_for_long(folder: Path) -> None:
    asyncio.run(back_up(folder / "data", folder / "kept.tar"))
    killed("backup.named", f"backup.restore(Path({str(folder / 'kept.tar')!r}), Path({str(folder / 'new')!r}))")
    [left] = [name for name in names(folder) if name.startswith(".new")]
    assert names(folder / left) == ["made", "unpacked"]
    restore(folder / "kept.tar", folder / "new")
    assert names(folder) == ["data", "kept.tar", "new"]


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_was_packed_goes_with_its_folder(is_ours: bool, tmp_path: Path) -> None:
    left = tmp_path / f".kept.{os.getpid() if is_ours else ended()}.tmp"  # another process had this number before
    left.mkdir()
    (left / "backup.json").write_text("{}")
    left.with_suffix(".tar.tmp").write_bytes(b"half")
    before = len(names(Path("/dev/fd")))
    with scratch(tmp_path / "kept"):
        pass
    assert names(tmp_path) == [] and len(names(Path("/dev/fd"))) == before


def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return process.pid


def test_what_may_be_in_use_or_anothers_stays(tmp_path: Path) -> None:
    gone, alive = ended(), os.getppid()
    for name in (f".kept.{gone}.tmp", f".kept.{gone}-1.tmp", f".kept.{alive}.tmp", f".other.{gone}.tmp", ".kept.x.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / f".kept.{gone}.tmp" / "diary.txt").write_text("not ours")
    held = hold(tmp_path / f".kept.{gone}-1.tmp", os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f".kept.{gone}-2.tmp").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f".kept.{gone}-3.tmp").write_text("a file")
    before = names(tmp_path)
    try:
        with scratch(tmp_path / "kept") as root:
            assert root.is_dir()
        assert names(tmp_path) == before
    finally:
        os.close(held)
    with scratch(tmp_path / "kept"):
        pass
    assert [name for name in before if name not in names(tmp_path)] == [f".kept.{gone}-1.tmp"]


def test_a_process_of_this_number_elsewhere_keeps_its_folder(tmp_path: Path) -> None:
    with scratch(tmp_path / "kept") as first, scratch(tmp_path / "kept") as second:
        assert first != second and first.is_dir() and second.is_dir()
    assert names(tmp_path) == []

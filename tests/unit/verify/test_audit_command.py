"""`outbox run --history` and `outbox audit`: a host that is killed leaves a history that the command judges."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from function_app.bank import OpenAccount
from outbox.ops.cli.parser import main
from outbox.ops.values.messages import NewMessage
from outbox.verify.history import History, read_history
from outbox.verify.recorded.events import Cut, End, Life, Quiesce
from tools.arrows import JUDGE
from tools.demo.host import Host
from tools.demo.phases import is_idle

ROOT = Path(__file__).resolve().parents[3]


def opening(number: int) -> NewMessage:
    body = msgspec.Raw(msgspec.json.encode(OpenAccount(f"a{number}", 1)))
    return NewMessage(body=body, id=f"open-{number}", type="OpenAccount")


async def killed_twice(folder: Path) -> Path:
    """Run the sample's host, killed twice while it has work, and stop it; its history."""
    host = Host(folder / "host", 0, folder / "host.log", folder / "history.jsonl")
    await host.start()
    try:
        for life in range(3):
            await host.send("accounts", [opening(life * 200 + n) for n in range(200)])
            if life < 2:
                await host.kill()
        await host.wait(is_idle, lambda status: None, 30)
    finally:
        await host.stop()
    return host.history


@pytest.mark.slow
def test_a_killed_hosts_history_is_judged_sound(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = asyncio.run(killed_twice(disk_path))
    kinds = [type(event) for event in read_history(path)]
    assert kinds.count(Life) == 3 and kinds[-2:] == [Quiesce, End]
    assert main(["audit", str(path), "--alone", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and all(found["guarantees"].values()) and found["counts"]["applied"] == 600
    assert found["counts"]["unrecorded"] == 0


def test_a_broken_promise_is_exit_code_1_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.life()
        history.append(Cut(at_ms=1, why="the disk is full"))
    assert main(["audit", str(path)]) == 1
    reported = capsys.readouterr()
    assert "BROKEN at line 2" in reported.out and "does not hold" in reported.err


def test_a_history_that_ends_too_early_is_not_decided_and_the_cure_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.life()
    assert main(["audit", str(path)]) == 1
    reported = capsys.readouterr()
    assert "not decided at line 2" in reported.out and "BROKEN" not in reported.out
    assert "start the host again with the same --history" in reported.err


@pytest.mark.parametrize("text", ["", "import outbox\n\nnothing = 1\n"], ids=["empty", "a program"])
def test_a_file_that_is_no_history_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shop.py"
    path.write_text(text)
    for given, why in ((path, "is no history"), (tmp_path, "is a folder")):
        assert main(["audit", str(given)]) == 1
        reported = capsys.readouterr()
        assert why in reported.err and "outbox run APP" in reported.err and not reported.out


def test_a_history_that_is_not_there_is_refused_with_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path / "none.jsonl")]) == 1
    assert "--history" in capsys.readouterr().err


def test_a_damaged_history_is_refused_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"event":"life"}\nnonsense\n{"event":"ok","op":1}\n')
    assert main(["audit", str(path)]) == 1
    assert "line 2" in capsys.readouterr().err


def test_the_judge_needs_nothing_but_messages(tmp_path: Path) -> None:
    """So that a Spark job can ship it: these files alone, and msgspec, judge a history."""
    for name in ("message", "errors", *(module.replace(".", "/") for module in JUDGE)):
        file = tmp_path / "outbox" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_bytes((ROOT / "outbox" / f"{name}.py").read_bytes())
    names = "from outbox.verify import guarantees; from outbox.verify.recorded import definitions"
    code = f"{names}; print(guarantees.__file__, guarantees.check([]).ok)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == [str(tmp_path / "outbox/verify/guarantees.py"), "False"]

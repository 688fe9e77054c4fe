"""Completion scripts know every command and option that the parser knows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outbox.ops.cli.parser import COMMANDS, main

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_its_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert {word for name in COMMANDS for word in name.split() if word not in text} == set()
    words = ("accept-clock", "servicebus", "dry-run", "history")
    assert all(word in text for word in words)
    assert "AccountKey" not in text


def test_bash_completes_commands_verbs_options_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    (tmp_path / "outbox.bash").write_text(script("bash", capsys))
    (tmp_path / "a folder").mkdir()

    def completed(*words: str) -> set[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        function = "$(complete -p outbox | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
        line = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; {function}"
        run = f"source outbox.bash; {line}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "-c", run], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True)
        return {line.strip() for line in done.stdout.splitlines()}

    assert {"status", "dead-letters", "blocked", "completion"} <= completed("outbox", "")
    assert completed("outbox", "dead-letters", "re") == {"resubmit", "restore"}
    assert {"--rate", "--all", "--data"} <= completed("outbox", "dead-letters", "resubmit", "--")
    assert completed("outbox", "completion", "") >= set(SHELLS)
    assert completed("outbox", "blocked", "unblock", "q", "k", "--by", "") >= {"discard", "resubmit"}


def test_what_writes_the_scripts_is_optional(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads(_json(capsys))["shell"] == "fish"
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install outbox-azure[completion]" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])


def _json(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "fish", "--json"]) == 0
    return capsys.readouterr().out

"""A documentation page typed into one terminal, in an empty folder, as a newcomer does.

    ```python     whose first line is `# name.py`: saved under that name
    ```console    lines behind "$ " go to one shell, one after the other; below them what it then prints

Unlike `blocks`, nothing is imported here, the shell knows no more than the commands of this environment, and a process
left in the background with `&` is the shell's own, to be ended with `kill`.  Output is compared as
soon as it is there: "..." stands for anything.  Whatever the shell has started is ended with it.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import commands

WITHIN_S, LOOK_S = 60.0, 20.0
OUTPUT_LENGTH_MAX = 1_000_000
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"# (\w+\.py)\n")
_END = "--- end of command, exit code "
_ENDED = re.compile(re.escape(_END) + r"(\d+)\n")
_BACKGROUND = re.compile(r" &( |$)")


def type_in(page: Path, folder: Path) -> int:
    """Type a page into a terminal; how many blocks there were.

    Raises:
        AssertionError: a command failed, or printed something else.
    """
    found = _BLOCK.findall(page.read_text())
    with terminal(folder) as shell:
        for kind, text in found:
            if kind == "python":
                name = _FILE_NAME.match(text)
                assert name is not None, f"{page.name}: where does this go?  begin it with `# name.py`:\n{text}"
                (folder / name[1]).write_text(text)
            else:
                for command, expected in commands(text):
                    shell.say(command, expected)
    return len(found)


@contextmanager
def terminal(folder: Path) -> Iterator[Shell]:
    """A shell in a folder, with the commands of this environment; at the end nothing of it is left."""
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile"],
        cwd=folder,
        env={
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONWARNINGS": "error::DeprecationWarning",  # a newcomer must not meet any
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield Shell(shell)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


@dataclass
class Shell:
    """A shell that is told one command at a time."""

    process: subprocess.Popen[bytes]

    def say(self, command: str, expected: str) -> None:
        """Run a command; it must succeed, and print what is expected, at once or from the background.

        One that begins by sleeping looks at what others are at work on: it may look again, on a slow machine.
        """
        pattern = re.compile(".*".join(map(re.escape, expected.split("..."))) if expected else ".*", re.DOTALL)
        deadline_s = time.monotonic() + WITHIN_S
        look_until_s = time.monotonic() + LOOK_S
        said = self._answer(command, deadline_s)
        while not pattern.fullmatch(_ENDED.sub("", said).strip()):
            if _BACKGROUND.search(command):
                said += self._piece(deadline_s, command, said)
            else:
                looks = command.startswith("sleep ") and time.monotonic() < look_until_s
                assert looks, f"$ {command}\n{said}\nthe page says:\n{expected}"
                said = self._answer(command, deadline_s)

    def _answer(self, command: str, deadline_s: float) -> str:
        """What is printed until a command ends, or goes to the background."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{{ {command}\n}} </dev/null; echo '{_END}'$?\n".encode())
        self.process.stdin.flush()
        said = ""
        while (ended := _ENDED.search(said)) is None:
            said += self._piece(deadline_s, command, said)
        assert ended[1] == "0", f"$ {command}: exit code {ended[1]}\n{said}"
        return said

    def _piece(self, deadline_s: float, command: str, said: str) -> str:
        """What is printed next."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            is_there = selector.select(max(deadline_s - time.monotonic(), 0))
        piece = os.read(self.process.stdout.fileno(), 65_536) if is_there and len(said) < OUTPUT_LENGTH_MAX else b""
        assert piece, f"$ {command}: no more than this within {WITHIN_S:.0f} s\n{said}"
        return piece.decode(errors="replace")

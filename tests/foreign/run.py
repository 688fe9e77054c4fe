"""Microsoft's own tests of its SDKs against our emulators.

    python -m tests.foreign.run [--suite azure-cosmos]... [--only test_crud.py]... [--archive FILE] [--index URL]
                                [--at-once 2] [--output FOLDER]

Fetches the source distribution of each installed SDK, and runs the files of its tests, each in a process of its own
against an emulator of its own.  What is not as the suite says (`azure_cosmos.py` and the files of its kind) is
printed, and then the exit code is 1.  A run of all files of a suite publishes its table; one with --only does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path

from tests.foreign import azure_cosmos, azure_servicebus, azure_storage_blob, outcomes, pages
from tests.foreign.archive import INDEX, ArchiveRefused, unpacked
from tests.foreign.suites import Suite

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "foreign"
INSIDE = Path(__file__).resolve().parent / "inside"
SUITES = {suite.package: suite for suite in (azure_cosmos.SUITE, azure_storage_blob.SUITE, azure_servicebus.SUITE)}
START_S_MAX = 30.0
STOP_S_MAX = 10.0
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
"""Of the environment; the tests read accounts and switches from the rest."""
BUG = b"this is a bug, please report it"
"""What the emulator logs where it answers 500."""


class EmulatorFailed(Exception):
    """Our emulator did not start; the text is what it printed."""


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        surprising = [run(SUITES[name], options) for name in options.suite or SUITES]
    except ArchiveRefused as failure:
        print(f"foreign: {failure}", file=sys.stderr)
        return 1
    return 1 if any(surprising) else 0


def run(suite: Suite, options: argparse.Namespace) -> list[str]:
    """Run one suite and publish its table; what was not as the suite says.

    Raises:
        ArchiveRefused: its tests cannot be had, or a file that is asked for is not among them.
    """
    sdk = version(suite.package)
    tests = unpacked(suite.package, sdk, BUILD, options.index, options.archive) / "tests"
    files = chosen(suite, tests, options.only)
    found = asyncio.run(all_of(suite, files, tests, options.at_once))
    surprising = outcomes.surprises(found, suite)
    print(pages.summary(found, suite))
    for line in surprising or [f"what did not pass stands in tests/foreign/{suite.folder}.py"]:
        print(f"foreign: {line}")
    if not options.only and not surprising:
        pages.publish(found, suite, sdk, options.output)
        print(f"foreign: published in {options.output}")
    return surprising


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.foreign.run")
    parser.add_argument("--suite", action="append", choices=SUITES, help="run this one; may be repeated (all)")
    parser.add_argument("--only", action="append", metavar="FILE", help="run this file of theirs; may be repeated")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="the source distribution, where it is at hand")
    parser.add_argument("--index", default=INDEX, metavar="URL", help="the package index (%(default)s)")
    parser.add_argument("--at-once", type=int, default=2, metavar="COUNT", help="processes at a time (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "foreign", metavar="FOLDER")
    options = parser.parse_args(arguments)
    if (options.only or options.archive) and len(options.suite or ()) != 1:
        parser.error("--only and --archive are of one suite: name it with --suite")
    return options


def chosen(suite: Suite, tests: Path, only: list[str] | None) -> list[str]:
    """The files to run, relative to the folder of their tests.

    Raises:
        ArchiveRefused: one that is asked for is not among them.
    """
    files = [str(path.relative_to(tests)) for path in sorted(tests.rglob("test_*.py"))]
    for name in only or ():
        if name not in files:
            raise ArchiveRefused(f"{name} is no file of theirs; see {tests}")
    return only or [file for file in files if is_marked(suite, tests / file) and not suite.is_left_out(file)]


def is_marked(suite: Suite, path: Path) -> bool:
    """Whether tests of a file have the suite's mark; one that is asked for by name and has none runs whole."""
    return f"mark.{suite.mark}" in path.read_text() if suite.mark else True


async def all_of(suite: Suite, files: list[str], tests: Path, at_once: int) -> list[outcomes.FileOutcome]:
    """Run files, so many at once, and once more what was not as expected; a line is printed as each ends."""
    places = asyncio.Semaphore(at_once)

    async def placed(file: str) -> outcomes.FileOutcome:
        async with places:
            found = await one(suite, file, tests)
            if surprising := outcomes.surprises([found], suite):
                found = outcomes.better(found, await one(suite, file, tests))  # some race with threads of the client
                found.first_attempt = surprising
        print(pages.line(found), flush=True)
        return found

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(placed(file)) for file in files]
    return [task.result() for task in tasks]


async def one(suite: Suite, file: str, tests: Path) -> outcomes.FileOutcome:
    """Run one file against an emulator that nothing else uses; what both printed is kept in the build folder."""
    started = time.monotonic()
    printed = BUILD / "printed" / suite.package / f"{file.replace('/', '-')}.txt"
    printed.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="foreign-") as folder:
        log = Path(folder) / "outcomes"
        try:
            async with emulator(suite, said := printed.with_suffix(".emulator.txt")) as its:
                await pytest_on(suite, file, tests, printed, environment(suite, its, tests, log))
        except EmulatorFailed as failure:
            return outcomes.FileOutcome(file, error=str(failure))
        lines = log.read_text().splitlines() if log.exists() else []
    found = outcomes.read(file, lines, time.monotonic() - started)
    if not lines:
        found.error = f"its process wrote down nothing; see {printed}"
    elif BUG in said.read_bytes():
        found.error = f"the emulator failed on a request; see {said}"
    return found


def environment(suite: Suite, its: dict[str, str], tests: Path, log: Path) -> dict[str, str]:
    """The environment of a process of theirs: our stand-ins come before their own modules."""
    return (
        {name: os.environ[name] for name in KEPT if name in os.environ}
        | its
        | {
            "OUTCOME_LOG": str(log),
            "PYTHONPATH": os.pathsep.join([str(INSIDE), str(INSIDE / suite.folder), str(tests)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    )


async def pytest_on(suite: Suite, file: str, tests: Path, printed: Path, environment: dict[str, str]) -> None:
    """Run pytest on one file, for as long as a file may take."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tests)]
    command += ["-p", "outcome_log", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    command += ["-m", suite.mark] if suite.mark and is_marked(suite, tests / file) else []
    command += [f"--timeout={suite.test_s_max}", "--disable-warnings", *suite.pytest, file]
    with printed.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tests, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out
        )
        try:
            async with asyncio.timeout(suite.file_s_max):
                await process.wait()
        except TimeoutError:
            pass  # what did not run has no answer
        finally:
            await ended(process)


@contextlib.asynccontextmanager
async def emulator(suite: Suite, printed: Path) -> AsyncIterator[dict[str, str]]:
    """An emulator in a process of its own, on any free port of loopback and in memory; the environment that says where.

    It logs to `printed`.

    Raises:
        EmulatorFailed: it did not say where it is.
    """
    command = [sys.executable, "-m", "outbox", "emulator", *suite.ports]
    with printed.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None, "it was asked for"
        said = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S_MAX):
                said = await process.stdout.readline()
        match = suite.endpoint.match(said.decode(errors="replace"))
        if match is None:
            raise EmulatorFailed(f"the emulator printed {said[:200]!r} instead of its connection string")
        yield suite.environment(match)
    finally:
        await ended(process)


async def ended(process: asyncio.subprocess.Process) -> None:
    """End a process, by force if it must be."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    sys.exit(main())

"""Runs on this machine: a process for each, one for a run, and still known when its submitter is gone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbox.errors import Refused, Throttled
from outbox.spark import RunId, RunRequest
from spark_jobs import package, submit
from spark_jobs.common import java
from spark_jobs.submitting import local
from spark_jobs.submitting.local import LocalBatches, LocalSettings
from spark_jobs.submitting.settings import SparkSettings, runs_over

ROOT = Path(__file__).resolve().parent.parent.parent
RUN, REQUEST = RunId("nightly-1"), RunRequest("feed", ("--input", "a b.csv"))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Something to start in place of spark-submit: it says what it was given, and stays until a file is there."""
    path = tmp_path / "spark-submit"
    path.write_text(
        "#!/bin/sh\n"
        f"trap \"echo ended > '{tmp_path}/ended'; exit 0\" TERM\n"
        f'for word in "$@"; do echo "$word"; done >> \'{tmp_path}/given\'\n'
        f"echo started >> '{tmp_path}/starts'\n"
        f"while [ ! -e '{tmp_path}/go' ]; do sleep 0.02; done\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def batches(program: Path, tmp_path: Path) -> Callable[[], LocalBatches]:
    settings = LocalSettings(
        folder=str(tmp_path / "batches"),
        environ={"PATH": os.environ["PATH"], "JAVA_HOME": os.environ.get("JAVA_HOME", "")},
        arguments=("--runs", "somewhere"),
        spark_submit=str(program),
    )
    return lambda: LocalBatches(settings)


def test_a_run_is_started_as_the_settings_say(tmp_path: Path) -> None:
    chosen = {"OUTBOX_SPARK_MASTER": "local[7]", "OUTBOX_SPARK_PY_FILES": "a.zip,b.zip", "OUTBOX_SPARK_FILE": "main.py"}
    runs: Any = runs_over(SparkSettings.of({**chosen, "OUTBOX_SPARK_RUNS": str(tmp_path)}), {})
    assert runs._batches._command(RUN, REQUEST)[1:] == [
        "--master", "local[7]", "--py-files", "a.zip,b.zip", "main.py", "--run", RUN, "--runs", str(tmp_path),
        "feed", "--input", "a b.csv",
    ]  # fmt: skip


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.02)


async def test_a_run_has_one_process_however_often_it_is_started(
    batches: Callable[[], LocalBatches], tmp_path: Path
) -> None:
    made = await asyncio.gather(*(batches().create(RUN, REQUEST, within_s=1) for _ in range(5)))
    await until((tmp_path / "starts").exists)
    assert {batch.id for batch in made} == {RUN}
    assert [batch.phase for batch in await batches().find(RUN)] == ["running"]  # another submitter sees it
    (tmp_path / "go").touch()
    await until(lambda: not LocalBatches._is_running(batches(), RUN))
    assert (tmp_path / "starts").read_text() == "started\n"
    given = (tmp_path / "given").read_text().splitlines()
    assert given[-7:] == ["--run", RUN, "--runs", "somewhere", "feed", "--input", "a b.csv"]


async def test_a_process_that_ended_without_a_result_has_failed(
    batches: Callable[[], LocalBatches], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    await batches().create(RUN, REQUEST, within_s=1)
    await until(lambda: not LocalBatches._is_running(batches(), RUN))
    found = await batches().get(RUN)
    assert found is not None and found.phase == "failed" and "log" in found.detail
    assert await batches().get("other") is None and await batches().find(RUN) == []


async def test_cancel_ends_the_process_and_its_children(
    batches: Callable[[], LocalBatches], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await batches().create(RUN, REQUEST, within_s=1)
    await until((tmp_path / "starts").exists)
    await batches().cancel(RUN)
    await until(lambda: not LocalBatches._is_running(batches(), RUN))
    assert (tmp_path / "ended").exists()  # it could tidy up
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: signalled.append(group))
    await batches().cancel(RUN)
    assert not signalled  # its number may be somebody else's now


async def test_who_looks_at_a_run_does_not_pass_for_its_process(
    batches: Callable[[], LocalBatches], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "go").touch()
    folder, take = _folder(tmp_path / "batches"), fcntl.flock
    with (folder / f"{RUN}.lock").open("ab") as look:
        take(look, fcntl.LOCK_SH)
        assert await batches().find(RUN) == []

        def met(lock: Any, how: int) -> None:
            try:
                take(lock, how)
            except BlockingIOError:
                look.close()  # the look was over right then
                raise

        monkeypatch.setattr(fcntl, "flock", met)
        assert (await batches().create(RUN, REQUEST, within_s=1)).phase == "submitted"


async def test_so_many_runs_are_at_work_and_one_that_ended_makes_room(
    batches: Callable[[], LocalBatches], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RUNNING_COUNT_MAX", 1)
    one = batches()
    await one.create(RUN, REQUEST, within_s=1)
    with pytest.raises(Throttled, match="1 runs are at work"):
        await one.create(RunId("other"), REQUEST, within_s=1)
    (tmp_path / "go").touch()
    await until(lambda: not one._is_running(RUN))
    await until(lambda: all(child.poll() is not None for child in one._children))
    assert (await one.create(RunId("other"), REQUEST, within_s=1)).phase == "submitted"


async def test_a_missing_program_is_a_refusal(tmp_path: Path) -> None:
    settings = LocalSettings(folder=str(tmp_path), environ=dict(os.environ), spark_submit=str(tmp_path / "none"))
    (tmp_path / f"{RUN}.pid").write_text("1")
    with pytest.raises(Refused, match="cannot be started"):
        await LocalBatches(settings).create(RUN, REQUEST, within_s=1)
    assert await LocalBatches(settings).find(RUN) == []
    assert not (tmp_path / f"{RUN}.pid").exists()  # of an earlier process: it is nobody's to signal


def test_an_environment_with_secrets_is_not_shown(tmp_path: Path) -> None:
    assert "k3y" not in repr(LocalSettings(folder=".", environ={"OUTBOX_COSMOS": "AccountKey=k3y"}))


# The package


def test_the_package_is_the_same_for_the_same_source_and_holds_what_jobs_import(tmp_path: Path) -> None:
    first, second = (package.make_zip(_folder(tmp_path / name)) for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    assert {
        "outbox/__init__.py",
        "spark_jobs/feed.py",
        "spark_jobs/submitted.py",
        "spark_jobs/log4j2.properties",
    } <= names
    assert not any(name.startswith(package.LEFT_OUT) or "__pycache__" in name for name in names)


def test_the_wheel_is_built_beside_it(tmp_path: Path) -> None:
    assert package.main(["--output", str(tmp_path)]) == 0
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".py", ".txt", ".whl", ".zip"]


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture
def bare_python(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A Python that has the installed packages, but not this project: its install is by a .pth file."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    found = [packages]
    if sys.version_info >= (3, 12):  # PySpark 3.5 imports distutils, which setuptools brings by a .pth file as well
        (tmp_path / "brought").mkdir()
        (tmp_path / "brought" / "distutils").symlink_to(Path(packages) / "setuptools" / "_distutils")
        found.append(str(tmp_path / "brought"))
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(found),
        "PYSPARK_PYTHON": str(program),
        "PYSPARK_DRIVER_PYTHON": str(program),
    }
    for code, expected in (("import pyspark, azure.servicebus", 0), ("import outbox", 1), ("import spark_jobs", 1)):
        done = subprocess.run([str(program), "-c", code], env=environ, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == expected, code
    return str(program), environ


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_is_submitted_locally_from_exactly_the_package(
    mortal_broker: Any,
    bare_python: tuple[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = _folder(tmp_path / "jobs")
    package.package(jobs, wheel=False)
    (tmp_path / "transfers.csv").write_text("id,amount\nt1,5\nt2,6\n")
    java.prepare(os.environ)
    chosen = {
        **bare_python[1],
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "OUTBOX_SERVICEBUS": mortal_broker.connection,
        "OUTBOX_SPARK_FILE": str(jobs / "submitted.py"),
        "OUTBOX_SPARK_PY_FILES": str(jobs / package.ZIP_NAME),
        "OUTBOX_SPARK_RUNS": str(tmp_path / "runs"),
    }
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    words = ["feed", "--target", "local", "--run", RUN, "--wait", "200", "--json", "--"]
    feed = ["--input", str(tmp_path / "transfers.csv"), "--queue", "transfers", "--type", "Transfer"]
    assert submit.main([*words, *feed]) == 0, _log(tmp_path) + capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["phase"] == "succeeded"
    began_s = time.monotonic()
    assert submit.main([*words, *feed]) == 0  # the same run again is told, and not run
    assert time.monotonic() - began_s < 3
    assert submit.main(["status", RUN]) == 0
    assert sorted(message.message_id for message in mortal_broker.take("transfers")) == ["t1", "t2"]
    assert len(re.findall("^accepted ", _log(tmp_path), re.MULTILINE)) == 1


def _log(folder: Path) -> str:
    return (folder / "runs" / "batches" / f"{RUN}.log").read_text()

"""A Spark job without the packages that it needs says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = ["feed", "consume", "reconcile", "sweep"]


def run_without(module: str, job: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m spark_jobs.JOB --help` where a module cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    return subprocess.run(
        [sys.executable, "-m", f"spark_jobs.{job}", "--help"],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("job", JOBS)
def test_a_job_without_pyspark_names_the_extra(job: str, tmp_path: Path) -> None:
    done = run_without("pyspark", job, tmp_path)
    cure = "pyspark is not installed; pip install 'outbox-azure[spark]' brings what Spark jobs need"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{job}: {cure}\n")


def test_a_job_without_the_sdk_names_the_extra_too(tmp_path: Path) -> None:
    done = run_without("azure.servicebus", "feed", tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("feed: azure-servicebus is not installed; pip install")


@pytest.mark.parametrize("job", ["submit", "submitted"])
def test_a_job_that_needs_no_spark_itself_runs_without(job: str, tmp_path: Path) -> None:
    assert run_without("pyspark", job, tmp_path).returncode == 0

"""The three jobs as a user types them: with `python -m`, and with spark-submit from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.common import java
from spark_jobs.package import make_zip
from tests.commands import ran

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


def run(command: list[str], cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return ran(command, cwd, env={**os.environ, **environ}, within_s=200)


@pytest.mark.soak  # the demo, which is part of every run, runs them so too
def test_feed_consume_and_reconcile_run_as_typed(mortal_broker: Any, tmp_path: Path) -> None:
    path = tmp_path / "transfers.csv"
    path.write_text("id,source,target,amount\n" + "".join(f"t{n},a{n % 7},b,{n}\n" for n in range(1, 301)) + ",x,y,1\n")
    command = [sys.executable, "-m"]
    to = ["--queue", "transfers", "--type", "Transfer", "--id", "id", "--connection", mortal_broker.connection]
    fed = run([*command, "spark_jobs.feed", "--input", str(path), *to], ROOT)
    assert fed.returncode == 0 and "missing-id" in fed.stdout, fed.stdout + fed.stderr
    ledger = str(tmp_path / "ledger")
    drain = ["--queue", "transfers", "--output", ledger, "--idle-s", "2"]
    drained = run([*command, "spark_jobs.consume", *drain], ROOT, OUTBOX_SERVICEBUS=mortal_broker.connection)
    assert drained.returncode == 0 and "300" in drained.stdout, drained.stdout + drained.stderr
    found = run([*command, "spark_jobs.reconcile", "--input", str(path), "--ledger", ledger], ROOT)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "300 inputs (0 set aside), 300 rows in the ledger" in found.stdout  # the row without an id is no input


@pytest.mark.soak  # of every run is the same with the whole package (test_submit_local.py)
def test_a_job_runs_under_spark_submit_from_a_zip(mortal_broker: Any, tmp_path: Path) -> None:
    jobs = make_zip(tmp_path)
    main = tmp_path / "main.py"  # away from its package, as a cluster stores it
    main.write_text((ROOT / "spark_jobs" / "feed.py").read_text())
    path = tmp_path / "transfers.csv"
    path.write_text("id,amount\nt1,5\nt2,6\n")
    java.prepare(os.environ)
    spark_submit = [str(Path(sys.executable).parent / "spark-submit")]
    found = run(
        [*spark_submit, "--master", "local[2]", "--py-files", str(jobs), str(main), "--input",
         str(path), "--queue", "transfers", "--type", "Transfer"],
        tmp_path,
        OUTBOX_SERVICEBUS=mortal_broker.connection,
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert sorted(message.message_id for message in mortal_broker.take("transfers")) == ["t1", "t2"]

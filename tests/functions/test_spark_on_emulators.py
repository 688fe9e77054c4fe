"""A Spark job that an HTTP request starts: from the request to the queue, through a host that is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.common import java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


async def test_a_request_whose_host_is_killed_runs_its_job_once(cloud: Any, tmp_path: Path) -> None:
    java.prepare(os.environ)
    rows = tmp_path / "rows.csv"
    rows.write_text("transfer,account,kind,amount\n" + "".join(f"s{n},alice,note,{n}\n" for n in range(20)))
    cloud.environment |= {"OUTBOX_SPARK": "local", "OUTBOX_SPARK_RUNS": str(tmp_path / "runs")}
    arguments = ["--input", str(rows), "--queue", "ledger", "--type", "Posting", "--id", "transfer"]
    asked = ("POST", "/spark/feed", {"arguments": arguments})
    first = await cloud.host()
    status, started = await first.ask(*asked, key="k1")
    assert status == 202
    await first.kill()
    second = await cloud.host()
    assert await second.ask(*asked, key="k1") == (202, started)

    async def is_over() -> bool:
        reported = (await second.ask("GET", f"/spark/runs/{started['run']}"))[1]
        assert not isinstance(reported, dict) or reported.get("phase") != "failed", reported
        return isinstance(reported, dict) and reported.get("phase") == "succeeded"

    await cloud.wait_until(is_over, within_s=200.0)
    assert len(cloud.postings()) == 20
    [log] = (tmp_path / "runs" / "batches").glob("*.log")
    assert log.read_text().count("\nmessages ") == 1
    [document] = (tmp_path / "runs").glob("*.json")
    assert json.loads(document.read_text())["claim_count"] <= 2

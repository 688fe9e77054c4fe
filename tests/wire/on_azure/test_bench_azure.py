"""The benchmark of the Azure adapters measures what it says: small, so that it stays so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.benchmarks import bench_azure

CALLS = {"read", "create", "replace", "batch", "send", "send of 64", "receive"}


def test_requests_a_message_are_those_of_the_protocol() -> None:
    cold, warm, w1, few = asyncio.run(bench_azure.asked(150))
    assert cold["calls_per_message"] == {**EACH, "read": 1, "receive": cold["calls_per_message"]["receive"]}
    assert warm["calls_per_message"] == {**EACH, "receive": warm["calls_per_message"]["receive"]}
    assert (cold["warm_share"], warm["warm_share"], w1["messages_per_commit"]) == (0, 1, 1)
    assert few["messages_per_commit"] > 1 and few["requests_per_message"] < warm["requests_per_message"]


EACH = {"commit": 1, "complete": 1, "mark": 1, "send": 1}


@pytest.mark.slow
def test_a_run_publishes_every_call_beside_the_bare_sdks(tmp_path: Path) -> None:
    text = bench_azure.publish(1, 20, tmp_path, pair_count=4)
    rows = [row for row in json.loads((tmp_path / "azure.json").read_text()) if "call" in row]
    assert {row["call"] for row in rows} == CALLS and all(0 < row["ratio"]["median"] < 10 for row in rows)
    assert all(call in text for call in CALLS)

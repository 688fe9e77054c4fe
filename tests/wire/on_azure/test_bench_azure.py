"""The benchmark of the Azure adapters measures what it says: small, so that it stays so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_azure
from outbox.runtime import shell as signs
from outbox_bench import bench_latency, latency

CALLS = {"read", "create", "replace", "batch", "send", "send of 64", "receive"}


@pytest.fixture(autouse=True)
def no_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sign of life, of which there is one a minute, falls into what is counted."""
    monkeypatch.setattr(signs, "SIGN_AFTER_S", 3_600.0)
    monkeypatch.setattr(signs, "SIGN_EVERY_S", 7_200.0)


def test_requests_a_message_are_those_of_the_protocol() -> None:
    cold, existing, warm, w1, few, *of_ledger = asyncio.run(bench_azure.asked(150))
    for row in (cold, existing):
        assert row["calls_per_message"] == {**EACH, "read": 1, "receive": row["calls_per_message"]["receive"]}
    # read 1, record 5 and its one index term 0.2, state 5 or in its place 10, mark 10 and the term again
    assert [row["ru_per_message"] for row in (cold, existing, warm)] == [21.4, 26.4, 25.4]
    assert {**warm["calls_per_message"], "receive": 0} == {"commit": 1, "complete": 1, "send": 1, "receive": 0}
    # without a mark, but with an index term for the record's place; a ledger is written once for a hundred messages
    assert [round(row["requests_per_message"]) for row in of_ledger] == [2, 2, 1]
    assert all(row["ru_per_message"] <= most for row, most in zip(of_ledger, (12, 17, 16), strict=True))
    assert (cold["warm_share"], warm["warm_share"], w1["messages_per_commit"]) == (0, 1, 1)
    assert few["messages_per_commit"] > 1 and few["requests_per_message"] < warm["requests_per_message"]


EACH = {"commit": 1, "complete": 1, "mark": 1, "send": 1}


@pytest.mark.slow
@pytest.mark.soak  # as `make bench`, smaller
def test_a_run_publishes_every_call_beside_the_bare_sdks(tmp_path: Path) -> None:
    text = bench_azure.publish(1, 20, tmp_path, pair_count=4)
    rows = [row for row in json.loads((tmp_path / "azure.json").read_text()) if "call" in row]
    assert {row["call"] for row in rows} == CALLS and all(0 < row["ratio"]["median"] < 10 for row in rows)
    assert all(call in text for call in CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param("worker", marks=pytest.mark.soak), "functions"])
def test_a_run_far_away_publishes_both_sides(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = bench_latency.Cell("warm", 10.0, 16, settle_ms=(5.0, 20.0), path=path)
    monkeypatch.setattr(bench_latency, "cells", lambda full: [cell])
    monkeypatch.setattr(bench_latency.Cell, "message_count", 40)
    text = bench_latency.publish(1, tmp_path)
    (row,) = json.loads((tmp_path / "azure-latency.json").read_text())
    assert (row["path"], row["rtt_ms"]) == (path, 10) and 0 < row[
        "messages_per_s"
    ] < 16 / 0.03  # a batch, a send and a settlement
    assert (row["requests"], row["bare_requests"]) == (1, 1)
    assert row["cpu_ms"] > 0 and row["bare_cpu_ms"] > 0 and "uneven" in text


async def test_every_byte_takes_a_round_trip_there_and_back() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = latency.Proxy(server.sockets[0].getsockname()[1], 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.open())
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    sent = bytes(range(256)) * 1_000
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    assert loop.time() - begun_s >= 0.2
    writer.close()
    await proxy.close()
    server.close()


def test_confirmations_of_settlements_are_told_from_those_of_sends() -> None:
    def disposition(*, sender: bool, short: bool) -> bytes:
        role = b"\x42" if sender else b"\x41"
        items = role + b"\x43\x40\x41"
        body = b"\x00\x53\x15" + (
            b"\xc0" + bytes([len(items) + 1, 4]) if short else b"\xd0" + (len(items) + 4).to_bytes(4) + (4).to_bytes(4)
        )
        return (8 + len(body + items)).to_bytes(4) + b"\x02\x00\x00\x01" + body + items

    for short in (True, False):
        assert latency.confirms_settlement(disposition(sender=True, short=short))
        assert not latency.confirms_settlement(disposition(sender=False, short=short))
    assert not latency.confirms_settlement(b"AMQP\x00\x01\x00\x00")
    assert not latency.confirms_settlement(b"\x00\x00\x00\x08\x02\x00\x00\x00")

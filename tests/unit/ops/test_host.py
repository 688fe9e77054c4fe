"""What a host says when it opens its log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.closed import CLOSED_NAME
from outbox.errors import CorruptRecord, Refused
from outbox.message import Message
from outbox.ops.host.host import HostSettings, _watch, open_engine
from outbox.testing import START_S, VirtualClock

TAIL = b"torn"


async def opened(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="outbox.host"):
        (await open_engine(HostSettings(folder))).close()
    return caplog.messages[-1]


def tear(folder: Path) -> None:
    """Leave the start of a record behind the last one, as a killed process may."""
    (folder / CLOSED_NAME).unlink()
    newest = max(folder.glob("*.log"))
    newest.write_bytes(newest.read_bytes().rstrip(b"\0") + TAIL)


async def test_a_host_says_how_many_bytes_it_cut_where_there_were_any(
    disk_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Engine.open(disk_path).close()
    assert await opened(disk_path, caplog) == f"{disk_path}: opened"
    tear(disk_path)
    assert await opened(disk_path, caplog) == f"{disk_path}: opened, cut {len(TAIL)} bytes of unsynced tail"


def test_a_host_begins_a_new_log_only_where_the_old_one_is_gone(disk_path: Path) -> None:
    Engine.open(disk_path).close()
    with pytest.raises(Refused, match="holds a log"):
        asyncio.run(open_engine(HostSettings(disk_path, new=True)))
    for path in disk_path.glob("*.log"):
        path.unlink()
    with pytest.raises(CorruptRecord, match="start once with --new"):
        asyncio.run(open_engine(HostSettings(disk_path)))
    asyncio.run(open_engine(HostSettings(disk_path, new=True))).close()
    assert [path.name for path in disk_path.glob("closed.before-*")]


async def test_a_host_logs_what_its_engine_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    engine.declare(QueueSettings("q", lock_s=5, max_delivery_count=1))
    stopped = _watch(engine)
    engine.broker.send(
        "q", [Message(body=b"m", outbox_id="dies\nhere"), Message(body=b"m", outbox_id="old", time_to_live_ms=9_000)]
    )
    engine.broker.claim("q", 1)
    clock.seconds += 6
    engine.tick()
    clock.seconds += 6
    engine.tick()
    found = [(line.levelname, line.__dict__["id"], line.__dict__["reason"]) for line in caplog.records]
    assert found == [
        ("ERROR", "dies\\nhere", "MaxDeliveryCountExceeded"),
        ("ERROR", "old", "TTLExpiredException"),
    ]
    stopped.cancel()

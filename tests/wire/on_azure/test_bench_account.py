"""An account of one's own is measured within its limit, and everything that was made for it is deleted again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox import Engine
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import FaultRule
from outbox.emulator.servicebus import ServiceBusServer
from outbox.errors import Refused
from outbox.ops.cli.parser import main
from outbox_bench import account as bench_account
from outbox_bench.bench_latency import Cell, Row

pytestmark = pytest.mark.timeout(60)


class Ground:
    """Emulators in place of an account and a namespace."""

    def __init__(self, cosmos: CosmosEmulator, bus: ServiceBusServer) -> None:
        self.cosmos = cosmos
        self.bus = bus

    async def rows(self, *, message_count: int = 4, ru_max: float = 1e9) -> list[Row]:
        return await bench_account.measured(
            self.cosmos.connection.connection_string,
            self.bus.connection_string,
            message_count=message_count,
            ru_max=ru_max,
        )

    def queues(self) -> list[str]:
        return [name for name in self.bus.engine.topology.queues if name.startswith("outbox-bench-")]

    def deleted_databases(self) -> int:
        return self.cosmos.usage()["database.delete"].count


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    async with (
        Engine.in_memory() as documents,
        Engine.in_memory() as queues,
        CosmosEmulator(documents, port=0) as cosmos,
        ServiceBusServer(queues) as bus,
    ):
        yield Ground(cosmos, bus)


def only(monkeypatch: pytest.MonkeyPatch, *cells: Cell) -> None:
    def chosen(message_count: int) -> list[Cell]:
        return [replace(cell, rtt_ms=0.0, count_max=message_count) for cell in cells]

    monkeypatch.setattr(bench_account, "cells", chosen)


async def test_rows_say_what_a_message_took_and_nothing_is_left(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, Cell(), Cell(scope="item"), Cell(kind="existing", ledger=True))
    new, item, existing = await ground.rows(message_count=20)
    # on a busy machine some marks have a write of their own
    assert 2.0 <= new["requests"] < 3.5 and 5.0 <= item["requests"] < 7.5 and 20 < new["ru"] < 30
    assert 2.0 <= existing["requests"] < 2.2 and new["bare_requests"] == existing["bare_requests"] == 2.0
    assert new["rtt_ms"] > 0 and new["messages_per_s"] > 0 and new["bare_ru"] == 11.0
    assert ground.queues() == [] and ground.deleted_databases() == 1
    said = capsys.readouterr().err
    assert "at most 21,760 request units" in said and "outbox-bench-" in said


async def test_what_has_no_room_in_the_limit_is_not_begun(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, Cell(), Cell(kind="warm"))
    assert len(await ground.rows(ru_max=6_000)) == 1
    assert "1 of 2 measurements had no room in --ru-max 6,000" in capsys.readouterr().err
    with pytest.raises(Refused, match=r"--ru-max 5,440 has for one"):
        await ground.rows(ru_max=1_000)


async def test_what_costs_more_than_was_thought_is_stopped(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, Cell())
    monkeypatch.setattr(bench_account, "RU_OF_A_MESSAGE", 1.0)
    assert await ground.rows(ru_max=200) == []
    assert "give more with --ru-max" in capsys.readouterr().err
    assert ground.queues() == [] and ground.deleted_databases() == 1


async def test_what_cannot_be_deleted_is_named(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, Cell())
    ground.cosmos.faults.install(FaultRule(kind="status", status=403, operation="database.delete", count=None))
    assert len(await ground.rows()) == 1
    assert "not deleted, delete it yourself: database outbox-bench-" in capsys.readouterr().err


def test_options_that_do_not_fit_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, said in (
        (["--azure", "--cosmos", "https://x.documents.azure.com"], "--cosmos needs a connection string"),
        (["--azure", "--cosmos", "AccountEndpoint=x;AccountKey=y", "--servicebus", "x"], "--servicebus needs"),
        (["--output", str(tmp_path)], "are for --azure"),
    ):
        with pytest.raises(SystemExit):
            main(["bench", *arguments])
        assert said in capsys.readouterr().err

"""A paused queue hands out nothing, to workers or to receivers, until it is resumed; it takes messages meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, subscription_path
from outbox.errors import UnknownDestination
from outbox.message import Message
from outbox.ops.cli.parser import main
from outbox.ops.messages.doctor import of_status
from outbox.ops.values.messages import Find, Pause, Peek
from outbox.ops.values.requests import Admin
from outbox.ops.values.states import ReadState
from outbox.ops.values.status import ReadStatus
from outbox.ops.values.trail import FindTrail
from outbox.worker import Worker
from tests.unit.ops.conftest import Deposit, app


async def paused(admin: Admin, queue: str, value: bool = True) -> bool:
    done = await admin.ask(Pause(queue, value))
    assert (done.queue, done.paused) == (queue, value)
    return done.changed


async def test_a_worker_takes_nothing_until_the_queue_is_resumed_and_others_go_on(bank: Any, admin: Admin) -> None:
    assert await paused(admin, "deposits")
    assert not await paused(admin, "deposits")
    async with Worker(app, bank.engine) as worker:
        await worker.send("deposits", Deposit("ann", 5))
        await worker.send("ledger", Deposit("ann", 5))
        async with asyncio.timeout(5):
            while (await admin.ask(ReadStatus())).queues["ledger"].active:  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.01)
        assert bank.engine.broker.queue("deposits").counts()["active"] == 1
        assert await admin.ask(ReadState("Account", "ann")) is None or b"5" not in (
            await admin.ask(ReadState("Account", "ann")) or b""
        )
        assert await paused(admin, "deposits", False)
        await worker.wait_idle(timeout_s=5)
    assert await admin.ask(ReadState("Account", "ann")) == b'{"balance":5}'


@pytest.mark.parametrize("queue", ["deposits", "ledger"])
async def test_receivers_take_nothing_and_what_is_in_hand_is_settled(bank: Any, admin: Admin, queue: str) -> None:
    broker, sessions = bank.engine.broker, bank.engine.sessions
    broker.send(
        queue, [Message(body=b"{}", outbox_id=f"m{n}", session_id="k" if queue == "ledger" else "") for n in (1, 2)]
    )
    lock = sessions.accept(queue, None) if queue == "ledger" else None
    session = None if lock is None else lock.session_id
    [claim] = broker.claim(queue, 1, session=session)
    assert await paused(admin, queue)
    assert broker.claim(queue, 9, session=session) == [] and broker.take_suspect([broker.queue(queue)]) == []
    assert not await broker.wait_any([queue], 0.01)
    if lock is not None:
        broker.settle(claim.token, Settlement.COMPLETE)
        sessions.release(lock.token)
        assert sessions.accept(queue, None) is None
    else:
        broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no", description="")
        assert len(broker.claim(f"{queue}/$DeadLetterQueue", 9)) == 1, "its dead letters may be received"
    waiting = asyncio.create_task(broker.wait_any([queue], 5))
    await asyncio.sleep(0)
    assert await paused(admin, queue, False)
    assert await waiting, "a receiver that waits is woken"


async def test_a_subscription_is_paused_alone(bank: Any, admin: Admin) -> None:
    path = subscription_path("news", "audit")
    assert await paused(admin, path)
    bank.engine.broker.send("news", [Message(body=b"{}", outbox_id="n1")])
    assert bank.engine.broker.claim(path, 1) == []
    for name in ("no-such", "news"):
        with pytest.raises(UnknownDestination, match=name):
            await paused(admin, name)


async def test_status_peek_and_doctor_say_so(bank: Any, admin: Admin) -> None:
    await paused(admin, "deposits")
    bank.engine.broker.send("deposits", [Message(body=b"{}", outbox_id="m1")])
    status = await admin.ask(ReadStatus())
    assert [name for name, queue in status.queues.items() if queue.paused] == ["deposits"]
    assert (await admin.ask(Peek("deposits"))).paused and not (await admin.ask(Peek("ledger"))).paused
    [found] = [each for each in of_status(status, hosted=True) if each.about == "deposits"]
    assert (found.level, found.what) == ("warning", "is paused, and 1 message in it") and "queue resume" in found.cure


async def test_a_message_says_that_its_queue_is_paused(bank: Any, admin: Admin) -> None:
    await paused(admin, "deposits")
    bank.engine.broker.send("deposits", [Message(body=b"{}", outbox_id="m1")])
    why = "for its queue, which is paused until `outbox queue resume deposits`"
    [found] = await admin.ask(Find("m1"))
    [fact] = (await admin.ask(FindTrail("m1"))).facts
    [peeked] = (await admin.ask(Peek("deposits"))).messages
    assert found.message is not None
    assert [found.message.why, fact.why, peeked.why] == [why] * 3


async def test_it_survives_a_restart_a_compaction_and_a_declaration(disk_path: Path) -> None:
    async with Engine.open(disk_path) as engine:
        engine.declare(QueueSettings("deposits"), QueueSettings("ledger", ordering="per_key"))
        engine.topology.pause("deposits")
    for compact in (False, True):
        async with Engine.open(disk_path, compact=compact) as engine:
            if compact:
                engine.compact()
            engine.declare(QueueSettings("deposits", lock_s=30.0))
            async with Worker(app, engine) as worker:
                await worker.send("deposits", Deposit("ann", 1))
                await asyncio.sleep(0.05)
            deposits, ledger = engine.broker.queue("deposits"), engine.broker.queue("ledger")
            assert deposits.is_paused and deposits.settings.lock_s == 30.0 and not ledger.is_paused
    async with Engine.open(disk_path) as engine:
        assert engine.topology.pause("deposits", paused=False)
        assert engine.broker.queue("deposits").counts()["active"] == 2 and len(engine.broker.claim("deposits", 9)) == 2


async def test_a_queue_that_is_made_anew_is_not_paused(disk_path: Path) -> None:
    async with Engine.open(disk_path) as engine:
        engine.declare(QueueSettings("orders"))
        engine.topology.pause("orders")
        engine.topology.delete("orders")
        engine.declare(QueueSettings("orders"))
        assert not engine.broker.queue("orders").is_paused
    async with Engine.open(disk_path) as engine:
        assert not engine.broker.queue("orders").is_paused


def test_the_commands_say_what_they_did(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Engine.open(disk_path)) as engine:
        engine.declare(QueueSettings("orders"))
    place = ("--data", str(disk_path))
    assert main(["queue", "pause", "orders", *place]) == 0
    paused = f"orders is paused; nothing is taken from it until `outbox queue resume --data {disk_path} orders`"
    assert capsys.readouterr().out == f"{paused}\n"
    assert main(["queue", "pause", "orders", *place]) == 0
    assert capsys.readouterr().out == f"{paused} (it was paused already)\n"
    for command in (["status"], ["queue", "peek", "orders"]):
        assert main([*command, *place]) == 0
        assert (
            f"orders is paused: nothing is taken from it until `outbox queue resume --data {disk_path} orders`"
            in capsys.readouterr().out
        )
    for line in ("orders is resumed", "orders is resumed (it was not paused)"):
        assert main(["queue", "resume", "orders", *place]) == 0
        assert capsys.readouterr().out == f"{line}\n"
    assert main(["queue", "pause", "orders", *place]) == 0
    capsys.readouterr()
    assert main(["queue", "resume", "orders", "--json", *place]) == 0
    assert capsys.readouterr().out == '{"queue":"orders","paused":false,"changed":true}\n'
    assert main(["queue", "pause", "nope", *place]) == 1
    assert "'nope' does not exist; there are: orders" in capsys.readouterr().err

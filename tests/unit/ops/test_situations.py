"""Planted situations: for each, one command names the cause, and what to do about it.

A table: what is wrong, how it is planted in a folder, the command, and words of its answer.  What only the
services on Azure can be in is planted in tests/wire/cli, what only a running host can in test_host_situations.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbox import Engine, Worker
from outbox.engine.entities import QueueSettings
from outbox.message import Message
from outbox.ops.cli.parser import main
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Order
from tests.unit.ops.situations import Situation, shop

Plant = Callable[[Path], None]


def sent(queue: str, *messages: tuple[str, Order], now_s: float | None = None, **more: Any) -> Plant:
    """An application that handled these messages, by id, as far as it could."""

    def plant(folder: Path) -> None:
        async def run() -> None:
            clock: dict[str, Any] = {} if now_s is None else {"clock": VirtualClock(now_s)}
            async with Engine.open(folder, **clock) as engine, Worker(shop(), engine) as worker:
                for id, order in messages:
                    await worker.send(queue, order, id=id, **more)
                    await worker.wait_idle(timeout_s=20)

        asyncio.run(run())

    return plant


def put(queue: str, *messages: Message, then: bool = False) -> Plant:
    """Messages as any program sends them, which nobody handles, or (`then`) the application does."""

    def plant(folder: Path) -> None:
        async def run() -> None:
            async with Engine.open(folder) as engine:
                engine.declare(QueueSettings(queue))
                engine.broker.send(queue, list(messages))
                if then:
                    async with Worker(shop(), engine) as worker:
                        await worker.wait_idle(timeout_s=20)

        asyncio.run(run())

    return plant


def raw(body: bytes, id: str = "m1", type: str = "Order", **more: Any) -> Message:
    return Message(body=body, outbox_id=id, type=type, **more)


def also(*plants: Plant) -> Plant:
    def plant(folder: Path) -> None:
        for each in plants:
            each(folder)

    return plant


def commanded(*arguments: str) -> Plant:
    """What somebody typed before."""

    def plant(folder: Path) -> None:
        main([*arguments, "--data", str(folder)])

    return plant


def damaged(folder: Path) -> None:
    put("orders", *(raw(b"x" * 200, f"m{n}") for n in range(50)))(folder)
    [segment] = folder.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))


def torn(folder: Path) -> None:
    put("orders", raw(b"{}"))(folder)
    [segment] = folder.glob("*.log")
    with segment.open("ab") as file:
        file.write(b"\xff" * 300)


def readable_by_others(folder: Path) -> None:
    put("orders")(folder)
    from outbox.ops.host.access_key import access_key

    access_key(folder)
    [key] = [path for path in folder.iterdir() if "key" in path.name]
    key.chmod(0o644)


def not_a_folder(folder: Path) -> None:
    (folder / "notes.txt").write_text("not a log")


def expired(folder: Path) -> None:
    async def run() -> None:
        clock = VirtualClock(time.time() - 60)
        async with Engine.open(folder, clock=clock) as engine:
            engine.declare(QueueSettings("orders", time_to_live_s=10.0))
            engine.broker.send("orders", [raw(b"{}")])
            clock.seconds += 60
            engine.broker.claim("orders", 1)

    asyncio.run(run())


LATE_S = time.time()
DAYS_40_S = 40 * 86_400
WAITING = put("orders", raw(b"{}"))
FAILING = sent("orders", ("m1", Order("a", "fail")))
LATER = sent("orders", ("m1", Order("a")), after_s=3_600)
REFUSED = sent("orders", ("m1", Order("a", "refuse")))
TOO_OLD = sent("orders", ("m1", Order("a")), now_s=LATE_S, created=LATE_S - DAYS_40_S)
BLOCKED = sent("ledger", ("m1", Order("a", "refuse")), ("m2", Order("a")))
PAUSED = also(put("orders", raw(b"{}")), commanded("queue", "pause", "orders"))
HANDLED = sent("orders", ("m1", Order("a")))
FAR_BEHIND = sent("orders", ("m1", Order("a")), now_s=LATE_S - 399.5 * 86_400)
SITUATIONS = (
    Situation("nobody handles anything", WAITING, "status").says("no host runs on this folder", "outbox run"),
    Situation("a backlog without a host", WAITING, "doctor").says("no host runs, and 1 message wait", "outbox run"),
    Situation("a message that waits for its turn", WAITING, "queue peek orders").says("m1", "for a worker to take it"),
    Situation("a handler that fails", FAILING, "queue peek orders").says(
        "retrying", "next try in", "ConnectionError: the pricing service does not answer", "1 failed attempt"
    ),
    Situation("one message of them", FAILING, "message show m1").says("m1", "orders", "ConnectionError"),
    Situation(
        "a handler that asks for another delivery", sent("orders", ("m1", Order("a", "later"))), "queue peek orders"
    ).says("next try in", "the shelf is locked"),
    Situation("a message for later", LATER, "schedule list orders").says("m1", "due in"),
    Situation("a message for later, in its queue", LATER, "queue peek orders --state scheduled").says("m1", "due in"),
    Situation("a handler that gives up", FAILING, "queue peek orders --state retrying").says("1 failed attempt"),
    Situation("a refusal", REFUSED, "dead-letters list").says("m1", "no such article"),
    Situation("a refusal, whole", REFUSED, "dead-letters show orders m1").says(
        "no such article", "rejected by the handler"
    ),
    Situation("a body that is no JSON", put("orders", raw(b"{"), then=True), "dead-letters show orders m1").says(
        "undecodable"
    ),
    Situation(
        "a body of another shape", put("orders", raw(b'{"key": 5}'), then=True), "dead-letters show orders m1"
    ).says("undecodable", "key"),
    Situation(
        "a type that nobody takes", put("orders", raw(b"{}", type="Odrer"), then=True), "dead-letters show orders m1"
    ).says("unknown-type", "Odrer"),
    Situation(
        "a message without an identity",
        put("orders", Message(body=b'{"key": "a"}', type="Order"), then=True),
        "dead-letters list orders",
    ).says("no-identity"),
    Situation(
        "a message without a key", put("orders", raw(b'{"key": ""}'), then=True), "dead-letters show orders m1"
    ).says("missing-key"),
    Situation(
        "a message from the future",
        put("orders", raw(b'{"key": "a"}', created_ms=round(START_S * 1_000) + 10**12), then=True),
        "dead-letters show orders m1",
    ).says("from-the-future"),
    Situation("a message that is too old", TOO_OLD, "dead-letters show orders m1").says("too-old"),
    Situation(
        "an id used twice",
        sent("orders", ("m1", Order("a")), ("m1", Order("a", "more"))),
        "dead-letters show orders m1",
    ).says("payload-differs", "use a new id"),
    Situation("messages that go round", sent("orders", ("m1", Order("a", "again"))), "dead-letters list orders").says(
        "cycle"
    ),
    Situation(
        "many that went wrong alike",
        sent("orders", *((f"m{n}", Order("a", "refuse")) for n in range(3))),
        "dead-letters list --group",
    ).says("3", "no such article"),
    Situation("dead letters that nobody has seen", REFUSED, "doctor").says("dead-letters list orders --group"),
    Situation("a blocked key", BLOCKED, "queue peek ledger").says("blocked", "'m1'", "resubmit or discard"),
    Situation("all blocked keys", BLOCKED, "blocked list").says("ledger", "m1", "no such account"),
    Situation("a blocked key that nobody has seen", BLOCKED, "doctor").says(
        "blocked by a dead letter", "queue peek ledger --state blocked"
    ),
    Situation("a message that expired", expired, "dead-letters list orders").says("TTLExpiredException"),
    Situation("a paused queue", PAUSED, "status").says("orders is paused", "queue resume orders"),
    Situation("a message in a paused queue", PAUSED, "queue peek orders").says("paused"),
    Situation("a message that was handled", HANDLED, "message show m1").says(
        "in no queue and no dead letter: applied in orders by take, key a", "outbox message trace m1"
    ),
    Situation("what a message has caused", sent("orders", ("m1", Order("a", "outside"))), "message trace m1").says(
        "applied in orders by take, key a", "outside"
    ),
    Situation(
        "an id that several begin with",
        put("orders", raw(b"{}", "order-1"), raw(b"{}", "order-2")),
        "message show order",
    ).says("2", "order-1", "order-2"),
    Situation("a queue that is misspelt", WAITING, "queue peek ordres").says("ordres", "orders"),
    Situation("a state that is misspelt", HANDLED, "state Cuont a").says("Cuont", "Count"),
    Situation("a filter that fits nothing", REFUSED, "dead-letters resubmit orders --text nothing-like-it").says(
        "no dead letter"
    ),
    Situation("an edit of what was too old", TOO_OLD, "dead-letters resubmit orders m1").says(
        "too old to run", "new id"
    ),
    Situation("a clock that went far", FAR_BEHIND, "status").says("clock", "400 days ahead", "--accept-clock 400d"),
    Situation("a clock that went far, and only a flag", FAR_BEHIND, "status --accept-clock").says(
        "400 days ahead", "--accept-clock 400d"
    ),
    Situation(
        "a folder that is ahead of the clock", sent("orders", ("m1", Order("a")), now_s=LATE_S + 400 * 86_400), "doctor"
    ).says("ahead of the wall clock by 400 d", "Clock ahead"),
    Situation("a damaged log", damaged, "status").says(".log", "salvage"),
    Situation("a damaged log, looked into", damaged, "log inspect").says(".log"),
    Situation("a torn tail", torn, "status").says("the log was closed at ordinal", "copy the folder"),
    Situation("a key that others can read", readable_by_others, "doctor").says(
        "others than its owner may read it", "chmod 600"
    ),
    Situation("a folder that is none of ours", not_a_folder, "status").says("holds no log", "check --data"),
)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_one_command_names_the_cause_and_the_cure(
    situation: Situation[Plant], disk_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    situation.plant(disk_path)
    capsys.readouterr()
    main([*situation.command.split(), "--data", str(disk_path)])
    said = "".join(capsys.readouterr()).replace(f"--data {disk_path} ", "")  # of the cures
    assert all(word in said for word in situation.words), said
    assert "Traceback (most" not in said or "dead-letters show" in situation.command


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len({situation.name for situation in SITUATIONS}) == len(SITUATIONS) >= 40

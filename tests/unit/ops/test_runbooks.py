"""Each runbook is rehearsed: the situation is made, its command is run, and its answer names cause and cure."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log import segments
from outbox.message import Message
from outbox.ops.cli.parser import COMMANDS, main, make_parser
from outbox.ops.messages import doctor
from outbox.ops.messages.command import messages_text
from outbox.retries import Reject, Retries
from outbox.testing import VirtualClock
from outbox.worker import Worker
from tests.unit.messages import Order
from tests.unit.streams.pipeline.counting import Counting

PAGE = (Path(__file__).resolve().parents[3] / "docs/operate/README.md").read_text()
ON_AZURE = Path(__file__).resolve().parents[2] / "wire/cli/test_runbooks.py"
"""Those that occur over Cosmos DB and Service Bus."""
Cli = Callable[..., tuple[int, str]]


@dataclass
class Account:
    count: int = 0


def made(limit: int = 3) -> App:
    app = App("shop", retry=Retries(limit=limit, delays_s=(60.0,)))
    app.queue("ledger", "per_key")

    @app.handler("orders", key="key")
    def take(order: Order, account: Account) -> None:
        if order.how == "fail":
            raise ConnectionError("the pricing service does not answer")
        account.count += 1

    @app.handler("refunds", key="key")
    def refund(order: Order, account: Account) -> None:
        raise ConnectionError(f"no answer for {order.key}")

    @app.handler("ledger", key="key", on_dead_letter="stop_key")
    def enter(order: Order, account: Account) -> None:
        if order.how == "refuse":
            raise Reject("no such account")

    return app


def sent(folder: Path, *messages: tuple[str, str, Order], limit: int = 3, **more: Any) -> None:
    """Let an application handle messages in a folder: queue, id, message."""

    async def run() -> None:
        async with Engine.open(folder) as engine, Worker(made(limit), engine) as worker:
            for queue, id, message in messages:
                await worker.send(queue, message, id=id, **more)
            await worker.wait_idle(timeout_s=20)

    asyncio.run(run())


def put(folder: Path, queue: str, *messages: Message) -> None:
    """Put messages into a queue that nobody handles."""

    async def run() -> None:
        async with Engine.open(folder) as engine:
            engine.declare(QueueSettings(queue))
            engine.broker.send(queue, list(messages))

    asyncio.run(run())


@pytest.fixture
def cli(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command on the folder: exit code, and all that it said."""

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*arguments, "--data", str(disk_path)])
        return code, "".join(capsys.readouterr()).replace(f"--data {disk_path} ", "")  # of the cures

    return run


def test_every_command_of_the_page_exists_with_its_options() -> None:
    verbs = {name.rpartition(" ")[2] for name in COMMANDS} | {name.split()[0] for name in COMMANDS}
    named = re.findall(r"`outbox\s+([a-z-]+(?: [a-z-]+)*)([^`]*)`", PAGE)
    assert len(named) > 20
    for command, rest in named:
        words = command.split()
        assert words[0] in verbs and (len(words) == 1 or words[1] in verbs), command
        known = _help(words)
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in known, f"{command} has no {option}"


def _help(words: list[str]) -> str:
    parser: Any = make_parser()
    for word in words:
        choices: Any = next((action.choices for action in parser._actions if hasattr(action.choices, "keys")), {})
        if word in choices:
            parser = choices[word]
    return str(parser.format_help())


def test_backlog_nobody_runs(disk_path: Path, cli: Cli) -> None:
    put(disk_path, "orders", *(Message(body=b"{}", outbox_id=f"m{n}") for n in range(3)))
    code, said = cli("doctor")
    assert code == 1 and "no host runs, and 3 messages wait; `outbox run APP" in said
    assert "no host runs on this folder" in cli("status")[1]
    assert "for a worker to take it" in cli("queue", "peek", "orders")[1]


def test_failing_handler(disk_path: Path, cli: Cli) -> None:
    sent(disk_path, ("orders", "m1", Order("a", "fail")))
    said = cli("queue", "peek", "orders", "--state", "retrying")[1]
    assert "next try in" in said and "1 failed attempt, put back for: ConnectionError: the pricing service" in said
    assert cli("queue", "pause", "orders")[0] == 0
    put(disk_path, "orders", Message(body=b'{"key": "b"}', type="Order", outbox_id="m2"))
    assert "orders is paused: nothing is taken from it" in cli("status")[1]
    assert cli("queue", "resume", "orders")[0] == 0
    assert "paused" not in cli("status")[1]


def test_hanging_receiver(disk_path: Path, cli: Cli) -> None:
    put(disk_path, "orders", Message(body=b"{}", outbox_id="m1"))

    async def look() -> str:
        from outbox.ops.admins.engine import EngineAdmin
        from outbox.ops.values.messages import Peek

        async with Engine.open(disk_path) as engine:
            engine.broker.claim("orders", 1)
            return messages_text("orders", await EngineAdmin(engine).ask(Peek("orders", state="in-hand")))

    assert "a receiver has it, the lock ends in" in asyncio.run(look())


def test_poison(disk_path: Path, cli: Cli) -> None:
    sent(disk_path, *(("refunds", f"m{n}", Order(f"k{n}")) for n in range(3)), limit=1)
    groups = json.loads(cli("dead-letters", "list", "--group", "--json")[1])
    assert [(g["queue"], g["error"], g["count"]) for g in groups] == [("refunds", "ConnectionError", 3)]
    assert Path(__file__).name in groups[0]["at"]
    assert "Traceback" in cli("dead-letters", "show", "refunds", groups[0]["example"])[1]
    assert "outbox dead-letters list refunds --group" in cli("doctor")[1]
    assert cli("dead-letters", "discard", "refunds", "--text", "no answer for k1")[1] == "discarded 1 of refunds\n"


@pytest.mark.parametrize("reason", ["too-old", "payload-differs"])
def test_poison_of_its_kinds(reason: str, disk_path: Path, cli: Cli) -> None:
    now_s = time.time()

    async def run() -> None:
        async with Engine.open(disk_path, clock=VirtualClock(now_s)) as engine, Worker(made(), engine) as worker:
            await worker.send(
                "orders", Order("a"), id="m1", created=now_s - 40 * 86_400 if reason == "too-old" else None
            )
            await worker.wait_idle(timeout_s=20)
            if reason == "payload-differs":
                await worker.send("orders", Order("a", "more"), id="m1")
                await worker.wait_idle(timeout_s=20)

    asyncio.run(run())
    [letter] = json.loads(cli("dead-letters", "list", "orders", "--json")[1])
    assert letter["reason"] == reason
    if reason == "too-old":
        code, said = cli("dead-letters", "resubmit", "orders", "m1")
        assert code == 1 and "look at its state" in said and "new id" in said
    assert cli("dead-letters", "discard", "orders", "m1")[0] == 0


def test_blocked_key(disk_path: Path, cli: Cli) -> None:
    sent(disk_path, ("ledger", "k1", Order("k", "refuse")), ("ledger", "k2", Order("k")))
    code, said = cli("doctor")
    assert code == 1 and "1 key of it is blocked by a dead letter; `outbox blocked list" in said
    said = cli("queue", "peek", "ledger", "--state", "blocked")[1]
    assert "its key is blocked by dead letter 'k1': resubmit or discard that one" in said
    [key] = json.loads(cli("blocked", "list", "--json")[1])
    assert (key["key"], key["id"], key["waiting"], key["reason"]) == ("k", "k1", 1, "no such account")
    assert "no such account" in cli("dead-letters", "show", "ledger", "k1")[1]
    assert cli("blocked", "unblock", "ledger", "k", "--by", "discard")[0] == 0
    assert "nothing of that kind in ledger" in cli("queue", "peek", "ledger", "--state", "blocked")[1]


def test_stuck_transaction(disk_path: Path, cli: Cli) -> None:
    put(disk_path, "orders")
    assert "nothing is ever pending on an engine" in cli("pending", "list")[1]


def test_pipeline_behind(disk_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(*texts: str) -> None:
        async with Engine.open(disk_path) as engine:
            await Counting(engine).write(*texts)

    run = ("pipeline", "run", f"{Counting.__module__}:Counting", "--until-idle")
    asyncio.run(write("a"))
    assert cli(*run)[0] == 0
    asyncio.run(write("b"))
    assert "pipeline" not in cli("doctor")[1]  # for a minute
    monkeypatch.setattr(doctor, "UNATTENDED_S", -1.0)
    code, said = cli("doctor")
    assert code == 0 and "warning  pipeline index  entries of its source wait for a checkpoint: 1, the oldest" in said
    assert "all below 1.0 has left" in cli("pipeline", "status", "index")[1]
    assert cli("pipeline", "audit", "index")[0] == 0
    assert cli(*run)[0] == 0
    assert "pipeline index" not in cli("doctor")[1]


def test_where_is_message_x(disk_path: Path, cli: Cli) -> None:
    sent(disk_path, ("orders", "order-7", Order("a")), ("refunds", "order-8", Order("a")), limit=1)
    code, said = cli("message", "show", "order-7")
    assert code == 0 and said.startswith("order-7 is in no queue and no dead letter: applied in orders by take, key a")
    assert "it was handled, or never sent" in cli("message", "show", "order-9")[1]
    assert '"count": 1' in cli("state", "Account", "a")[1]
    assert "applied in orders by take, key a" in cli("message", "trace", "order-7")[1]
    assert cli("message", "show", "order-8")[1].startswith("order-8 in the dead letters of refunds: failed, ")


def test_too_early(disk_path: Path, cli: Cli) -> None:
    sent(disk_path, ("orders", "later", Order("a")), after_s=3_600)
    assert "due in" in cli("schedule", "list", "orders")[1]
    assert cli("schedule", "cancel", "orders", "later")[1] == "cancelled later in orders\n"
    assert "nothing of that kind" in cli("schedule", "list", "orders")[1]


def test_full_disk(disk_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    put(disk_path, "orders")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 1 << 40, 5 << 20))
    code, said = cli("doctor")
    assert code == 1 and "5 MB are free on the disk" in said and "loses nothing" in said
    assert cli("log", "compact")[0] == 0


def test_corrupt_segment(disk_path: Path, cli: Cli, tmp_path: Path) -> None:
    put(disk_path, "orders", *(Message(body=b"x" * 200, outbox_id=f"m{n}") for n in range(50)))
    [segment] = disk_path.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))
    code, said = cli("status")
    assert code == 1 and segment.name in said and "salvage" in said
    assert segment.name in cli("log", "inspect")[1]
    assert cli("log", "salvage", "--into", str(tmp_path / "fresh"))[0] == 0


def test_restore(disk_path: Path, cli: Cli, tmp_path: Path) -> None:
    file, lost, fresh = tmp_path / "backup.tar", tmp_path / "lost", disk_path
    sent(disk_path, ("orders", "before", Order("a")), ("refunds", "r1", Order("b")), limit=1)
    put(disk_path, "orders", Message(body=b'{"key": "a"}', type="Order", outbox_id="waiting"))
    assert cli("backup", str(file))[1].startswith(f"backed up {disk_path} to {file}: ")
    sent(disk_path, ("orders", "since", Order("a")))  # completes the one that waits, too
    assert json.loads(cli("state", "Account", "a", "--json")[1]) == {"count": 3}
    shutil.copytree(disk_path, lost)
    shutil.rmtree(disk_path)
    code, said = cli("restore", str(file))
    assert code == 0 and "what was completed since is in its queues again" in said
    assert "no host runs, and 1 message wait" in cli("doctor")[1]
    sent(fresh, ("orders", "before", Order("a")), ("orders", "since", Order("a")))  # the senders send again
    assert json.loads(cli("state", "Account", "a", "--json")[1]) == {"count": 3}
    assert [letter["id"] for letter in json.loads(cli("dead-letters", "list", "refunds", "--json")[1])] == ["r1"]
    code, said = cli("restore", str(file))
    assert code == 1 and "move this one away first" in said


def test_clock_ahead(disk_path: Path, cli: Cli) -> None:
    async def run() -> None:
        async with Engine.open(disk_path, clock=VirtualClock(time.time() - 399.5 * 86_400)) as engine:
            engine.declare(QueueSettings("orders"))
            engine.broker.send("orders", [Message(body=b"{}", outbox_id="m1")])

    asyncio.run(run())
    code, said = cli("status")
    assert code == 1 and "is 400 days ahead of the log" in said and "--accept-clock 400d" in said
    for other in ([], ["390d"], ["410d"]):
        assert cli("status", "--accept-clock", *other) == (code, said)
    assert cli("status", "--accept-clock", "400d")[0] == cli("status")[0] == 0


def test_a_log_from_before_the_clock_was_set_is_confirmed_by_the_figure_of_the_refusal(
    disk_path: Path, cli: Cli
) -> None:
    Engine.open(disk_path, clock=VirtualClock(3_600)).close()  # 1970
    code, said = cli("status")
    figure = re.search(r"--accept-clock (\d+d)", said)
    assert code == 1 and figure is not None
    assert cli("status", "--accept-clock", figure[1])[0] == 0


def test_a_folder_that_is_ahead_of_the_clock_says_so_and_doctor_names_it(
    disk_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with Engine.open(disk_path, clock=VirtualClock(time.time() + 400.5 * 86_400)) as engine:
            engine.declare(QueueSettings("orders"))

    asyncio.run(run())
    code, said = cli("doctor")
    assert code == 1 and "clock   the log is ahead of the wall clock by 400 d" in said and "Clock ahead" in said
    assert "the log is ahead of the wall clock by 4" in caplog.text and "Clock ahead" in caplog.text


def test_wrong_deploy(disk_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    put(disk_path, "orders", Message(body=b"{}", outbox_id="m1"))
    monkeypatch.setattr(segments, "FORMAT_VERSION", 0)
    code, said = cli("status")
    assert code == 1 and "format 1, this code reads 0; upgrade it" in said


def test_every_section_is_rehearsed() -> None:
    names = [*globals(), *re.findall(r"^def (\w+)", ON_AZURE.read_text(), re.MULTILINE)]
    rehearsed = " ".join(name.removeprefix("test_").replace("_", " ") for name in names if name.startswith("test_"))
    for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE):
        plain = re.sub(r"[^a-z ]", "", title.lower())
        assert plain in rehearsed or plain.split()[0] in rehearsed, title

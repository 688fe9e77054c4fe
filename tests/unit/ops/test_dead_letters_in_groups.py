"""Dead letters by the hundred: which are meant, which went wrong alike, and resubmitting up to the first relapse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.errors import OutcomeUnknown
from outbox.ops.admins import engine as engine_admin
from outbox.ops.admins.control import serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.admins.remote import RemoteAdmin
from outbox.ops.dead_letters import groups as dead_letters
from outbox.ops.dead_letters.command import groups_text
from outbox.ops.dead_letters.groups import error_of, found_in, grouped, queues_with_dead_letters, raised_at
from outbox.ops.shared.control_file import read_control_file
from outbox.ops.values.dead_letters import (
    DeadLetterFilter,
    DeadLetterView,
    Discard,
    DiscardSome,
    FindDead,
    Resubmit,
)
from outbox.ops.values.requests import Admin
from outbox.retries import Reject, Retries
from outbox.worker import Worker

IS_DOWN = {"pricing": True}


@dataclass
class Order:
    id: str
    how: str


@dataclass
class Seen:
    count: int = 0


def made() -> App:
    app = App("shop", retry=Retries(limit=1))

    @app.handler("orders", key="id")
    def order(order: Order, seen: Seen) -> None:
        act(order)

    @app.handler("refunds", key="id")
    def refund(order: Order, seen: Seen) -> None:
        act(order)

    return app


def act(order: Order) -> None:
    if order.how == "price" and IS_DOWN["pricing"]:
        raise ConnectionError(f"no answer for {order.id}")
    if order.how == "none":
        raise Reject("nothing ordered")
    if order.how == "zero":
        print(1 // 0)


APP = made()
SENT = {"orders": ["price", "price", "price", "none", "zero"], "refunds": ["price", "none"]}


@pytest.fixture(params=["direct", "http"])
async def admin(request: pytest.FixtureRequest, disk_path: Path) -> AsyncIterator[Admin]:
    IS_DOWN["pricing"] = True
    async with Engine.open(disk_path) as engine, Worker(APP, engine) as worker:
        for queue, hows in SENT.items():
            for n, how in enumerate(hows):
                await worker.send(queue, Order(f"{queue}-{n}", how), id=f"{queue}-{n}")
        await worker.wait_idle(timeout_s=20)
        direct = EngineAdmin(engine)
        async with serve_control(direct, disk_path):
            known = read_control_file(disk_path)
            assert known is not None
            yield direct if request.param == "direct" else RemoteAdmin(known, disk_path)


async def ids(admin: Admin, *queues: str, **where: Any) -> list[str]:
    return [letter.id for letter in await found_in(admin, queues or ("orders",), DeadLetterFilter(**where))]


async def test_a_filter_means_those_that_fit_all_of_it(admin: Admin) -> None:
    assert await queues_with_dead_letters(admin) == ["orders", "refunds"]
    assert len(await ids(admin, "orders", "refunds")) == 7
    assert await ids(admin, reason="failed") == ["orders-0", "orders-1", "orders-2", "orders-4"]
    assert await ids(admin, reason="failed", text="no answer") == ["orders-0", "orders-1", "orders-2"]
    assert await ids(admin, text='"how":"zero"') == ["orders-4"]  # in the body
    assert await ids(admin, text="print(1 // 0)") == ["orders-4"]  # in the stack
    assert await ids(admin, text="nothing ordered") == ["orders-3"]  # a handler's own reason
    assert await ids(admin, exception="ConnectionError") == ["orders-0", "orders-1", "orders-2"]
    assert await ids(admin, exception="ZeroDivisionError", handler="order") == ["orders-4"]
    assert await ids(admin, exception="Zero") == [] == await ids(admin, handler="refund")
    assert await ids(admin, type="Order") != [] and await ids(admin, type="Refund") == []
    now_s = time.time()
    assert await ids(admin, since=now_s + 60) == [] == await ids(admin, before=now_s - 3_600)
    assert len(await found_in(admin, ["orders", "refunds"], DeadLetterFilter(), 6)) == 6


async def test_what_went_wrong_alike_is_one_group(admin: Admin) -> None:
    groups = grouped(await found_in(admin, ["orders", "refunds"], DeadLetterFilter()))
    assert [(g.queue, g.reason, g.error, g.count) for g in groups[:1]] == [("orders", "failed", "ConnectionError", 3)]
    assert groups[0].example == "orders-2" and Path(__file__).name in groups[0].at
    assert {(g.queue, g.error, g.count) for g in groups[1:]} == {
        ("orders", "rejected by the handler", 1),
        ("orders", "ZeroDivisionError", 1),
        ("refunds", "ConnectionError", 1),
        ("refunds", "rejected by the handler", 1),
    }
    shown = groups_text(groups).splitlines()
    assert len(shown) == 6 and shown[1].startswith("3") and groups_text([]) == "no dead letters"


async def test_resubmitting_stops_at_the_first_that_comes_back(admin: Admin) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter(text="no answer"))
    moved = await dead_letters.resubmit_all(admin, letters, a_second=1.0)
    assert (moved.count, moved.left, moved.relapsed) == (1, 2, "orders-0")
    assert len(await ids(admin)) == 5
    moved = await dead_letters.resubmit_all(admin, letters[2:], a_second=None)
    assert (moved.count, moved.relapsed) == (1, "orders-2")  # the last is waited for
    IS_DOWN["pricing"] = False
    letters = await found_in(admin, ["orders"], DeadLetterFilter(text="no answer"))
    moved = await dead_letters.resubmit_all(admin, letters, a_second=None)
    assert (moved.count, moved.left, moved.relapsed) == (3, 0, "")
    assert await ids(admin) == ["orders-3", "orders-4"]


async def test_a_pace_is_kept_and_what_has_gone_meanwhile_is_left(admin: Admin) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter())
    await admin.ask(Discard("orders", "orders-3"))
    began_s = time.monotonic()
    moved = await dead_letters.discard_all(admin, letters, a_second=2.0)
    assert (moved.count, moved.left, moved.relapsed) == (4, 1, "") and "orders-3" in moved.why
    assert time.monotonic() - began_s >= 4 / 2
    assert await ids(admin) == [] and len(await ids(admin, "refunds")) == 2


async def test_an_error_of_the_backend_breaks_off_and_says_what_was_done_before(admin: Admin) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter())

    class Failing:
        def __init__(self) -> None:
            self.moved: list[int] = []

        async def ask(self, asked: Any) -> Any:
            if isinstance(asked, DiscardSome):
                if len(self.moved) == 2:
                    await admin.ask(DiscardSome(asked.queue, asked.sequences[:1]))
                    raise OutcomeUnknown("no answer")
                self.moved += asked.sequences
            return await admin.ask(asked)

    failing: Any = Failing()
    moved = await dead_letters.discard_all(failing, letters, a_second=2.0)
    assert (moved.count, moved.left, moved.is_broken_off, moved.why) == (3, 2, True, "no answer")
    assert len(await ids(admin)) == 2


async def test_resubmitting_is_broken_off_at_an_error_and_counts_that_one_as_left(admin: Admin) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter())

    class Failing:
        asked_count = 0

        async def ask(self, asked: Any) -> Any:
            self.asked_count += isinstance(asked, Resubmit)
            if self.asked_count == 2:
                raise OutcomeUnknown("no answer")
            return await admin.ask(asked)

    failing: Any = Failing()
    moved = await dead_letters.resubmit_all(failing, letters, a_second=None)
    assert (moved.count, moved.left, moved.is_broken_off, moved.why) == (1, 4, True, "no answer")


def letter(description: str, traceback: str = "", reason: str = "failed") -> DeadLetterView:
    known: dict[str, Any] = {"id": "a", "sequence": 1, "queue": "q", "type": "", "delivery_count": 1, "created": 0.0}
    known |= {"key": "", "correlation_id": "", "size_bytes": 1, "reason": reason}
    return DeadLetterView(**known, description=description, traceback=traceback)


def test_an_error_is_told_by_its_class_and_the_line_that_raised_it() -> None:
    stack = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n  File "b.py", line 9, in g\n'
    assert raised_at(letter("x", stack + 'caused by KeyError\n  File "c.py", line 1, in h\n')) == "b.py:9"
    assert raised_at(letter("x")) == ""
    assert error_of(letter("app.errors.NoPrice: item 7: gone\nmore")) == "app.errors.NoPrice"
    assert error_of(letter("two words: 7")) == "two words: 7" and error_of(letter("")) == ""
    assert error_of(letter("KeyError: 7", reason="too-old")) == "KeyError: 7"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["resubmit", "orders"], "name one ID, or say which"),
        (["resubmit", "orders", "o1", "--reason", "failed"], "ID names one dead letter; leave --reason out"),
        (["discard", "orders", "o1", "--all"], "ID names one dead letter; leave --all out"),
        (["resubmit", "orders", "--all", "--rate", "0"], "no rate"),
        (["list", "orders", "--older", "soon"], "no duration"),
    ],
)
def test_what_contradicts_itself_is_refused(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from outbox.ops.cli.parser import main

    with pytest.raises(SystemExit) as ended:
        main(["dead-letters", *arguments, "--data", str(tmp_path)])
    assert ended.value.code == 2 and why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("which", "looks"),
    [(["orders-0"], False), (["--all"], False), (["--all", "--rate", "100"], True), (["--text", "nothing"], True)],
)
def test_what_looks_for_a_relapse_is_what_the_help_says(
    which: list[str], looks: bool, disk_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from outbox.ops.cli.parser import main

    async def prepare() -> None:
        async with Engine.open(disk_path) as engine, Worker(APP, engine) as worker:
            await worker.send("orders", Order("orders-0", "none"), id="orders-0")
            await worker.wait_idle(timeout_s=20)

    looked, among = list[str](), engine_admin.ANSWERS[FindDead]

    async def spied(at: Any, asked: FindDead) -> Any:
        looked.append(asked.queue)
        return await among(at, asked)

    asyncio.run(prepare())
    monkeypatch.setitem(cast(dict[Any, Any], engine_admin.ANSWERS), FindDead, spied)
    monkeypatch.setattr(dead_letters, "RELAPSE_WITHIN_S", 0.0)
    assert main(["dead-letters", "resubmit", "orders", *which, "--data", str(disk_path)]) == 0
    assert bool(looked) is looks
    with pytest.raises(SystemExit):
        main(["dead-letters", "resubmit", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "by a filter or --rate up to the first that comes back, else without a look back" in said


def test_the_commands_list_groups_and_move_what_is_meant(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from outbox.ops.cli.parser import main

    async def prepare() -> None:
        IS_DOWN["pricing"] = True
        async with Engine.open(disk_path) as engine, Worker(APP, engine) as worker:
            for queue, hows in SENT.items():
                for n, how in enumerate(hows):
                    await worker.send(queue, Order(f"{queue}-{n}", how), id=f"{queue}-{n}")
            await worker.wait_idle(timeout_s=20)

    def outbox(*arguments: str, code: int = 0) -> str:
        assert main(["dead-letters", *arguments, "--data", str(disk_path)]) == code
        return "".join(capsys.readouterr())

    asyncio.run(prepare())
    capsys.readouterr()
    everything = outbox("list").splitlines()
    assert len(everything) == 8 and everything[0].startswith("queue") and everything[7].startswith("refunds")
    assert len(json.loads(outbox("list", "--reason", "failed", "--limit", "2", "--json"))) == 2
    assert msgspec.json.decode(outbox("list", "--group", "--json"))[0]["count"] == 3
    assert outbox("resubmit", "orders", "--text", "nothing at all", code=1).startswith(
        "outbox: no dead letter of orders"
    )
    assert outbox("discard", "orders", "--reason", "rejected", "--limit", "5", code=1)
    assert outbox("discard", "orders", "--text", "1 // 0", "--for-good") == "discarded 1 of orders\n"
    assert outbox("resubmit", "orders", "--newer", "1h", "--limit", "1") == "resubmitted 1 of orders\n"
    assert outbox("list", "orders", "--older", "1h").startswith("orders has no dead letters")

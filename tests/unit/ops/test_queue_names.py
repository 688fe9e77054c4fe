"""A queue is meant by its declared name, however it is written; an unknown one is refused with those that are near."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from outbox import App, Client, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import Refused, UnknownDestination
from outbox.ops.admins.store import StoreAdmin
from outbox.ops.shared.names import declared
from outbox.ops.values.dead_letters import (
    Discard,
    FindDead,
    ListBlocked,
    ListDeadLetters,
    ListDiscarded,
    Restore,
    Resubmit,
    ShowDeadLetter,
)
from outbox.ops.values.messages import Cancel, Find, Finish, MakeDue, Pause, Peek, Send
from outbox.ops.values.requests import Admin
from tests.unit.messages import Count, Task
from tests.unit.ops.operators import operator, store_admin

app = App("shop")


@app.handler("orders", key="key")
def order(task: Task, count: Count) -> None:
    raise Reject("no")


app.queue("invoices")


async def nothing_held(queue: str, **_: Any) -> tuple[list[Any], int]:
    return [], 0


async def counted() -> dict[str, Any]:
    return {}


async def on_the_bus(like: str) -> list[str]:
    return ["ORDERS", "invoices"]


@pytest.fixture(params=["direct", "http", "partition"])
async def admin(request: pytest.FixtureRequest, engine: Engine, disk_path: Path) -> AsyncIterator[Admin]:
    backend: Any = NarrowEngine(engine, "partition") if request.param == "partition" else engine
    await Client(app, backend).declare()
    async with Worker(app, backend) as worker:
        await worker.send("orders", Task("a"), id="order-1")
        await worker.wait_idle(timeout_s=5)
    if request.param == "partition":
        yield store_admin(engine, counts=counted, peek=nothing_held, names=on_the_bus)
        return
    async with operator(engine, disk_path, request.param) as admin:
        yield admin


async def test_a_queue_is_meant_in_any_case_as_its_application_writes_it(admin: Admin) -> None:
    for name in ("orders", "Orders", "ORDERS"):
        [letter] = await admin.ask(ListDeadLetters(name))
        assert (letter.queue, letter.id) == ("orders", "order-1")
        assert (await admin.ask(ShowDeadLetter(name, "order-1"))).queue == "orders"
        assert list(await admin.ask(FindDead(name, ["order-1"]))) == ["order-1"]
        assert (await admin.ask(Discard(name, "order-1"))).count == 1
        assert len(await admin.ask(ListDiscarded(name))) == 1
        assert (await admin.ask(Restore(name, "order-1"))).count == 1
    assert (await admin.ask(Resubmit("oRDERS", "order-1"))).count == 1


VERBS: dict[str, Callable[[Admin, str], Awaitable[Any]]] = {
    "peek": lambda admin, queue: admin.ask(Peek(queue)),
    "find": lambda admin, queue: admin.ask(Find("order-1", queue)),
    "cancel": lambda admin, queue: admin.ask(Cancel(queue, "order-1")),
    "now": lambda admin, queue: admin.ask(MakeDue(queue, "order-1")),
    "list": lambda admin, queue: admin.ask(ListDeadLetters(queue)),
    "among": lambda admin, queue: admin.ask(FindDead(queue, ["order-1"])),
    "show": lambda admin, queue: admin.ask(ShowDeadLetter(queue, "order-1")),
    "resubmit": lambda admin, queue: admin.ask(Resubmit(queue, "order-1")),
    "resubmit all": lambda admin, queue: admin.ask(Resubmit(queue, None)),
    "discard": lambda admin, queue: admin.ask(Discard(queue, "order-1")),
    "discard all": lambda admin, queue: admin.ask(Discard(queue, None)),
    "discarded": lambda admin, queue: admin.ask(ListDiscarded(queue)),
    "restore": lambda admin, queue: admin.ask(Restore(queue, "order-1")),
    "restore all": lambda admin, queue: admin.ask(Restore(queue, None)),
    "blocked": lambda admin, queue: admin.ask(ListBlocked(queue)),
    "send": lambda admin, queue: admin.ask(Send(queue, [])),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_refuses_a_queue_that_is_not_there_alike(admin: Admin, verb: str) -> None:
    text = r"'order' does not exist; there are: .*invoices.* \(did you mean 'orders'\?\)"
    with pytest.raises(UnknownDestination, match=text if not isinstance(admin, StoreAdmin) else "does not exist"):
        await VERBS[verb](admin, "order")


async def test_a_queue_is_paused_by_its_declared_name(admin: Admin) -> None:
    if isinstance(admin, StoreAdmin):
        paused = list[str]()

        async def pause(queue: str, *, paused_: bool = True, **_: Any) -> bool:
            paused.append(queue)
            return True

        admin._at.pause = pause
        await admin.ask(Pause("Orders", paused=True))
        assert paused == ["orders"]
        return
    assert (await admin.ask(Pause("Orders", paused=True))).queue == "orders"


async def test_an_empty_id_stands_for_nothing(admin: Admin) -> None:
    for move in (ShowDeadLetter, Resubmit, Discard, Restore):
        with pytest.raises(LookupError, match="an empty id stands for none"):
            await admin.ask(move("orders", ""))
    with pytest.raises((LookupError, Refused)):
        await admin.ask(Finish(""))
    assert len(await admin.ask(ListDeadLetters("orders"))) == 1


async def test_where_the_bus_does_not_say_its_names_one_is_as_given(engine: Engine) -> None:
    asked = list[str]()

    async def held(queue: str, **_: Any) -> tuple[list[Any], int]:
        asked.append(queue)
        return [], 0

    async def refused(like: str) -> list[str]:
        raise Refused("the right to manage is missing")

    await store_admin(engine, counts=counted, peek=held, names=refused).ask(Peek("Outside"))
    assert asked == ["Outside"]


def test_names_that_differ_in_case_alone_are_told_apart() -> None:
    known = ["Orders", "orders"]
    assert declared("orders", known) == "orders"
    with pytest.raises(Refused, match="'ORDERS' may be 'Orders' or 'orders'"):
        declared("ORDERS", known)

"""A queue is meant by its declared name, however it is written; an unknown one is refused with those that are near."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outbox import App, Client, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import Refused, UnknownDestination
from outbox.ops.control import serve_control
from outbox.ops.control_file import read_control_file
from outbox.ops.engine_operator import EngineOperator
from outbox.ops.names import declared
from outbox.ops.operator import Operator
from outbox.ops.remote import RemoteOperator
from outbox.ops.store_operator import StoreOperator
from outbox.ops.values import BlockedQuery, FindQuery, PauseRequest, PeekQuery


@dataclass
class Entry:
    key: str


@dataclass
class Count:
    n: int = 0


app = App("shop")


@app.handler("orders", key="key")
def order(entry: Entry, count: Count) -> None:
    raise Reject("no")


app.queue("invoices")


async def nothing_held(queue: str, **_: Any) -> tuple[list[Any], int]:
    return [], 0


async def counted() -> dict[str, Any]:
    return {}


async def on_the_bus(like: str) -> list[str]:
    return ["ORDERS", "invoices"]


@pytest.fixture(params=["engine", "endpoint", "partition"])
async def operator(request: pytest.FixtureRequest, disk_path: Path) -> AsyncIterator[Operator]:
    async with Engine.open(disk_path) as engine:
        backend: Any = NarrowEngine(engine, "partition") if request.param == "partition" else engine
        await Client(app, backend).declare()
        async with Worker(app, backend) as worker:
            await worker.send("orders", Entry("a"), id="order-1")
            await worker.wait_idle(timeout_s=5)
        direct = EngineOperator(engine)
        if request.param == "engine":
            yield direct
        elif request.param == "partition":
            none: Any = None
            yield StoreOperator(backend.ports(), counted, nothing_held, none, names=on_the_bus)
        else:
            async with serve_control(direct, disk_path):
                host = read_control_file(disk_path)
                assert host is not None
                yield RemoteOperator(host, disk_path)


async def test_a_queue_is_meant_in_any_case_as_its_application_writes_it(operator: Operator) -> None:
    for name in ("orders", "Orders", "ORDERS"):
        [letter] = await operator.dead_letters(name)
        assert (letter.queue, letter.id) == ("orders", "order-1")
        assert (await operator.dead_letter(name, "order-1")).queue == "orders"
        assert list(await operator.dead_among(name, ["order-1"])) == ["order-1"]
        assert (await operator.discard(name, "order-1")).count == 1
        assert len(await operator.discarded(name)) == 1
        assert (await operator.restore(name, "order-1")).count == 1
    assert (await operator.resubmit("oRDERS", "order-1")).count == 1


VERBS: dict[str, Callable[[Operator, str], Awaitable[Any]]] = {
    "peek": lambda operator, queue: operator.peek(PeekQuery(queue)),
    "find": lambda operator, queue: operator.find(FindQuery("order-1", queue)),
    "cancel": lambda operator, queue: operator.cancel(queue, "order-1"),
    "now": lambda operator, queue: operator.make_due(queue, "order-1"),
    "list": lambda operator, queue: operator.dead_letters(queue),
    "among": lambda operator, queue: operator.dead_among(queue, ["order-1"]),
    "show": lambda operator, queue: operator.dead_letter(queue, "order-1"),
    "resubmit": lambda operator, queue: operator.resubmit(queue, "order-1"),
    "resubmit all": lambda operator, queue: operator.resubmit(queue, None),
    "discard": lambda operator, queue: operator.discard(queue, "order-1"),
    "discard all": lambda operator, queue: operator.discard(queue, None),
    "discarded": lambda operator, queue: operator.discarded(queue),
    "restore": lambda operator, queue: operator.restore(queue, "order-1"),
    "restore all": lambda operator, queue: operator.restore(queue, None),
    "blocked": lambda operator, queue: operator.blocked(BlockedQuery(queue)),
    "send": lambda operator, queue: operator.send(queue, []),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_refuses_a_queue_that_is_not_there_alike(operator: Operator, verb: str) -> None:
    text = r"'order' does not exist; there are: .*invoices.* \(did you mean 'orders'\?\)"
    with pytest.raises(UnknownDestination, match=text if not isinstance(operator, StoreOperator) else "does not exist"):
        await VERBS[verb](operator, "order")


async def test_a_queue_is_paused_by_its_declared_name(operator: Operator) -> None:
    if isinstance(operator, StoreOperator):
        paused = list[str]()

        async def pause(queue: str, *, paused_: bool = True, **_: Any) -> bool:
            paused.append(queue)
            return True

        operator._pause = pause
        await operator.pause(PauseRequest("Orders", paused=True))
        assert paused == ["orders"]
        return
    assert (await operator.pause(PauseRequest("Orders", paused=True))).queue == "orders"


async def test_an_empty_id_stands_for_nothing(operator: Operator) -> None:
    for move in (operator.dead_letter, operator.resubmit, operator.discard, operator.restore):
        with pytest.raises(LookupError, match="an empty id stands for none"):
            await move("orders", "")
    with pytest.raises((LookupError, Refused)):
        await operator.finish("")
    assert len(await operator.dead_letters("orders")) == 1


async def test_where_the_bus_does_not_say_its_names_one_is_as_given() -> None:
    asked = list[str]()

    async def held(queue: str, **_: Any) -> tuple[list[Any], int]:
        asked.append(queue)
        return [], 0

    async def refused(like: str) -> list[str]:
        raise Refused("the right to manage is missing")

    async with Engine.in_memory() as engine:
        none: Any = None
        narrow = NarrowEngine(engine, "partition")
        operator = StoreOperator(narrow.ports(), counted, held, none, names=refused)
        await operator.peek(PeekQuery("Outside"))
    assert asked == ["Outside"]


def test_names_that_differ_in_case_alone_are_told_apart() -> None:
    known = ["Orders", "orders"]
    assert declared("orders", known) == "orders"
    with pytest.raises(Refused, match="'ORDERS' may be 'Orders' or 'orders'"):
        declared("ORDERS", known)

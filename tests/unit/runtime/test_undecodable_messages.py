"""Bodies, keys and properties that no handler can be given."""

from __future__ import annotations

from typing import Any

import pytest

from outbox import App
from outbox.testing import Harness
from tests.unit.messages import Count, deliver, deliver_raw
from tests.unit.runtime.plant import Plant, Task, only


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{bad", "undecodable"),
        (b"", "undecodable"),
        (b"\xff\xfe", "undecodable"),
        (b'{"key":5}', "undecodable"),
        (b"[" * 100_000, "undecodable"),
        (b'{"what":"x"}', "undecodable"),
        (b'{"key":null}', "missing-key"),
        (b'{"key":""}', "missing-key"),
    ],
)
async def test_a_body_that_cannot_be_handled_never_reaches_the_handler(body: bytes, reason: str) -> None:
    plant = Plant()
    async with Harness(plant.app) as world:
        await deliver_raw(world, "q", body, properties={"outbox-id": "1", "outbox-type": "Task"})
        dead_letter = await only(world)
        assert (dead_letter.reason, dead_letter.body, plant.runs) == (reason, body, [])


@pytest.mark.parametrize(
    "value", [None, "", 1.5, True, b"x", ["x"], 1 << 20_000, "\ud800"], ids=lambda v: type(v).__name__
)
async def test_a_key_that_is_none_empty_or_of_another_type_is_missing(value: Any) -> None:
    app = App("a")

    @app.handler("q", key=lambda task: value)
    def handle(task: Task, count: Count) -> None: ...

    async with Harness(app) as world:
        await deliver(world, "q", Task("x"))
        assert (await only(world)).reason == "missing-key"


@pytest.mark.parametrize("error", [KeyError("k"), ValueError("v"), RecursionError()])
async def test_a_key_function_that_raises_leaves_a_missing_key(error: Exception) -> None:
    app = App("a")

    def key(task: Task) -> str:
        raise error

    @app.handler("q", key=key)
    def handle(task: Task, count: Count) -> None: ...

    async with Harness(app) as world:
        await deliver(world, "q", Task("x"))
        dead_letter = await only(world)
        assert dead_letter.reason == "missing-key" and type(error).__name__ in dead_letter.description


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "soon", 10**30, -(10**30), None, "1e9"])
@pytest.mark.parametrize("name", ["outbox-created", "outbox-hops", "outbox-attempt"])
async def test_nonsense_in_a_numeric_property_stops_no_other(name: str, value: Any) -> None:
    plant = Plant()
    async with Harness(plant.app) as world:
        await deliver_raw(world, "q", b'{"key":"a"}', properties={"outbox-id": "1", name: value})
        assert await world.state(Count, "a") == Count(1)

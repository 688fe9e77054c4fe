"""Messages and replies that JSON cannot hold are refused where they are made, bodies where they come in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from outbox import App, Context
from outbox.errors import PoisonMessage
from outbox.testing import Harness
from tests.unit.messages import deliver, deliver_raw


@dataclass
class Measure:
    place: str
    text: str = ""


@dataclass
class Reading:
    place: str
    degrees: float | None = None
    more: Any = None


class Packed(msgspec.Struct):
    place: str
    degrees: float | None = None


class Model(pydantic.BaseModel):
    place: str
    degrees: float | None = None


@dataclass
class Taken:
    count: int = 0


WAYS: dict[str, Callable[[Context, Any], Any]] = {
    "send": lambda ctx, value: ctx.send("out", value),
    "later": lambda ctx, value: ctx.send("out", value, after_s=60),
    "schedule": lambda ctx, value: ctx.schedule("out", value, after_s=60),
    "publish": lambda ctx, value: ctx.publish("news", value),
    "reply": lambda ctx, value: ctx.reply(value),
}
VALUES = {
    "nan": Reading("kiel", math.nan),
    "nested": Reading("kiel", more={"a": [Reading("ulm", math.inf)]}),
    "struct": Packed("kiel", -math.inf),
    "model": Model(place="kiel", degrees=math.nan),
    "text": Reading("lone \ud800"),
}


def measuring(act: Callable[[Context], Any]) -> App:
    app = App("measuring")
    app.queue("out")
    app.topic("news")

    @app.handler("q", key="place")
    def take(measure: Measure, taken: Taken, ctx: Context) -> None:
        taken.count += 1
        ctx.send("out", Reading(measure.place, 1.5))
        if measure.text == "bad":
            act(ctx)

    return app


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", VALUES)
async def test_a_message_that_json_cannot_hold_refuses_its_cause(way: str, value: str) -> None:
    async with Harness(measuring(lambda ctx: WAYS[way](ctx, VALUES[value]))) as world:
        for number, text in enumerate(["", "bad", ""]):
            await world.send("q", Measure("kiel", text), id=f"m{number}", reply_to="out")
        await world.wait_idle()
        (dead,) = world.dead_letters("q")
        assert (dead.id, dead.reason) == ("m1", "unstorable") and "`$." in dead.description
        assert world.sent("out") == [Reading("kiel", 1.5)] * 2 and world.sent("news") == []
        assert await world.state(Taken, "kiel") == Taken(2)


@pytest.mark.parametrize("value", VALUES)
async def test_a_client_does_not_send_what_json_cannot_hold(value: str) -> None:
    async with Harness(measuring(print)) as world:
        for send in (world.send("out", VALUES[value]), world.publish("news", VALUES[value])):
            with pytest.raises(PoisonMessage, match="unstorable"):
                await send


async def test_none_and_large_integers_are_sent_as_they_are() -> None:
    fine = [Reading("kiel", None, [None, "null", 1 << 70, "nan"]), Reading("kiel", -0.0, {"a": None})]

    def send_all(ctx: Context) -> None:
        for each in fine:
            ctx.send("out", each)

    async with Harness(measuring(send_all)) as world:
        await deliver(world, "q", Measure("kiel", "bad"))
        assert world.sent("out")[1:] == fine and world.dead_letters("q") == []


async def test_none_in_a_state_where_a_number_belongs_refuses_the_message() -> None:
    app = App("holes")

    @app.handler("q", key="place")
    def take(measure: Measure, taken: Taken) -> None:
        taken.count = None  # type: ignore[assignment]  # a mistake that no later message could read

    async with Harness(app) as world:
        await deliver(world, "q", Measure("kiel"))
        assert [dead.reason for dead in world.dead_letters("q")] == ["unstorable"]
        assert await world.state(Taken, "kiel") is None


# Requests


def asking() -> App:
    app = App("asking")

    @app.http("POST", "/measures", key="place")
    def take(reading: Reading, taken: Taken) -> dict[str, Any]:
        taken.count += 1
        return {"last": math.nan if reading.degrees == 0 else reading.degrees}

    @app.http("GET", "/measures/{place}")
    def read(reading: Reading) -> list[float | None]:
        return [reading.degrees, math.inf if reading.degrees == 0 else 1.0]

    return app


async def test_a_reply_that_json_cannot_hold_fails_its_request_on_record() -> None:
    async with Harness(asking()) as world:
        first = await world.request("POST", "/measures", json=Reading("kiel", 0.0), key="k")
        assert (first.status, first.json()["code"]) == (500, "unstorable")
        assert await world.request("POST", "/measures", json=Reading("kiel", 0.0), key="k") == first
        assert await world.state(Taken, "kiel") is None
        assert (await world.request("GET", "/measures/kiel?degrees=0")).status == 500
        assert (await world.request("GET", "/measures/kiel?degrees=2")).json() == [2.0, 1.0]


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e400"])
async def test_a_query_that_names_no_number_of_json_is_refused(text: str) -> None:
    async with Harness(asking()) as world:
        response = await world.request("GET", f"/measures/kiel?degrees={text}")
        assert (response.status, response.json()["code"]) == (400, "undecodable")


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
@pytest.mark.parametrize("kind", [Reading, Packed, Model])
async def test_a_body_with_a_number_that_json_cannot_hold_is_undecodable(kind: type[Any], text: bytes) -> None:
    app, taken = App("door"), []

    def take(message: Any) -> None:
        taken.append(message)

    take.__annotations__["message"] = kind
    app.handler("q")(take)
    async with Harness(app) as world:
        body = b'{"place":"kiel","degrees":' + text + b"}"
        await deliver_raw(world, "q", body, properties={"outbox-id": "1", "outbox-type": kind.__name__})
        assert [dead.reason for dead in world.dead_letters("q")] == ["undecodable"] and taken == []

"""A state that would not be read back as it is refuses its message; the key goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pydantic
import pytest

from outbox import App
from outbox.testing import Harness
from tests.unit.messages import deliver


@dataclass
class Rate:
    key: str
    value: str


@dataclass
class Average:
    mean: float = 0.0
    best: float | None = None
    by_name: dict[str, list[float]] = field(default_factory=dict)


class Lenient(pydantic.BaseModel):
    """Its infinite numbers would be written as `Infinity`, which no store takes for JSON."""

    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    mean: float = 0.0


class Quiet(pydantic.BaseModel):
    """Its infinite numbers would be written as null."""

    mean: float = 0.0


def averaging(kind: type[Any]) -> App:
    app = App("averaging")

    def average(message: Rate, state: Any) -> None:
        value = float(message.value)
        if isinstance(state, Average):
            state.best = None if value < 100 else value
            state.by_name["last"] = [value]
        state.mean = value

    average.__annotations__["state"] = kind
    app.handler("rates", key="key")(average)
    return app


@pytest.mark.parametrize("kind", [Average, Lenient, Quiet])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
async def test_a_state_that_json_cannot_hold_is_refused_and_its_key_goes_on(kind: type[Any], value: str) -> None:
    async with Harness(averaging(kind)) as world:
        for number, text in enumerate(["1", value, "2"]):
            await world.send("rates", Rate("a", text), id=f"m{number}")
        await world.wait_idle()
        (dead_letter,) = world.dead_letters("rates")
        assert (dead_letter.id, dead_letter.reason) == ("m1", "unstorable")
        found = await world.state(kind, "a")
        assert found is not None and found.mean == 2 and math.isfinite(found.mean)


async def test_a_number_that_would_be_read_as_none_is_refused_as_well() -> None:
    app = App("hiding")

    @app.handler("rates", key="key")
    def hide(message: Rate, state: Average) -> None:
        state.best = float(message.value)

    async with Harness(app) as world:
        await deliver(world, "rates", Rate("a", "inf"), id="m1")
        assert [dead_letter.reason for dead_letter in world.dead_letters("rates")] == ["unstorable"]
        assert await world.state(Average, "a") is None


async def test_what_is_none_or_says_null_is_a_state_like_any_other() -> None:
    app = App("texts")

    @dataclass
    class Text:
        text: str = ""
        more: float | None = None

    @app.handler("rates", key="key")
    def note(message: Rate, state: Text) -> None:
        state.text = message.value

    async with Harness(app) as world:
        await deliver(world, "rates", Rate("a", "null, inf and nan"), id="m1")
        assert world.dead_letters("rates") == []
        assert await world.state(Text, "a") == Text("null, inf and nan")

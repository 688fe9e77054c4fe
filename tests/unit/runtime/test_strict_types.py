"""A strict message type takes no field that it does not know; by default such fields are dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from outbox import App
from outbox.errors import NotRegistrable
from outbox.testing import Harness
from tests.unit.messages import deliver_raw


class Pair(NamedTuple):
    one: str
    two: str


class Card(msgspec.Struct, tag="card"):
    number: str


class Cash(msgspec.Struct, tag="cash"):
    coins: int


class Point(msgspec.Struct, array_like=True):
    x: int
    y: int


@dataclass
class Line:
    article: str
    next: Line | None = None


class Dot(msgspec.Struct, array_like=True, tag="dot"):
    line: Line


class Box(msgspec.Struct, array_like=True, tag="box"):
    size: int


class Label(msgspec.Struct, frozen=True):
    name: str


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Line] = field(default_factory=dict)
    paid: Card | Cash | None = None
    pair: tuple[Line, int] | None = None
    names: Pair | None = None
    at: Point | None = None
    drawn: Dot | Box | None = None
    either: list[Line] | Line | None = None
    many: tuple[Line, ...] = ()
    labels: set[Label] = field(default_factory=set)
    marks: frozenset[Label] = frozenset()
    anything: Any = None


class Struct(msgspec.Struct, rename="camel"):
    id: str
    line_item: Line | None = None


class Inner(pydantic.BaseModel):
    article: str


class Model(pydantic.BaseModel):
    id: str = pydantic.Field(alias="orderId")
    inner: Inner | None = None


def shop(kind: type[Any], runs: list[Any], strict: bool | None = None, every: bool = False) -> App:
    app = App("shop", strict=every)
    if strict is not None:
        app.message("order.v1", strict=strict)(kind)

    def take(order: Any) -> None:
        runs.append(order)

    take.__annotations__ = {"order": kind, "return": None}
    app.handler("q")(take)
    return app


async def refusal(app: App, body: bytes) -> str:
    """Why a body is a dead letter; empty where it was handled."""
    async with Harness(app) as world:
        await deliver_raw(world, "q", body, properties={"outbox-id": "1"})
        dead_letters = world.dead_letters("q")
        assert all(dead_letter.reason == "undecodable" for dead_letter in dead_letters)
        return dead_letters[0].description if dead_letters else ""


UNKNOWN = [
    (Order, b'{"id": "a", "lins": []}', "$.lins"),
    (Order, b'{"id": "a", "lines": [{"article": "x"}, {"article": "y", "count": 5}]}', "$.lines.1.count"),
    (Order, b'{"id": "a", "lines": [{"article": "x", "next": {"article": "y", "z": 1}}]}', "$.lines.0.next.z"),
    (Order, b'{"id": "a", "by_name": {"n": {"article": "y", "z": 1}}}', "$.by_name.n.z"),
    (Order, b'{"id": "a", "paid": {"type": "card", "number": "1", "coins": 2}}', "$.paid.coins"),
    (Order, b'{"id": "a", "pair": [{"article": "x", "z": 1}, 2]}', "$.pair.0.z"),
    (Order, b'{"id": "a", "at": [1, 2, 3]}', "$.at.2"),
    (Order, b'{"id": "a", "drawn": ["dot", {"article": "x", "z": 1}]}', "$.drawn.1.z"),
    (Order, b'{"id": "a", "drawn": ["box", 1, 2]}', "$.drawn.2"),
    (Order, b'{"id": "a", "either": {"article": "x", "z": 1}}', "$.either.z"),
    (Order, b'{"id": "a", "either": [{"article": "x", "z": 1}]}', "$.either.0.z"),
    (Order, b'{"id": "a", "many": [{"article": "x", "z": 1}]}', "$.many.0.z"),
    (Order, b'{"id": "a", "labels": [{"name": "x", "z": 1}]}', "$.labels.0.z"),
    (Order, b'{"id": "a", "marks": [{"name": "x", "z": 1}]}', "$.marks.0.z"),
    (Struct, b'{"id": "a", "line_item": null}', "$.line_item"),
    (Struct, b'{"id": "a", "lineItem": {"article": "x", "z": 1}}', "$.lineItem.z"),
    (Model, b'{"orderId": "a", "colour": "red"}', "colour"),
    (Model, b'{"orderId": "a", "inner": {"article": "x", "z": 1}}', "inner.z"),
]


@pytest.mark.parametrize(("kind", "body", "name"), UNKNOWN)
async def test_an_unknown_field_of_a_strict_type_is_refused_by_name(kind: type[Any], body: bytes, name: str) -> None:
    runs: list[Any] = []
    description = await refusal(shop(kind, runs, strict=True), body)
    assert name in description and not runs, description
    assert name in await refusal(shop(kind, runs, every=True), body), "the application may say so for all of its types"


@pytest.mark.parametrize(("kind", "body", "name"), UNKNOWN)
async def test_by_default_unknown_fields_are_dropped(kind: type[Any], body: bytes, name: str) -> None:
    runs: list[Any] = []
    for app in (shop(kind, runs), shop(kind, runs, strict=False, every=True)):
        assert await refusal(app, body) == "" and runs.pop()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Order, b'{"id": "a", "lines": [{"article": "x", "next": null}], "anything": {"z": [{"y": 1}]}}'),
        (Order, b'{"id": "a", "paid": {"type": "cash", "coins": 5}, "names": ["x", "y"], "at": [1, 2]}'),
        (Order, b'{"id": "a", "drawn": ["dot", {"article": "x"}], "either": {"article": "x"}}'),
        (Order, b'{"id": "a", "drawn": ["box", 1], "either": [{"article": "x"}], "labels": [{"name": "x"}]}'),
        (Order, b'{"id": "a", "paid": null, "pair": [{"article": "x"}, 2], "by_name": {"z": {"article": "x"}}}'),
        (Struct, b'{"id": "a", "lineItem": {"article": "x"}}'),
        (Model, b'{"orderId": "a", "inner": {"article": "x"}}'),
    ],
)
async def test_a_strict_type_takes_what_it_knows(kind: type[Any], body: bytes) -> None:
    runs: list[Any] = []
    assert await refusal(shop(kind, runs, strict=True), body) == "" and len(runs) == 1


async def test_an_upcast_may_drop_what_the_new_schema_does_not_know() -> None:
    app, runs = App("shop"), list[Order]()
    app.message("order", version=2, upcasts={1: lambda old: {"id": old["name"]}}, strict=True)(Order)

    @app.handler("q")
    def take(order: Order) -> None:
        runs.append(order)

    assert await refusal(app, b'{"name": "a", "colour": "red"}') == "" and runs == [Order("a")]


async def test_an_http_body_with_an_unknown_field_is_answered_with_its_name() -> None:
    app = App("shop", strict=True)

    @app.http("POST", "/orders")
    def take(order: Order) -> None: ...

    async with Harness(app) as world:
        response = await world.request("POST", "/orders", json={"id": "a", "colour": "red"}, key="k")
        assert response.status == 400 and "colour" in response.json()["detail"]


def test_an_older_pydantic_is_refused_with_the_cure() -> None:
    class Older(Model):
        @classmethod
        def model_validate_json(cls, data: bytes) -> Any:  # type: ignore[override]  # as before pydantic 2.12
            return super().model_validate_json(data)

    with pytest.raises(NotRegistrable, match='ConfigDict\\(extra="forbid"\\)'):
        App("shop").message("older", strict=True)(Older)

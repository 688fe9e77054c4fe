"""What the documents say is what is taken and sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from outbox import App, Context, Response
from outbox.describe import asyncapi, openapi
from outbox.ops.cli.parser import main
from tests.unit.web.test_asgi import paying


class Item(pydantic.BaseModel):
    name: str


class Basket(pydantic.BaseModel):
    id: str
    items: list[Item] = []


@dataclass
class Order:
    id: str
    note: str | None = None


class Refund(msgspec.Struct):
    id: str
    amount: int


@dataclass
class Shelf:
    count: int = 0


def shop() -> App:
    app = App("shop")
    app.queue("refused", ordering="per_key")
    app.topic("news")

    @app.handler("orders", key="id")
    def take(message: Order | Refund, shelf: Shelf, ctx: Context) -> None:
        """Take an order, or give money back."""

    @app.handler("news", key="id", subscription="audit")
    def audit(message: Order, shelf: Shelf) -> None:
        pass

    @app.http("PUT", "/baskets/{id}", key="id")
    def put(basket: Basket, shelf: Shelf) -> Response:
        return Response(201)

    @app.http("DELETE", "/baskets/{id}", key="id")
    def drop(order: Order, shelf: Shelf) -> None:
        pass

    return app


def test_a_channel_has_the_messages_of_all_its_handlers() -> None:
    app = shop()

    @app.handler("orders", name="stock")
    def stock(item: Item) -> None: ...

    assert asyncapi(app)["channels"]["orders"]["messages"].keys() == {"Order", "Refund", "Item"}


def test_each_entry_says_what_it_may_answer() -> None:
    app = shop()

    @app.http("POST", "/orders", key="id")
    def post(order: Order, shelf: Shelf) -> Refund:
        return Refund(order.id, 0)

    @app.http("GET", "/orders/{id}", key="id")
    def show(order: Order, shelf: Shelf) -> Order:
        return order

    paths = openapi(app)["paths"]
    found = {(way, path): set(each["responses"]) for path, ways in paths.items() for way, each in ways.items()}
    refusals = {"400", "409", "422", "503"}
    assert found == {
        ("put", "/baskets/{id}"): {"200", "204"} | refusals,
        ("delete", "/baskets/{id}"): {"200", "204"} | refusals,
        ("post", "/orders"): {"200"} | refusals,
        ("get", "/orders/{id}"): {"200", "400", "404", "503"},
    }


def resolved(document: dict[str, Any], ref: str) -> Any:
    found: Any = document
    for part in ref.removeprefix("#/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


def refs_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for each in value.values() for ref in refs_in(each)]
    return [ref for each in value for ref in refs_in(each)] if isinstance(value, list) else []


@pytest.mark.parametrize("document", [openapi(shop()), openapi(paying()), asyncapi(shop()), asyncapi(paying())])
def test_every_reference_leads_somewhere_and_all_of_it_is_json(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document)) == document
    for ref in refs_in(document):
        assert resolved(document, ref), ref


def test_an_entry_that_writes_takes_a_body_and_a_key() -> None:
    document = openapi(paying(), version="3")
    assert (document["openapi"], document["info"]) == ("3.1.0", {"title": "purses", "version": "3"})
    pay = document["paths"]["/payments"]["post"]
    assert [(p["name"], p["in"], p["required"]) for p in pay["parameters"]] == [("Idempotency-Key", "header", True)]
    body = resolved(document, pay["requestBody"]["content"]["application/json"]["schema"]["$ref"])
    assert body["required"] == ["purse", "amount"] and pay["description"] == "Put money into a purse."
    receipt = resolved(document, pay["responses"]["200"]["content"]["application/json"]["schema"]["$ref"])
    assert receipt["properties"] == {"balance": {"type": "integer"}}
    assert {"400", "409", "422", "503"} <= pay["responses"].keys()


def test_an_entry_that_reads_has_the_rest_of_its_message_in_the_query() -> None:
    look = openapi(paying())["paths"]["/purses/{purse}"]["get"]
    assert [(p["name"], p["in"], p["required"]) for p in look["parameters"]] == [
        ("purse", "path", True),
        ("currency", "query", False),
    ]
    assert "requestBody" not in look and "404" in look["responses"] and "422" not in look["responses"]


def test_models_are_described_as_they_are_and_what_is_not_known_is_left_open() -> None:
    document = openapi(shop())
    put = document["paths"]["/baskets/{id}"]["put"]
    basket = resolved(document, put["requestBody"]["content"]["application/json"]["schema"]["$ref"])
    assert basket["properties"]["items"]["items"] == {"$ref": "#/components/schemas/Item"}
    assert put["parameters"][0]["schema"]["type"] == "string" and "content" not in put["responses"]["200"]
    assert "204" in document["paths"]["/baskets/{id}"]["delete"]["responses"]


def test_queues_and_topics_are_channels_and_handlers_receive_from_them() -> None:
    document = asyncapi(shop())
    assert document["channels"].keys() == {"orders", "refused", "news", "news/Subscriptions/audit"}
    take = document["operations"]["take"]
    assert (take["action"], take["description"]) == ("receive", "Take an order, or give money back.")
    assert {resolved(document, each["$ref"])["$ref"] for each in take["messages"]} == {
        "#/components/messages/Order",
        "#/components/messages/Refund",
    }
    assert document["components"]["messages"]["Order"]["payload"] == {"$ref": "#/components/schemas/Order"}
    assert document["channels"]["refused"]["messages"] == {}


def test_handlers_that_share_a_name_are_all_described() -> None:
    app = App("twins")

    def take(message: Order, shelf: Shelf) -> None:
        pass

    app.handler("orders", key="id")(take)
    app.handler("returns", key="id")(take)
    app.http("PUT", "/a/{id}", key="id")(take)
    app.http("PUT", "/b/{id}", key="id")(take)
    assert set(asyncapi(app)["operations"]) == {"take", "returns take"}
    ids = [operation["put"]["operationId"] for operation in openapi(app)["paths"].values()]
    assert ids == ["take", "PUT /b/{id}"]


def test_the_command_prints_either(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "tests.unit.web.described:app"]) == 0
    assert json.loads(capsys.readouterr().out)["asyncapi"] == "3.0.0"
    assert main(["describe", "tests.unit.web.described:app", "--http"]) == 0
    assert json.loads(capsys.readouterr().out)["openapi"] == "3.1.0"
    with pytest.raises(SystemExit):
        main(["describe", "no-colon"])

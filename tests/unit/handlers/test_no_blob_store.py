"""Without a blob store: a handler that is seen to write blobs fails at the start, any other use is refused once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from outbox import App, Context, Engine, azure
from outbox.azure import functions
from outbox.azure.functions import FunctionsSettings
from outbox.azure.functions.processor import Processor
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import NotRegistrable
from outbox.http_entry import HttpEntry
from outbox.message import Message
from outbox.ports import NoBlobs, StorePorts
from outbox.runtime.delivery.claim_check import to_claim
from outbox.worker import Worker

Scope = Literal["partition", "item"]
SCOPES = pytest.mark.parametrize("scope", ["partition", "item"])


@dataclass
class Order:
    key: str
    kind: str = ""


@dataclass
class Book:
    count: int = 0


class Bare:
    """A store and a bus without a blob store, unless one is set."""

    def __init__(self, engine: Engine, scope: Scope, *, has_blobs: bool = False) -> None:
        self.engine = engine
        self._narrow = NarrowEngine(engine, scope)
        self._has_blobs = has_blobs

    def ports(self) -> StorePorts:
        ports = self._narrow.ports()
        return ports if self._has_blobs else replace(ports, blobs=NoBlobs())


def keep(ctx: Context) -> None:
    """What a handler calls: its own code does not say that a blob is written."""
    ctx.write_blob("bill", b"5 EUR")


def shop(runs: list[str] | None = None) -> App:
    app = App("shop")
    app.queue("out")
    seen = [] if runs is None else runs

    @app.handler("orders", key="key")
    def order(order: Order, book: Book, ctx: Context) -> None:
        seen.append(order.kind)
        book.count += 1
        if order.kind == "blob":
            keep(ctx)
        if order.kind == "large":
            ctx.send("out", Order("a", "x" * 250_000))

    @app.http("POST", "/orders/{key}", key="key", name="ask")
    def ask(order: Order, book: Book, ctx: Context) -> Order:
        keep(ctx)
        return order

    return app


def writing() -> App:
    app = App("writing")

    @app.handler("orders", key="key")
    async def order(order: Order, book: Book, ctx: Context) -> None:
        ctx.write_blob("bill", b"5 EUR")

    return app


@asynccontextmanager
async def working(app: App, backend: Any) -> AsyncIterator[Worker]:
    async with Worker(app, backend) as worker:
        yield worker


async def handled(worker: Worker) -> None:
    await worker.wait_idle()


# At the start


@SCOPES
def test_a_handler_that_is_seen_to_write_blobs_fails_at_the_start(scope: Scope) -> None:
    backend = Bare(Engine.in_memory(), scope)
    for start in (
        lambda: Worker(writing(), backend),
        lambda: HttpEntry(writing(), backend),
        lambda: Processor(writing(), backend, FunctionsSettings(lambda: backend)),
    ):
        with pytest.raises(NotRegistrable, match=r"order calls ctx\.write_blob.*blobs=.*OUTBOX_BLOBS"):
            start()
    Worker(writing(), Bare(Engine.in_memory(), scope, has_blobs=True))
    Worker(shop(), backend)  # what it calls in turn is not looked at


def test_an_application_on_azure_without_blobs_fails_at_the_start() -> None:
    backend = azure.connect(
        cosmos="https://nowhere.invalid", database="d", servicebus="nowhere.invalid", credential=object()
    )
    with pytest.raises(NotRegistrable, match="OUTBOX_BLOBS"):
        Worker(writing(), backend)


def test_a_functions_app_whose_settings_name_no_blob_store_is_not_indexed() -> None:
    def unopened() -> Any:
        raise AssertionError("nothing is opened when functions are registered")

    with pytest.raises(NotRegistrable, match="OUTBOX_BLOBS"):
        functions.blueprint(writing(), FunctionsSettings(unopened, has_blobs=False))
    functions.blueprint(writing(), FunctionsSettings(unopened, has_blobs=True))
    functions.blueprint(writing(), FunctionsSettings(unopened))


def test_a_function_within_a_handler_is_looked_at_and_other_names_are_not() -> None:
    app = App("nested")

    @app.handler("a", key="key")
    def nested(order: Order, book: Book, ctx: Context) -> None:
        [ctx.write_blob(name, b"") for name in (lambda: ("a",))()]

    @app.handler("b", key="key")
    def other(order: Order, book: Book) -> None:
        order.write_blob = ""  # type: ignore[attr-defined]  # it has no context

    assert [handler.binding.writes_blobs for handler in app.handlers] == [True, False]


# Any other use


@SCOPES
@pytest.mark.parametrize("kind", ["blob", "large"])
async def test_any_other_use_is_refused_once_with_the_cure(scope: Scope, kind: str) -> None:
    runs: list[str] = []
    app, backend = shop(runs), Bare(Engine.in_memory(), scope)
    async with working(app, backend) as worker:
        for number, what in enumerate(["", kind, "", ""]):
            await worker.send("orders", Order("a", what), id=f"o{number}")
        await handled(worker)
        (dead_letter,) = await worker.dead_letters("orders")
        assert (dead_letter.id, dead_letter.reason) == (
            "o1",
            "no-blob-store",
        ) and "OUTBOX_BLOBS" in dead_letter.description
        assert await worker.state(Book, "a") == Book(3) and runs.count(kind) <= 3
    async with working(app, Bare(backend.engine, scope, has_blobs=True)) as worker:
        await worker.resubmit("orders", "o1")
        await handled(worker)
        assert await worker.state(Book, "a") == Book(4) and await worker.dead_letters("orders") == []


@SCOPES
async def test_a_body_that_lies_in_a_blob_store_is_refused_once(scope: Scope) -> None:
    app, backend = shop(), Bare(Engine.in_memory(), scope)
    name, _ = to_claim(Message(body=b"{}", outbox_id="o1"))
    async with working(app, backend) as worker:
        properties: dict[str, Any] = {"outbox-id": "o1", "outbox-type": "Order", "outbox-claim": name}
        await worker.send_raw("orders", b"", properties=properties)
        await handled(worker)
        assert [dead_letter.reason for dead_letter in await worker.dead_letters("orders")] == ["no-blob-store"]


@SCOPES
async def test_a_request_that_writes_a_blob_is_answered_and_on_record(scope: Scope) -> None:
    async with HttpEntry(shop(), Bare(Engine.in_memory(), scope)) as entry:
        for _ in range(2):
            response = await entry.handle("POST", "/orders/a", {"Idempotency-Key": "k"}, b"")
            assert response.status == 500 and b"no-blob-store" in response.body

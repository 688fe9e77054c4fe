"""The functions of any application, called as a worker calls them; triggers of one's own; one backend for all."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import azure.functions as func
import pytest
from azure.functions.servicebus import ServiceBusMessage

from outbox import App, Engine
from outbox.azure import functions
from outbox.azure.functions import sites
from outbox.azure.functions.processor import Processor
from outbox.azure.functions.sites import Names, edge
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown, Refused
from outbox.runtime.start.plan import compile_app
from tests.functions.triggered import triggered


@dataclass
class Order:
    id: str
    items: int = 1


@dataclass
class Total:
    items: int = 0


def shop() -> App:
    app = App("shop")

    @app.http("PUT", "/shops/{id}/orders", key="id")
    @app.handler("orders", key="id", name="queued")
    def order(order: Order, total: Total) -> Total:
        total.items += order.items
        return total

    @app.http("GET", "/shops/{id}", key="id")
    def look(order: Order, total: Total) -> Total | None:
        return total if total.items else None

    return app


class Site:
    """An application's functions on an engine."""

    def __init__(self) -> None:
        self.engine = Engine.in_memory()
        self.connect_count = 0
        self.app = shop()
        self.settings = functions.FunctionsSettings(self.connect, attempt_s=5, rest_s=0.01)
        made = func.FunctionApp()
        made.register_functions(functions.blueprint(self.app, self.settings))
        self.functions: dict[str, Any] = {
            str(one.get_function_name()): one.get_user_function() for one in made.get_functions()
        }

    def connect(self) -> NarrowEngine:
        self.connect_count += 1
        return NarrowEngine(self.engine, "partition")

    async def ask(self, name: str, method: str, url: str, body: bytes = b"", key: str = "") -> func.HttpResponse:
        headers = {"Idempotency-Key": key} if key else {}
        request = func.HttpRequest(method, url, headers=headers, body=body)
        response: func.HttpResponse = await self.functions[name](request)
        return response


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.engine.close()


def message(id: str, type: str = "") -> func.ServiceBusMessage:
    return triggered(id, b'{"id":"s1","items":2}', type)


async def test_every_entry_and_source_has_a_function(site: Site) -> None:
    assert sorted(site.functions) == ["http_get_shops_id", "http_put_shops_id_orders", "queue_orders", "sweep"]


def test_what_may_be_read_answers_to_head_as_well() -> None:
    made, settings = func.FunctionApp(), functions.FunctionsSettings(lambda: NarrowEngine(Engine.in_memory(), "item"))
    made.register_functions(functions.blueprint(shop(), settings))
    triggers: list[Any] = [one.get_trigger() for one in made.get_functions()]
    routes = [trigger for trigger in triggers if hasattr(trigger, "methods")]
    methods = {trigger.route: {str(method.value) for method in trigger.methods} for trigger in routes}
    assert methods == {"shops/{id}": {"GET", "HEAD"}, "shops/{id}/orders": {"PUT"}}


def test_the_host_can_tell_all_functions_apart() -> None:
    names = Names()
    texts = ["Orders", "orders", "ORDERS", "a/{b}", "a_b", "x" * 200, "x" * 201, "é", "è"]
    found = [names.name("queue", text) for text in texts]
    assert len({name.lower() for name in found}) == len(texts)
    assert found[0] == "queue_Orders" and all(re.fullmatch(r"[A-Za-z0-9_-]{1,127}", name) for name in found)
    with pytest.raises(Refused, match="is there twice"):
        names.name("queue", "orders")


@pytest.mark.parametrize("prefix", ["", "/api", "/deep/er"])
async def test_a_request_finds_its_entry_under_any_prefix(site: Site, prefix: str) -> None:
    url = f"https://shop.example{prefix}/shops/a%2Fb"
    first = await site.ask("http_put_shops_id_orders", "PUT", f"{url}/orders", b'{"items":3}', "k1")
    again = await site.ask("http_put_shops_id_orders", "PUT", f"{url}/orders", b'{"items":3}', "k1")
    assert (first.status_code, first.get_body()) == (again.status_code, again.get_body()) == (200, b'{"items":3}')
    assert first.headers["content-type"] == "application/json"
    assert (await site.ask("http_get_shops_id", "GET", url)).get_body() == b'{"items":3}'
    assert (await site.ask("http_get_shops_id", "GET", f"{url}x")).status_code == 404
    asked = [await site.ask("http_get_shops_id", "GET", f"{url}?items={text}") for text in ("1", "many")]
    assert [response.status_code for response in asked] == [200, 400]


async def test_one_backend_is_opened_for_all_functions_of_a_loop(site: Site) -> None:
    url = "https://shop.example/shops/s1"
    await asyncio.gather(
        *(site.ask("http_get_shops_id", "GET", url) for _ in range(5)),
        *(site.functions["queue_orders"](message(f"m{n}")) for n in range(5)),
        site.functions["sweep"](None),
    )
    assert site.connect_count == 1
    assert (await site.ask("http_get_shops_id", "GET", url)).get_body() == b'{"items":10}'


def test_another_loop_opens_its_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = Processor.open

    async def opens(processor: Processor) -> None:
        await asyncio.sleep(0)  # the others wait for the lock
        await open_(processor)

    async def both() -> None:
        await asyncio.gather(*(site.functions["queue_orders"](message(id)) for id in ("m1", "m2")))

    monkeypatch.setattr(Processor, "open", opens)
    for count in (1, 2):
        asyncio.run(both())
        assert site.connect_count == count


async def test_a_backend_that_cannot_be_opened_fails_each_invocation_until_it_can(site: Site, caplog: Any) -> None:
    connect, site.app = site.connect, shop()

    def fails() -> Any:
        raise Refused("app settings are missing: OUTBOX_COSMOS")

    broken = [fails]
    settings = functions.FunctionsSettings(lambda: broken[0]() if broken else connect(), attempt_s=5, rest_s=0.01)
    with pytest.raises(Refused, match="OUTBOX_COSMOS"):
        await functions.process(site.app, message("m1"), settings=settings)
    with caplog.at_level(logging.CRITICAL):
        asked = func.HttpRequest("GET", "https://x/shops/s1", headers={}, body=b"")
        assert (await functions.answer(site.app, asked, "/shops/s1")).status_code == 503
    broken.clear()
    await functions.process(site.app, message("m1"))
    assert (await functions.answer(site.app, asked, "/shops/s1")).get_body() == b'{"items":2}'


async def test_a_message_rests_before_it_is_abandoned_because_the_backend_cannot_be_opened(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host redelivers it at once, and would have used up its deliveries within seconds."""
    app, delivery_counts = shop(), list[int]()

    def fails() -> Any:
        raise Refused("app settings are missing: OUTBOX_COSMOS")

    def paused_s(delivery_count: int, chance: float) -> float:
        delivery_counts.append(delivery_count)
        return 0.1

    monkeypatch.setattr(sites, "pause_s", paused_s)
    begun_s = time.monotonic()
    with pytest.raises(Refused, match="OUTBOX_COSMOS"):
        await functions.process(app, message("m1"), settings=functions.FunctionsSettings(fails))
    assert delivery_counts == [1] and time.monotonic() - begun_s > 0.09


async def test_no_invocation_uses_a_processor_that_could_not_be_opened(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_ = list[str](), Processor.open
    gate = asyncio.Event()

    async def opens(processor: Processor) -> None:
        opened.append("begun")
        await gate.wait()
        if len(opened) == 1:
            raise OutcomeUnknown("no answer")
        await open_(processor)

    monkeypatch.setattr(Processor, "open", opens)
    both = [asyncio.ensure_future(site.functions["queue_orders"](message(f"m{n}"))) for n in range(3)]
    await asyncio.sleep(0.05)
    assert not any(one.done() for one in both)
    gate.set()
    first, *others = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(first, OutcomeUnknown) and others == [None, None]
    assert len(opened) == 2 and site.connect_count == 1  # nobody would close another backend


async def test_a_trigger_of_ones_own_needs_settings_and_a_source_that_is_clear(site: Site) -> None:
    app = App("two")

    @app.handler("here")
    @app.handler("there", name="other")
    def handle(order: Order) -> None: ...

    with pytest.raises(Refused, match="two has no settings in this process"):
        await functions.process(app, message("m1"))
    settings = functions.FunctionsSettings(site.connect)
    with pytest.raises(Refused, match="say source=, one of there, here"):
        await functions.process(app, message("m1", "Order"), settings=settings)
    for given in (None, functions.FunctionsSettings(site.connect)):
        await functions.process(app, message("m1"), source="there", settings=given)
    with pytest.raises(Refused, match="other settings"):
        await functions.process(app, message("m1"), settings=functions.FunctionsSettings(site.connect, rest_s=1))


async def test_a_trigger_of_an_older_worker_tells_the_type_in_its_user_properties() -> None:
    app = App("two")

    @app.handler("here")
    def handle(order: Order) -> None: ...

    @app.handler("there")
    def other(total: Total) -> None: ...

    received = ServiceBusMessage(
        body=b'{"id":"s1"}', trigger_metadata=None, application_properties={}, message_id="m1",
        user_properties={"outbox-id": "m1", "outbox-type": "Order"},
    )  # fmt: skip
    assert sites._source_of(compile_app(app), received) == "here"


async def test_a_close_ends_the_watch_and_the_threads_of_a_processor(site: Site) -> None:
    await site.functions["queue_orders"](message("m1"))
    processor = await functions.processor_of(site.app)
    await functions.close(site.app)
    assert processor._watch._stopping.is_set()


async def test_nothing_but_exceptions_gets_out() -> None:
    with pytest.raises(RuntimeError, match="ended by CancelledError") as told:
        async with edge():
            raise asyncio.CancelledError
    assert isinstance(told.value.__cause__, asyncio.CancelledError)
    with pytest.raises(RuntimeError, match="ended by GeneratorExit"):
        async with edge():
            raise GeneratorExit

"""The HTTP entries as an ASGI application: alone, mounted in FastAPI, and under clients that do as they like."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI

from outbox import App, Context, Engine, Reject, asgi
from outbox.asgi import AsgiApp
from outbox.http_entry import HttpEntry
from tests.unit.waiting import until


@dataclass
class Pay:
    purse: str
    amount: int


@dataclass
class Look:
    purse: str
    currency: str = "EUR"


@dataclass
class Purse:
    balance: int = 0


@dataclass
class Receipt:
    balance: int


def paying() -> App:
    app = App("purses")

    @app.http("POST", "/payments", key="purse")
    def pay(payment: Pay, purse: Purse, ctx: Context) -> Receipt:
        """Put money into a purse."""
        if payment.amount < 0:
            raise Reject("give, not take")
        purse.balance += payment.amount
        return Receipt(purse.balance)

    @app.http("GET", "/purses/{purse}", key="purse")
    def look(asked: Look, purse: Purse) -> Receipt:
        return Receipt(purse.balance if asked.currency == "EUR" else 100 * purse.balance)

    return app


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    application: Any,
    method: str,
    path: str,
    body: bytes | Sequence[bytes] = b"",
    *,
    key: str = "",
    more: Sequence[tuple[bytes, bytes]] = (),
    hangs_up: bool = False,
    **scope: Any,
) -> Answer | None:
    """Send a request as a server does; None where nothing was answered."""
    pieces = [body] if isinstance(body, bytes) else list(body)
    incoming = [
        {"type": "http.request", "body": piece, "more_body": hangs_up or number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    bare, _, query = path.partition("?")
    headers = [(b"content-type", b"application/json"), *more]
    headers += [(b"idempotency-key", key.encode())] if key else []
    known = {"type": "http", "method": method, "path": bare, "query_string": query.encode(), "headers": headers}
    await application({"http_version": "1.1", "root_path": "", **known, **scope}, receive, send)
    if not sent:
        return None
    named = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
    return Answer(sent[0]["status"], named, b"".join(each.get("body", b"") for each in sent[1:]))


async def answer(*given: Any, **options: Any) -> Answer:
    found = await ask(*given, **options)
    assert found is not None
    return found


@asynccontextmanager
async def alone(**options: Any) -> AsyncIterator[AsgiApp]:
    async with Engine.in_memory() as engine, AsgiApp(paying(), engine, **options) as application:
        yield application


async def test_a_request_takes_effect_once_and_gets_one_response() -> None:
    async with alone() as bank:
        for _ in range(2):
            found = await answer(bank, "POST", "/payments", b'{"purse": "a", "amount": 5}', key="k1")
            assert (found.status, found.json) == (200, {"balance": 5})
        assert found.headers["content-length"] == str(len(found.body))
        assert (await answer(bank, "GET", "/purses/a")).json == {"balance": 5}
        head = await answer(bank, "HEAD", "/purses/a")
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(b'{"balance":5}')))
        refused = await answer(bank, "POST", "/payments", b'{"purse": "a", "amount": -5}', key="k2")
        assert (refused.status, refused.json["detail"]) == (409, "give, not take")


async def test_mounted_in_fastapi_it_serves_below_its_place(engine: Engine) -> None:
    bank = AsgiApp(paying(), engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with bank:
            yield

    api = FastAPI(lifespan=lifespan)
    api.mount("/bank v1", bank)

    @api.get("/own")
    def own() -> str:
        return "mine"

    async with api.router.lifespan_context(api):
        paid = await answer(api, "POST", "/bank v1/payments", b'{"purse": "a/b", "amount": 5}', key="k")
        assert (paid.status, paid.json) == (200, {"balance": 5})
        raw = {"raw_path": b"/bank%20v1/purses/a%2Fb"}
        assert (await answer(api, "GET", "/bank v1/purses/a/b", **raw)).json == {"balance": 5}
        assert (await answer(api, "GET", "/own")).json == "mine"
        assert (await answer(api, "GET", "/bank v1/nothing")).json["code"] == "not-found"
    assert (await answer(api, "GET", "/bank v1/purses/a")).json["code"] == "not-started"


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({"root_path": "/bank", "path": "/bank/purses/a"}, "with its root, as servers send it now"),
        ({"root_path": "/bank", "path": "/purses/a"}, "without, as older ones do"),
        ({"root_path": "/bank/", "path": "/bank/purses/a", "raw_path": b"/bank/purses/a"}, "raw"),
        ({"root_path": "", "path": "/purses/a", "raw_path": b"/purses/%61?x=1"}, "raw and encoded, with a query"),
        ({"root_path": "/b", "path": "/purses/a"}, "another root"),
        ({"path": "/purses/a", "raw_path": None}, "no raw one"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_however_a_server_gives_the_path_it_is_found(scope: dict[str, Any], path: str) -> None:
    scope = dict(scope)
    async with alone() as bank:
        await answer(bank, "POST", "/payments", b'{"purse": "a", "amount": 5}', key="k")
        found = await answer(bank, "GET", scope.pop("path"), **scope)
        assert found.json == {"balance": 5}, path


@pytest.mark.parametrize(
    ("root", "path", "below"),
    [("/bank", "/bankers/a", "/bankers/a"), ("/bank", "/bank", "/"), ("/bank", "/bank/", "/"), ("", "/bank", "/bank")],
)
def test_only_the_place_itself_is_taken_off_a_path(root: str, path: str, below: str) -> None:
    assert asgi._path({"root_path": root, "path": path}) == below


async def test_a_query_reaches_the_entry() -> None:
    twice = {"path": "/purses/a", "raw_path": b"/purses/a?currency=JPY", "query_string": b"currency=JPY"}
    assert asgi._path(twice) == "/purses/a?currency=JPY"
    async with alone() as bank:
        await answer(bank, "POST", "/payments", b'{"purse": "a", "amount": 5}', key="k")
        assert (await answer(bank, "GET", "/purses/a?currency=JPY")).json == {"balance": 500}
        assert (await answer(bank, "GET", "/purses/a?currency=EUR")).json == {"balance": 5}


async def test_the_server_begins_and_ends_it(engine: Engine) -> None:
    bank = AsgiApp(paying(), engine)
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    running = asyncio.create_task(bank({"type": "lifespan"}, incoming.get, sent.put))
    incoming.put_nowait({"type": "lifespan.startup"})
    assert (await asyncio.wait_for(sent.get(), 5))["type"] == "lifespan.startup.complete"
    assert (await answer(bank, "GET", "/purses/a")).status == 200
    incoming.put_nowait({"type": "lifespan.shutdown"})
    assert (await asyncio.wait_for(sent.get(), 5))["type"] == "lifespan.shutdown.complete"
    await running
    assert (await answer(bank, "GET", "/purses/a")).status == 503


async def test_an_end_that_fails_is_told_to_the_server(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, sent = AsgiApp(paying(), engine), list[Any]()
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    for what in ("startup", "shutdown"):
        incoming.put_nowait({"type": f"lifespan.{what}"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def broken(*_: Any) -> None:
        raise RuntimeError("it hangs")

    monkeypatch.setattr(HttpEntry, "drain", broken)
    await bank({"type": "lifespan"}, incoming.get, send)
    assert sent[1:] == [{"type": "lifespan.shutdown.failed", "message": "it hangs"}]


async def test_a_start_that_fails_is_told_to_the_server() -> None:
    engine = Engine.in_memory()
    await engine.__aexit__(None, None, None)
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await AsgiApp(paying(), engine)({"type": "lifespan"}, incoming.get, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"] and sent[0]["message"]


async def test_a_body_in_pieces_is_one_and_one_that_is_too_large_is_refused() -> None:
    async with alone(body_bytes_max=27) as bank:
        paid = await answer(bank, "POST", "/payments", (b'{"purse": "a",', b' "amount"', b": 5}"), key="k")
        assert paid.json == {"balance": 5}
        large = await answer(bank, "POST", "/payments", (b"x" * 30, b"x" * 30), key="k2")
        assert (large.status, large.json["code"]) == (413, "too-large")
        assert bank.body_bytes == 0


async def test_too_many_bodies_at_once_are_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"purse": "a", "amount": 5}'
    async with alone() as bank:
        monkeypatch.setattr(asgi, "BODIES_MAX_BYTES", len(body))
        assert (await answer(bank, "POST", "/payments", body, key="first")).status == 200
        monkeypatch.setattr(asgi, "BODIES_MAX_BYTES", len(body) - 1)
        found = await answer(bank, "POST", "/payments", body, key="k")
        assert (found.status, found.json["code"], "retry-after" in found.headers) == (503, "try-again", True)
        assert bank.body_bytes == 0


async def test_a_client_that_hangs_up_or_is_slow_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "BODY_WITHIN_S", 0.05)
    async with alone() as bank:
        body = b'{"purse": "a", "amount": 5}'
        assert await ask(bank, "POST", "/payments", body, key="k", hangs_up=True) is None
        sent: list[Any] = []

        async def never() -> Any:
            await asyncio.sleep(10)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/payments", "headers": [], "query_string": b""}
        await bank(scope, never, send)
        assert sent[0]["status"] == 408
        assert (await answer(bank, "GET", "/purses/a")).json == {"balance": 0} and bank.body_bytes == 0


async def test_two_keys_are_refused_and_other_headers_are_joined() -> None:
    async with alone() as bank:
        body, twice = b'{"purse": "a", "amount": 5}', [(b"Idempotency-Key", b"other")]
        found = await answer(bank, "POST", "/payments", body, key="k", more=twice)
        assert (found.status, found.json["code"]) == (400, "idempotency-key-unfit")
        joined = [(b"x-a", b"1"), (b"X-A", b"2")]
        assert asgi._headers({"headers": joined}) == {"x-a": "1, 2"}
        assert (await answer(bank, "POST", "/payments", body, key="k", more=joined)).status == 200


async def test_the_limit_of_requests_is_of_those_that_wait_and_of_those_at_work(engine: Engine) -> None:
    app, begun, go = App("slow"), asyncio.Event(), asyncio.Event()

    @app.http("POST", "/payments", key="purse")
    async def pay(payment: Pay, purse: Purse) -> None:
        begun.set()
        await go.wait()

    async def asked(key: str, body: bytes = b'{"purse": "a", "amount": 5}') -> Answer:
        return await answer(bank, "POST", "/payments", body, key=key)

    async with AsgiApp(app, engine, request_count_max=1, wait_s=0.2) as bank:
        assert [(await asked("k1", b"{")).status for _ in range(3)] == [400] * 3, "they are over"
        first = asyncio.ensure_future(asked("k1"))
        async with asyncio.timeout(10):
            await begun.wait()
        same = await asked("k1")
        assert same.status == 503 and "which is the limit" in same.json["detail"]
        assert (await first).status == 503, "nobody waits for it any more, and it is at work"
        other = await asked("k2")
        assert other.status == 503 and "which is the limit" in other.json["detail"]
        go.set()

        async def is_taken() -> bool:
            return (await asked("k2")).status != 503

        assert await until(is_taken, within_s=10)


async def test_a_host_that_stops_says_that_the_request_may_come_again(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine.in_memory() as engine, AsgiApp(paying(), engine) as bank:
        engine.close()
        found = await answer(bank, "POST", "/payments", b'{"purse": "a", "amount": 5}', key="k")
    assert found.status == 503 and "under the same key, is safe" in found.json["detail"]
    assert "this is a bug" not in caplog.text


async def test_a_bug_is_logged_and_not_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with alone() as bank:
        entry = bank._entry
        assert entry is not None

        async def broken(*given: Any) -> Any:
            raise RuntimeError("secret")

        monkeypatch.setattr(entry, "handle", broken)
        found = await answer(bank, "GET", "/purses/a")
        assert found.status == 500 and b"secret" not in found.body and "secret" in caplog.text


async def test_a_websocket_is_closed_and_another_protocol_refused() -> None:
    async with alone() as bank:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        await bank({"type": "websocket"}, receive, send)
        assert [message["type"] for message in sent] == ["websocket.close"]
        with pytest.raises(ValueError, match="'smoke' is no ASGI protocol"):
            await bank({"type": "smoke"}, receive, send)

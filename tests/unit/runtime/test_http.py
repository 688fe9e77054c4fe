"""HTTP entries: a request takes effect once, with the reply that its commit has stored, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from http import HTTPStatus
from ipaddress import IPv4Address
from typing import Any

import msgspec
import pydantic
import pytest

from outbox import App, Context, Reject, Retries, Retry
from outbox.errors import NotRegistrable, UnknownDestination
from outbox.http import KEY_HEADER, REPLY_BYTES_MAX, Request, Response, idempotency_key, reply_of
from outbox.http_entry import HttpEntry
from outbox.testing import Harness
from tests.unit.runtime.purse import Ask, Book, Paid, Pay, Purse, paying

PAY = Pay("a", 5)


@dataclass
class Growing:
    text: str = ""


def told(response: Response) -> tuple[int, str]:
    """The status of a problem, and its code."""
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status and body["detail"] and body["title"]
    return response.status, body["code"]


async def test_a_request_commits_state_outputs_and_reply() -> None:
    async with Harness(paying()) as world:
        response = await world.request("POST", "/payments", json=PAY, key="k")
        assert response.status == 200 and response.headers == {"content-type": "application/json"}
        assert response.json()["balance"] == 5
        assert await world.state(Purse, "a") == Purse(5, 1) and world.sent("paid") == [Paid("a", 5)]


@pytest.mark.parametrize("is_durable", [True, False])
async def test_what_a_commit_sends_that_is_cut_off_is_seen_once(
    is_durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Harness(paying()) as world:
        if not is_durable:
            monkeypatch.setattr(world.engine.core, "flush", lambda: None)
        asking = asyncio.create_task(world.request("POST", "/payments", json=PAY, key="k"))
        while not world.engine.core._gate_waiters:  # noqa: ASYNC110  # the engine says so by nothing else
            await asyncio.sleep(0)
        await world.restart()
        assert (await asking).status == 200
        assert await world.state(Purse, "a") == Purse(5, 1) and world.sent("paid") == [Paid("a", 5)]


async def test_the_same_key_gives_the_same_reply_and_runs_nothing() -> None:
    book = Book()
    async with Harness(paying(book)) as world:
        first = await world.request("POST", "/payments", json=PAY, key="k")
        await world.request("POST", "/payments", json=PAY, key="other")
        assert await world.request("POST", "/payments", json=PAY, key="k") == first
        await world.restart()
        assert await world.request("POST", "/payments", json=PAY, key="k") == first
        assert book.runs == ["a", "a"] and (await world.state(Purse, "a")) == Purse(10, 2)


async def test_a_body_that_says_the_same_in_another_order_is_the_same() -> None:
    async with Harness(paying()) as world:
        first = await world.request("POST", "/payments", body=b'{"purse": "a", "amount": 5}', key="k")
        assert await world.request("POST", "/payments", body=b'{ "amount":5,"purse":"\\u0061" }', key="k") == first


@pytest.mark.parametrize("other", [Pay("a", 6), Pay("b", 5), Pay("a", 5, "note")])
async def test_another_body_under_the_same_key_is_refused_and_changes_nothing(other: Pay) -> None:
    async with Harness(paying()) as world:
        first = await world.request("POST", "/payments", json=PAY, key="k")
        assert told(await world.request("POST", "/payments", json=other, key="k")) == (422, "idempotency-key-reused")
        assert await world.state(Purse, "a") == Purse(5, 1) and await world.state(Purse, "b") is None
        assert await world.request("POST", "/payments", json=PAY, key="k") == first


async def test_a_quoted_key_is_the_key_that_it_quotes() -> None:
    async with Harness(paying()) as world:
        first = await world.request("POST", "/payments", json=PAY, key='"k"')
        assert await world.request("POST", "/payments", json=PAY, key="k") == first


@pytest.mark.parametrize("key", [None, "", '""', "x" * 256, "schlüssel", "a\tb"])
async def test_a_request_without_a_fit_key_is_refused_and_not_run(key: str | None) -> None:
    book = Book()
    async with Harness(paying(book)) as world:
        response = await world.request("POST", "/payments", json=PAY, key=key)
        assert response.status == 400 and "Idempotency-Key" in response.json()["detail"] and book.runs == []


# Refusals and failures


async def test_a_rejection_is_stored() -> None:
    book = Book()
    async with Harness(paying(book)) as world:
        first = await world.request("POST", "/payments", json=Pay("a", -5), key="k")
        assert told(first) == (409, "rejected") and first.json()["detail"] == "not enough in it"
        await world.given(Purse, "a", Purse(100))
        assert await world.request("POST", "/payments", json=Pay("a", -5), key="k") == first
        assert await world.state(Purse, "a") == Purse(100) and len(book.runs) == 1


async def test_a_failure_is_reported_without_its_reason_and_not_stored() -> None:
    book = Book(failing=1)
    async with Harness(paying(book)) as world:
        failed = await world.request("POST", "/payments", json=PAY, key="k")
        assert told(failed) == (500, "failed") and failed.headers["retry-after"] == "1"
        assert b"drawer" not in failed.body and await world.state(Purse, "a") is None
        assert (await world.request("POST", "/payments", json=PAY, key="k")).status == 200
        assert await world.state(Purse, "a") == Purse(5, 1)


async def test_declared_retries_are_made_within_the_request() -> None:
    book = Book(failing=2)
    async with Harness(paying(book, retries=Retries(limit=3, delays_s=(0.1,)))) as world:
        assert (await world.request("POST", "/payments", json=PAY, key="k")).status == 200
        assert len(book.runs) == 3 and await world.state(Purse, "a") == Purse(5, 1)


async def test_the_last_failure_of_declared_retries_is_stored() -> None:
    book = Book(failing=3)
    async with Harness(paying(book, retries=Retries(limit=3, delays_s=()))) as world:
        first = await world.request("POST", "/payments", json=PAY, key="k")
        assert told(first) == (500, "failed") and "retry-after" not in first.headers and b"drawer" not in first.body
        assert await world.request("POST", "/payments", json=PAY, key="k") == first
        assert len(book.runs) == 3 and (await world.request("POST", "/payments", json=PAY, key="k2")).status == 200


async def test_retry_asks_the_client_to_repeat() -> None:
    app = paying()
    is_down = True

    @app.http("POST", "/slow", key="purse")
    def slow(message: Ask, purse: Purse) -> None:
        purse.count += 1
        if is_down:
            raise Retry("upstream is down", after_s=7.2)

    async with Harness(app) as world:
        response = await world.request("POST", "/slow", json=Ask("a"), key="k")
        assert told(response) == (503, "try-again") and response.headers["retry-after"] == "8"
        is_down = False
        assert (await world.request("POST", "/slow", json=Ask("a"), key="k")) == Response(204, {}, b"")
        assert await world.state(Purse, "a") == Purse(0, 1)


async def test_a_reply_too_large_to_store_takes_its_effect_with_it() -> None:
    app = paying()

    @app.http("POST", "/large", key="purse")
    def large(message: Ask, purse: Purse, ctx: Context) -> bytes:
        purse.count += 1
        ctx.send("paid", Paid("a", 1))
        return b"x" * (REPLY_BYTES_MAX + message.amount)

    async with Harness(app) as world:
        assert told(await world.request("POST", "/large", json=Ask("a", 1), key="k1")) == (500, "failed")
        assert await world.state(Purse, "a") is None and world.sent("paid") == []
        fitting = await world.request("POST", "/large", json=Ask("a", 0), key="k2")
        assert fitting.status == 200 and len(fitting.body) == REPLY_BYTES_MAX
        assert fitting.headers == {"content-type": "application/octet-stream"}


async def test_a_commit_over_the_limit_is_refused_for_good() -> None:
    book = Book()
    app = paying(book)

    @app.http("POST", "/growing", key="purse")
    def grow(message: Ask, total: Growing) -> None:
        book.runs.append("grow")
        total.text = "x" * message.amount

    async with Harness(app) as world:
        first = await world.request("POST", "/growing", json=Ask("a", 40 << 20), key="k")
        assert told(first) == (500, "oversize") and "retry-after" not in first.headers
        assert await world.request("POST", "/growing", json=Ask("a", 40 << 20), key="k") == first
        assert book.runs == ["grow"] and await world.state(Growing, "a") is None


@pytest.mark.engine_only
async def test_an_output_to_a_queue_that_was_deleted_fails_the_request_for_good() -> None:
    book = Book()
    async with Harness(paying(book)) as world:
        world.engine.topology.delete("paid")
        first = await world.request("POST", "/payments", json=PAY, key="k")
        assert told(first) == (500, "failed") and "retry-after" not in first.headers
        assert await world.request("POST", "/payments", json=PAY, key="k") == first
        assert book.runs == ["a"] and await world.state(Purse, "a") is None


@pytest.mark.parametrize(
    "reply",
    [
        Response(99),
        Response(204, {}, {"a": 1}),
        Response(304, {}, {"a": 1}),
        Response(200, {"x-a": "b\r\nset-cookie: c"}),
        Response(200, {"Content-Length": "3"}),
        Response(200, {"x-a": "\u00e9"}),
        Response(200, {f"x-{n}": "" for n in range(33)}),
        Response(200, {"x-a": 8_190 * "b"}),
        Response(200, {8_190 * "x" + "-a": "b"}),
        Response(200, {}, object()),
    ],
)
async def test_a_reply_that_cannot_be_sent_fails_the_handling(reply: Response) -> None:
    app = paying()

    @app.http("POST", "/bad", key="purse")
    def bad(message: Ask, purse: Purse) -> Response:
        purse.count += 1
        return reply

    async with Harness(app) as world:
        assert told(await world.request("POST", "/bad", json=Ask("a"), key="k")) == (500, "failed")
        assert await world.state(Purse, "a") is None


async def test_neither_bodies_nor_credentials_nor_secrets_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sent = {"Authorization": "Bearer abcdefgh-secret"}
    book = Book(failing=1)
    async with Harness(paying(book, caller=lambda request: request.headers["authorization"])) as world:
        pay = Pay("a", 5, "between-us")
        failed = await world.request("POST", "/payments", json=pay, key="k", headers=sent)
        done = await world.request("POST", "/payments", json=pay, key="k", headers=sent)
        (paid,) = world.sent_records("paid")
    said = " ".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "the drawer is stuck" in said and failed.status == 500 and done.status == 200
    for secret in ("hunter2", "between-us", "abcdefgh-secret"):
        assert secret not in said and secret not in repr(paid) and secret not in repr(failed)


# Requests that are none


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/payments", b"{", 400, "undecodable"),
        ("POST", "/payments", b'{"purse": 7, "amount": 5}', 400, "undecodable"),
        ("POST", "/payments", b'{"purse": "\\ud800", "amount": 5}', 400, "undecodable"),
        ("POST", "/payments", b'{"purse": "", "amount": 5}', 400, "missing-key"),
        ("POST", "/payments", b"[" * 100_000, 400, "undecodable"),
        ("POST", "/payments", b" " * ((1 << 20) + 1), 413, "too-large"),
        ("PUT", "/purses/a/notes/x", b"{}", 400, "undecodable"),
        ("PUT", "/purses/a/notes/3", b'{"purse": "b"}', 400, "path-differs"),
        ("PUT", "/purses/a/notes/3", b"[]", 400, "undecodable"),
    ],
)
async def test_what_cannot_be_a_message_is_refused_with_the_reason(
    method: str, path: str, body: bytes, status: int, code: str
) -> None:
    book = Book()
    async with Harness(paying(book)) as world:
        assert told(await world.request(method, path, body=body, key="k")) == (status, code)
        assert book.runs == [] and (await world.request("POST", "/payments", json=PAY, key="k")).status == 200


async def test_a_body_of_another_kind_than_json_is_refused() -> None:
    async with Harness(paying()) as world:
        for kind, status in (("text/plain", 415), ("application/vnd.pay+json", 200), ("Application/JSON; a=b", 200)):
            sent = {"Content-Type": kind}
            assert (await world.request("POST", "/payments", json=PAY, key="k", headers=sent)).status == status


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/nowhere", 404, "not-found"),
        ("POST", "/payments/", 404, "not-found"),
        ("POST", "payments", 404, "not-found"),
        ("POST", "/%ff", 404, "not-found"),
        ("DELETE", "/payments", 405, "method-not-allowed"),
    ],
)
async def test_what_is_not_served_is_answered_by_an_entry_and_refused_by_the_harness(
    method: str, path: str, status: int, code: str
) -> None:
    async with Harness(paying()) as world, HttpEntry(world.app, world.engine) as entry:
        assert told(await entry.handle(method, path, {"Idempotency-Key": "k"}, b"{}")) == (status, code)
        with pytest.raises(UnknownDestination, match=f"serves nothing at {method} {path}; it serves GET /purses/"):
            await world.request(method, path, body=b"{}", key="k")


async def test_a_wrong_method_is_answered_with_the_right_ones() -> None:
    async with Harness(paying()) as world, HttpEntry(world.app, world.engine) as entry:
        response = await entry.handle("POST", "/purses/a", {"Idempotency-Key": "k"}, b"{}")
        assert response.headers["allow"] == "GET, HEAD"


async def test_a_request_with_two_bodies_is_refused() -> None:
    async with Harness(paying()) as world:
        with pytest.raises(TypeError, match="give json= or body=, not both"):
            await world.request("POST", "/payments", json={}, body=b"{}", key="k")


# Paths


async def test_parameters_of_the_path_are_fields_of_the_message_by_their_type() -> None:
    async with Harness(paying()) as world:
        response = await world.request("PUT", "/purses/a%2Fb/notes/3", json={"note": "hi"}, key="k")
        assert (response.status, response.headers["location"], response.json()) == (201, "/purses/a/b", {"note": "hi"})
        assert await world.state(Purse, "a/b") == Purse(0, 3)
        other = await world.request("PUT", "/purses/a%2Fb/notes/4", json={"note": "hi"}, key="k")
        assert told(other) == (422, "idempotency-key-reused")


class Host(pydantic.BaseModel):
    address: IPv4Address  # a type that only its own model decodes
    name: str = pydantic.Field(default="", alias="hostName")


def hosting() -> App:
    app = App("hosts")

    @app.http("PUT", "/hosts/{address}/{name}")
    def put(message: Host) -> str:
        return f"{message.address} {message.name}"

    return app


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 200),
        (b'{"address": "10.0.0.1", "hostName": "here"}', 200),
        (b'{"address": "10.0.0.2"}', 400),
        (b'{"address": [1]}', 400),
        (b'{"hostName": "there"}', 400),
        (b'{"hostName": null}', 400),
    ],
)
async def test_the_body_says_what_the_path_says_in_any_type_and_under_any_alias(body: bytes, status: int) -> None:
    async with Harness(hosting()) as world:
        response = await world.request("PUT", "/hosts/10.0.0.1/here", body=body, key="k")
        if status == 200:
            assert (response.status, response.json()) == (200, "10.0.0.1 here")
        else:
            assert told(response) == (400, "path-differs")


async def test_a_path_that_is_spelled_out_goes_before_a_parameter() -> None:
    app = paying()

    @app.http("GET", "/purses/all")
    def every(ask: Pay) -> list[str]:
        return [ask.purse, str(ask.amount)]

    async with Harness(app) as world:
        assert (await world.request("GET", "/purses/all?purse=p&amount=7&other=1")).json() == ["p", "7"]


async def test_a_path_goes_before_a_parameter_of_its_query_with_the_same_name() -> None:
    async with Harness(paying()) as world:
        for pay in (PAY, Pay("b", 7)):
            await world.request("POST", "/payments", json=pay, key=pay.purse)
        read = (await world.request("GET", "/purses/a?purse=b")).json()
        assert (read["purse"], read["balance"]) == ("a", 5)


# Reading


async def test_a_read_needs_no_key_and_commits_nothing() -> None:
    async with Harness(paying()) as world:
        assert told(await world.request("GET", "/purses/a")) == (404, "not-found")
        await world.request("POST", "/payments", json=PAY, key="k")
        assert (await world.request("GET", "/purses/a")).json()["balance"] == 5
        head = await world.request("HEAD", "/purses/a")
        assert head.status == 200 and await world.state(Purse, "a") == Purse(5, 1)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (None, 404),
        (Response(204), 404),
        (Response(204, {"etag": '"1"'}), 204),
        (Response(200), 200),
        (Response(410), 410),
    ],
)
async def test_a_read_that_finds_nothing_is_not_found_unless_it_says_otherwise(
    reply: Response | None, status: int
) -> None:
    app = paying()

    @app.http("GET", "/replies/{purse}", key="purse")
    def look(ask: Ask, purse: Purse) -> Response | None:
        return reply

    async with Harness(app) as world:
        assert (await world.request("GET", "/replies/a")).status == status


@pytest.mark.parametrize("what", ["change", "send", "save", "delete", "blob"])
async def test_a_read_that_changes_or_sends_fails(what: str, caplog: pytest.LogCaptureFixture) -> None:
    app = paying()

    @app.http("GET", "/touch/{purse}", key="purse")
    def touch(ask: Ask, purse: Purse, ctx: Context) -> Ask:
        purse.count += what == "change"
        if what == "send":
            ctx.send("paid", Paid("a", 1))
        elif what == "save":
            ctx.save(Purse(1))
        elif what == "delete":
            ctx.delete()
        elif what == "blob":
            ctx.write_blob("name", b"x")
        return ask

    async with Harness(app) as world:
        await world.given(Purse, "a", Purse(3))
        assert told(await world.request("GET", "/touch/a")) == (500, "failed")
        assert await world.state(Purse, "a") == Purse(3) and world.sent("paid") == []
    assert "a GET handler only reads" in str([record.__dict__ for record in caplog.records])


# Who calls


async def test_no_caller_sees_anothers_reply() -> None:
    book = Book()
    async with Harness(paying(book, caller=lambda request: request.headers.get("x-user", ""))) as world:
        anna, bert = {"X-User": "anna"}, {"X-User": "bert"}
        first = await world.request("POST", "/payments", json=PAY, key="k", headers=anna)
        other = await world.request("POST", "/payments", json=Pay("b", 1), key="k", headers=bert)
        assert other.json()["purse"] == "b" and len(book.runs) == 2
        assert await world.request("POST", "/payments", json=PAY, key="k", headers=anna) == first
        assert told(await world.request("POST", "/payments", json=PAY, key="k", headers=bert))[0] == 422


async def test_a_caller_without_a_name_cannot_spell_the_key_of_one_with_a_name() -> None:
    book = Book()
    async with Harness(paying(book, caller=lambda request: request.headers.get("x-user", ""))) as world:
        first = await world.request("POST", "/payments", json=PAY, key="k", headers={"X-User": "anna"})
        spelled = f"k@{sha256(b'anna').hexdigest()}"
        other = await world.request("POST", "/payments", json=PAY, key=spelled)
        assert other != first and other.json()["number"] != first.json()["number"] and len(book.runs) == 2


async def test_a_handler_knows_the_caller_and_may_refuse_him() -> None:
    app = paying()

    async def caller(request: Request) -> str:
        if "x-user" not in request.headers:
            raise Reject("sign in")
        return request.headers["x-user"]

    @app.http("POST", "/mine", key="purse", caller=caller)
    def mine(message: Ask, purse: Purse, ctx: Context) -> str:
        if ctx.caller != message.purse:
            raise Reject("not yours")
        purse.count += 1
        return ctx.caller

    async with Harness(app) as world:
        assert told(await world.request("POST", "/mine", json=Ask("a"), key="k")) == (403, "forbidden")
        bert = await world.request("POST", "/mine", json=Ask("a"), key="k", headers={"X-User": "bert"})
        assert told(bert) == (409, "rejected")
        assert (await world.request("POST", "/mine", json=Ask("a"), key="k", headers={"X-User": "a"})).json() == "a"


async def test_a_harness_sends_headers_of_a_request_without_a_key() -> None:
    app = App("a")

    @app.http("GET", "/purses/{purse}", caller=lambda request: request.headers["x-user"])
    def show(message: Ask, ctx: Context) -> str:
        return ctx.caller

    async with Harness(app) as world:
        assert (await world.request("GET", "/purses/a", headers={"x-user": "bert"})).json() == "bert"


async def test_a_caller_whose_name_is_not_text_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    async with Harness(paying(book, caller=lambda request: "caf\udcff")) as world:  # as a header's stray byte arrives
        answer = await world.request("POST", "/payments", json={"purse": "a", "amount": 5}, key="k")
    assert answer.status == 400 and book.runs == [] and not caplog.records


@pytest.mark.parametrize("caller", [lambda request: None, lambda request: 1 / 0])
async def test_a_caller_without_a_name_is_anonymous(caller: Any) -> None:
    book = Book()
    async with Harness(paying(book, caller=caller)) as world:
        assert told(await world.request("POST", "/payments", json=PAY, key="k")) == (500, "failed")
        assert book.runs == []


# Registration


def test_an_entry_that_does_not_fit_is_refused_with_the_cure() -> None:
    app = paying()
    options: Any
    for method, path, options, text in (
        ("FETCH", "/x", {}, "a method is one of"),
        ("POST", "x", {}, "begin with a slash"),
        ("POST", "/x/{a b}", {}, "name one of the message's fields"),
        ("POST", "/x/{nothing}", {}, "has no field 'nothing'"),
        ("POST", "/payments", {}, "registered twice"),
        ("GET", "/purses/{amount}", {}, "registered twice"),
        ("POST", "/y", {"name": "POST /payments"}, "registered twice"),
        ("POST", "/x y", {}, "neither plain text"),
    ):
        with pytest.raises(NotRegistrable, match=text):
            app.http(method, path, **options)(_plain)
    with pytest.raises(NotRegistrable, match="one type of message"):
        app.http("POST", "/z")(_either)
    with pytest.raises(NotRegistrable, match="no key"):
        app.http("POST", "/z")(_keyless)
    assert len(app.routes) == 4


def _plain(message: Ask) -> None: ...


def _either(message: Ask | Pay) -> None: ...


def _keyless(message: Ask, purse: Purse) -> None: ...


async def test_an_entry_keeps_its_name_under_another_path() -> None:
    def serving(path: str) -> Any:
        app = paying()

        @app.http("POST", path, key="purse", name="refund")
        def refund(message: Ask, purse: Purse) -> int:
            purse.count += 1
            return purse.count

        return app

    async with Harness(serving("/v1/refunds")) as world:
        first = await world.request("POST", "/v1/refunds", json=Ask("a"), key="k")
        world._http_clients._app = serving("/v2/refunds")
        await world.restart()
        assert await world.request("POST", "/v2/refunds", json=Ask("a"), key="k") == first


def test_what_a_request_holds_is_not_in_its_repr() -> None:
    request = Request("POST", "/x", {"authorization": "abc"}, b"body", "token=1")
    assert "abc" not in repr(request) and "body" not in repr(request) and "token" not in repr(request)
    assert replace(request, query="a=1&a=2&b=").parameters() == {"a": "2", "b": ""}
    for query in ("a=%ff", "&".join(["a=1"] * 101)):
        with pytest.raises(ValueError, match=r"codec|fields"):
            replace(request, query=query).parameters()


@pytest.mark.parametrize(
    ("status", "fits"), [(199, False), (200, True), (599, True), (600, False), (True, False), ("200", False)]
)
def test_a_reply_has_the_status_of_an_end(status: Any, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(ValueError, match="answer with a number from 200 to 599"):
        assert reply_of(Response(status, {}, {"a": 1}), msgspec.json.encode).status == status


@pytest.mark.parametrize("body", [b"x", {"a": 1}])
def test_a_handler_says_what_its_body_is(body: Any) -> None:
    reply = reply_of(Response(200, {"Content-Type": "text/csv"}, body), msgspec.json.encode)
    assert reply.headers == {"content-type": "text/csv"}


def test_a_status_may_be_a_member_of_the_standard_librarys() -> None:
    reply = reply_of(Response(HTTPStatus.CREATED, {}, {"a": 1}), msgspec.json.encode)
    assert (reply.status, type(reply.status)) == (201, int)


@pytest.mark.parametrize(
    ("given", "key"),
    [("k", "k"), (' "k" ', "k"), (r'"a\\b\"c"', 'a\\b"c'), ('"', '"'), ('k"', 'k"'), (r"a\\b", r"a\\b")],
)
def test_a_quoted_key_is_read_as_what_it_quotes(given: str, key: str) -> None:
    assert idempotency_key({KEY_HEADER: given}) == key

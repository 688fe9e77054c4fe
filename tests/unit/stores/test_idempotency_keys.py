"""Claims of idempotency keys, over a store and a bus that are watched."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest

from outbox import App, Context
from outbox.lineage import Key
from outbox.stored import claim_key
from outbox.testing import START_S
from tests.unit.runtime.purse import Ask, Book, Pay, Purse, paying
from tests.unit.stores.http_site import INBOX, post, serving
from tests.unit.stores.store_site import site


async def test_a_claim_says_where_to_look_and_goes_when_records_do(scope: str) -> None:
    async with site(scope) as at, serving(at) as entry:
        await post(entry, Pay("a", 5))
        claim = await at.document(claim_key(INBOX).partition, "claim")
        assert claim is not None
        assert {"state": "Purse:a", "key": "s:a", "created_ms": round(START_S * 1_000)}.items() <= json.loads(
            claim
        ).items()
        at.clock.seconds += 7 * 86_400 + 3_599
        assert await at.document(claim_key(INBOX).partition, "claim") is not None
        at.clock.seconds += 2
        assert await at.document(claim_key(INBOX).partition, "claim") is None


async def test_a_stateless_entry_makes_no_claim(scope: str) -> None:
    book = Book()
    async with site(scope) as at, serving(at, paying(book)) as entry:
        first = await post(entry, Ask("a", 1), path="/echoes")
        assert await post(entry, Ask("a", 1), path="/echoes") == first and first.json() == {"purse": "a", "amount": 1}
        assert (await post(entry, Ask("a", 2), path="/echoes")).status == 422
        assert at.store.calls["claim"] == 0 and book.runs == ["echo"]


@pytest.mark.parametrize("fault", ["lost", "late", "refused"])
async def test_a_claim_of_unknown_outcome_is_looked_up(scope: str, fault: str) -> None:
    async with site(scope) as at, serving(at) as entry:
        setattr(at.store, fault, "claim")
        if fault == "refused":
            assert (await post(entry, Pay("a", 5))).status == 503
            at.store.refused = ""
        assert (await post(entry, Pay("a", 5))).status == 200
        if fault == "late":
            await at.store.write(at.store.on_its_way)
        assert (await post(entry, Pay("b", 5))).status == 422
        assert (await post(entry, Pay("a", 5))).json()["balance"] == 5


async def test_a_claim_of_a_request_that_died_lets_no_other_in(scope: str) -> None:
    book = Book(failing=1)
    async with site(scope) as at, serving(at, paying(book)) as entry:
        assert (await post(entry, Pay("a", 5))).status == 500
        assert (await post(entry, Pay("b", 5))).status == 422
        assert (await post(entry, Pay("a", 5))).status == 200
        assert book.runs == ["a", "a"]


async def test_a_claim_that_may_be_anothers_is_not_taken_for_ones_own(scope: str) -> None:
    book = Book()
    async with site(scope) as at, serving(at, paying(book)) as entry:
        await post(entry, Pay("a", 5))
        at.store.lost = "claim"
        assert (await post(entry, Pay("b", 5))).status == 422 and at.store.lost == "" and book.runs == ["a"]


async def test_a_request_is_as_old_as_its_claim(scope: str) -> None:
    book = Book(failing=1)
    async with site(scope) as at, serving(at, paying(book)) as entry:
        assert (await post(entry, Pay("a", 5))).status == 500
        at.clock.seconds += 7 * 86_400 + 60
        refused = await post(entry, Pay("a", 5))
        assert (refused.status, refused.json()["code"]) == (422, "too-old")
        assert await post(entry, Pay("a", 5)) == refused and book.runs == ["a"]


def keyed_by(field: str, state: type[Any] = Purse) -> App:
    app = App("keyed")

    def handle(message: Pay, purse: Any, ctx: Context) -> str:
        purse.count += 1
        return str(ctx.key)

    handle.__annotations__["purse"] = state
    app.http("POST", "/payments", key=field)(handle)
    return app


@pytest.mark.parametrize("replied", [True, False])
async def test_a_request_goes_on_at_the_key_that_its_claim_names(scope: str, replied: bool) -> None:
    async with site(scope) as at:
        async with serving(at, keyed_by("purse")) as entry:
            if not replied:
                at.store.refused = "commit" if scope == "partition" else "swap"
            first = await post(entry, Pay("a", 5, "b"))
            assert first.status == (200 if replied else 503)
            at.store.refused = ""
        async with serving(at, keyed_by("note")) as entry:
            assert (await post(entry, Pay("a", 5, "b"))).json() == "a"
            assert (await post(entry, Pay("a", 5, "b"), key="k2")).json() == "b"


async def test_a_key_that_was_claimed_for_another_type_of_state_is_refused(scope: str) -> None:
    async with site(scope) as at:
        async with serving(at, keyed_by("purse")) as entry:
            assert (await post(entry, Pay("a", 5))).status == 200
        async with serving(at, keyed_by("purse", Renamed)) as entry:
            assert (await post(entry, Pay("a", 5))).status == 422


class Renamed(msgspec.Struct):
    count: int = 0


def telling_its_key(key: Key) -> App:
    app = App("keyed")

    @app.http("POST", "/payments", key=lambda message: key)
    def handle(message: Pay, purse: Purse, ctx: Context) -> str:
        purse.count += 1
        return repr(ctx.key)

    return app


@pytest.mark.parametrize("key", ["a", 7, UUID(int=7)])
async def test_a_claimed_key_keeps_its_kind(scope: str, key: Key) -> None:
    async with site(scope) as at, serving(at, telling_its_key(key)) as entry:
        first = await post(entry, Pay("a", 5))
        assert await post(entry, Pay("a", 5)) == first and first.json() == repr(key)


@pytest.mark.parametrize("key", ["a", "i:7", 7, UUID(int=7)])
async def test_a_request_whose_handler_has_another_key_by_now_goes_on_at_the_claimed_one(scope: str, key: Key) -> None:
    async with site(scope) as at:
        async with serving(at, telling_its_key(key)) as entry:
            at.store.refused = "commit" if scope == "partition" else "swap"
            assert (await post(entry, Pay("a", 5))).status == 503
            at.store.refused = ""
        async with serving(at, telling_its_key("other")) as entry:
            assert (await post(entry, Pay("a", 5))).json() == repr(key)

"""HTTP entries side by side, under faults and over time: one effect of each request, and the same reply."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outbox import Context
from outbox.http import Response
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.runtime.purse import Book, Paid, Pay, Purse, Total, paying
from tests.unit.waiting import until

PAY = Pay("a", 5)


# Side by side


async def test_repetitions_of_a_request_under_way_wait_for_its_reply() -> None:
    book = Book(gate=asyncio.Event())
    async with Harness(paying(book)) as world:
        asked = [asyncio.create_task(world.request("POST", "/payments", json=PAY, key="k")) for _ in range(3)]
        await until(lambda: book.runs)
        assert book.runs == ["a"]
        book.gate.set()
        first, *others = await asyncio.gather(*asked)
        assert others == [first, first] and first.status == 200 and book.runs == ["a"]


async def test_requests_of_one_state_side_by_side_add_up() -> None:
    async with Harness(paying()) as world:
        await asyncio.gather(*[world.request("POST", "/payments", json=PAY, key=f"k{n}") for n in range(20)])
        assert await world.state(Purse, "a") == Purse(100, 20) and len(world.sent("paid")) == 20


async def test_requests_and_messages_share_a_state() -> None:
    app = paying()

    @app.handler("refunds", key="purse")
    async def refund(message: Pay, purse: Purse) -> None:
        await asyncio.sleep(0)
        purse.balance -= message.amount
        purse.count += 1

    async with Harness(app) as world:
        for n in range(5):
            await world.send("refunds", Pay("a", 1), id=f"m{n}")
        requests = [world.request("POST", "/payments", json=PAY, key=f"k{n}") for n in range(5)]
        await asyncio.gather(world.wait_idle(), *requests)
        assert await world.state(Purse, "a") == Purse(20, 10)


async def test_outputs_are_handled_as_any_message_and_know_their_cause() -> None:
    app = paying()
    seen = []

    @app.handler("paid", key="purse")
    def note(message: Paid, ctx: Context) -> None:
        seen.append((message.amount, ctx.causation_id, ctx.correlation_id, ctx.traceparent))

    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    async with Harness(app) as world:
        await world.request("POST", "/payments", json=PAY, key="k", headers={"traceparent": trace})
        await world.wait_idle()
    ((amount, cause, conversation, found),) = seen
    assert (amount, cause, conversation) == (5, "k", "k")
    assert (found[:36], found[52:]) == (trace[:36], trace[52:]) and found != trace  # a span of the request's own


# Faults


def faults(call_count: int) -> list[Faults]:
    """Every single fault at each of so many port calls."""
    found = []
    for n in range(1, call_count + 1):
        crashes = [Faults(crashes=((n, "before"),)), Faults(crashes=((n, "after"),))]
        found += [*crashes, Faults(lost=(n,)), Faults(refused=(n,))]
    return found


def counted(plan: Faults) -> Harness:
    """Payments under faults, with a handler behind them."""
    app = paying()

    @app.handler("paid", key="purse")
    def count(message: Paid, total: Total) -> None:
        total.n += 1

    return Harness(app, faults=plan)


async def outcome(plan: Faults) -> tuple[list[Response], Purse | None, list[Any], int, int]:
    """What two requests come to under faults, each sent until it is answered for good."""
    async with counted(plan) as world:
        found = []
        for message, key in ((PAY, "k1"), (Pay("a", -9), "k2"), (PAY, "k1")):
            response = await world.request("POST", "/payments", json=message, key=key)
            while response.status >= 500:
                response = await world.request("POST", "/payments", json=message, key=key)
            found.append(response)
        await world.advance(hours=1)
        assert await world.state(Total, "a") == Total(1)
        return found, await world.state(Purse, "a"), world.sent("paid"), world.port_calls, world.faults_fired


async def test_a_fault_at_any_port_call_leaves_one_effect_and_the_same_replies() -> None:
    replies, state, sent, calls, _ = await outcome(Faults())
    assert [reply.status for reply in replies] == [200, 409, 200] and replies[0] == replies[2]
    assert state == Purse(5, 1) and sent == [Paid("a", 5)] and calls >= 5
    fired = 0
    for plan in faults(calls):
        *found, _, count = await outcome(plan)
        fired += count
        assert found == [replies, state, sent], plan
    assert fired == 4 * calls


async def test_what_an_outage_left_unsent_is_sent_by_the_sweep_when_time_moves() -> None:
    for n in range(1, 9):
        async with counted(Faults(refused=tuple(range(n, n + 60)))) as world:
            response = await world.request("POST", "/payments", json=PAY, key="k")
            await world.advance(hours=1)
            assert await world.state(Total, "a") == (Total(1) if response.status == 200 else None)


@pytest.mark.parametrize("seed", range(12))
async def test_drawn_faults_leave_one_effect_of_each_request(seed: int) -> None:
    plan = Faults.drawn(seed=seed, crashes=2, lost=2, refused=2, delayed=2, within=30)
    async with Harness(paying(), faults=plan, seed=seed) as world:

        async def send(n: int) -> Response:
            while True:
                response = await world.request("POST", "/payments", json=PAY, key=f"k{n}")
                if response.status < 500:
                    return response

        replies = await asyncio.gather(*[send(n % 4) for n in range(8)])
        assert replies[:4] == replies[4:] and sorted(r.json()["balance"] for r in replies[:4]) == [5, 10, 15, 20]
        await world.advance(hours=1)
        assert await world.state(Purse, "a") == Purse(20, 4) and len(world.sent("paid")) == 4


# Time


async def test_a_key_is_remembered_for_retention_and_is_free_after_its_margin() -> None:
    book = Book()
    async with Harness(paying(book)) as world:
        first = await world.request("POST", "/payments", json=PAY, key="k")
        await world.advance(days=6, hours=23)
        assert await world.request("POST", "/payments", json=PAY, key="k") == first
        assert (await world.request("POST", "/payments", json=Pay("b", 1), key="k")).status == 422
        await world.advance(days=8)
        assert (await world.request("POST", "/payments", json=Pay("b", 1), key="k")).status == 200
        assert book.runs == ["a", "b"]


@pytest.mark.parametrize("minutes", [1, 59])
async def test_at_no_age_does_a_repetition_run_again_while_its_claim_lasts(minutes: int) -> None:
    book = Book()
    async with Harness(paying(book)) as world:
        first = await world.request("POST", "/payments", json=PAY, key="k")
        await world.advance(days=7, minutes=minutes)
        assert await world.request("POST", "/payments", json=PAY, key="k") == first
        assert len(book.runs) == 1

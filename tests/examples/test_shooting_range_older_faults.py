"""The faults of older frameworks, one by one, provoked over the real SDKs on both emulators: none of them occurs.

The letters are those of the example's README.  What only an unlucky order of calls can show is explored in every order
in test_shooting_range_explored.py; here each is provoked once, over the wire.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outbox.azure.functions.processor import GivenBack
from outbox.emulator.faults import FaultRule
from shooting_range.handlers import FireAt
from shooting_range.storage import INFRASTRUCTURE, STATES
from tests.examples.conftest import GAMES, OUTBOX

pytestmark = pytest.mark.timeout(60)


def shot(n: int, *, x: int = 0, game: str = "g", target: str = "left") -> FireAt:
    return FireAt(f"a{n}", game, target, "ann", x, 0)


async def staged(at: Any) -> list[str]:
    return [item["id"] for item in await at.items(INFRASTRUCTURE) if item["id"].startswith("staged:")]


async def test_b1_a_swap_whose_answer_is_lost_counts_once_and_its_result_leaves(range_: Any) -> None:
    host = await range_.host()
    range_.cosmos.faults.install(FaultRule(kind="lost-reply", operation="item.create", where=GAMES))
    range_.cosmos.faults.install(FaultRule(kind="lost-reply", operation="item.replace", where=GAMES))
    for n in (1, 2):  # a state that is new, and one that is there
        await host.deliver(shot(n))
        await host.deliver(shot(n), count=2)
    assert range_.cosmos.faults.fired == {"lost-reply": 2}
    assert (await range_.target()).attempts == 2
    assert sorted(made.attempt for made in range_.results().values()) == ["a1", "a2"]


async def test_b2_two_first_attempts_at_two_hosts_both_count(range_: Any) -> None:
    first, second = await range_.host(), await range_.host()
    range_.cosmos.faults.install(FaultRule(kind="delay", operation="item.create", where=GAMES, delay_s=0.5))
    answers = await asyncio.gather(first.fire(shot(1), key="k1"), second.fire(shot(2), key="k2"))
    assert sorted((status, body["hole"]) for status, body in answers) == [(200, 1), (200, 2)]
    assert range_.cosmos.faults.fired == {"delay": 1}
    assert (await range_.target()).attempts == 2 and len(range_.results()) == 2


async def test_b3_one_attempt_at_two_hosts_has_one_answer_and_one_result(range_: Any) -> None:
    first, second = await range_.host(), await range_.host()
    range_.cosmos.faults.install(FaultRule(kind="delay", operation="item.create", where=GAMES, delay_s=0.5))
    answers = await asyncio.gather(*(host.fire(shot(1), key="k1") for host in (first, second)))
    assert answers[0] == answers[1] and answers[0][0] == 200
    assert (await range_.target()).attempts == 1 and len(range_.results()) == 1


async def test_b4_a_marker_is_never_read_from_the_past(range_: Any) -> None:
    range_.cosmos.faults.install(FaultRule(kind="stale-read", operation="item.read", where=OUTBOX, count=None))
    first, second = await range_.host(), await range_.host()
    await first.deliver(shot(1))
    await second.deliver(shot(1), count=2)
    assert range_.cosmos.faults.fired["stale-read"] >= 2
    assert (await range_.target()).attempts == 1 and len(range_.results()) == 1


async def committed_but_not_sent(at: Any, attempt: FireAt, *, staged: bool = False) -> None:
    """An attempt whose state is swapped and points to what it sends, by a host that is killed before it does."""
    host = await at.host(staged=staged)
    at.bus.faults.install(FaultRule(kind="refused", operation="send", where="results", count=None))
    delivery = asyncio.ensure_future(host.deliver(attempt))
    async with asyncio.timeout(10):
        while not at.bus.faults.fired.get("refused"):  # noqa: ASYNC110  # a rule tells nobody that it fired
            await asyncio.sleep(0.01)
    await host.kill()
    with pytest.raises(GivenBack):
        await delivery
    at.bus.faults.clear()
    assert (await at.target()).attempts == 1 and not at.results()


@pytest.mark.parametrize("staged", [True, False])
async def test_b5_another_host_finds_what_is_to_be_sent_however_stale_its_reads_are(range_: Any, staged: bool) -> None:
    range_.cosmos.faults.install(FaultRule(kind="stale-read", operation="item.read", where=OUTBOX, count=None))
    other = await range_.host()  # its session begins here
    await committed_but_not_sent(range_, shot(1), staged=staged)
    await other.deliver(shot(1), count=2)
    assert (await range_.target()).attempts == 1
    assert [made.attempt for made in range_.results().values()] == ["a1"]


async def test_b6_what_failed_attempts_have_staged_does_not_stay(range_: Any) -> None:
    host = await range_.host(staged=True)
    range_.cosmos.faults.install(FaultRule(kind="reset", operation="item.create", where=GAMES, count=None))
    for count in (1, 2):
        with pytest.raises(GivenBack):
            await host.deliver(shot(1), count=count)
    assert len(await staged(range_)) >= 2
    range_.cosmos.faults.clear()
    other = await range_.host(staged=True)  # the first one's process has ended
    await other.deliver(shot(1), count=3)
    await other.processor.sweep()
    assert await staged(range_) == [] and (await range_.target()).attempts == 1


async def test_b7_nothing_is_ever_upserted(range_: Any) -> None:
    host = await range_.host()
    for n in range(11):
        await host.deliver(shot(n))
    await host.fire(shot(11), key="k")
    await host.processor.sweep()
    assert range_.requests("item.create") > 0 and range_.requests("item.upsert") == 0


# What is staged: its record dispatched, its pointer cleared; then the swap, its own record, its own pointer.  What lies
# inside the state goes with the swap.
@pytest.mark.parametrize(("staged", "replaced"), [(True, 5), (False, 1)])
async def test_b8_an_attempt_that_finishes_another_one_first_loses_no_swap_by_that(
    range_: Any, staged: bool, replaced: int
) -> None:
    await committed_but_not_sent(range_, shot(1), staged=staged)
    host = await range_.host(staged=staged)
    range_.cosmos.reset_usage()
    await host.deliver(shot(2))
    assert range_.requests("item.replace") == replaced
    assert (await range_.target()).attempts == 2


async def test_b9_a_staged_record_that_cannot_be_deleted_stops_nothing(range_: Any) -> None:
    first, second = await range_.host(staged=True), await range_.host(staged=True)
    broken = FaultRule(kind="status", status=503, operation="item.delete", where=OUTBOX, count=None)
    range_.cosmos.faults.install(broken)
    range_.cosmos.faults.install(FaultRule(kind="delay", operation="item.create", where=GAMES, delay_s=0.5))
    await asyncio.gather(first.deliver(shot(1)), second.deliver(shot(2)))  # one of them loses, and tries again
    assert (await range_.target()).attempts == 2 and len(range_.results()) == 2
    range_.cosmos.faults.clear()
    await second.processor.sweep()
    assert await staged(range_) == []


async def test_b10_neither_keys_nor_ids_run_together_whatever_they_hold(range_: Any) -> None:
    host = await range_.host()
    await host.deliver(shot(1, game="a/b", target="c"), id="x-1")
    await host.deliver(shot(1, game="a", target="b/c"), id="x-1")  # the same id, another target
    await host.deliver(shot(1, game="a", target="b/c"), id="x/1?#\\" + "y" * 2_000)
    await host.fire(shot(1, game="a", target="b/c"), key="x-1")  # the same id, another handler of the same state
    assert (await range_.target("a%2Fb/c")).attempts == 1
    assert (await range_.target("a/b%2Fc")).attempts == 3


async def test_b11_every_key_has_a_partition_of_its_own_and_bodies_name_no_types(range_: Any) -> None:
    host = await range_.host()
    for n in range(4):
        await host.deliver(shot(n, target=f"t{n}"))
    markers = [item for item in await range_.items(INFRASTRUCTURE) if item["id"].startswith("done:")]
    assert len({item["pk"] for item in markers}) == 4
    assert "$type" not in str(await range_.items(INFRASTRUCTURE) + await range_.items(STATES))


async def test_b12_a_duplicate_of_what_is_done_sends_nothing(range_: Any) -> None:
    host = await range_.host()
    await host.deliver(shot(1))
    tasks = len(range_.engine.broker.queue("results").tasks)
    for count in (2, 3):
        await host.deliver(shot(1), count=count)
    assert len(range_.engine.broker.queue("results").tasks) == tasks == 1


async def test_b13_a_result_leaves_though_no_message_of_its_target_is_ever_redelivered(range_: Any) -> None:
    await committed_but_not_sent(range_, shot(1))
    swept = await (await range_.host()).processor.sweep()
    assert swept.finished_count == 1 and len(range_.results()) == 1
    assert not any("pending" in item for item in await range_.items(STATES))


async def test_b13_a_target_that_cannot_be_finished_stops_no_other(range_: Any) -> None:
    host = await range_.host()
    range_.cosmos.faults.install(
        FaultRule(kind="status", status=503, operation="item.create", where=OUTBOX, key="left", count=None)
    )
    with pytest.raises(GivenBack):
        await host.deliver(shot(1))
    await host.deliver(shot(2, target="right"))
    assert (await range_.target("g/right")).attempts == 1

"""Answers that are lost, writes that land late, and what a crash has left."""

from __future__ import annotations

import asyncio

import pytest

from outbox import App, Reject, Worker, stored
from outbox.stored import StateItem, state_key
from tests.unit.messages import deliver, resubmit
from tests.unit.stores.store_site import Add, Site, Sum, adding, found, handled, site, swept


async def test_what_a_crash_left_unsent_is_sent_by_a_sweeper(scope: str) -> None:
    async with site(scope) as at:
        app = adding()
        at.bus.is_mute = True
        worker = Worker(app, at, drain_s=0.2)
        async with worker:
            await worker.send("adds", Add("a"), id="m1")
            await asyncio.sleep(0.3)
        assert at.engine.broker.queue("told").counts()["active"] == 0
        for task in list(
            at.engine.broker.queue("adds").tasks.values()
        ):  # the input is gone, and nobody will deliver it again
            at.engine.broker.lapse_lock("adds", task.sequence)
        at.bus.is_mute = False
        at.clock.seconds += 61
        first = await swept(at, app)
        assert first.finished_count >= 1 and at.engine.broker.queue("told").counts()["active"] == 1
        again = await swept(at, app)
        assert again.seen_count == 0 and at.engine.broker.queue("told").counts()["active"] == 1


@pytest.mark.parametrize("what", ["commit", "mark"])
async def test_a_lost_answer_is_read_back_and_nothing_is_doubled(at: Site, what: str) -> None:
    at.store.lost = what
    worker = await handled(at, adding(), Add("a", 5))
    assert await worker.state(Sum, "a") == Sum(5)
    assert at.engine.broker.queue("told").counts()["active"] == 1


STEPS = [(False, what) for what in ("swap", "processed", "clear")]
STEPS += [(True, what) for what in ("stage", "swap", "processed", "dispatched", "clear", "unstage")]


@pytest.mark.parametrize(("staged", "what"), STEPS)
async def test_a_lost_answer_at_any_step_of_item_scope_is_read_back(staged: bool, what: str) -> None:
    async with site("item", staged=staged) as at:
        at.store.lost = what
        worker = await handled(at, adding(), Add("a", 5), Add("a", 2))
        assert await worker.state(Sum, "a") == Sum(7) and not at.store.lost
        ids = {task.message.identity for task in at.engine.broker.queue("told").tasks.values()}
        assert len(ids) == 2
        item = stored.decode(await found(at, state_key("Sum:a")), StateItem)
        assert item.pending == "" and item.version == 2


async def test_item_scope_leaves_no_staged_record_behind() -> None:
    async with site("item", staged=True) as at:
        await handled(at, adding(), Add("a"), Add("a"), Add("a", text="reject"))
        assert [id for id in await at.documents("Sum:a") if id.startswith("staged:")] == []


async def test_what_is_staged_and_fits_goes_into_no_blob() -> None:
    async with site("item", staged=True) as at:
        await handled(at, adding(), Add("a"))
        assert at.store.calls["stage"] == 1 and at.store.calls["overflow"] == 0


async def test_a_resubmission_whose_swap_is_unknown_is_not_refused_for_what_it_was_refused_before() -> None:
    async with site("item") as at:
        app, refuses = App("adding"), [True]

        @app.handler("adds", key="key")
        def add(message: Add, total: Sum) -> None:
            if refuses[0]:
                raise Reject("no money")
            total.n += message.n

        async with Worker(app, at) as worker:
            await deliver(worker, "adds", Add("a"), id="m1")
            refuses[0], at.store.late = False, "swap"
            await resubmit(worker, "adds", "m1")
            await at.store._store.write(at.store.on_its_way)  # it lands after all, and loses
            await deliver(worker, "adds", Add("a"), id="m2")
            assert await worker.state(Sum, "a") == Sum(2) and await worker.dead_letters("adds") == []

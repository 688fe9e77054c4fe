"""The world of the crash playground: real workers at a gate, driven as a player would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from outbox.engine.backend.apart import EngineStore
from outbox.errors import Refused
from outbox.ops.play.chance import ChancePlayer
from outbox.ops.play.gate import DECISIONS, STEPS, GatedBus, Step
from outbox.ops.play.look import View, judge, look
from outbox.ops.play.world import ORDER_COUNT_MAX, WAITING_COUNT_MAX, Act, World
from outbox.ports import Write
from tests.unit.ops.unconditional import write_anyway


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as opened:
        yield opened


@pytest.fixture
def late_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no mark be written during a test, however slow this machine is."""
    monkeypatch.setattr("outbox.worker.MARK_AFTER_S", 60)


async def play(world: World, *acts: Act) -> View:
    for act in acts:
        await world.act(act)
    return look(world)


def until(step: Step, worker: int = 1) -> Act:
    return Act("until", worker=worker, step=step)


def go(worker: int = 1) -> Act:
    return Act("go", worker=worker)


SENT_TWICE = {("push", "lose"), ("push", "kill-after"), ("settle", "kill-before")}
"""The faults after which nobody knows that the parcel has left: it leaves again, under the same id."""
SEND, ALL, TIME, SWEEP = Act("send"), Act("all"), Act("time"), Act("sweep")
MARKED = "Marked as sent, in the record: o1."


async def test_an_order_goes_through_the_steps_one_call_at_a_time(world: World) -> None:
    steps = [(await play(world, SEND)).workers[0].step]
    while not world.is_quiet:
        steps.append((await play(world, go())).workers[0].step)
    assert steps == ["receive", "load", "commit", "push", "settle", "receive"]
    verdict = judge(world)
    assert (verdict.stock, verdict.parcels, verdict.is_quiet, verdict.is_equal) == (97, 1, True, True)


async def test_before_the_commit_nothing_is_stored_and_after_it_all_is(world: World) -> None:
    before = await play(world, SEND, until("commit"))
    assert (before.stock, before.etag, before.records, before.parcels) == (100, 1, (), ())
    after = await play(world, go())
    assert (after.stock, after.etag, after.records[0].parcel, after.parcels) == (97, 2, "unsent", ())


@pytest.mark.usefixtures("late_marks")
@pytest.mark.parametrize("step", [step for step in STEPS if step != "decide"])
@pytest.mark.parametrize("decision", [decision for decision in DECISIONS if decision != "go"])
async def test_each_fault_at_each_step_ends_equal(world: World, step: Step, decision: Any) -> None:
    reached = [SEND] if step == "receive" else [SEND, until(step)]
    view = await play(world, *reached, Act(decision, worker=1))
    assert view.verdict.fault_count == 1
    assert view.workers[0].is_alive is not decision.startswith("kill")
    view = await play(world, ALL)
    assert view.verdict.is_quiet and view.verdict.is_equal, view.history
    assert view.verdict.copies == ((step, decision) in SENT_TWICE)


async def test_a_lost_reply_to_a_commit_is_resolved_by_its_record(world: World) -> None:
    view = await play(world, SEND, until("commit"), Act("lose", worker=1))
    assert view.stock == 97 and "to find out" in view.workers[0].about
    view = await play(world, go())
    assert view.workers[0].step == "push" and "it was applied" in view.history[-1].text


async def test_a_lost_call_of_a_commit_makes_the_handler_run_again(world: World) -> None:
    view = await play(world, SEND, until("commit"), Act("lose-call", worker=1))
    assert (view.stock, view.records, view.workers[0].step) == (100, (), "decide")
    assert view.workers[0].looks_late and "commit" not in view.workers[0].seen
    view = await play(world, go())
    assert "so it runs again" in view.history[-1].text and view.workers[0].step == "load"
    view = await play(world, go())
    assert (view.workers[0].step, view.workers[0].looks_late) == ("commit", False)
    assert (await play(world, ALL)).verdict.is_equal


@pytest.mark.parametrize(("step", "parcel_count"), [("push", 0), ("settle", 1)])
async def test_a_lost_call_has_no_effect(world: World, step: Step, parcel_count: int) -> None:
    view = await play(world, SEND, until(step), Act("lose-call", worker=1))
    assert (len(view.parcels), len(view.orders)) == (parcel_count, 1)
    view = await play(world, ALL)
    assert (view.verdict.parcels, view.verdict.copies, view.verdict.is_equal) == (1, 0, True)


async def test_a_worker_that_does_not_know_of_its_lock_is_not_called_dead(world: World) -> None:
    view = await play(world, SEND, Act("lose", worker=1))
    assert (view.orders[0].holder, view.orders[0].lock) == ("worker 1", "stray")
    assert "worker 1, which is alive" in view.hint and "dead" not in view.hint
    assert view.workers[0].warning == "It has a lock on o1, and does not know."
    view = await play(world, TIME)
    assert (view.orders[0].lock, view.hint, view.workers[0].warning) == ("", "", "")


async def test_a_worker_whose_lock_ran_out_does_not_know(world: World) -> None:
    view = await play(world, SEND, until("commit"))
    assert (view.workers[0].warning, view.orders[0].lock) == ("", "held")
    view = await play(world, TIME)
    assert view.workers[0].warning == "Its lock on o1 ran out; it does not know."
    view = await play(world, Act("start", worker=2), until("commit", 2))
    assert (view.workers[0].warning != "", view.workers[1].warning, view.orders[0].lock) == (True, "", "held")


@pytest.mark.parametrize("decision", ["kill-before", "kill-after"])
async def test_a_killed_worker_shows_where_it_died(world: World, decision: Any) -> None:
    view = await play(world, SEND, until("commit"), Act(decision, worker=1))
    worker = view.workers[0]
    assert worker.died == "commit" and f"Killed {decision[5:]} the commit." in worker.about
    assert (await play(world, Act("start", worker=1))).workers[0].died == ""


async def test_a_worker_that_is_killed_keeps_its_lock_until_that_runs_out(world: World) -> None:
    view = await play(world, SEND, until("push"), Act("kill-before", worker=1))
    assert (view.orders[0].holder, view.orders[0].lock) == ("worker 1", "dead")
    assert "Let a minute pass" in view.hint
    view = await play(world, Act("start", worker=1))
    assert not view.workers[0].choices, "the new process cannot receive what the dead one has locked"
    view = await play(world, TIME, go())
    assert view.workers[0].step == "decide" and view.orders[0].delivery_count == 1
    assert "the handler does not run again" in (await play(world, go())).history[-1].text


async def test_of_two_workers_with_one_order_one_commit_wins(world: World) -> None:
    start = Act("start", worker=2)
    view = await play(world, SEND, until("commit"), TIME, start, until("commit", 2), go(2), go(1))
    assert "o1 is on record already" in view.history[-1].text and view.stock == 97
    assert (await play(world, ALL)).verdict.is_equal


async def test_a_changed_etag_makes_a_commit_lose_and_the_handler_run_again(world: World) -> None:
    start = Act("start", worker=2)
    view = await play(world, SEND, SEND, until("commit"), start, Act("finish", worker=2), go(1))
    assert "the ETag is not 1 any more" in view.history[-1].text and view.stock == 97
    view = await play(world, ALL)
    assert (view.verdict.stock, view.verdict.is_equal) == (94, True)


async def test_a_sweep_sends_what_was_committed_without_a_redelivery(world: World) -> None:
    await play(world, SEND, until("commit"), Act("kill-after", worker=1))
    view = await play(world, SWEEP)
    assert "younger than a minute" in view.history[-1].text and view.parcels == ()
    view = await play(world, TIME, SWEEP)
    assert "sent what the unmarked record holds" in view.history[-1].text
    assert (view.records[0].parcel, len(view.parcels), view.orders[0].id) == ("marked", 1, "o1")
    view = await play(world, SWEEP, ALL)
    assert (view.verdict.copies, view.verdict.is_equal) == (0, True)
    said = [line.text for line in view.history]
    assert "The sweeper found no unmarked record." in said and MARKED not in said, "the sweep's own line says so"


@pytest.mark.usefixtures("late_marks")
async def test_a_sweep_sends_again_what_was_sent_and_not_marked(world: World) -> None:
    view = await play(world, SEND, until("settle"), Act("kill-after", worker=1), Act("start", worker=1), TIME)
    assert view.verdict.is_quiet and view.records[0].parcel == "sent", "the mark died with the worker"
    view = await play(world, SWEEP)
    assert (view.verdict.copies, view.verdict.is_equal, view.records[0].parcel) == (1, True, "marked")


async def test_no_worker_sweeps_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.runtime.shell.SWEEP_EVERY_S", 0.001)
    before = await play(world, SEND, until("commit"), Act("kill-after", worker=1), TIME, Act("start", worker=2))
    await asyncio.sleep(0.1)
    assert look(world) == before and before.parcels == ()


async def test_a_mark_is_said_in_one_line(world: World) -> None:
    await play(world, SEND, ALL)
    while look(world).records[0].parcel == "sent":
        await world.wait_change(world.revision, within_s=10)
    assert [line.text for line in look(world).history if "o1" in line.text and "arked" in line.text] == [MARKED]
    await play(world, TIME, SWEEP, ALL)
    assert [line.text for line in look(world).history].count(MARKED) == 1


async def test_a_world_full_of_parcels_takes_no_more_faults(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.ops.play.world.PARCEL_COUNT_MAX", 2)
    await play(world, SEND, until("push"), Act("lose", worker=1), Act("go", worker=1))
    with pytest.raises(Refused, match="begin again"):
        await world.act(Act("kill-before", worker=1))
    assert ChancePlayer(0, 5).next_act(world) == Act("go", worker=1)
    assert (await play(world, ALL)).verdict.is_equal


async def test_a_dead_worker_has_no_effect_any_more(world: World) -> None:
    await play(world, SEND, until("commit"), Act("kill-before", worker=1), Act("start", worker=1))
    before = look(world)
    assert (before.stock, before.records, before.parcels) == (100, (), ())
    with pytest.raises(Refused, match="alive; kill it"):
        await world.act(Act("start", worker=1))


@pytest.mark.parametrize(
    ("act", "cure"),
    [
        (Act("go", worker=1), "no order is free"),
        (Act("go", worker=3), "start it first"),
        (Act("start", worker=9), "1 to 3"),
        (Act("duplicate"), "send one first"),
        (Act("until", worker=1, step="push"), "no order is free"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_its_cure(world: World, act: Act, cure: str) -> None:
    with pytest.raises(Refused, match=cure):
        await world.act(act)


async def test_orders_and_copies_have_limits(world: World) -> None:
    assert "orders wait" in (await play(world, *[SEND] * WAITING_COUNT_MAX)).why_no_order
    for act in (SEND, Act("duplicate")):
        with pytest.raises(Refused, match="let the workers handle some"):
            await world.act(act)
    with pytest.raises(Refused, match="never sent"):
        await world.act(Act("duplicate", id="x" * 1000))
    await play(world, ALL)
    for _ in range(ORDER_COUNT_MAX - WAITING_COUNT_MAX):
        await play(world, SEND, ALL)
    with pytest.raises(Refused, match="begin again"):
        await world.act(SEND)
    view = look(world)
    assert "30 orders were sent" in view.why_no_order and view.why_no_order in view.hint
    assert judge(world).is_equal


async def test_the_verdict_shows_a_store_that_ignores_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    real = EngineStore.write

    async def planted(self: Any, operations: Sequence[Write]) -> Any:
        return await write_anyway(self, operations, real)

    monkeypatch.setattr(EngineStore, "write", planted)
    async with World() as world:
        await play(world, SEND, ALL)
        assert judge(world).is_equal
        view = await play(world, Act("duplicate"), ALL)
        assert (view.verdict.stock_due, view.verdict.stock, view.verdict.is_equal) == (97, 94, False)


async def test_the_verdict_shows_a_push_that_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def planted(self: Any, outputs: Any) -> None:
        """Send nothing."""

    monkeypatch.setattr(GatedBus, "send", planted)
    async with World() as world:
        view = await play(world, SEND, ALL)
        assert (view.verdict.stock, view.verdict.parcels, view.verdict.is_equal) == (97, 0, False)

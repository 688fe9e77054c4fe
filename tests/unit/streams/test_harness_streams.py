"""Processors and ingests in a harness: virtual time, replicas that die or stand still, planned faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from outbox import App, Engine, Retries
from outbox.streams import HandlerFailed, Ingest, Inputs, OrderedLog, Pipeline, Position, Processor, Step
from outbox.testing import Harness
from outbox.verify import Faults
from tests.unit.messages import Number, Total, deliver
from tests.unit.streams.making import sum_up


@dataclass
class Seen:
    at_ms: list[int] = field(default_factory=list)


ELSEWHERE = Engine.in_memory()
"""What the processors of a program run on; here they only tell what there is."""


def adders() -> list[Processor[Total]]:
    """Two processors behind each other."""
    numbers, sums, totals = (OrderedLog(name, ELSEWHERE, type=Number) for name in ("numbers", "sums", "totals"))
    return [
        Processor("first", sum_up, state=Total, register=ELSEWHERE, inputs={"in": numbers}, outputs={"sums": sums}),
        Processor("second", sum_up, state=Total, register=ELSEWHERE, inputs={"in": sums}, outputs={"sums": totals}),
    ]


async def values(world: Harness, log: str) -> list[int]:
    return [entry.value.n async for entry in world.log(log).read()]


async def test_a_chain_of_processors_runs_on_the_engine_of_the_harness() -> None:
    async with Harness(streams=adders()) as world:
        for n in (1, 2, 3):
            await world.log("numbers").append(Number(n), id=f"n{n}")
        await world.wait_idle()
        assert await values(world, "sums") == [1, 3, 6]
        assert await values(world, "totals") == [1, 4, 10]
        assert await world.stream_state("second") == Total(10)


@pytest.mark.parametrize("seed", range(25))
async def test_under_planned_faults_the_outcome_is_the_same(seed: int) -> None:
    faults = Faults.drawn(seed=seed, crashes=2, lost=3, refused=2, delayed=3, within=50)
    async with Harness(streams=adders(), replicas=2, faults=faults, seed=seed) as world:
        for n in (1, 2, 3):
            await world.log("numbers").append(Number(n), id=f"n{n}")
            await world.wait_idle()
        assert await values(world, "sums") == [1, 3, 6]
        assert await values(world, "totals") == [1, 4, 10]
        assert world.faults_fired > 4


async def test_what_a_test_looks_at_is_no_call_of_a_replica_and_meets_no_fault() -> None:
    async def run(faults: Faults) -> tuple[Total, int, int]:
        async with Harness(streams=adders(), faults=faults) as world:
            await world.log("numbers").append(Number(1), id="n1")
            await world.wait_idle()
            calls = world.port_calls
            return await world.stream_state("first"), calls, world.port_calls

    state, before, after = await run(Faults())
    assert (state, before) == (Total(1), after)
    crash = Faults(crashes=((after + 1, "before"),))
    assert await run(crash) == (state, before, after)


async def test_the_same_seed_runs_the_same_way() -> None:
    async def run() -> tuple[int, tuple[str, ...]]:
        faults = Faults.drawn(seed=4, crashes=1, lost=3, delayed=3)
        async with Harness(streams=adders(), replicas=3, faults=faults, seed=4) as world:
            await world.log("numbers").append(Number(1), id="n")
            await world.wait_idle()
            return world.port_calls, tuple(world.fault_log)

    assert await run() == await run()


async def test_while_one_replica_stands_still_or_dies_another_goes_on() -> None:
    async with Harness(streams=adders(), replicas=2) as world:
        world.stall("first", replica=0, s=3_600)
        world.kill("second/1")
        await world.log("numbers").append(Number(1), id="n1")
        await world.wait_idle()
        assert await values(world, "totals") == [1]


@pytest.mark.parametrize(("name", "log", "sent", "out"), [("first", "totals", 1, 1), ("even", "evens", 2, 2)])
async def test_while_all_replicas_stand_still_nothing_comes_out_until_their_time(
    name: str, log: str, sent: int, out: int
) -> None:
    async with Harness(streams=[*adders(), evens()], replicas=2) as world:
        for replica in (0, 1):
            world.stall(name, replica=replica, s=10 + replica)
        await world.log("numbers").append(Number(sent), id="n1")
        await world.advance(seconds=9)
        assert await values(world, log) == []
        await world.advance(seconds=1)
        assert await values(world, log) == [out]


def is_even(number: Number) -> bool:
    return number.n % 2 == 0


def evens() -> Pipeline:
    """A pipeline behind the first processor."""
    sums, out = OrderedLog("sums", ELSEWHERE, type=Number), OrderedLog("evens", ELSEWHERE, type=Number)
    pipeline = Pipeline("even", source=sums)
    pipeline.sink(pipeline.filter(source=sums)(is_even), out)
    return pipeline


@pytest.mark.parametrize("seed", range(5))
async def test_a_pipeline_runs_behind_a_processor_whatever_is_killed_and_cut_off(seed: int) -> None:
    faults = Faults.drawn(seed=seed, crashes=2, lost=3, refused=2, delayed=3, within=60)
    async with Harness(streams=[adders()[0], evens()], replicas=2, faults=faults, seed=seed) as world:
        for n in range(1, 9):
            await world.log("numbers").append(Number(n), id=f"n{n}", since=Position(0))
            world.kill(f"first/{n % 2}")
            world.kill(f"even/{n % 2}/is_even")
            await world.wait_idle()
        assert await values(world, "evens") == [6, 10, 28, 36]
        assert world.faults_fired > 5


async def test_a_pipeline_that_begins_again_begins_at_its_checkpoint() -> None:
    async with Harness(streams=[evens()]) as world:
        await world.log("sums").append(Number(2), id="n")
        await world.wait_idle()
        world.kill("even/0")
        calls = world.port_calls
        await world.wait_idle()
        assert world.port_calls - calls < 10
        assert await values(world, "evens") == [2]


async def test_a_task_that_is_not_there_is_named() -> None:
    async with Harness(streams=[adders()[0], evens()]) as world:
        with pytest.raises(ValueError, match="no task 'even/0/odd'; even has is_even"):
            world.kill("even/0/odd")
        with pytest.raises(ValueError, match="no task 'first/0/odd'; first has none"):
            world.kill("first/0/odd")
        with pytest.raises(ValueError, match="no processor 'even'; there is first"):
            await world.stream_state("even")
    with pytest.raises(ValueError, match="even, even: two of one name"):
        Harness(streams=[evens(), evens()])


def remind(state: Seen, inputs: Inputs, step: Step) -> None:
    state.at_ms.append(step.now_ms)
    if len(state.at_ms) < 3:
        step.wake_at(step.now_ms + 60_000)


async def test_a_step_that_is_due_without_input_comes_when_time_moves() -> None:
    reminder = Processor(
        "reminder", remind, state=Seen, register=ELSEWHERE, inputs={"in": OrderedLog("in", ELSEWHERE, type=Number)}
    )
    async with Harness(streams=[reminder], replicas=2) as world:
        await world.log("in").append(Number(1), id="n1")
        await world.advance(minutes=10)
        at_ms = (await world.stream_state("reminder")).at_ms
        assert [later - earlier for earlier, later in pairwise(at_ms)] == [60_000, 60_000]


async def test_a_restart_loses_nothing_that_was_acknowledged() -> None:
    async with Harness(streams=adders()) as world:
        await world.log("numbers").append(Number(1), id="n1")
        await world.wait_idle()
        await world.restart()
        await world.log("numbers").append(Number(2), id="n2")
        await world.wait_idle()
        assert await values(world, "totals") == [1, 4]


def fails(state: Total, inputs: Inputs, step: Step) -> None:
    state.sum += 1
    raise RuntimeError("it cannot")


async def test_a_handler_that_fails_is_tried_again_in_virtual_time_and_then_the_processor_says_why_it_stands() -> None:
    failing = Processor(
        "failing",
        fails,
        state=Total,
        register=ELSEWHERE,
        inputs={"in": OrderedLog("in", ELSEWHERE, type=Number)},
        retries=Retries(3, (60.0, 600.0)),
    )
    async with Harness(streams=[failing]) as world:
        await world.log("in").append(Number(1), id="n1")
        await world.advance(seconds=61)
        with pytest.raises(HandlerFailed, match=r"fails at in 0\.0 \(RuntimeError: it cannot\)"):
            await world.advance(minutes=11)


async def test_a_rest_after_a_failure_cuts_no_longer_stall_of_another_replica_short() -> None:
    tried = list[float]()

    def tries(state: Total, inputs: Inputs, step: Step) -> None:
        tried.append(world.now())
        raise RuntimeError("it cannot")

    log, again = OrderedLog("in", ELSEWHERE, type=Number), Retries(9, (60.0,))
    stream = Processor("trying", tries, state=Total, register=ELSEWHERE, inputs={"in": log}, retries=again)
    async with Harness(streams=[stream], replicas=2) as world:
        world.stall("trying", replica=1, s=600)
        await world.log("in").append(Number(1), id="n1")
        await world.wait_idle()
        world.stall("trying", replica=0, s=6_000)
        await world.advance(seconds=599)
        assert len(tried) == 1
        await world.advance(seconds=1)
        assert len(tried) == 2


@pytest.mark.parametrize("seed", range(4))
async def test_behind_a_failure_all_replicas_rest(seed: int) -> None:
    tried = list[float]()

    def tries(state: Total, inputs: Inputs, step: Step) -> None:
        tried.append(world.now())
        raise RuntimeError("it cannot")

    log, again = OrderedLog("in", ELSEWHERE, type=Number), Retries(9, (60.0,))
    stream = Processor("trying", tries, state=Total, register=ELSEWHERE, inputs={"in": log}, retries=again)
    async with Harness(streams=[stream], replicas=2, seed=seed) as world:
        await world.log("in").append(Number(1), id="n1")
        await world.advance(seconds=119)
    assert len(set(tried)) == 2 and max(Counter(tried).values()) <= 2, "each of them at a time, and no more"


app = App("shop")
app.queue("orders")


@app.handler("sums", key="n")
def count(number: Number, total: Total) -> None:
    total.sum += 1


def forward(state: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        step.emit("sums", entry.value)


@pytest.mark.parametrize("seed", range(10))
async def test_a_queue_goes_through_a_log_to_a_handler_each_message_once(seed: int) -> None:
    orders = OrderedLog("orders", ELSEWHERE, type=Number)
    ingest = Ingest("orders", queue="orders", type=Number, source=ELSEWHERE, log=orders)
    sums = ELSEWHERE.queue("sums", key=lambda value: value.n)
    forwarding = Processor(
        "forward", forward, state=Total, register=ELSEWHERE, inputs={"in": orders}, outputs={"sums": sums}
    )
    faults = Faults.drawn(seed=seed, crashes=2, lost=2, refused=2, within=40)
    async with Harness(app, streams=[ingest, forwarding], replicas=2, faults=faults, seed=seed) as world:
        for n in (1, 2, 1, 3):
            await world.send("orders", Number(n), id=f"o{n}")
        await world.wait_idle()
        assert sorted(await values(world, "orders")) == [1, 2, 3]
        for n in (1, 2, 3):
            assert await world.state(Total, n) == Total(1)


async def test_an_ingest_without_an_application_has_its_queue() -> None:
    log = OrderedLog("orders", ELSEWHERE, type=Number)
    async with Harness(streams=[Ingest("o", queue="inbox", type=Number, source=ELSEWHERE, log=log)]) as world:
        await deliver(world, "inbox", Number(1), id="o1")
        assert await values(world, "orders") == [1]


async def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"give it an App, or streams=\[...\]"):
        Harness()
    with pytest.raises(ValueError, match="a str cannot step here; give Processors, Ingests, Pipelines"):
        Harness(streams=["averages"])  # type: ignore[list-item]  # what is refused
    with pytest.raises(ValueError, match="replicas=0: at least one"):
        Harness(streams=adders(), replicas=0)
    async with Harness(streams=adders(), replicas=2) as world:
        with pytest.raises(ValueError, match="no log 'left'; the streams have numbers, sums, totals"):
            world.log("left")
        with pytest.raises(ValueError, match="no replica 'first/2'; first has 0 to 1"):
            world.kill("first/2")
        with pytest.raises(ValueError, match="no processor or pipeline 'third'; there is first, second"):
            world.stall("third", replica=0, s=1)
        for replica in (2, -1):
            with pytest.raises(ValueError, match=f"no replica {replica}; first has 0 to 1"):
                world.stall("first", replica=replica, s=1)
        with pytest.raises(ValueError, match="no processor 'third'"):
            await world.stream_state("third")

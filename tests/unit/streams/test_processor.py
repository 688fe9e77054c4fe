"""A processor: each input handled once, each output appended once, whatever replicas do or die of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outbox.engine.backend.store_scopes import ItemStore, NarrowEngine
from outbox.engine.engine import Engine
from outbox.errors import FormatTooNew
from outbox.ports import Lost, NoBlobs, Replace, StateStore, Won, Write
from outbox.retries import Retries
from outbox.streams import HandlerFailed, Inputs, OrderedLog, Position, Processor, Skip, Step
from outbox.streams.log_places import Place
from outbox.streams.replica import Progress, Replica
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Reading
from tests.unit.streams.making import ANY_AGE, Counting, Total, add, entries, fill, made, values


@dataclass
class Seen:
    items: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


def processor(place: Any, handler: Callable[..., Any] = add, **options: Any) -> Processor[Any]:
    """A processor `sums` from the log `in` to the log `out`, as a process of its own has it."""
    defaults = {
        "state": Total,
        "register": place,
        "inputs": {"in": made("in", place, int)},
        "outputs": {"out": made("out", place, int)},
    }
    return Processor("sums", handler, **{**defaults, **options})


async def totals(place: Any) -> list[int]:
    return await values(made("out", place, int))


def running(given: list[int]) -> list[int]:
    """The running totals of numbers."""
    return [sum(given[: n + 1]) for n in range(len(given))]


# What a handler is given


async def test_inputs_come_by_the_order_of_their_names_then_by_position(engine: Engine) -> None:
    left, right = made("l", engine, str), made("r", engine, str)
    found: list[list[str]] = []

    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        found.append([entry.value for entry in inputs])
        assert [entry.value for entry in inputs["b-left"]] == ["l0", "l1"]
        assert (len(inputs), [str(entry.position) for entry in inputs["a-right"]]) == (4, ["0.0", "0.1"])

    await left.extend(["l0", "l1"], id="l")
    await right.extend(["r0", "r1"], id="r")
    await processor(engine, handler, inputs={"b-left": left, "a-right": right}).run_until_idle()
    assert found == [["r0", "r1", "l0", "l1"]]


async def test_an_idle_replica_reads_a_register_again_that_another_has_swapped(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, count = Replica.step, 0

    async def counted(self: Replica) -> Any:
        nonlocal count
        count += 1
        return await step(self)

    monkeypatch.setattr(Replica, "step", counted)
    await fill(made("in", engine, int), 1)
    async with processor(engine).run() as under_way:
        key = under_way.loops[0].replica.register.key
        await asyncio.sleep(0.2)
        found, before = await engine.store().read(key), count
        assert found is not None and await totals(engine) == [1]
        await engine.store().write([Replace(found.key, found.body, found.version)])
        await asyncio.sleep(0.2)
    assert count - before < 20


async def test_an_input_without_entries_does_not_hold_up_the_others(engine: Engine) -> None:
    empty = made("empty", engine, int)
    await fill(made("in", engine, int), 1, 2)
    await processor(engine, inputs={"in": made("in", engine, int), "empty": empty}).run_until_idle()
    assert await totals(engine) == [1, 3]


@pytest.mark.parametrize("batch_max", [1, 2, 3, 64])
async def test_a_step_takes_at_most_batch_max_entries_also_of_one_cell(engine: Engine, batch_max: int) -> None:
    counts: list[int] = []

    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        counts.append(len(inputs))
        add(state, inputs, step)

    log = made("in", engine, int)
    await log.extend([1, 2, 3, 4, 5], id="batch")
    await fill(log, 6, 7)
    await processor(engine, handler, batch_max=batch_max).run_until_idle()
    assert max(counts) <= batch_max and sum(counts) == 7
    assert await totals(engine) == running([1, 2, 3, 4, 5, 6, 7])


async def test_a_state_changes_in_place_or_is_saved_and_is_a_copy(engine: Engine) -> None:
    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        [entry] = inputs
        step.emit("out", state.n)
        state.n = 1_000
        if entry.value:
            step.save(Total(state.n + entry.value))

    await fill(made("in", engine, int), 1, 0, 2, 3)
    await processor(engine, handler, batch_max=1).run_until_idle()
    assert await totals(engine) == [0, 1_001, 1_000, 1_002]


async def test_an_async_handler_is_awaited(engine: Engine) -> None:
    async def handler(state: Total, inputs: Inputs, step: Step) -> None:
        await asyncio.sleep(0)
        add(state, inputs, step)

    await fill(made("in", engine, int), 1, 2)
    await processor(engine, handler).run_until_idle()
    assert await totals(engine) == [1, 3]


async def test_falsy_values_are_values_and_a_skip_is_none(engine: Engine) -> None:
    kind = int | float | str | bool | list[int] | None
    given: list[Any] = [None, 0, "", False, [], 0.0]

    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            step.emit("out", entry.value)
            step.emit("out", Skip)

    source, out = made("any", engine, kind), made("copies", engine, kind)
    await source.extend(given, id="all")
    await processor(engine, handler, inputs={"in": source}, outputs={"out": out}, batch_max=2).run_until_idle()
    found = await values(out)
    assert [(type(value), value) for value in found] == [(type(value), value) for value in given]
    assert await out.end() == Position(3), "one cell for what one step emits"


async def test_where_nothing_is_emitted_nothing_is_appended(engine: Engine) -> None:
    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            if entry.value == 2:
                step.emit("out", 2)

    await fill(made("in", engine, int), 1, 2, 3)
    await processor(engine, handler, batch_max=1).run_until_idle()
    assert [(str(entry.position), entry.value) for entry in await entries(made("out", engine, int))] == [("0.0", 2)]


async def test_without_input_the_register_does_not_move(engine: Engine) -> None:
    sums = processor(engine)
    await fill(made("in", engine, int), 1)
    await sums.run_until_idle()
    before = await sums.status()
    assert [await sums.run_until_idle() for _ in range(3)] == [0, 0, 0]
    assert await sums.status() == before


async def test_a_processor_may_read_what_it_writes(engine: Engine) -> None:
    def countdown(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            if entry.value:
                step.emit("out", entry.value - 1)

    log = made("loop", engine, int)
    await log.append(5, id="start")
    await processor(engine, countdown, inputs={"in": log}, outputs={"out": log}).run_until_idle()
    assert await values(log) == [5, 4, 3, 2, 1, 0]


async def test_outputs_to_several_logs_on_several_stores_lie_in_each_once(engine: Engine) -> None:
    def split(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            step.emit("even" if entry.value % 2 == 0 else "odd", entry.value)
            step.emit("all", entry.value)

    async with Engine.in_memory() as other:
        item = NarrowEngine(other, "item")
        even, odd, all_ = made("even", other, int), made("odd", item, int), made("all", engine, int)
        await fill(made("in", engine, int), *range(6))
        outputs = {"even": even, "odd": odd, "all": all_}
        await processor(engine, split, register=item, outputs=outputs, batch_max=2).run_until_idle()
        assert [await values(log) for log in (even, odd, all_)] == [[0, 2, 4], [1, 3, 5], [0, 1, 2, 3, 4, 5]]


async def test_a_sharded_output_is_read_by_shard_each_entry_once(engine: Engine) -> None:
    def readings(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            step.emit("out", Reading(f"s{entry.value % 5}", float(entry.value)))

    options: dict[str, Any] = {"writers": 2, "readers": 4, "partition": lambda r: r.sensor}
    wide: OrderedLog[Reading] = made("wide", engine, Reading, **options)
    await fill(made("in", engine, int), *range(20))
    await processor(engine, readings, outputs={"out": wide.writer(1)}, batch_max=7).run_until_idle()
    shares = [await values(made("wide", engine, Reading, **options).reader(n)) for n in range(4)]
    assert sorted(value.degrees for share in shares for value in share) == [float(n) for n in range(20)]
    assert all(
        [v.degrees for v in share if v.sensor == s] == sorted(v.degrees for v in share if v.sensor == s)
        for share in shares
        for s in {v.sensor for v in share}
    )


# Time


async def test_time_never_runs_backwards_for_a_handler(engine: Engine) -> None:
    ticks = iter([5_000, 4_000, 9_000, 1_000, 0, 7_000] * 100)
    place = Place(engine.store(), NoBlobs(), lambda: next(ticks))

    def handler(state: Seen, inputs: Inputs, step: Step) -> None:
        state.times.append(step.now_ms)
        for n in state.times[-1:]:
            step.emit("out", n)

    await fill(made("in", engine, int), *range(12))
    await processor(engine, handler, state=Seen, register=place, batch_max=1).run_until_idle()
    times = await totals(engine)
    assert len(times) == 12 and times == sorted(times) and times[-1] in (7_000, 9_000)


class Slow(Counting):
    """A store whose writes take time, and are there before they are answered."""

    def __init__(self, store: StateStore, clock: VirtualClock) -> None:
        super().__init__(store)
        self._clock = clock
        self.takes_s = 0.0

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        answer = await super().write(operations)
        self._clock.seconds += self.takes_s
        return answer


@pytest.mark.parametrize(("takes_s", "read_count"), [(0.0, 0), (200.0, 1)])
async def test_a_replica_whose_swap_was_answered_late_reads_its_register_again(takes_s: float, read_count: int) -> None:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        slow = Slow(engine.store(), clock)
        replica = processor(engine, register=Place(slow, NoBlobs(), engine.now_ms)).replica()
        await fill(made("in", engine, int), 7)
        slow.takes_s = takes_s
        assert await replica.step() is Progress.WON
        slow.reset()
        assert await replica.step() is Progress.WON and await totals(engine) == [7]
        assert slow.reads[replica.register.key] == read_count


@pytest.mark.parametrize("ahead_ms", [-10_000_000_000, -301_000, 301_000, 10_000_000_000])
async def test_stores_whose_clocks_are_far_apart_do_not_hold_each_other_up(engine: Engine, ahead_ms: int) -> None:
    place = Place(engine.store(), NoBlobs(), lambda: engine.now_ms() + ahead_ms)
    await fill(made("in", engine, int), 1, 2, 3)
    await processor(engine, register=place).run_until_idle(seconds=1)
    assert await totals(engine) == [1, 3, 6]


async def test_wake_at_fires_once_at_its_time_without_input() -> None:
    clock = VirtualClock(START_S)

    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        for _ in inputs:
            step.wake_at(step.now_ms + 20_000)
            step.wake_at(step.now_ms + 10_000)
        step.emit("out", len(inputs))

    async with Engine.in_memory(clock=clock) as engine:
        await fill(made("in", engine, int), 7)
        for _ in range(6):
            await processor(engine, handler).run_until_idle()
            clock.seconds += 4
        assert await totals(engine) == [1, 0]
        at_ms = [entry.at_ms for entry in await entries(made("out", engine, int))]
        assert at_ms[1] - at_ms[0] == 12_000, "the first look after ten seconds"


async def test_a_running_replica_wakes_at_the_time_that_was_asked_for(engine: Engine) -> None:
    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        state.n += 1
        step.emit("out", state.n)
        if state.n < 4:
            step.wake_at(step.now_ms + 5)

    await fill(made("in", engine, int), 7)
    async with processor(engine, handler, poll_s_max=60).run(), asyncio.timeout(10):
        await first(made("out", engine, int), 4)
    assert await totals(engine) == [1, 2, 3, 4]


async def first(log: OrderedLog[Any], count: int) -> list[Any]:
    """The first values of a log, once there are so many."""
    found: list[Any] = []
    async for entry in log.read(wait=True):
        found.append(entry.value)
        if len(found) == count:
            break
    return found


# Replicas


@pytest.mark.parametrize("replicas", [1, 2, 5])
@pytest.mark.parametrize("scope", ["engine", "item"])
async def test_replicas_at_once_give_each_output_once(engine: Engine, scope: str, replicas: int) -> None:
    place = engine if scope == "engine" else NarrowEngine(engine, "item")
    async with processor(place, batch_max=3).run(replicas=replicas), asyncio.timeout(20):
        await fill(made("in", place, int), *range(40))
        assert await first(made("out", place, int), 40) == running(list(range(40)))
    assert await totals(place) == running(list(range(40)))


@pytest.mark.parametrize("seed", range(4))
async def test_overlapping_calls_of_run_until_idle_give_each_output_once(engine: Engine, seed: int) -> None:
    place, chance = Yielding(engine, random.Random(seed)), random.Random(seed)
    given = [chance.randrange(100) for _ in range(30)]
    await fill(made("in", place, int), *given)
    calls = [processor(place, batch_max=chance.randint(1, 4)).run_until_idle() for _ in range(4)]
    won = await asyncio.gather(*calls)
    await processor(place).run_until_idle()
    assert await totals(place) == running(given)
    assert all(count >= 0 for count in won) and sum(won) >= 30 // 4


class Yielding:
    """An engine's documents as a store that answers in any order: each call first lets others run, by chance."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self._store = ItemStore(engine.store())
        self._chance = chance
        self.capabilities = self._store.capabilities

    async def _pause(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)

    async def read(self, *given: Any, **options: Any) -> Any:
        await self._pause()
        found = await self._store.read(*given, **options)
        await self._pause()
        return found

    async def write(self, operations: Any) -> Any:
        await self._pause()
        answer = await self._store.write(operations)
        await self._pause()
        return answer

    def scan(self, partition: str, *, prefix: str = "") -> Any:
        return self._store.scan(partition, prefix=prefix)

    def unfinished(self) -> Any:
        return self._store.unfinished()


@pytest.mark.parametrize("seed", range(50))
async def test_replicas_killed_at_any_time_leave_the_log_of_a_run_without_a_failure(engine: Engine, seed: int) -> None:
    chance = random.Random(seed)
    place = Yielding(engine, chance)
    given = [chance.randrange(10) for _ in range(12)]
    appending = asyncio.create_task(fill(made("in", place, int), *given))
    for _ in range(12):
        task = asyncio.create_task(lives(place, replicas=chance.randint(1, 3), batch_max=chance.randint(1, 4)))
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await appending
    await processor(place).run_until_idle()
    assert await totals(place) == running(given), f"seed {seed}"


async def lives(place: Any, *, replicas: int, batch_max: int) -> None:
    """Run replicas until this is cancelled."""
    async with processor(place, batch_max=batch_max, poll_s_max=0.001).run(
        replicas=replicas, replica_wait_s=0
    ) as found:
        await found.wait_stopped()


async def test_what_a_dead_replica_committed_is_appended_by_another(engine: Engine) -> None:
    await fill(made("in", engine, int), 1)
    assert await processor(engine).run_until_idle(steps_max=1) == 1
    assert (await processor(engine).status()).phase == "writing"
    assert await totals(engine) == []
    other = processor(engine)
    await other.run_until_idle()
    assert (await totals(engine), (await other.status()).phase) == ([1], "handling")


# New code beside old


def twice(state: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        state.n += 2 * entry.value
        step.emit("out", state.n)


async def test_new_code_beside_old_goes_on_from_its_state(engine: Engine) -> None:
    log, out = made("in", engine, int), made("out", engine, int)
    await fill(log, 1, 2)
    async with asyncio.timeout(10):
        old = processor(engine)
        async with old.run():
            assert await first(out, 2) == [1, 3]
        async with processor(engine, twice, version=2).run():
            await log.append(5, id="five")
            assert await first(out, 3) == [1, 3, 13]


async def test_new_code_takes_over_without_an_entry_and_old_code_stops(engine: Engine) -> None:
    await fill(made("in", engine, int), 1)
    old = processor(engine)
    await old.run_until_idle()
    with pytest.raises(FormatTooNew, match="runs as version 2"):
        async with old.run() as running, asyncio.timeout(10):
            await processor(engine, twice, version=2).run_until_idle()
            await running.wait_stopped()
    assert await values(made("out", engine, int)) == [1]


async def test_a_handler_that_fails_is_logged_with_its_entry_its_try_and_why(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(total: Total, inputs: Inputs, step: Step) -> None:
        raise ValueError("no such sensor")

    await fill(made("in", engine, int), 1)
    retries = Retries(limit=2, delays_s=(0.0,))
    with pytest.raises(HandlerFailed):
        await processor(engine, fail, retries=retries).run_until_idle()
    (line,) = caplog.messages
    assert line == "processor sums fails at in 0.0, try 1 of 2; it is run again: ValueError: no such sensor"


async def test_a_new_input_begins_at_the_floor_of_its_log_and_holds_it(engine: Engine) -> None:
    log, extra = made("in", engine, int), made("extra", engine, int)
    await fill(log, 1)
    await processor(engine).run_until_idle()
    await fill(extra, 50, 60)
    await extra.trim(min_age=ANY_AGE)
    await extra.append(70, id="late")
    inputs: dict[str, Any] = {"in": log, "extra": extra}
    newer = processor(engine, twice, inputs=inputs, version=2)
    await newer.run_until_idle()
    assert await values(made("out", engine, int)) == [1, 1 + 2 * 70]
    assert (await extra.status())[0].readers == {"processor/sums": 0}


async def test_a_new_output_begins_at_its_end_and_a_new_input_at_its_first(engine: Engine) -> None:
    def both(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            step.emit("more", entry.value)

    log, more, extra = made("in", engine, int), made("more", engine, int), made("extra", engine, int)
    await fill(log, 1)
    await fill(more, 100)
    await fill(extra, 50)
    await processor(engine).run_until_idle()
    options: dict[str, Any] = {"inputs": {"in": log, "extra": extra}, "outputs": {"more": more}, "version": 2}
    await processor(engine, both, **options).run_until_idle()
    await log.append(2, id="two")
    await processor(engine, both, **options).run_until_idle()
    assert await values(made("more", engine, int)) == [100, 50, 2]


# Status and trimming


async def test_the_status_says_how_far_a_processor_is(engine: Engine) -> None:
    sums = processor(engine, batch_max=1)
    fresh = await sums.status()
    assert (fresh.serial, fresh.phase, fresh.lag) == (0, "handling", {"in": 0})
    await fill(made("in", engine, int), *range(5))
    await processor(engine, batch_max=1).run_until_idle(steps_max=2)
    found = await sums.status()
    assert (found.name, found.phase, found.lag, found.failures) == ("sums", "writing", {"in": 3}, 0)
    async with sums.run(), asyncio.timeout(10):
        await first(made("out", engine, int), 5)
    assert (await sums.status()).won_count >= 3


async def test_a_trim_waits_for_a_processor_and_then_passes(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, 1, 2, 3)
    await processor(engine, batch_max=1).run_until_idle(steps_max=1)
    assert await log.trim() == 1
    await processor(engine, batch_max=1).run_until_idle()
    assert await log.trim() == 2
    await log.append(4, id="four")
    await processor(engine).run_until_idle()
    assert await totals(engine) == [1, 3, 6, 10]


async def test_a_processor_that_emits_nothing_does_not_hold_up_the_trims_of_its_output(engine: Engine) -> None:
    out, quiet = made("out", engine, int), made("quiet", engine, int)
    silent = Processor("silent", add, state=Total, register=engine, inputs={"in": quiet}, outputs={"out": out})
    await silent.run_until_idle()
    await fill(made("in", engine, int), 1, 2, 3)
    await processor(engine).run_until_idle()
    await silent.run_until_idle()
    assert await out.trim(min_age=ANY_AGE) > 0


# What it costs


def emits(output_count: int) -> Callable[..., None]:
    def handler(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            for n in range(output_count):
                step.emit(f"out{n}", entry.value)

    return handler


@pytest.mark.parametrize("output_count", [1, 3])
async def test_a_step_is_one_swap_one_create_an_output_and_one_read_a_cell(engine: Engine, output_count: int) -> None:
    store = Counting(engine.store())
    log = made("in", engine, int)
    outputs = {f"out{n}": made(f"out{n}", store, int) for n in range(output_count)}
    sums = processor(store, emits(output_count), inputs={"in": made("in", store, int)}, outputs=outputs, batch_max=1)
    await log.append(0, id="warm")
    replica = sums.replica()
    while (await replica.step()).name != "IDLE":
        pass
    await log.extend(list(range(20)), id="twenty")
    await fill(log, *range(20))
    await replica.step()
    store.reset()
    for _ in range(30):  # fewer than after which it reports
        assert (await replica.step()).name == "WON"
    assert store.writes == {"Replace register": 30, "Create append": 30 * output_count}
    assert sum(store.lost.values()) == 0
    reads = {key.id: count for key, count in store.reads.items()}
    assert reads.pop("0000000001") <= 20 and set(reads.values()) <= {1}, "its steps read a cell once, nothing else"


async def test_two_replicas_that_are_quiet_swap_little_more_than_one(engine: Engine) -> None:
    attempts = []
    for replicas in (1, 2):
        async with Engine.in_memory() as engine:
            store = Counting(engine.store())
            log, out = made("in", engine, int), made("out", engine, int)
            sums = processor(store, inputs={"in": made("in", store, int)}, outputs={"out": made("out", store, int)})
            async with sums.run(replicas=replicas), asyncio.timeout(20):
                for n in range(60):
                    await log.append(n, id=f"{n}")
                    await first(out, n + 1)
                    await asyncio.sleep(0.002)
            attempts.append(store.writes["Replace register"])
    assert attempts[1] <= 1.6 * attempts[0], attempts  # twice as many, if each tried every step

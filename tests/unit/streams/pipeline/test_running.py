"""A pipeline that runs: asked while entries flow, ended, run for a timer, and behind stores that fail."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable, Refused, Throttled, TooLarge
from outbox.streams import Position, release
from outbox.streams.log_places import place_of
from outbox.streams.pipeline import replica as pipeline_replica
from outbox.streams.pipeline import running, tasks
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.pipeline.running import PipelineLoop
from outbox.streams.pipeline.tasks import BeginAgain
from outbox.streams.processor import PAUSE_S_FIRST, PAUSE_S_MAX
from tests.unit.streams.pipeline.counting import Count, Counting, expected, recorded, states_in

TEXTS = ("the cat", "sat on the mat", "the end")


async def test_the_view_is_asked_while_entries_flow() -> None:
    made = Counting(Engine.in_memory())
    count = made.pipeline.plan().operators[1]
    async with made.pipeline.run(made.engine, release=release.in_order(), replicas=2) as running:
        assert await running.get(count, "the") is None
        for number, text in enumerate(TEXTS, 1):
            await made.write(text)
            await running.until(Position(number))
            found = await running.get(count, "the")
            assert found is not None and found == (Count(number), Position(number))
            found[0].n = 99  # a copy
        assert {key: state.n async for key, state in running.items(count)} == dict(expected(TEXTS))
        with pytest.raises(NotRegistrable, match="'words'"):
            await running.get(made.pipeline.plan().operators[0], "the")
    assert await made.released() == expected(TEXTS)


async def test_all_items_wait_for_few_checkpoints_while_entries_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counting(Engine.in_memory())
    count, waits = made.pipeline.plan().operators[1], [0]
    until_released = PipelineReplica._until_released

    async def fed_and_waited(replica: PipelineReplica, at: Position) -> None:
        waits[0] += 1
        await made.write("another")
        await until_released(replica, at)

    monkeypatch.setattr(PipelineReplica, "_until_released", fed_and_waited)
    monkeypatch.setattr(pipeline_replica, "COPIES_MAX", 100)
    texts = [" ".join(f"word{number}" for number in range(begin, begin + 50)) for begin in range(0, 300, 50)]
    await made.write(*texts)
    async with made.pipeline.run(made.engine, release=release.by_epoch(), checkpoint_s=0.05) as running:
        await running.until(Position(len(texts)))
        found = {key: state.n async for key, state in running.items(count)}
    assert {key: found[key] for key, _ in expected(texts)} == dict(expected(texts)) and waits[0] <= 3


async def test_states_are_frozen_while_a_replica_goes_on_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    made, done = Counting(Engine.in_memory()), list[object]()
    monkeypatch.setattr(tasks, "gc", recorded(done))
    monkeypatch.setattr(tasks.Frozen, "_users", 0)
    monkeypatch.setattr(tasks.Frozen, "_new", 0)
    async with asyncio.timeout(20), made.pipeline.run(made.engine, replicas=2, checkpoint_s=0.01) as running:
        for number, text in enumerate(("a b", "c")):
            await made.write(text)
            await running.until(Position(number + 1))
            done.append(number)
    assert [each for each in done if each not in (0, 1)] == [*["collect 0", "freeze"] * 2, "unfreeze"]
    assert done[-1] == "unfreeze"


@pytest.mark.parametrize(
    ("users", "threshold", "froze"), [(0, 700, []), (1, 700, ["collect 0", "freeze"] * 2), (1, 0, [])]
)
async def test_what_a_checkpoint_makes_is_frozen_in_its_course(
    monkeypatch: pytest.MonkeyPatch, users: int, threshold: int, froze: list[object]
) -> None:
    done = list[object]()
    monkeypatch.setattr(tasks, "gc", recorded(done, threshold=threshold))
    monkeypatch.setattr(tasks.Frozen, "_users", users)
    monkeypatch.setattr(tasks.Frozen, "_new", 0)
    for _ in range(2 * tasks.YOUNG // tasks.OBJECTS_A_PART + 1):
        await tasks.give_way(lambda: 0)
    assert done == froze


def test_all_is_looked_through_for_garbage_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[object]()
    now_s = iter([0, 0, 0, 1, 2, 900, 900, 901, 1_800, 1_800])
    monkeypatch.setattr(tasks.Frozen, "_users", 0)
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    monkeypatch.setattr(tasks, "gc", recorded(done, threshold=0))
    frozen, other = tasks.Frozen(), tasks.Frozen()
    for each in (other, frozen, frozen, frozen, frozen, frozen):
        each.take()
    frozen.end()
    frozen.end()
    assert done == ["unfreeze", "collect 2", "freeze"] * 2
    other.end()
    assert done[-1] == "unfreeze" and len(done) == 7


@pytest.mark.parametrize("replicas", [1, 2])
async def test_the_end_of_a_run_makes_a_checkpoint(replicas: int) -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    async with made.pipeline.run(made.engine, checkpoint_s=1_000, replicas=replicas) as running:
        await running.until(Position(3))
    replica = made.replica()
    await replica.begin()
    assert replica.at == Position(3)


async def test_the_end_of_a_run_waits_so_long_for_its_checkpoint_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "END_S", 0.01)
    monkeypatch.setattr(PipelineReplica, "checkpoint", lambda self: asyncio.sleep(60))
    made = Counting(Engine.in_memory())
    await made.write("a")
    async with asyncio.timeout(5), made.pipeline.run(made.engine) as run:
        await run.until(Position(1))


async def test_an_answer_never_speaks_of_less_than_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    made, go, turned = Counting(Engine.in_memory()), asyncio.Event(), PipelineReplica.turn
    count = made.pipeline.plan().operators[1]
    await made.write(*TEXTS)
    async with asyncio.timeout(20), made.pipeline.run(made.engine, checkpoint_s=1_000) as running:
        await running.until(Position(3))
        first = running.loops[0].replica

        async def turn(replica: PipelineReplica) -> bool:
            if replica is first:
                raise BeginAgain
            await go.wait()
            return await turned(replica)

        monkeypatch.setattr(PipelineReplica, "turn", turn)
        await made.write("the last")
        while running.loops[0].replica in (first, None):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        asked = asyncio.create_task(running.get(count, "the"))
        await asyncio.sleep(0.05)
        assert not asked.done()  # it has seen nothing yet, and three entries have left
        go.set()
        assert await asked == (Count(4), Position(4))
        for operator in ("count", None):
            with pytest.raises(NotRegistrable, match="give what"):
                await running.get(cast(Any, operator), "the")


async def test_who_asks_a_replica_that_is_over_lets_the_next_one_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    made, turned, stated = Counting(Engine.in_memory()), PipelineReplica.turn, PipelineReplica.state
    go = asyncio.Event()
    count = made.pipeline.plan().operators[1]
    async with asyncio.timeout(20), made.pipeline.run(made.engine, checkpoint_s=1_000) as running:
        await made.write("the")
        await running.until(Position(1))
        first, asked_count = running.loops[0].replica, 0

        async def turn(replica: PipelineReplica) -> bool:
            if replica is first:
                await go.wait()
                raise BeginAgain
            return await turned(replica)

        async def state(replica: PipelineReplica, *asked: Any) -> Any:
            nonlocal asked_count
            asked_count += 1
            if replica is first:
                raise BeginAgain  # as at once where a worker has died
            return await stated(replica, *asked)

        monkeypatch.setattr(PipelineReplica, "turn", turn)
        monkeypatch.setattr(PipelineReplica, "state", state)
        await made.write("a")
        asked = asyncio.create_task(running.get(count, "the"))
        await asyncio.sleep(0.05)
        assert asked_count == 1
        go.set()
        found = await asked
        assert found is not None and found[0] == Count(1) and asked_count == 2


async def test_a_timer_runs_it_until_there_is_nothing_to_do() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    assert await made.pipeline.run_until_idle(made.engine, seconds=10) == Position(3)
    await made.write("again")
    assert await made.pipeline.run_until_idle(made.engine, seconds=10) == Position(4)
    assert await made.released() == expected([*TEXTS, "again"])


async def test_a_folder_keeps_it_all_through_a_restart(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS, 1):
        engine = Engine.open(tmp_path)
        try:
            made = Counting(engine)
            await made.write(text)
            async with made.pipeline.run(engine, checkpoint_s=0.01) as running:
                await running.until(Position(number))
            released = await made.released()
        finally:
            engine.close()
    assert released == expected(TEXTS)


class Failing:
    """A store that fails now and then."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, *given: Any, **options: Any) -> Any:
        self._fail()
        return await self._store.read(*given, **options)

    async def write(self, *given: Any) -> Any:
        self._fail()
        return await self._store.write(*given)

    def _fail(self) -> None:
        self.calls += 1
        if self.calls % 5 == 0:
            raise Throttled("too many requests")


async def test_a_store_that_fails_now_and_then_is_asked_again() -> None:
    made = Counting(Engine.in_memory())
    place = place_of(made.engine)
    failing = type(place)(Failing(place.store), place.blobs, place.now_ms)
    made.changes.place = failing
    await made.write(*TEXTS)
    async with asyncio.timeout(30):
        async with made.pipeline.run(failing, checkpoint_s=0.01) as running:
            await running.until(Position(3))
    assert await Counting(made.engine).released() == expected(TEXTS)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"release": "in order"}, "release="),
        ({"checkpoint_s": 0}, "checkpoint_s=0"),
        ({"replicas": 0}, "replicas=0"),
    ],
)
async def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    made = Counting(Engine.in_memory())
    with pytest.raises(NotRegistrable, match=text):
        async with made.pipeline.run(made.engine, **options):
            pass


async def test_the_states_of_a_run_are_those_of_its_words() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    await made.pipeline.run_until_idle(made.engine, seconds=10)
    replica = made.replica()
    await replica.begin()
    states = states_in(replica)
    assert set(states.all()) == set(dict(expected(TEXTS)))


async def test_whoever_waited_leaves_no_task_behind() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    async with asyncio.timeout(20), made.pipeline.run(made.engine, checkpoint_s=1_000, replicas=2) as running:
        before, loops = asyncio.all_tasks(), running.loops
        running.loops = [loops[0], looped()]  # the second one gets nowhere
        await running.until(Position(3))
        running.loops = [looped()]
        asked = asyncio.create_task(running._replica())
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        running.loops = loops
        await asyncio.sleep(0)
        waiting = [task for task in asyncio.all_tasks() - before if "_reached" in repr(task) or "_begun" in repr(task)]
        assert not waiting


async def test_who_waits_for_an_incarnation_that_ends_is_not_left_waiting() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    replica = made.replica()
    await replica.begin()
    replica.tasks.at = Position(3)  # fed, and nothing has left
    asked = asyncio.create_task(replica.state("count", "the", Position(0)))
    await asyncio.sleep(0)
    replica.end()
    async with asyncio.timeout(10):
        with pytest.raises(BeginAgain):
            await asked


async def test_a_pipeline_that_was_stopped_answers_no_more() -> None:
    made = Counting(Engine.in_memory())
    async with made.pipeline.run(made.engine) as running:
        pass
    async with asyncio.timeout(10):
        with pytest.raises(Refused, match="has been stopped"):
            await running.get(made.pipeline.plan().operators[1], "the")
        with pytest.raises(Refused, match="has been stopped"):
            await running.until(Position(1))


# The loop of a replica, which is what a test says


class Replica:
    """A replica whose turns and checkpoints end as a test says, the last with an error that stops the loop."""

    def __init__(self, *turns: object) -> None:
        self.turns, self.checkpoints_made, self.released, self.holds_back = list(turns), 0, Position(5), False
        self.fed = asyncio.Event()
        self.plan = made_plan()

    async def turn(self) -> bool:
        found = self.turns.pop(0) if self.turns else TooLarge("the end")
        if isinstance(found, Exception):
            raise found
        return bool(found)

    async def checkpoint(self) -> bool:
        self.checkpoints_made += 1
        return await self.turn()


def made_plan() -> PipelinePlan:
    return Counting(Engine.in_memory()).pipeline.plan()


def looped(checkpoint_s: float = 0.001) -> PipelineLoop:
    plan = made_plan()
    return PipelineLoop(plan, plan.source.log.place, checkpoint_s)


async def test_a_pause_doubles_with_each_error_in_a_row_and_begins_anew_behind_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = list[float]()

    async def sleep(pause_s: float) -> None:
        if pause_s:
            pauses.append(pause_s)

    loop, error = looped(), Throttled("busy")
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(TooLarge):
        await loop._turns(cast(Any, Replica(error, error, error, True, error, True, *[error] * 12)))
    first = PAUSE_S_FIRST
    assert pauses[:5] == [first, 2 * first, 4 * first, first, first] and max(pauses) == PAUSE_S_MAX
    assert loop.released == Position(5)


async def test_a_replica_that_is_overtaken_each_time_stops_and_one_that_makes_a_checkpoint_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, begun = looped(), 0

    async def incarnation() -> None:
        nonlocal begun
        begun += 1
        if begun == 10:
            with pytest.raises(TooLarge):
                await loop._checkpoints(cast(Any, replica))
        raise BeginAgain

    replica = Replica(True)
    replica.holds_back = True
    replica.fed.set()
    loop.workers = cast(Any, SimpleNamespace(restarts=3))
    monkeypatch.setattr(loop, "_incarnation", incarnation)
    with pytest.raises(Refused, match="began 20 times, and was overtaken each time"):
        await loop._incarnations()
    assert begun == 10 + running.INCARNATIONS_MAX and loop.workers.restarts == 0
    assert loop.released == Position(5), "what has left with the checkpoint is told"


@pytest.mark.parametrize(("holds_back", "count"), [(False, 1), (True, 3)])
async def test_a_checkpoint_is_made_when_something_was_fed_or_waits_for_one(holds_back: bool, count: int) -> None:
    loop, replica = looped(), Replica(False, False)
    replica.holds_back = holds_back
    replica.fed.set()
    task = asyncio.ensure_future(loop._checkpoints(cast(Any, replica)))
    await asyncio.wait([task], timeout=0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert replica.checkpoints_made == count


@pytest.mark.parametrize(
    ("turns", "outcome"),
    [
        ([Throttled("busy"), False], Position(0)),
        ([BeginAgain(), False], Position(0)),
        ([*[Throttled("busy")] * 1_000], Throttled),
        ([TooLarge("no")], TooLarge),
    ],
)
async def test_a_run_until_idle_ends_with_the_error_that_is_left(
    turns: list[Any], outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(turns)

    async def turn(loop: PipelineLoop) -> bool:
        found = left.pop(0)
        if isinstance(found, BaseException):
            raise found
        return bool(found)

    monkeypatch.setattr(PipelineLoop, "turn", turn)
    monkeypatch.setattr(running, "PAUSE_S_FIRST", 0.001)
    engine, plan = Engine.in_memory(), made_plan()
    with nullcontext() if isinstance(outcome, Position) else pytest.raises(outcome):
        assert await running.run_until_idle(plan, engine, seconds=0.05) == outcome


async def test_a_turn_by_itself_says_up_to_where_all_has_left() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    loop = PipelineLoop(made.pipeline.plan(), place_of(made.engine), 1.0)
    while await loop.turn():
        pass
    assert loop.released == Position(3)

"""Operators in several processes: in whatever order their messages come, what leaves is what one process makes."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, NotRegistrable, Refused, TooLarge
from outbox.streams import Emit, Pipeline, Position
from outbox.streams.log_places import place_of
from outbox.streams.pipeline import exchange, grouping, release
from outbox.streams.pipeline.barrier import OutputUnstorable
from outbox.streams.pipeline.core import OperatorFailed
from outbox.streams.pipeline.exchange import Answer, Exchange, FromWorker, Unframed, framed
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import BUFFERED, SPECULATIVE
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.pipeline.running import PipelineLoop, RunningPipeline
from outbox.streams.pipeline.tasks import LocalTasks
from outbox.streams.pipeline.worker import plan_of
from tests.unit.streams.pipeline.counting import Count, Counting, Page, Word, count, expected, text_of, words
from tests.unit.streams.pipeline.exchanged import Drawn, Letters, explored, frames_of, in_order, plan_of_letters
from tests.unit.streams.pipeline.selling import Selling
from tests.unit.streams.pipeline.selling import drawn as sold
from tests.unit.streams.pipeline.selling import expected as judged

TEXTS = ["ab b", "b ab", "ab"]
GROUPINGS = (BUFFERED, SPECULATIVE)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("texts", [TEXTS, ["a", "b a"]])
async def test_every_order_of_the_channels_makes_the_same(texts: list[str], grouping: str) -> None:
    for plan in (plan_of_letters(), Counting(Engine.in_memory()).pipeline.plan()):
        made = await in_order(plan, frames_of(texts))
        assert explored(plan, frames_of(texts), made, grouping) > 15


async def test_the_greatest_watermark_in_place_of_the_least_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "min", max, raising=False)
    await found()


async def test_a_watermark_that_overtakes_its_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = Exchange.shares

    def overtaking(self: Exchange, made: dict[str, Frame]) -> Any:
        yield from shares(self, {name: frame._replace(records=[]) for name, frame in made.items()})
        yield from shares(self, made)

    monkeypatch.setattr(Exchange, "shares", overtaking)
    await found()


async def test_records_in_the_order_of_their_arrival_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "_order", lambda record: record[0])
    plan = plan_of_letters()
    made = await in_order(plan, frames_of(["aa ab ac ad"]))
    with pytest.raises(AssertionError):
        explored(plan, frames_of(["aa ab ac ad"]), made, BUFFERED)


async def found() -> None:
    plan = plan_of_letters()
    made = await in_order(plan, frames_of(TEXTS))
    for each in GROUPINGS:
        with pytest.raises(AssertionError):
            explored(plan, frames_of(TEXTS), made, each)


@pytest.mark.parametrize("seed", range(8))
async def test_with_workers_that_die_and_beside_a_replica_without_all_comes_out_once(seed: int) -> None:
    chance, engine = random.Random(seed), Engine.in_memory()
    made = Letters(engine)
    plan = made.pipeline.plan()
    drawn = Drawn(plan, chance.randint(1, 3), chance, GROUPINGS[seed % 4 // 2])
    loops = [PipelineLoop(plan, place_of(engine), 0.001, each) for each in (drawn, None)[: 1 + seed % 2]]  # type: ignore[arg-type]  # it has what is used
    delivering = asyncio.create_task(drawn.deliver())
    running = RunningPipeline(loops)
    texts = [" ".join(chance.choices(("a", "ab", "b", "ba"), k=3)) for _ in range(20)]
    async with asyncio.timeout(30):
        for number, text in enumerate(texts):
            await made.pages.append(Page(text), id=str(number))
            await asyncio.sleep(chance.choice((0, 0.002)))
            if chance.random() < 0.2:
                drawn.kill(chance.randrange(drawn.exchange.count))
        while loops[0].released < Position(20):
            running.check()
            await asyncio.sleep(0.001)
        counted = plan.operators[1]
        while True:
            with suppress(Refused):  # of a worker that was killed the replica may learn only now, and begins again
                assert {key: state.n async for key, state in running.items(counted)} == dict(expected(texts))
                break
            await asyncio.sleep(0.001)
        found = await running.get(counted, "ab")
        assert found == (Count(dict(expected(texts))["ab"]), Position(20))
    await running.stop()
    delivering.cancel()
    assert [(entry.value.word, entry.value.n) async for entry in made.changes.read()] == expected(texts)
    again = PipelineReplica(plan, place_of(engine))
    await again.begin()
    while await again.turn():
        pass
    assert isinstance(again.tasks, LocalTasks)
    tasks = LocalTasks(plan, lambda *_: None)
    time_ms = 0
    async for entry in made.pages.read():
        time_ms = max(time_ms, entry.at_ms)
        at = Position(entry.position.index + 1)
        record = (entry.position, (), time_ms, entry.value)
        await tasks.feed(Frame([record], at, [(entry.position, time_ms)]), [entry.id])
    for name in ("count", "by_letter", "lately"):
        assert again.tasks.states_of(name).all() == tasks.states_of(name).all()


def broken(state: Count, word: Word, emit: object) -> None:
    if word.text == "b":
        raise ZeroDivisionError("division by zero")


def longer(state: Count, word: Word, emit: Emit[Any]) -> None:
    emit(word)


def returned(state: Count, word: Word, emit: object) -> Word | None:
    return word if word.text == "b" else None


def no_key(word: Word) -> Any:
    return None if word.text == "b" else word.text


def long_key(word: Word) -> Any:
    return 10**5_000 if word.text == "b" else word.text


@pytest.mark.parametrize(
    ("function", "key", "error", "text"),
    [
        (broken, text_of, OperatorFailed, r"broken fails on the entry at 1\.0 .*ZeroDivisionError: division by zero"),
        (longer, text_of, OutputUnstorable, r"at 0\.0 of the source cannot be stored on its way to /changes"),
        (count, no_key, OperatorFailed, r"count fails on the entry at 1\.0"),
        (count, long_key, OperatorFailed, r"count fails on the entry at 1\.0 .*an int of up to 4300 digits"),
        (returned, text_of, OperatorFailed, r"returned fails .*give it to emit"),
    ],
)
async def test_what_stops_a_pipeline_stops_it_in_a_worker(function: Any, key: Any, error: Any, text: str) -> None:
    made = Counting(Engine.in_memory())
    pipeline = Pipeline("index", source=made.pages)
    split = pipeline.flat_map(source=made.pages, emits=Word)(words)
    pipeline.sink(pipeline.reduce(split, key=key, state=Count)(function), made.changes)
    await made.write("a", "b")
    raised = await stopped(pipeline.plan(), made.engine)
    assert type(raised) is error and re.search(text, str(raised)), raised
    assert not isinstance(raised, OperatorFailed) or raised.position == Position(1)


async def test_what_is_too_large_for_a_message_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BYTES_MAX", 500)
    made = Counting(Engine.in_memory())
    await made.write("a", "a" * 600)
    assert isinstance(await stopped(made.pipeline.plan(), made.engine), TooLarge)


async def test_workers_that_import_another_pipeline_stop_it() -> None:
    made = Counting(Engine.in_memory())
    raised = await stopped(made.pipeline.plan(), made.engine, Counting(made.engine, name="other").pipeline.plan())
    assert isinstance(raised, NotRegistrable) and "import another one" in str(raised)


@pytest.mark.parametrize("chosen", [release.by_epoch(), release.at_least_once(), release.at_most_once()])
async def test_every_release_goes_with_workers(chosen: release.Release) -> None:
    made = Counting(Engine.in_memory())
    plan = replace(made.pipeline.plan(), release=chosen)
    drawn = Drawn(plan, 2, random.Random(0))
    delivering = asyncio.create_task(drawn.deliver())
    running = RunningPipeline([PipelineLoop(plan, place_of(made.engine), 0.001, drawn)])  # type: ignore[arg-type]  # it has what is used
    async with asyncio.timeout(30):
        for number, text in enumerate(TEXTS, 1):
            await made.write(text)
            await running.until(Position(number))
    await running.stop()
    delivering.cancel()
    assert await made.released() == expected(TEXTS)


@pytest.mark.parametrize("seed", range(8))
async def test_what_goes_aside_is_the_same_with_workers(seed: int) -> None:
    chance, engine = random.Random(seed), Engine.in_memory()
    made, sales = Selling(engine), sold(chance, 16)
    plan = made.pipeline.plan()
    drawn = Drawn(plan, chance.randint(1, 3), chance, GROUPINGS[seed % 2])
    loops = [PipelineLoop(plan, place_of(engine), 0.001, each) for each in (drawn, None)[: 1 + seed % 4 // 2]]  # type: ignore[arg-type]  # it has what is used
    delivering = asyncio.create_task(drawn.deliver())
    running = RunningPipeline(loops)
    async with asyncio.timeout(30):
        for sale in sales:
            await made.write(sale)
            await asyncio.sleep(chance.choice((0, 0.002)))
            if chance.random() < 0.2:
                drawn.kill(chance.randrange(drawn.exchange.count))
        while loops[0].released < Position(16):
            running.check()
            await asyncio.sleep(0.001)
    await running.stop()
    delivering.cancel()
    assert await made.released() == judged(sales)


async def stopped(plan: PipelinePlan, engine: Engine, imported: PipelinePlan | None = None) -> BaseException:
    """What stops a pipeline with a worker."""
    drawn = Drawn(imported or plan, 1, random.Random(0))
    loop = PipelineLoop(plan, place_of(engine), 1.0, drawn)  # type: ignore[arg-type]  # it has what is used
    delivering = asyncio.create_task(drawn.deliver())
    async with asyncio.timeout(30):
        (raised,) = await asyncio.gather(loop.for_ever(), return_exceptions=True)
    delivering.cancel()
    assert isinstance(raised, BaseException)
    return raised


async def test_a_type_that_is_not_declared_is_asked_for() -> None:
    made = Counting(Engine.in_memory())
    pipeline = Pipeline("index", source=made.pages)
    split = pipeline.flat_map(source=made.pages)(words)
    pipeline.sink(pipeline.reduce(split, key=text_of, state=Count)(count), made.changes)
    with pytest.raises(NotRegistrable, match="what words emits goes to other processes; declare emits="):
        async with pipeline.run(made.engine, workers=1, imported="a:b"):
            pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": -1}, "workers=-1"),
        ({"workers": 65, "imported": "a:b"}, "workers=65"),
        ({"workers": 2}, "imported="),
    ],
)
async def test_options_of_workers_that_cannot_be_are_refused(options: dict[str, Any], text: str) -> None:
    made = Counting(Engine.in_memory())
    with pytest.raises(NotRegistrable, match=text):
        async with made.pipeline.run(made.engine, **options):
            pass


def test_a_pipeline_is_found_by_name() -> None:
    assert plan_of("tests.unit.streams.pipeline.counting:Counting").name == "index"
    with pytest.raises(NotRegistrable, match="of type str"):
        plan_of("tests.unit.streams.pipeline.counting:__name__")


def test_a_message_of_the_most_bytes_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Answer(1, Position(2), [b"x"])
    monkeypatch.setattr(exchange, "BYTES_MAX", len(framed(message)) - 4)
    assert list(Unframed[FromWorker](FromWorker).feed(framed(message))) == [message]


def test_what_is_no_message_is_refused() -> None:
    unframed = Unframed[FromWorker](FromWorker)
    data = framed(Answer(1, Position(2), [b"x"]))
    assert [each for byte in data for each in unframed.feed(bytes([byte]))] == [Answer(1, Position(2), [b"x"])]
    for wrong in (b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\0"):
        with pytest.raises(CorruptRecord, match="a message"):
            list(Unframed[FromWorker](FromWorker).feed(wrong))

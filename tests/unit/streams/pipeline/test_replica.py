"""A replica of a pipeline: what it releases, checkpoints and begins with again; others beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count as counter
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, Trimmed
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.values.streams import ReadPipelineState
from outbox.streams import Emit, GraphChanged, NotDeterministic, OrderedLog, Pipeline, Position, Superseded
from outbox.streams.log_places import place_of
from outbox.streams.pipeline import replica as pipeline_replica
from outbox.streams.pipeline.barrier import OtherWriter, OutputUnstorable
from outbox.streams.pipeline.checkpoint import Checkpoint, PipelineRegister, Section
from outbox.streams.pipeline.core import OperatorFailed
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.pipeline.tasks import BETWEEN_MS_MAX, STATES_AT_ONCE, STEPS_BETWEEN, BeginAgain
from outbox.streams.register import RegisterCell
from outbox.testing import START_S, VirtualClock
from tests.unit.streams.pipeline.counting import (
    Change,
    Count,
    Counting,
    Page,
    Word,
    count,
    expected,
    is_long,
    lowered,
    states_in,
    text_of,
    words,
)

TEXTS = ("the cat", "sat on the mat", "the end")


async def drain(replica: PipelineReplica) -> None:
    while await replica.turn():
        pass


async def test_what_comes_out_is_in_the_order_of_its_causes() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    replica = made.replica()
    await replica.begin()
    await drain(replica)
    assert await made.released() == expected(TEXTS) and replica.released == Position(3)


async def test_a_record_has_the_greatest_time_up_to_it_and_a_tick_is_where_that_rises() -> None:
    made, frames = Counting(Engine.in_memory()), list[Frame]()
    for n in range(3):  # by the clocks of three writers
        place = replace(place_of(made.engine), now_ms=partial(int, (5, 3, 9)[n]))
        await made.pages.on(place).append(Page("a"), id=f"{n}")
    replica = made.replica()
    await replica.begin()
    feed: Any = replica.tasks.feed

    async def noted(frame: Frame, ids: list[str]) -> None:
        frames.append(frame)
        await feed(frame, ids)

    replica.tasks.feed = noted  # type: ignore[method-assign, assignment]  # to look at what goes in
    assert await replica.turn()
    assert [record[2] for frame in frames for record in frame.records] == [5, 5, 9]
    assert [at_ms for frame in frames for _, at_ms in frame.ticks] == [5, 9]


async def test_where_one_state_was_of_an_older_schema_the_next_checkpoint_alone_saves_all() -> None:
    made = Counting(Engine.in_memory())
    await made.write("a b c d")
    await made.pipeline.run_until_idle(made.engine)
    replica = made.replica()
    load: Any = replica.tasks.load
    older = iter([True])

    async def loaded(section: Section) -> bool:
        await load(section)
        return next(older, False)

    replica.tasks.load = loaded  # type: ignore[method-assign]  # as if it were
    await replica.begin()
    assert replica.known is not None
    before = replica.known.register.stands.blobs()
    await made.write("a")
    await drain(replica)
    assert await replica.checkpoint()
    assert before.isdisjoint(replica.known.register.stands.blobs()) and not replica._saves_all
    for key in "abcd":
        assert msgspec.json.decode((await EngineAdmin(made.engine).ask(ReadPipelineState("index", "count", key))).value)


async def test_who_begins_again_takes_the_last_checkpoint_that_is_kept() -> None:
    made = Counting(Engine.in_memory())
    replica = made.replica()
    await replica.begin()
    for text in ("a", "b", "c"):
        await made.write(text)
        await drain(replica)
        assert await replica.checkpoint()
    known = replica.known
    assert known is not None
    kept = [msgspec.structs.replace(known.register.stands, n=n, c=Position(n)) for n in (1, 2)]
    register = RegisterCell(made.engine.store(), "pipeline/index", PipelineRegister, new_id=lambda: "x")
    assert await register.swap(known, msgspec.structs.replace(known.register, kept=tuple(kept)))
    again = made.replica()
    await again.begin(again=True)
    assert again.at == Position(2)


async def test_maps_filters_and_skips_keep_the_order() -> None:
    engine = Engine.in_memory()
    pages, out = OrderedLog("pages", engine, type=Page), OrderedLog("out", engine, type=Word)
    pipeline = Pipeline("lower", source=pages)
    split = pipeline.flat_map(source=pages)(words)
    pipeline.sink(pipeline.filter(pipeline.map(split)(lowered))(is_long), out)
    await pages.append(Page("The - A CAT"), id="1")
    async with pipeline.run(engine) as running:
        await running.until(await pages.end())
    assert [entry.value.text async for entry in out.read()] == ["the", "cat"]


@dataclass
class Seen:
    """The words of a first letter, the last one first."""

    texts: list[str] = field(default_factory=list)


def first_of(word: Word) -> str:
    return word.text[0]


def seen(state: Seen, word: Word, emit: Emit[Seen | list[str]]) -> None:
    state.texts.insert(0, word.text)
    emit(state)
    emit(state.texts)


@pytest.mark.parametrize("entries_max", [1, 16])
@pytest.mark.parametrize("emits", [None, Seen | list[str]])
async def test_what_is_emitted_of_a_state_is_what_it_was_at_that_record(entries_max: int, emits: Any) -> None:
    made = Counting(Engine.in_memory())
    pipeline, out = Pipeline("seen", source=made.pages), OrderedLog("out", made.engine, type=Seen | list[str])
    words_of = pipeline.flat_map(source=made.pages, emits=Word)(words)
    pipeline.sink(pipeline.reduce(words_of, key=first_of, state=Seen, emits=emits)(seen), out)
    await made.write("a1 a2", "a3")
    plan = pipeline.plan().on(lambda log: log.place)
    replica = PipelineReplica(plan, place_of(made.engine), entries_max=entries_max)
    await replica.begin()
    await drain(replica)
    lists = [["a1"], ["a2", "a1"], ["a3", "a2", "a1"]]
    assert [entry.value async for entry in out.read()] == [each for one in lists for each in (Seen(one), one)]


@dataclass(frozen=True)
class Letter:
    """Something that cannot be changed in place, of the same letter."""

    text: str = "a"


def letter_and_words(page: Page) -> Iterator[Letter | Word]:
    yield Letter()
    yield from words(page)


@dataclass
class Longest:
    """The words of a first letter as one, kept in the first of them."""

    word: Word | None = None


def joined(state: Longest, word: Word | Letter, emit: Emit[str]) -> None:
    if isinstance(word, Letter):
        return
    if state.word is None:
        state.word = word
    else:
        state.word.text += word.text
    emit(state.word.text)


def after(state: Seen, word: Word, emit: Emit[str]) -> None:
    emit(word.text)


@pytest.mark.parametrize("entries_max", [1, 16])
async def test_a_record_that_a_state_keeps_and_changes_is_as_it_was_for_others(entries_max: int) -> None:
    made = Counting(Engine.in_memory())
    pipeline = Pipeline("kept", source=made.pages)
    words_of = pipeline.flat_map(source=made.pages, emits=Word | Letter)(letter_and_words)
    kinds: dict[str, Any] = {"joined": str, "after": str, "is": Word | Letter}
    outs = [OrderedLog(name, made.engine, type=kind) for name, kind in kinds.items()]
    pipeline.sink(pipeline.reduce(words_of, key=first_of, state=Longest, emits=str)(joined), outs[0])
    pipeline.sink(pipeline.reduce(words_of, key=first_of, state=Seen, emits=str)(after), outs[1])
    pipeline.sink(words_of, outs[2])
    await made.write("a1 a2", "a3")
    plan = pipeline.plan().on(lambda log: log.place)
    replica = PipelineReplica(plan, place_of(made.engine), entries_max=entries_max)
    await replica.begin()
    await drain(replica)
    left = [[entry.value async for entry in out.read()] for out in outs]
    made_of = [Letter(), Word("a1"), Word("a2"), Letter(), Word("a3")]
    assert left == [["a1", "a1a2", "a1a2a3"], ["a", "a1", "a2", "a", "a3"], made_of]


async def test_what_is_late_gets_another_deadline_and_the_source_is_held_from_the_oldest_checkpoint_on() -> None:
    clock = VirtualClock(START_S)
    made = Counting(Engine.in_memory(clock=clock))
    replica = made.replica()
    await replica.begin()
    for text in TEXTS * 2:
        await made.write(text)
        clock.seconds += 1_000_000  # past the margin
        await drain(replica)
        assert await replica.checkpoint()
    assert await made.released() == expected(TEXTS * 2) and replica.known is not None
    oldest, held = replica.known.register.oldest, await replica._source.horizon.read()
    assert held.readers == {"pipeline/index": oldest.c.index} and oldest.c.index == 4


async def test_a_process_that_begins_again_goes_on_from_the_checkpoint() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    first = made.replica(entries_max=1)
    await first.begin()
    await first.turn()
    await first.turn()
    assert await first.checkpoint()
    await first.turn()  # and dies: what it released behind the checkpoint stays
    second = made.replica()
    await second.begin()
    assert second.at == Position(2)
    await made.write("the cat again")
    await drain(second)
    assert await made.released() == expected([*TEXTS, "the cat again"])


async def test_a_part_is_made_piece_by_piece_and_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[object]()

    async def paused(now_ms: object) -> None:
        pauses.append(now_ms)

    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    first = made.replica()
    await first.begin()
    await drain(first)
    monkeypatch.setattr(pipeline_replica, "PIECE_BYTES", 7)
    monkeypatch.setattr(pipeline_replica, "give_way", paused)
    assert await first.checkpoint()
    assert first.known is not None
    (part,) = first.known.register.stands.parts
    assert len(pauses) >= part.size_bytes // 14  # a piece, and the end of a line
    second = made.replica()
    await second.begin()
    assert second.at == Position(len(TEXTS))


@pytest.mark.parametrize("crash_behind", range(7))
async def test_checkpoints_one_behind_the_other_are_the_states(crash_behind: int) -> None:
    made = Counting(Engine.in_memory())
    texts = [f"the {number} {number % 3}x" for number in range(7)]
    await made.write(*texts)
    replica = made.replica(entries_max=1)
    await replica.begin()
    for number in range(7):
        await replica.turn()
        await replica.checkpoint()
        if number == crash_behind:
            replica = made.replica(entries_max=1)
            await replica.begin()
    again = made.replica()
    await again.begin()
    states = states_in(again)
    assert {key: state.n for key, state in states.all().items()} == dict(expected(texts))
    assert again.known is not None and len(again.known.register.stands.parts) <= 4


async def test_replicas_release_each_output_once_whatever_their_bundles_are() -> None:
    made = Counting(Engine.in_memory())
    texts = [f"a {number}" for number in range(9)]
    await made.write(*texts)
    replicas = [made.replica(entries_max=size) for size in (1, 2, 5)]
    for replica in replicas:
        await replica.begin()
    for turn in range(9):
        for number, replica in enumerate(replicas):
            await replica.turn()
            if (turn + number) % 4 == 3:
                await replica.checkpoint()
    assert await made.released() == expected(texts)
    assert {replica.released for replica in replicas} == {Position(9)}


async def test_a_checkpoint_that_loses_to_another_takes_that() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    slow, fast = made.replica(entries_max=1), made.replica()
    await slow.begin()
    await fast.begin()
    await drain(fast)
    assert await fast.checkpoint()
    await slow.turn()
    assert not await slow.checkpoint()
    assert slow.known is not None and fast.known is not None
    assert slow.known.register.stands == fast.known.register.stands
    await drain(slow)
    assert not await slow.checkpoint()
    await made.write("the very end")
    await drain(slow)
    assert await slow.checkpoint()
    again = made.replica()
    await again.begin()
    states = states_in(again)
    assert states.state("the") == Count(4)


@pytest.mark.parametrize(("turn_ms", "between"), [(0, STEPS_BETWEEN), (BETWEEN_MS_MAX, 1)])
async def test_an_entry_takes_several_steps_between_two_parts_of_a_checkpoint(turn_ms: int, between: int) -> None:
    made, turns = Counting(Engine.in_memory()), 0
    await made.write(" ".join(f"w{n}" for n in range(5 * STATES_AT_ONCE)))
    place = replace(place_of(made.engine), now_ms=lambda: turns * turn_ms)
    replica = PipelineReplica(made.pipeline.plan().on(lambda log: log.place), place)
    await replica.begin()
    await drain(replica)

    async def spin() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(spin())
    await replica.tasks.saved(None)
    other.cancel()
    assert 4 * between <= turns <= 6 * between


async def test_states_are_saved_as_they_were_though_entries_go_on() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    replica = made.replica(entries_max=1)
    await replica.begin()
    await replica.turn()
    states = states_in(replica)
    states.begin(Position(0), Position(1))
    await replica.turn()
    while not states.save(1):
        pass
    saved = {key: bytes(raw) for found in states.saved().values() for key, raw in found.states.items()}
    assert saved == {"sthe": b'{"n":1}', "scat": b'{"n":1}'}


async def test_another_graph_needs_another_version_and_an_older_version_stops() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS[:2])
    old = made.replica()
    await old.begin()
    await drain(old)
    await old.checkpoint()
    same = Counting(made.engine)
    same.pipeline.sink(same.pipeline.plan().operators[0], OrderedLog("words", made.engine, type=Word))
    with pytest.raises(GraphChanged, match="version=2"):
        await same.replica().begin()
    newer = Counting(made.engine, version=2)
    replica = newer.replica()
    await replica.begin()
    await made.write(TEXTS[2])
    await drain(replica)
    with pytest.raises(Superseded, match="version 2 runs"):
        await made.replica().begin()
    with pytest.raises(BeginAgain):  # and finds out there that it is older
        await old.turn()
    assert await made.released() == expected(TEXTS)


async def test_a_reduce_keeps_its_name_or_is_refused() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    first = made.replica()
    await first.begin()
    await drain(first)
    await first.checkpoint()
    pipeline = Pipeline("index", source=made.pages, version=2)
    pipeline.sink(pipeline.flat_map(source=made.pages)(words), made.changes)
    other = Counting(made.engine)
    other.pipeline = pipeline
    with pytest.raises(GraphChanged, match="states of count"):
        await other.replica().begin()


async def test_a_sink_that_something_else_writes_to_is_left_alone() -> None:
    made = Counting(Engine.in_memory())
    await made.changes.append(Change("x", 1), id="by hand")
    await made.write(*TEXTS)
    replica = made.replica()
    await replica.begin()
    with pytest.raises(OtherWriter, match="cell 0 of log changes"):
        await replica.turn()
    assert await made.released() == [("x", 1)]


IMPURE = [0]


def impure(state: Count, word: Word, emit: object) -> None:
    IMPURE[0] += 1
    emit(Change(word.text, IMPURE[0]))  # type: ignore[operator]  # it is a function


async def test_an_operator_that_is_not_pure_is_found_before_it_contradicts_what_has_left() -> None:
    engine = Engine.in_memory()
    made = Counting(engine)
    pipeline = Pipeline("index", source=made.pages)
    pipeline.sink(
        pipeline.reduce(pipeline.flat_map(source=made.pages)(words), key=text_of, state=Count)(impure), made.changes
    )
    made.pipeline = pipeline
    await made.write(*TEXTS)
    first, second = made.replica(), made.replica()
    await first.begin()
    await second.begin()
    await drain(first)
    with pytest.raises(NotDeterministic, match='"n":1'):
        await second.turn()
    assert len(await made.released()) == 8


def broken(state: Count, word: Word, emit: object) -> None:
    raise ZeroDivisionError("division by zero")


async def test_an_operator_that_raises_stops_the_pipeline_at_its_position() -> None:
    made = Counting(Engine.in_memory())
    pipeline = Pipeline("index", source=made.pages)
    pipeline.sink(
        pipeline.reduce(pipeline.flat_map(source=made.pages)(words), key=text_of, state=Count)(broken), made.changes
    )
    await made.write(*TEXTS)
    with pytest.raises(OperatorFailed, match=r"broken fails on the entry at 0\.0 .* division by zero"):
        async with pipeline.run(made.engine) as running:
            await running.until(Position(3))
    assert await made.released() == []


async def test_a_key_of_none_names_the_operator_and_the_position() -> None:
    made = Counting(Engine.in_memory())
    pipeline = Pipeline("index", source=made.pages)
    split = pipeline.flat_map(source=made.pages)(words)
    pipeline.sink(pipeline.reduce(split, key=no_key, state=Count)(count), made.changes)
    made.pipeline = pipeline
    await made.write("a")
    replica = made.replica()
    await replica.begin()
    with pytest.raises(OperatorFailed, match=r"count .*0\.0.*no key"):
        await replica.turn()


def no_key(word: Word) -> None:
    return None


async def test_a_source_that_is_trimmed_beyond_the_checkpoint_is_refused() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    replica = made.replica(entries_max=1)
    await replica.begin()
    await made.pages.unregister("pipeline/index")
    await made.pages.register("other", await made.pages.end())
    await made.pages.trim()
    with pytest.raises(Trimmed):
        await replica.turn()


async def test_trims_wait_for_the_oldest_checkpoint_that_is_kept() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    replica = made.replica(entries_max=1)
    await replica.begin()
    for _ in TEXTS:
        await replica.turn()
        await replica.checkpoint()
    assert await made.pages.trim() == 0  # the first checkpoint is young: a replica may be loading it
    status = (await made.changes.status())[0]
    assert status.writers == {"pipeline/index": 3}


async def test_a_part_that_is_missing_is_said() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    replica = made.replica()
    await replica.begin()
    await drain(replica)
    await replica.checkpoint()
    assert replica.known is not None
    (part,) = replica.known.register.stands.parts
    await replica.place.blobs.delete(part.blob)
    with pytest.raises(CorruptRecord, match="is missing"):
        await made.replica().begin()


async def test_parts_that_nothing_names_any_more_are_deleted() -> None:
    made = Counting(Engine.in_memory())
    texts = [f"w{number}" for number in range(12)]
    await made.write(*texts)
    replica = made.replica(entries_max=1)
    await replica.begin()
    seen: set[str] = set()
    for _ in texts:
        await replica.turn()
        await replica.checkpoint()
        assert replica.known is not None
        seen |= replica.known.register.blobs()
    assert replica.known is not None
    there = {blob for blob in seen if await replica.place.blobs.read(blob, bytes_max=1 << 20) is not None}
    assert there == replica.known.register.blobs() and len(seen) > len(there)


async def test_a_thousand_records_for_one_entry_stay_one_bundle() -> None:
    made = Counting(Engine.in_memory())
    text = " ".join(f"w{number}" for number in range(2_500))
    await made.write(text, "a")
    async with made.pipeline.run(made.engine, checkpoint_s=0.01, replicas=2) as running:
        await running.until(Position(2))
    assert await made.released() == expected([text, "a"])
    assert (await made.changes.end()).index == 2


@pytest.mark.parametrize(("stood_ms", "kept"), [(299_999, [1]), (300_000, [1, 2])])
def test_a_checkpoint_is_kept_beside_another_one_as_soon_as_they_are_apart(stood_ms: int, kept: list[int]) -> None:
    """Whatever the time of the checkpoint that is made: what counts lies between the two that are kept."""

    def at(n: int, made_ms: int) -> Checkpoint:
        return Checkpoint(n, Position(n), {}, made=made_ms)

    register = PipelineRegister(version=1, graph="", source="pages", stands=at(2, stood_ms), kept=(at(1, 0),))
    assert [each.n for each in register.after(at(3, 310_000), 300_000).kept] == kept


async def test_a_checkpoint_is_kept_for_half_a_margin_for_whoever_loads_it() -> None:
    made = Counting(Engine.in_memory())
    texts = [f"w{number} a" for number in range(9)]
    await made.write(*texts)
    replica, slow = made.replica(entries_max=1), made.replica()
    await replica.begin()
    for _ in texts[:4]:
        await replica.turn()
        await replica.checkpoint()
    assert replica.known is not None
    register = replica.known.register
    old = msgspec.structs.replace(register.stands, made=register.stands.made - 400_000)
    aged = register.after(msgspec.structs.replace(register.stands, n=99), 300_000)
    assert [each.n for each in aged.kept] == [0]  # the first is young
    older = msgspec.structs.replace(register, kept=(old,))
    assert [each.n for each in older.after(register.stands, 300_000).kept] == [old.n, register.stands.n]
    await slow.begin(again=True)
    assert slow.at == Position(0) and slow.known is not None
    await drain(slow)
    await drain(replica)
    assert await slow.checkpoint() and not await replica.checkpoint()
    assert await made.released() == expected(texts)


async def test_parts_that_go_while_they_are_merged_cost_a_checkpoint_and_no_more() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*(f"w{number}" for number in range(8)))
    slow, fast = made.replica(entries_max=1), made.replica(entries_max=1)
    await slow.begin()
    await slow.turn()
    await slow.checkpoint()
    await fast.begin()
    for _ in range(6):
        await fast.turn()
        await fast.checkpoint()
    for _ in range(7):
        await slow.turn()
    assert not await slow.checkpoint()  # what it would merge is gone
    assert slow.known is not None and fast.known is not None
    assert slow.known.register.stands == fast.known.register.stands
    assert await slow.checkpoint()


async def test_what_a_sink_cannot_store_names_the_position() -> None:
    engine = Engine.in_memory()
    made = Counting(engine)
    pipeline = Pipeline("index", source=made.pages)
    pipeline.sink(pipeline.flat_map(source=made.pages)(words), made.changes)  # words, not changes
    made.pipeline = pipeline
    await made.write("", "a")
    replica = made.replica()
    await replica.begin()
    with pytest.raises(OutputUnstorable, match=r"at 1\.0 of the source .* log changes"):
        await replica.turn()


@pytest.mark.parametrize(("text", "took_ms", "turns"), [("a", 0, 5), ("a b " * 25, 0, 19), ("a", 60, 19)])
async def test_a_frame_grows_while_there_is_more_and_it_is_small_and_quick(text: str, took_ms: int, turns: int) -> None:
    """Of 300 entries: 16, 32, 64, 128 and the rest; where they make much, or take long, 16 at a time."""
    made = Counting(Engine.in_memory())
    await made.pages.extend([Page(text)] * 300, id="all")
    clock = counter(0, took_ms)
    plan, place = made.pipeline.plan(), replace(place_of(made.engine), now_ms=lambda: next(clock))
    replica = PipelineReplica(plan, place)
    await replica.begin()
    taken = 0
    while await replica.turn():
        taken += 1
    assert taken == turns
    assert await made.released() == expected([text] * 300)

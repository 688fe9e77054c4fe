"""When outputs leave: held for a checkpoint, repeated, lost, and refused where that does not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.errors import NoBlobStore, NotRegistrable, Throttled
from outbox.ports import NoBlobs
from outbox.streams import OrderedLog, Pipeline, Position, ReleaseRefused, release
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline.release import RELEASES, Release
from outbox.streams.pipeline.replica import PipelineReplica
from tests.unit.streams.pipeline.counting import Change, Count, Counting, count, expected, text_of, words

TEXTS = ("the cat", "sat on the mat", "the end")


class Shut:
    """A store that takes no cells while it is shut."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_shut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, writes: Any) -> Any:
        if self.is_shut and writes[0].key.id.isdigit():
            raise Throttled("too many requests")
        return await self._store.write(writes)


async def begun(made: Counting, **options: Any) -> PipelineReplica:
    replica = made.replica(**options)
    await replica.begin()
    return replica


async def drain(replica: PipelineReplica) -> None:
    while await replica.turn():
        pass


async def dies_behind_its_checkpoint(made: Counting) -> None:
    """A replica that ends between its checkpoint and the append of what leaves with it."""
    place = place_of(made.engine)
    shut = Shut(place.store)
    made.changes.place = Place(shut, place.blobs, place.now_ms)
    replica = await begun(made)
    shut.is_shut = True
    with pytest.raises(Throttled):
        await drain(replica)
        await replica.checkpoint()
    made.changes.place = place


async def test_an_epochs_outputs_leave_when_its_checkpoint_stands() -> None:
    made = Counting(Engine.in_memory(), release=release.by_epoch())
    await made.write(*TEXTS[:2])
    replica = await begun(made)
    await drain(replica)
    assert await made.released() == [] and replica.released == Position(0) and replica.holds_back
    assert await replica.checkpoint()
    assert await made.released() == expected(TEXTS[:2]) and replica.released == Position(2)
    await made.write(TEXTS[2])
    await drain(replica)
    assert await made.released() == expected(TEXTS[:2])
    await replica.checkpoint()
    assert await made.released() == expected(TEXTS) and not replica.holds_back


async def test_who_begins_behind_a_checkpoint_releases_what_it_holds() -> None:
    made = Counting(Engine.in_memory(), release=release.by_epoch())
    await made.write(*TEXTS)
    await dies_behind_its_checkpoint(made)
    assert await made.released() == []
    second = await begun(made)
    assert second.at == Position(3)
    await drain(second)
    assert await made.released() == expected(TEXTS)


async def test_a_newer_version_releases_what_the_older_has_held_and_loads_nothing_before() -> None:
    made = Counting(Engine.in_memory(), release=release.by_epoch())
    await made.write(*TEXTS[:2])
    await dies_behind_its_checkpoint(made)
    newer = Counting(made.engine, version=2, release=release.by_epoch())
    first, second = await begun(newer), newer.replica()
    await second.begin(again=True)
    assert first.at == second.at == Position(2)
    await made.write(TEXTS[2])
    for replica in (second, first):
        await drain(replica)
        await replica.checkpoint()
    assert await made.released() == expected(TEXTS)


async def test_a_run_holds_outputs_until_its_interval_has_passed() -> None:
    made = Counting(Engine.in_memory())
    async with made.pipeline.run(made.engine, release=release.by_epoch(), checkpoint_s=0.3) as running:
        await asyncio.sleep(0)
        await made.write(*TEXTS)
        began_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(10):
            await running.until(Position(3))
        assert asyncio.get_running_loop().time() - began_s > 0.2
        assert await made.released() == expected(TEXTS)
        assert await running.get(made.pipeline.plan().operators[1], "the") == (Count(3), Position(3))


async def test_the_last_checkpoint_of_a_run_releases_what_was_held() -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    async with made.pipeline.run(made.engine, release=release.by_epoch(), checkpoint_s=1_000) as running:
        async with asyncio.timeout(10):
            while (replica := running.loops[0].replica) is None or replica.at < Position(3):  # noqa: ASYNC110 - nothing says when
                await asyncio.sleep(0.001)
        assert await made.released() == []
    assert await made.released() == expected(TEXTS)


@pytest.mark.parametrize("given", RELEASES, ids=lambda given: given.name)
async def test_every_release_puts_out_all_in_order_when_nothing_fails(given: Release) -> None:
    made = Counting(Engine.in_memory())
    await made.write(*TEXTS)
    assert await made.pipeline.run_until_idle(made.engine, release=given, seconds=10) == Position(3)
    await made.write("the rest")
    async with asyncio.timeout(10):
        async with made.pipeline.run(made.engine, release=given, checkpoint_s=0.01) as running:
            await running.until(Position(4))
    assert await made.released() == expected([*TEXTS, "the rest"])


async def test_an_epoch_of_many_cells_ends_at_once_and_nothing_is_fed_while_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outbox.streams.pipeline.replica.EPOCH_CELLS_MAX", 2)
    made = Counting(Engine.in_memory(), release=release.by_epoch())
    await made.write(*TEXTS, "a", "b", "c")
    replica = await begun(made, entries_max=2)
    await replica.turn()
    blobs = replica.place.blobs
    replica.place = Place(replica.place.store, NoBlobs(), replica.place.now_ms)
    for _ in range(3):
        with pytest.raises(NoBlobStore):
            await replica.turn()
    assert replica.at == Position(2) and await made.released() == []
    replica.place = Place(replica.place.store, blobs, replica.place.now_ms)
    await drain(replica)
    assert await made.released() == expected([*TEXTS, "a", "b", "c"])


async def test_releases_with_a_chain_go_on_from_one_another() -> None:
    made = Counting(Engine.in_memory())
    texts = [f"the {number}" for number in range(8)]
    for number, text in enumerate(texts):
        await made.write(text)
        made.release = release.by_epoch() if number % 3 else release.in_order()
        replica = await begun(made, entries_max=1 + number % 2)
        await drain(replica)
        if number % 2:
            await replica.checkpoint()
    made.release = release.in_order()
    await drain(await begun(made))
    assert await made.released() == expected(texts)


async def test_at_least_once_repeats_what_has_left_since_the_checkpoint_beside_others() -> None:
    made = Counting(Engine.in_memory(), release=release.at_least_once())
    await made.changes.append(Change("x", 1), id="by hand")
    await made.write(*TEXTS)
    first = await begun(made, entries_max=1)
    await first.turn()
    await first.checkpoint()
    await first.turn()  # and dies
    await drain(await begun(made))
    assert await made.released() == [("x", 1), *expected(TEXTS)[:6], *expected(TEXTS)[2:]]


async def test_at_most_once_loses_what_was_under_way_and_goes_on() -> None:
    made = Counting(Engine.in_memory(), release=release.at_most_once())
    await made.write(TEXTS[0])
    await drain(await begun(made))
    await made.write(TEXTS[1])
    await dies_behind_its_checkpoint(made)
    await made.write(TEXTS[2])
    second = await begun(made)
    assert second.at == Position(2)
    await drain(second)
    assert await made.released() == [*expected(TEXTS)[:2], *expected(TEXTS)[6:]]


async def test_at_most_once_replicas_release_each_output_once() -> None:
    made = Counting(Engine.in_memory(), release=release.at_most_once())
    await made.write(*TEXTS)
    first, second = await begun(made, entries_max=1), await begun(made)
    await first.turn()
    await drain(second)  # its checkpoint loses: what the first has passed is not its own
    await drain(first)
    await second.checkpoint()
    assert sorted(await made.released()) == sorted(expected(TEXTS))
    again = made.replica()
    await again.begin(again=True)
    await drain(again)
    assert len(await made.released()) == len(expected(TEXTS))


WAY = "does not fit operator count, whose output reaches sink changes (words -> count -> changes)"
REFUSED: dict[str, tuple[Release, float, bool, str]] = {
    "a sink declared exactly once": (
        release.at_most_once(),
        1.0,
        True,
        (
            f"pipeline index: at_most_once {WAY}: it may repeat or lose outputs, and the sink is declared exactly "
            "once; use in_order or by_epoch"
        ),
    ),
    "an interval below a flush": (
        release.by_epoch(),
        0.001,
        False,
        (
            f"pipeline index: by_epoch {WAY}: outputs wait for the next checkpoint, and checkpoint_s=0.001; "
            "give 0.005 to 3600 seconds, or use in_order, which waits for none"
        ),
    ),
    "an interval without an end": (release.by_epoch(), float("inf"), False, "checkpoint_s=inf; give 0.005 to 3600"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_release_that_does_not_fit_names_the_way_to_the_sink_and_what_would_do(case: str) -> None:
    given, checkpoint_s, exactly_once, text = REFUSED[case]
    made = Counting(Engine.in_memory())
    pipeline = Pipeline("index", source=made.pages)
    split = pipeline.flat_map(source=made.pages)(words)
    counted = pipeline.reduce(split, key=text_of, state=Count)(count)
    pipeline.sink(counted, OrderedLog("changes", made.engine, type=Change), exactly_once=exactly_once)
    with pytest.raises(ReleaseRefused) as raised:
        async with pipeline.run(made.engine, release=given, checkpoint_s=checkpoint_s):
            pass
    assert text in str(raised.value), str(raised.value)
    if exactly_once:
        assert pipeline.describe().endswith("sink of count, exactly once\nreleases: in_order, by_epoch")
        with pytest.raises(ReleaseRefused):
            await pipeline.run_until_idle(made.engine, release=given)


@pytest.mark.parametrize(("first", "then"), [(1, 2), (0, 3), (2, 0), (2, 3), (3, 1)])
async def test_a_release_that_cannot_go_on_from_anothers_outputs_is_refused(first: int, then: int) -> None:
    made = Counting(Engine.in_memory(), release=RELEASES[first])
    await made.write(*TEXTS)
    await drain(await begun(made))
    made.release = RELEASES[then]
    was = RELEASES[first].kind or "in_order or by_epoch"
    with pytest.raises(ReleaseRefused, match=f"has run with {was}, .* another name and sinks of its own"):
        await begun(made)


async def test_what_is_no_release_is_refused() -> None:
    made = Counting(Engine.in_memory())
    with pytest.raises(NotRegistrable, match="release='by_epoch'"):
        await made.pipeline.run_until_idle(made.engine, release="by_epoch")  # type: ignore[arg-type]  # that is tested

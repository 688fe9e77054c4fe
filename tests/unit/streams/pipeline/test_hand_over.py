"""Hand-overs of a pipeline's checkpoint and bundles: under faults, too late, and refused with the reason."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from msgspec.structs import replace

from outbox.engine.engine import Engine
from outbox.errors import OtherLog, OutcomeUnknown, Refused, Trimmed
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.values.streams import ReadPipelines
from outbox.streams import GraphChanged, Position, Superseded
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline.checkpoint import PipelineRegister
from outbox.streams.pipeline.hand_over import hand_over
from outbox.streams.register import RegisterCell
from outbox.streams.row import Row
from outbox.verify.faults import FaultPlan, Faults, FaultyBlobs, FaultyStore, SimulatedCrash
from tests.unit.streams.pipeline.counting import Counting, Page, expected

TEXTS = ["a b", "c", "b b a", "d a", "c c", "a"]
TRIES_MAX = 40


async def written(count: int) -> Counting:
    """A pipeline's logs on an engine of their own, with the first `count` texts as pages."""
    made = Counting(Engine.in_memory())
    for number, text in enumerate(TEXTS[:count]):
        await made.pages.append(Page(text), id=f"{number}")
    return made


async def caught_up(count: int, *, at_once: int = 2) -> Counting:
    made = await written(count)
    replica = made.replica(entries_max=at_once)
    await replica.begin()
    while await replica.turn():
        await replica.checkpoint()
    return made


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 20 else [pytest.mark.soak]) for n in range(200)])
async def test_a_hand_over_that_fails_is_made_again(seed: int) -> None:
    there, here, draw = await caught_up(4), await written(6), random.Random(seed)
    await there.pages.append(Page("x"), id="4")  # what is behind the checkpoint there does not count
    for _ in range(TRIES_MAX):
        plan = FaultPlan(Faults.drawn(seed=draw.randrange(1 << 30), crashes=1, lost=2, refused=1, within=30))
        at = place_of(here.engine)
        try:
            faulty = Place(FaultyStore(at.store, plan), FaultyBlobs(at.blobs, plan))
            found = await hand_over(here.pipeline.plan(), place_of(there.engine), faulty)
        except (SimulatedCrash, OutcomeUnknown, Refused):
            continue
        assert found in (Position(4), None)
        break
    await here.pipeline.run_until_idle(here.engine)
    assert await here.released() == expected(TEXTS)
    assert await hand_over(here.pipeline.plan(), place_of(there.engine), at) is None


async def test_who_has_gone_on_otherwise_goes_on_and_is_told() -> None:
    there, here = await caught_up(6, at_once=1), await written(6)
    replica = here.replica(entries_max=2)
    await replica.begin()
    assert await replica.turn()
    with pytest.raises(Refused, match=r"bundle 0 of log/changes/0.0 is another one here, .* from a copy of this place"):
        await hand_over(here.pipeline.plan(), place_of(there.engine), place_of(here.engine))
    await here.pipeline.run_until_idle(here.engine)
    assert await here.released() == expected(TEXTS)


async def test_a_bundle_that_took_too_long_is_not_counted_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def taken_back(*_: object, **__: object) -> None:
        return None

    there, here = await caught_up(4), await written(6)
    monkeypatch.setattr(Row, "place_cell", taken_back)
    with pytest.raises(Refused, match=r"log/changes/0.0: bundle 0 took too long and was taken back; run it again"):
        await hand_over(here.pipeline.plan(), place_of(there.engine), place_of(here.engine))
    assert await EngineAdmin(here.engine).ask(ReadPipelines()) == []


async def test_who_has_more_of_the_same_bundles_takes_the_checkpoint() -> None:
    there, here = await caught_up(4, at_once=1), await written(6)
    replica = here.replica(entries_max=1)
    await replica.begin()
    while await replica.turn():
        pass
    assert await hand_over(here.pipeline.plan(), place_of(there.engine), place_of(here.engine)) == Position(4)
    await here.pipeline.run_until_idle(here.engine)
    assert await here.released() == expected(TEXTS)


async def test_a_source_that_is_another_or_has_been_trimmed_is_refused() -> None:
    there = await caught_up(4)
    short = await written(3)
    with pytest.raises(OtherLog, match=r"log/pages/0.0 ends at 3.0 here, before the checkpoint at 4.0"):
        await hand_over(short.pipeline.plan(), place_of(there.engine), place_of(short.engine))
    trimmed = await written(6)
    await trimmed.pages.register("audit", Position(5))
    await trimmed.pages.trim(min_age=timedelta(0))
    with pytest.raises(Trimmed, match=r"is trimmed here to 5.0, beyond 4.0 of the checkpoint"):
        await hand_over(trimmed.pipeline.plan(), place_of(there.engine), place_of(trimmed.engine))
    empty = await written(0)
    with pytest.raises(Refused, match=r"there is nothing of pipeline index to go on from; give the place"):
        await hand_over(there.pipeline.plan(), place_of(empty.engine), place_of(there.engine))


async def test_a_cell_that_the_checkpoint_is_within_has_to_be_there() -> None:
    there, here = await written(0), await written(0)
    for made in (there, here):
        await made.pages.extend([Page(text) for text in TEXTS], id="all")
    await here.pages.append(Page("a"), id="more")
    replica = there.replica(entries_max=2)
    await replica.begin()
    assert await replica.turn() and await replica.checkpoint()
    await here.pages.register("audit", Position(1))
    await here.pages.trim(min_age=timedelta(0))
    with pytest.raises(Trimmed, match=r"is trimmed here to 1.0, beyond 0.2 of the checkpoint"):
        await hand_over(here.pipeline.plan(), place_of(there.engine), place_of(here.engine))


async def test_a_pipeline_that_cannot_go_on_from_there_changes_nothing_here() -> None:
    there, here = await caught_up(4), await written(6)
    cell = RegisterCell(there.engine.store(), "pipeline/index", PipelineRegister, new_id=lambda: "x")
    known = await cell.read()
    assert known is not None
    newer, other = replace(known.register, version=2), replace(known.register, graph="another")
    for changed, error in ((newer, Superseded), (other, GraphChanged)):
        known = await cell.swap(known, changed)
        with pytest.raises(error):
            await hand_over(here.pipeline.plan(), place_of(there.engine), place_of(here.engine))
    await here.pipeline.run_until_idle(here.engine)
    assert await here.released() == expected(TEXTS)

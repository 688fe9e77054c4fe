"""Seeded schedules of kills, cuts and stalls of a pipeline's replicas, each history judged."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from outbox.engine.engine import Engine
from outbox.streams import Position
from outbox.testing import Harness
from outbox.verify import Faults
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.definitions import System, decide, words_of
from outbox.verify.recorded.events import Durable, Left, Result
from outbox.verify.recorded.streams import recorded_pipeline, rows_of
from tests.unit.streams.pipeline.counting import Counting, Page, expected

PAGES, REPLICAS = 16, 2
SEEDS = [pytest.param(seed, marks=[] if seed < 20 else [pytest.mark.soak]) for seed in range(200)]


def counted(state: object, channel: str, item: object) -> list[tuple[int, list[tuple[object, int]]]]:
    """What a word does to its count, for the paper's definitions."""
    assert isinstance(state, int)
    return [(state + 1, [(item, state + 1)])]


def drawn(seed: int) -> tuple[list[str], Faults]:
    """Pages, and faults: the process is cut off from power twice, replies get lost, calls are throttled or delayed."""
    draw = Random(seed)
    texts = [" ".join(draw.choices("abcd", k=draw.randrange(4))) for _ in range(PAGES)]
    return texts, Faults.drawn(seed=seed, crashes=2, lost=4, refused=3, delayed=8, within=150)


async def meddled(world: Harness, draw: Random, pages: list[tuple[int, str]]) -> None:
    """Append the pages, and kill and stall replicas meanwhile, wherever they are."""
    for number, text in pages:
        engine = None
        while engine is not world.engine:  # cut off meanwhile, it may have forgotten the page
            engine = world.engine
            await world.log("pages").append(Page(text), id=f"page {number}", since=Position(0))
        replica = draw.randrange(REPLICAS)
        match draw.randrange(4):
            case 0:
                world.kill(f"index/{replica}/{draw.choice(('words', 'count'))}")
            case 1:
                world.stall("index", replica=replica, s=draw.randrange(1, 20))
        for _ in range(draw.randrange(20)):
            await asyncio.sleep(0)


async def scheduled(seed: int, history: History) -> tuple[list[tuple[str, int]], int]:
    """What comes out under the schedule of a seed, and how many faults there were."""
    draw, (texts, faults) = Random(seed), drawn(seed)
    made = Counting(Engine.in_memory())
    history.life(is_empty=True)
    pipeline = recorded_pipeline(made.pipeline, history)
    async with Harness(streams=[pipeline], replicas=REPLICAS, faults=faults, seed=seed) as world:
        pages = [*enumerate(texts)]
        meddling = asyncio.create_task(meddled(world, draw, pages[: PAGES // 2]))
        while not meddling.done():
            await world.wait_idle()
            await asyncio.sleep(0)
        await meddling
        await world.restart()
        await meddled(world, draw, pages[PAGES // 2 :])
        await world.advance(minutes=1)
        history.quiesce(rows_of(world.log("pages")))
        out = [(entry.value.word, entry.value.n) async for entry in world.log("changes").read()]
        return out, world.faults_fired


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_schedule_of_kills_cuts_and_stalls_keeps_every_promise(seed: int) -> None:
    history = History(bodies=True)
    out, fired = await scheduled(seed, history)
    verdict = check(history)
    assert verdict.ok, verdict.text
    assert out == expected(drawn(seed)[0]) and verdict.counts.outputs == len(out)
    assert fired >= 6 and {Durable, Left, Result} <= {type(event) for event in history.events()}
    word = words_of(
        history.events(),
        sink="changes",
        takes=lambda page: [(text, text) for text in page["text"].split()],
        gives=lambda change: [(change["word"], (change["word"], change["n"]))],
    )
    assert decide(System(0, counted), word, "exactly-once") is None

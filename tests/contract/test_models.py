"""The explorer's models do what the engine's adapters do: the same drawn operations on both."""

from __future__ import annotations

import pytest

from outbox.engine.backend.apart import EngineBus, EngineStore
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.engine.backend.journal import EngineJournal
from outbox.engine.backend.store_scopes import ItemStore
from outbox.engine.engine import Engine
from outbox.testing import START_S, VirtualClock
from outbox.verify.explorer.models import queues, store
from outbox.verify.explorer.models.journal import JournalModel
from tests.contract import model_duels, queue_model_duels

SEEDS = range(40)


class Made:
    """An engine in memory whose time stands still."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START_S)
        self.engine = Engine.in_memory(clock=self.clock)

    async def wait(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.engine.tick()

    def bench(self) -> queue_model_duels.Bench:
        return queue_model_duels.Bench(self.engine.ports().operations, self.wait, self.engine.broker.lapse_lock)


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_store_model_does_what_the_engine_does(seed: int) -> None:
    made = Made()
    assert (
        await model_duels.check_store_model(EngineStore(made.engine.core, made.engine.documents), made.wait, seed=seed)
        == 60
    )


@pytest.mark.parametrize("seed", range(10))
async def test_the_store_model_of_single_items_does_what_the_engine_does(seed: int) -> None:
    made = Made()
    await model_duels.check_store_model(
        ItemStore(EngineStore(made.engine.core, made.engine.documents)), made.wait, seed=seed
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_journal_model_does_what_the_engine_does(seed: int) -> None:
    made = Made()
    journal = EngineJournal(made.engine.core, made.engine.broker)
    assert await queue_model_duels.check_journal_model(journal, made.bench(), seed=seed) > 20


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_bus_model_does_what_the_engine_does(seed: int) -> None:
    made = Made()
    assert (
        await queue_model_duels.check_bus_model(
            EngineBus(made.engine.core, made.engine.broker), made.bench(), seed=seed
        )
        > 20
    )


@pytest.mark.parametrize("seed", range(5))
async def test_the_blob_model_does_what_the_store_does(seed: int) -> None:
    assert await model_duels.check_blob_model(MemoryBlobStore(), seed=seed) == 60


async def test_a_store_model_that_reuses_versions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_version", lambda doc: f"v{doc.count % 3}")
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            made = Made()
            await model_duels.check_store_model(
                EngineStore(made.engine.core, made.engine.documents), made.wait, seed=seed
            )


async def test_a_journal_model_that_forgets_a_condition_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalModel, "_conflict", lambda *_: None)
    with pytest.raises((AssertionError, StopIteration)):
        for seed in SEEDS:
            made = Made()
            await queue_model_duels.check_journal_model(
                EngineJournal(made.engine.core, made.engine.broker), made.bench(), seed=seed
            )


async def test_a_bus_model_that_forgets_to_count_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncounted(self: queues.Queues, state: queues.State, number: int, index: int) -> queues.State:
        return self.changed(state, number, index, is_locked=False)

    monkeypatch.setattr(queues.Queues, "lapsed", uncounted)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            made = Made()
            await queue_model_duels.check_bus_model(
                EngineBus(made.engine.core, made.engine.broker), made.bench(), seed=seed
            )

"""The Cosmos DB adapter keeps the contract of a state store, through the real SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import pytest

from outbox.ports import StateStore
from outbox.verify.contracts import (
    ORDERED_LOG,
    STATE_STORE,
    Clause,
    check_ordered_log,
    check_state_store,
    name_of,
    store_clauses_of_time,
)
from tests.wire.on_azure.ground import CosmosGround, cosmos_ground, cosmos_store

Scope = Literal["partition", "item"]
OF_BATCHES = {"a_batch_that_wins_is_applied_whole", "a_batch_that_loses_leaves_nothing"}
FOR_ITEMS = tuple(clause for clause in STATE_STORE if name_of(clause) not in OF_BATCHES)


@pytest.mark.parametrize("clause", STATE_STORE, ids=name_of)
async def test_cosmos_is_a_state_store(clause: Clause[StateStore]) -> None:
    await check_state_store(partial(cosmos_store, "partition"), clauses=[clause])


@pytest.mark.parametrize("clause", FOR_ITEMS, ids=name_of)
async def test_cosmos_is_a_state_store_of_single_items(clause: Clause[StateStore]) -> None:
    await check_state_store(partial(cosmos_store, "item"), clauses=[clause])


@pytest.mark.parametrize("clause", ORDERED_LOG, ids=name_of)
@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_ordered_logs_keep_their_promises_on_cosmos(scope: Scope, clause: Clause[StateStore]) -> None:
    await check_ordered_log(partial(cosmos_store, scope), clauses=[clause])


async def test_documents_of_cosmos_vanish_in_time() -> None:
    grounds: list[CosmosGround] = []

    @asynccontextmanager
    async def make() -> AsyncIterator[StateStore]:
        async with cosmos_ground() as ground:
            grounds.append(ground)
            yield ground.store()

    await check_state_store(make, clauses=store_clauses_of_time(lambda seconds: grounds[-1].wait(seconds)))

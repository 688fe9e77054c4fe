"""What an operator over a store and a bus moves, and what it says is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.errors import Refused
from outbox.message import Message
from outbox.ops.store_operator import StoreOperator
from outbox.ports import DeadLetterEntry


def dead(sequence: int) -> DeadLetterEntry:
    message = Message(body=b"1", outbox_id=f"m{sequence}")
    return DeadLetterEntry("q", sequence, message, "no", "", delivery_count=1, enqueued_ms=0)


@pytest.mark.parametrize("what", ["resubmit", "discard"])
@pytest.mark.parametrize("error", [LookupError("a receiver has it"), Refused("too old")])
async def test_one_that_cannot_be_moved_does_not_keep_the_others(what: str, error: Exception) -> None:
    moved = list[int]()

    async def move(queue: str, sequence: int) -> None:
        if sequence == 2:
            raise error
        moved.append(sequence)

    async def listed(queue: str) -> list[DeadLetterEntry]:
        return [dead(n) for n in (1, 2, 3)]

    async with Engine.in_memory() as engine:
        operator = StoreOperator(NarrowEngine(engine, "partition").ports(), *[cast(Any, None)] * 3)
        operator._operations = cast(Any, SimpleNamespace(dead_letters=listed, **{what: move}))
        found = await getattr(operator, what)("q", None)
    assert sorted(moved) == [1, 3] and (found.count, found.in_hand) == (2, 1)

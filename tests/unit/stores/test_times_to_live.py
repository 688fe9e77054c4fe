"""How long documents of a store protocol live: unfinished ones for ever, what is on record as long as a record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from outbox.ports import Delete, Lost, Won, Write
from outbox.runtime.start.plan import compile_app
from tests.unit.stores.store_site import Add, adding, handled, protocol_of, site

LIFE_S = compile_app(adding()).record_life_ms / 1_000
FOR_EVER = None
MESSAGES = {
    "applied": Add("applied"),
    "refused": Add("refused", text="reject"),
    "deleted": Add("deleted", text="delete"),
    "outputs in a blob": Add("shout", text="shout"),
}
Lives = dict[str, float | None]
PARTITION: Lives = {"commit": FOR_EVER, "state": FOR_EVER, "mark": LIFE_S}
"""A record lives for ever until its outputs have left; then it is marked, and lives as long as a record."""
SWAP: Lives = {"swap": FOR_EVER, "processed": LIFE_S, "clear": FOR_EVER}
STAGED = SWAP | {"stage": FOR_EVER, "dispatched": FOR_EVER}
"""A staged record is deleted, and never expires: its state may point to it."""
WRITTEN: dict[tuple[str, str], Lives] = {
    ("partition", "applied"): PARTITION,
    ("partition", "refused"): {"refuse": LIFE_S, "state": LIFE_S},  # there is none, as behind a deletion
    ("partition", "deleted"): PARTITION | {"state": LIFE_S},
    ("partition", "outputs in a blob"): PARTITION | {"overflow": FOR_EVER},
    ("item", "applied"): SWAP,
    ("item", "refused"): SWAP,
    ("item", "deleted"): SWAP,
    ("item", "outputs in a blob"): STAGED | {"overflow": FOR_EVER},
    ("staged", "applied"): STAGED,
    ("staged", "refused"): STAGED,
}


@pytest.mark.parametrize(("scope", "what"), WRITTEN, ids=str)
async def test_each_document_lives_as_long_as_it_is_needed(scope: str, what: str) -> None:
    written = defaultdict[str, set[float | None]](set)
    async with site("item" if scope == "staged" else scope, staged=scope == "staged") as at:
        write = at.store.write

        async def noted(operations: Sequence[Write]) -> Won | Lost:
            for each in operations:
                if not isinstance(each, Delete) and each.key.partition.startswith("Sum:"):
                    written[each.tag.what].add(each.ttl_s)
            return await write(operations)

        at.store.write = noted  # type: ignore[method-assign]  # watched
        await handled(at, adding(), MESSAGES[what])
    assert written == {tag: {ttl_s} for tag, ttl_s in WRITTEN[scope, what].items()}


async def test_a_count_of_failures_lives_as_long_as_a_record(scope: str) -> None:
    async with site(scope) as at:
        protocol: Any = protocol_of(at, adding())
        assert protocol._failures._life_s == LIFE_S

"""A planted fault: a store that writes whatever is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbox.ports import Create, Replace, Write


async def write_anyway(store: Any, operations: Sequence[Write], write: Any) -> Any:
    """Write without a condition."""
    found = [(op, await store.read(op.key)) for op in operations if isinstance(op, Create | Replace)]
    return await write(
        store, [Create(op.key, op.body) if old is None else Replace(op.key, op.body, old.version) for op, old in found]
    )

"""Faults in outputs that lie inside the state of item scope, each planted alone: where each must show, and as what."""

from __future__ import annotations

from typing import Any

from tests.simulation.planting import ITEM, Mutant, mutant

AGAIN: dict[str, Any] = {"amounts": (5, 3), "repeated": (1,)}
"""Two messages, and the first once more."""


def inline(name: str, promise: str, *edits: tuple[str, str], **options: Any) -> Mutant:
    """One in item scope."""
    return mutant(f"inline: {name}", "item", promise, ITEM, *edits, **options)


INLINE_MUTANTS = (
    inline("a pointer is replaced before its outputs have left", "NoLost",
        ("        if state.item.pending:\n            return Loaded(await", "        if state.item.pending and not isinstance(state.item.pending, Inline):\n            return Loaded(await"),
        amounts=(5, 3), faults={"crash": 1},
    ),
    inline("a pointer is replaced before there is a marker", "NoDuplicate",
        ("            token = await self._mark(state_id, inline.inbox, inline.record)  # 8\n", "            token = state.item.token\n"),
        copies=2,
    ),
    inline("the marker comes before the outputs leave", "NoLost",
        ("            await self._settlement.push(list(inline.record.outputs))  # 7\n            token = await self._mark(state_id, inline.inbox, inline.record)  # 8\n", "            token = await self._mark(state_id, inline.inbox, inline.record)  # 8\n            await self._settlement.push(list(inline.record.outputs))  # 7\n"),
        faults={"crash": 1},
    ),
    inline("a finished state keeps the token of before", "NoDuplicate",
        ('msgspec.structs.replace(state.item, pending="", token=token)\n        tag', 'msgspec.structs.replace(state.item, pending="")\n        tag'),
        **AGAIN, workers=2, faults={"stale": 1},
    ),
    inline("a state at hand saves the look at the marker", "NoDuplicate",
        ("            await self._decide(attempt, state_id, loaded.state.item.token)  # 3\n", "            if not loaded.is_warm:\n                await self._decide(attempt, state_id, loaded.state.item.token)  # 3\n"),
        copies=2, warm=True,
    ),
    inline("a state is at hand before its outputs have left", "NoLost|NoDuplicate",
        ("        return CachedState(item, answer.versions[0], answer.session)\n", "        swapped = CachedState(item, answer.versions[0], answer.session)\n        self.cache.remember(state_id, swapped)\n        return swapped\n"),
        copies=2, warm=True, faults={"error": 3},
    ),
    inline("a pointer without a marker counts as finished", "NoLost",
        ("            if marker is not None and _covers(", "            if marker is None or _covers("),
        ("self._clear_later(state_id, state, marker.session)", 'self._clear_later(state_id, state, marker.session if marker else "")'),
        faults={"crash": 1},
    ),
    inline("any marker of a message counts as that of its pointer", "NoLost",
        ("    return marker.tx == record.tx or not marker.reason or marker.attempt >= record.attempt\n", "    return True\n"),
        amounts=(-50, 60), resubmissions=1, faults={"crash": 1},
    ),
    inline("the marker of a refusal stays after its resubmission", "NoDuplicate",
        ("            if _covers(stored.decode(known, Record), record):\n", "            if True:\n"),
        amounts=(-50, 60), resubmissions=1, faults={"crash": 1},
    ),
    inline("a sweeper leaves a pointer alone", "NoLost",
        ("            await self._complete(document.key.partition, cached_state(document))\n", "            return False\n"),
        sweepers=1, faults={"crash": 1}, delivery_count_max=1,
    ),
)  # fmt: skip

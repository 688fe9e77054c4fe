"""Faults in what becomes of resubmissions, each planted alone: where each must show, and as what."""

from __future__ import annotations

from tests.simulation.planting import ITEM, PARTITION, STOPS, mutant

RESUBMISSION_MUTANTS = (
    mutant(
        "resubmission: a refusal is replaced by a copy of what it refused", "partition", "NoDuplicate", PARTITION,
        ("record.attempt < work.delivery.message.attempt", "record.attempt <= work.delivery.message.attempt"),
        amounts=(-50, 60), copies=[2, 1],
    ),
    mutant(
        "resubmission: a refusal is no marker", "item", "NoDuplicate", ITEM,
        ("record.attempt < work.delivery.message.attempt", "record.attempt <= work.delivery.message.attempt"),
        amounts=(-50, 60), copies=[2, 1],
    ),
    mutant(
        "resubmission: the key goes on at once", "partition", "InOrder", STOPS,
        ("        found = await self._store.read(_key(queue, message.session_id))\n        stop = None if found is None else _decoded(found)\n        if found is not None and stop is not None and stop.is_behind(message):\n            again", "        await self.let_go(queue, message)\n        found = stop = None\n        if found is not None and stop is not None and stop.is_behind(message):\n            again"),
        app="standing", amounts=(-50, 5), resubmissions=1,
    ),
)  # fmt: skip

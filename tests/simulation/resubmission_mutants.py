"""Faults in what becomes of resubmissions and of what waits for them, each planted alone: where each must show."""

from __future__ import annotations

from typing import Any

from tests.simulation.planting import BATCH, GROUP, ITEM, STOPS, VERDICT, WAITING, Mutant, mutant

BLOCKED: dict[str, Any] = {
    "amounts": (5, -1), "repeated": (1,), "batch": 2,
    "resubmissions": 1, "faults": {"jump": 1}, "patience_ms": 60_000,
}  # fmt: skip
"""The first is applied, the second blocks its key, and a copy of the first waits behind it when time leaps."""


def blocked(name: str, scope: str, file: str, *edits: tuple[str, str]) -> Mutant:
    return mutant(f"blocked: {name} ({scope})", scope, "NoDuplicate", file, *edits, app="blocking", **BLOCKED)


RESUBMISSION_MUTANTS = (
    mutant("resubmission: a refusal is replaced by a copy of what it refused", "partition", "NoDuplicate", VERDICT,
        ("record is None or attempt > record.attempt", "record is None or attempt >= record.attempt"),
        amounts=(-50, 60), copies=[2, 1],
    ),
    mutant("resubmission: a refusal is no marker", "item", "NoDuplicate", VERDICT,
        ("record is None or attempt > record.attempt", "record is None or attempt >= record.attempt"),
        amounts=(-50, 60), copies=[2, 1],
    ),
    mutant("resubmission: the record of the refusal passes for that of what is sent", "item", "NoLost", ITEM,
        ("            if marker is not None and _covers(stored.decode(marker, Record), inline.record):\n", "            if marker is not None:\n"),
        amounts=(-50, 60), resubmissions=1, sweepers=1, workers=1, faults={"crash": 1},
    ),
    mutant("resubmission: the key goes on at once", "partition", "InOrder", STOPS,
        ("        found = await self._store.read(_key(queue, message.session_id))\n        blocked = None if found is None else _decoded(found)\n        if found is not None and blocked is not None and blocked.is_behind(message):\n            again", "        await self.unblock(queue, message)\n        found = blocked = None\n        if found is not None and blocked is not None and blocked.is_behind(message):\n            again"),
        app="standing", amounts=(-50, 5), resubmissions=1,
    ),
    # What waits behind a blocked key
    *(
        blocked(
            "exempt from the age fence without a record", scope, BATCH,
            ("is_past = work.created_ms", "is_past = not work.blocks_key and work.created_ms"),
        )
        for scope in ("partition", "item")
    ),
    *(
        blocked(
            "put on record over what is there", scope, WAITING,
            ("            if kind_of(stored.decode(found, Record)) is not OnRecord.WAITING:\n                return found\n", "            await self._store.write([Replace(key, stored.encode(record), found.version)])\n"),
            ("    Create,\n", "    Create,\n    Replace,\n"),
        )
        for scope in ("partition", "item")
    ),
    blocked("exempt from the age fence without a record", "engine", GROUP,
        ("is_past = work.created_ms", "is_past = not work.blocks_key and work.created_ms"),
    ),
    blocked("put on record when it is too old", "engine", WAITING,
        ("work.delivery, work.created_ms <= oldest_ms\n", "work.delivery, work.created_ms <= -1\n"),
    ),
    blocked("put on record when it is too old", "partition", WAITING,
        ("or work.created_ms <= self._plan.retention.oldest_ms(now_ms):", "or work.created_ms <= -1:"),
    ),
)  # fmt: skip

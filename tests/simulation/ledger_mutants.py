"""Faults in the dispatch ledger, each planted alone: where each must show, and as what.

Messages are dead once their lock has run out, so that only a sweeper can send what was committed of them.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.planting import PARTITION, Mutant, mutant

DISPATCH = "outbox/runtime/commit/dispatch_ledger.py"
RECOVERY = "outbox/runtime/commit/recovery.py"


def lost(name: str, file: str, *edits: tuple[str, str], **options: Any) -> Mutant:
    """One by which outputs that were committed never leave."""
    known: dict[str, Any] = {"ledger": True, "sweepers": 1, "delivery_count_max": 1}
    return mutant(f"ledger: {name}", "partition", "NoLost", file, *edits, **(known | options))


LEDGER_MUTANTS = (
    lost("it is not stored before the first commit", DISPATCH,
        ("        answer = await write_known(self._store, Create(ledger_key(id), stored.encode(item), _ttl_s(item), TAG))\n        if isinstance(answer, Lost):\n            raise NothingCommitted\n", ""),
        ("        self._version, self._written_ms = answer.versions[0], item.at_ms\n", "        self._version, self._written_ms = \"v0\", item.at_ms\n"),
        faults={"crash": 1},
    ),
    lost("an entry is closed when it is committed", DISPATCH,
        ("        if lost is not None:\n            self.leave(batch)", "        if True:\n            self.leave(batch)"),
        faults={"error": 3},
    ),
    lost("an entry is closed whose batch may land later", DISPATCH,
        ("        if not batch.may_land:\n", "        if True:\n"),
        faults={"delay": 1, "error": 3},
    ),
    lost("an entry is closed of a resubmission that met its refusal", DISPATCH,
        ("        if lost is not None:\n            self.leave(batch)\n", "        if lost is not None:\n            self.close(batch.ledger_entries)\n"),
        faults={"delay": 1}, amounts=(-50, 60), resubmissions=1,
    ),
    lost("a number is used again that may land later", DISPATCH,
        ("        self._last += 1\n", "        self._last = min(self._open, default=self._last + 1)\n"),
        faults={"delay": 1}, amounts=(5, 3),
    ),
    lost("all numbers up to the last count as closed", DISPATCH,
        ("self._last, tuple(opened))", "self._last)"),
        faults={"delay": 1, "error": 2}, amounts=(5, -50),
    ),
    lost("one worker takes up the ledger of another", DISPATCH,
        ("        id = self._new_id()\n", "        id = \"worker\"\n"),
        ("        if isinstance(answer, Lost):\n            raise NothingCommitted\n        self._id, self._last", "        if isinstance(answer, Lost):\n            found = await read(self._store, ledger_key(id))\n            if found is None:\n                raise NothingCommitted\n            answer = Won((found.version,))\n        self._id, self._last"),
        faults={"crash": 1}, amounts=(5, 3), workers=2,
    ),
    lost("a sweeper closes what it could not push", DISPATCH,
        ("            await finish(found, record)\n            closed.add(number_of(record.entry))\n", "            closed.add(number_of(record.entry))\n            await finish(found, record)\n"),
        faults={"error": 3, "crash": 1},
    ),
    lost("a sweeper asks for no number beyond the last", DISPATCH,
        ("in (*ranges, beyond):", "in ranges:"),
        faults={"crash": 1},
    ),
    lost("a sweeper asks for no number that is open", DISPATCH,
        ("in (*ranges, beyond):", "in (beyond,):"),
        faults={"delay": 1, "error": 2}, amounts=(5, -50),
    ),
    lost("who follows a record takes it for sent", RECOVERY,
        ("            if self._ledger is None or not self._ledger.is_closed(record.entry):\n                await self._parts.settlement.push(list(record.outputs))\n", "            pass\n"),
        faults={"crash": 1}, sweepers=0, delivery_count_max=100,
    ),
    lost("a failed push counts as sent", PARTITION,
        ("        await self._push(batch)  # 7\n        self._mark(batch, state_id)  # 8\n        return outcome\n", "        self._mark(batch, state_id)\n        await self._push(batch)\n        return outcome\n"),
        faults={"error": 3},
    ),
)  # fmt: skip

"""Faults in discarding and restoring dead letters of a store that exploring finds; `operators` act side by side."""

from __future__ import annotations

from functools import partial

from tests.simulation.planting import mutant

OPERATIONS = "outbox/runtime/store_operations.py"
LETTERS = "outbox/runtime/delivery/stored_dead_letters.py"

fault = partial(mutant, operators=("discards", "restores"))

DISCARD_MUTANTS = (
    fault("discard: what was kept before is not kept anew", "letters", "NoLost", OPERATIONS,
        ("ttl_s=life_s, anew=True)", "ttl_s=life_s)"),
        kept=True,
    ),
    fault("discard: it is deleted before it is kept", "letters", "NoLost", OPERATIONS,
        ("        await self.discard_found(dead, first=partial(self._discarded.put, dead, ttl_s=life_s, anew=True))\n",
         "        await self.discard_found(dead)\n        await self._discarded.put(dead, ttl_s=life_s, anew=True)\n"),
        faults={"crash": 1},
    ),
    fault("discard: what was written since the list is deleted", "letters", "NoLost", OPERATIONS,
        ("await self._dead_letters.delete(dead):",
         "await self._dead_letters.delete(await self._dead_letters.read(dead.queue, dead.sequence) or dead):"),
    ),
    fault("discard: it is kept under another number", "letters", "Once", LETTERS,
        ("_decoded(entry.document) if isinstance(entry, StoredEntry) else _stored(entry)", "_stored(entry)"),
        faults={"crash": 1},
    ),
    fault("restore: what is there is left as it is", "letters", "NoLost", OPERATIONS,
        ("await self._dead_letters.put(kept, anew=True)", "await self._dead_letters.put(kept)"),
    ),
    fault("restore: what was discarded since the look is deleted", "letters", "NoLost", OPERATIONS,
        ("await self._discarded.delete(kept)  #",
         "await self._discarded.delete(await self._discarded.read(queue, sequence) or kept)  #"),
        kept=True,
    ),
    fault("restore: what was kept is deleted before it is a dead letter", "letters", "NoLost", OPERATIONS,
        ("        await self._dead_letters.put(kept, anew=True)\n        await self._discarded.delete(kept)  #",
         "        await self._discarded.delete(kept)\n        await self._dead_letters.put(kept, anew=True)  #"),
    ),
)  # fmt: skip

"""Faults in what keeps outputs outside of their record, each planted alone: where each must show, and as what."""

from __future__ import annotations

from tests.simulation.planting import ITEM, MARKS, OVERFLOW, mutant

OVERFLOW_MUTANTS = (
    mutant(
        "overflow: what is staged is looked for first", "item", "NoAlarm", OVERFLOW,
        ("        found = await read(self._store, processed_key(overflow.state, overflow.inbox))\n", "        early = await read(self._store, staged)\n        found = await read(self._store, processed_key(overflow.state, overflow.inbox))\n"),
        ("        return document, await read(self._store, staged, session) is None\n", "        return document, early is None\n"),
        app="spilling", copies=2, sweepers=1, faults={"crash": 1},
    ),
    mutant(
        "overflow: what is staged is looked for in the past", "item", "NoAlarm", OVERFLOW,
        ("        return document, await read(self._store, staged, session) is None\n", "        return document, await read(self._store, staged) is None\n"),
        app="spilling", sweepers=1, faults={"stale": 1},
    ),
    mutant(
        "overflow: a blob that seems to be missing is told of at once", "partition", "NoAlarm", OVERFLOW,
        ("        await confirmed(store, found)  # the read may have been stale\n", ""),
        app="spilling", sweepers=1, faults={"stale": 1},
    ),
    mutant(
        "overflow: the record is read in the past", "partition", "NoAlarm", OVERFLOW,
        ("record_key(overflow.state or None, overflow.inbox), state.session)", "record_key(overflow.state or None, overflow.inbox))"),
        ("            return self._now_ms() - overflow.at_ms > 2 * self._plan.attempt_ms_max\n", "            return True\n"),
        app="spilling", sweepers=1, faults={"stale": 1},
    ),
    mutant(
        "overflow: the record that landed is not looked at", "partition", "NoAlarm", OVERFLOW,
        ("            return not record.pending\n", "            return True\n"),
        app="spilling", sweepers=1,
    ),
    mutant(
        "overflow: a blob is collected that may yet be written", "partition", "StagedVanish", OVERFLOW,
        ("            return self._now_ms() - overflow.at_ms > 2 * self._plan.attempt_ms_max\n", "            return True\n"),
        app="spilling", copies=2, sweepers=1,
    ),
    mutant(
        "overflow: what announces a blob goes before it", "item", "StagedVanish", OVERFLOW,
        ("        try:\n            await self._blobs.delete(overflow.blob)\n", "        with suppress(*MAY_RETRY):\n            await self._store.write([Delete(document.key, document.version, Tag(\"collect\"))])\n        try:\n            await self._blobs.delete(overflow.blob)\n"),
        app="spilling", sweepers=1, faults={"crash": 2},
    ),
    mutant(
        "overflow: nothing announces a blob", "partition", "StagedVanish", "outbox/runtime/commit/overflow.py",
        ("        await self._overflows.announce(*announced(name, batch.tx, work, version, now_ms, life_ms))\n", ""),
        app="spilling", sweepers=1, faults={"crash": 1},
    ),
    mutant(
        "overflow: the blob goes before the mark", "partition", "NoAlarm", MARKS,
        ("        left = list(marks)\n        try:\n", "        left = list(marks)\n        for mark in left:\n            if mark.spilled:\n                await self._blobs.delete(mark.spilled)\n        try:\n"),
        app="spilling", sweepers=1, faults={"crash": 1},
    ),
    mutant(
        "overflow: the blob goes before what is staged says so", "item", "NoAlarm", ITEM,
        ("        answer = await write_known(self._infrastructure, Replace(key, stored.encode(staged)", "        if found.staged.record.spilled:\n            await self._blobs.delete(found.staged.record.spilled)\n        answer = await write_known(self._infrastructure, Replace(key, stored.encode(staged)"),
        app="spilling", sweepers=1, faults={"crash": 1},
    ),
    mutant(
        "overflow: the blob is not there when the commit names it", "partition", "NoAlarm", "outbox/runtime/commit/overflow.py",
        ("        await write_blobs(self._parts.ports.blobs, batch.blobs)\n        return fitted, ", "        return fitted, "),
        app="spilling", sweepers=1, faults={"crash": 1},
    ),
    mutant(
        "overflow: the blob is not there when it is staged", "item", "NoAlarm", "outbox/runtime/commit/overflow.py",
        ("            await write_blobs(self._parts.ports.blobs, batch.blobs)\n        except", "            pass\n        except"),
        app="spilling",
    ),
)  # fmt: skip

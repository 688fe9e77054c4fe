"""Faults in how messages are settled and attempts end, each planted alone: where each must show, and as what."""

from __future__ import annotations

from datetime import timedelta

from tests.simulation.planting import BATCH, ENDINGS, LANES, PARTITION, PLAN, mutant

RETENTION = "outbox/runtime/start/notes.py"
SWEEPER = "outbox/runtime/commit/sweeper.py"

SETTLING_MUTANTS = (
    mutant(
        "settling: a message goes when its delayed copy could not be sent", "partition", "NothingLeavesEarly", ENDINGS,
        ('        except NothingCommitted:\n            await self._bus.settle(delivery, Settle("release"))\n', '        except NothingCommitted:\n            await self._bus.settle(delivery, Settle("complete"))\n'),
        app="trying", amounts=(-50,), faults={"error": 2},
    ),
    mutant("settling: a message goes before its delayed copy is sent", "partition", "NothingLeavesEarly", ENDINGS,
        ("        try:\n            await self.push([Output(delivery.queue", "        await self._bus.settle(delivery, Settle(\"complete\"))\n        try:\n            await self.push([Output(delivery.queue"),
        app="trying", amounts=(-50,),
    ),
    mutant("settling: a delayed copy forgets that it failed", "partition", "EveryMessageEnds", ENDINGS,
        ("            failures=later.failures,\n", ""),
        app="trying", amounts=(-50,), patience_ms=30_000,
    ),
    mutant("settling: every delayed copy of a message has one id", "partition", "NothingLeavesEarly", ENDINGS,
        ('            message_id=f"{message.identity}~{self._new_tx()}",\n', '            message_id=f"{message.identity}~later",\n'),
        app="insisting", amounts=(-50,), patience_ms=60_000, drops_duplicates=True,
    ),
    mutant("settling: a key is blocked behind the dead letter", "partition", "InOrder", LANES,
        ("            if holds and isinstance(outcome, PoisonMessage):\n", "            if holds and isinstance(outcome, PoisonMessage):\n                await self._settlement.settle(attempt, outcome)\n"),
        app="standing", amounts=(-50, 5), faults={"crash": 1},
    ),
    mutant("settling: a lane goes on beside what holds it", "partition", "InOrder", LANES,
        ("len(outcomes) > 1 and not attempts[0].work.in_order", "len(outcomes) > 1"),
        app="standing", amounts=(5, -50, 5), batch=3,
    ),
    mutant("settling: an attempt past its deadline writes", "partition", "NoDuplicate", PARTITION,
        ("            self._check_deadline(batch)\n            check", "            check"),
        app="standing", workers=2, faults={"expire": 1, "jump": 1},
    ),
    mutant("settling: an attempt may last as long as records live", "partition", "NoDuplicate", BATCH,
        ("        return now_ms - self.now_ms > self._plan.attempt_ms_max\n", "        return now_ms - self.now_ms > self._plan.record_life_ms\n"),
        app="standing", workers=2, faults={"expire": 1, "jump": 1},
    ),
    mutant(
        "settling: a staged record is swept that may yet be pointed to", "item", "StagedVanish", "outbox/runtime/commit/recovery.py",
        ("        if state.item.version <= staged.version or", "        if state.item.version < staged.version or"),
        sweepers=1, staged=True,
    ),
    mutant(
        "settling: a staged record is swept that is pointed to", "item", "StagedVanish|NoAlarm", "outbox/runtime/commit/recovery.py",
        (" or state.item.pointer == staged.pending:", ":"),
        sweepers=1, staged=True,
    ),
    mutant("settling: a sweeper leaves what is as old as its grace", "item", "StagedVanish", SWEEPER,
        ("                is_young = now - at_ms < grace_s * 1_000\n", "                is_young = now - at_ms <= grace_s * 1_000\n"),
        sweepers=1, grace_ms=60_000, faults={"crash": 1}, staged=True,
    ),
    *(
        mutant(
            f"settling: a neighbour's sweeper marks for its own retention ({scope})", scope, "NoDuplicate", PLAN,
            ("        return max(at_least_ms, self.record_life_ms) / 1_000\n", "        return self.record_life_ms / 1_000\n"),
            copies=2, sweepers=1, is_shared=True, faults={"crash": 1, "jump": 1},
        )
        for scope in ("partition", "item")
    ),
    # Another retention than before
    mutant("retention: the age at which records of before are gone is forgotten", "partition", "NoDuplicate", RETENTION,
        ("        for era in self.eras:\n", "        for era in ():\n"),
        copies=2, workers=2, earlier_retention=timedelta(minutes=20), faults={"jump": 1},
    ),
    mutant("retention: records of before are taken to live as long as those of now", "engine", "NoDuplicate", RETENTION,
        ("min(era.until_ms, now_ms - era.retention_ms)", "min(era.until_ms, now_ms - self.retention_ms)"),
        copies=2, workers=2, earlier_retention=timedelta(minutes=20), faults={"jump": 1},
    ),
)  # fmt: skip

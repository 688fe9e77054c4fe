"""Faults in what answers requests over HTTP, each planted alone: where each must show, and as what."""

from __future__ import annotations

from tests.simulation.planting import BATCH, ENTRY, GROUP, HTTP_CLAIMS, HTTP_SCOPES, ITEM, PARTITION, mutant

REQUEST_MUTANTS = (
    mutant(
        "requests: answered before the commit", "engine", "NothingLeavesEarly", HTTP_SCOPES,
        ("            await self._commit(group)\n        except (*MAY_RETRY", "            attempt.committed(self._record(group, attempt.work))\n            await self._commit(group)\n        except (*MAY_RETRY"),
        amounts=(), asked=(("k1", "a", 5),),
    ),
    mutant(
        "requests: what is on record is told before it is synced", "engine", "NothingLeavesEarly", HTTP_SCOPES,
        ("        if not commit.applied and not commit.refused:\n            await self._journal.durable()\n            return\n", "        if not commit.applied and not commit.refused:\n            return\n"),
        amounts=(), asked=(("k1", "a", 5),), asked_times=2, fronts=2, faults={"power": 1},
    ),
    mutant(
        "requests: a read is answered from what is not synced", "engine", "NothingLeavesEarly", HTTP_SCOPES,
        ("            documents, _ = await self._journal.load([] if id is None else [id], [])\n            await self._journal.durable()\n", "            documents, _ = await self._journal.load([] if id is None else [id], [])\n"),
        amounts=(), asked=(("k1", "a", 5),), looked=True, fronts=2, faults={"power": 1},
    ),
    mutant(
        "requests: a read is answered as if there were no state", "partition", "NothingLeavesEarly", HTTP_SCOPES,
        ("        return ReadTransaction(self._now_ms(), b\"\" if item.is_tombstone else bytes(item.value), item.schema)\n", "        return ReadTransaction(self._now_ms(), b\"\" if item.version else bytes(item.value), item.schema)\n"),
        amounts=(), asked=(("k1", "a", 5),), looked=True, fronts=1,
    ),
    mutant(
        "requests: a conflict is taken for a commit", "engine", "NothingLeavesEarly", HTTP_SCOPES,
        ("        if await self._journal.commit(commit) is not None:\n            raise NothingCommitted\n", "        await self._journal.commit(commit)\n"),
        amounts=(), asked=(("k1", "a", 5), ("k2", "a", 3)), fronts=2,
    ),
    mutant(
        "requests: the marker holds no reply", "engine", "OneAnswer", GROUP,
        ("                marker = with_reply(marker, context.answer)\n", "                marker = work.fingerprint\n"),
        amounts=(), asked=(("k1", "a", 5),),
    ),
    mutant(
        "requests: the record holds no reply", "partition", "OneAnswer", BATCH,
        ("        reply = None if context is None else context.answer\n", "        reply = None\n"),
        amounts=(), asked=(("k1", "a", 5),),
    ),
    mutant(
        "requests: an attempt answers before its commit", "partition", "NothingLeavesEarly|OneAnswer", PARTITION,
        ("            answer = await self.marks.write_with_riders(writes, state_id, left_bytes=left_bytes, check=check)  # 6\n", "            for entry in batch.entries:\n                entry.attempt.committed(entry.record)\n            answer = await self.marks.write_with_riders(writes, state_id, left_bytes=left_bytes, check=check)  # 6\n"),
        amounts=(), asked=(("k1", "a", 5),),
    ),
    mutant(
        "requests: an attempt answers before its swap", "item", "NothingLeavesEarly|OneAnswer", ITEM,
        ("            swapped = await self._commit(attempt, state_id, batch, item)  # 6\n", "            attempt.committed(batch.entries[0].record)\n            swapped = await self._commit(attempt, state_id, batch, item)  # 6\n"),
        amounts=(), asked=(("k1", "a", 5),),
    ),
    mutant(
        "requests: another's claim is not heeded", "partition", "NoDuplicate", HTTP_CLAIMS,
        ("            if isinstance(answer, Won):\n                return None\n", "            return None\n"),
        amounts=(), asked=(("k1", "a", 5), ("k1", "b", 5)),
    ),
    mutant(
        "requests: a claim that may be another's is taken for ours", "item", "NoDuplicate", HTTP_CLAIMS,
        ("            document = await read(self._store, key)\n        else:", "            return None\n        else:"),
        amounts=(), asked=(("k1", "a", 5), ("k1", "b", 5)), faults={"lost": 1},
    ),
    mutant(
        "requests: there are no claims", "item", "NoDuplicate", HTTP_SCOPES,
        ("            return await self._claims.take(attempt)\n", "            return None\n"),
        amounts=(), asked=(("k1", "a", 5), ("k1", "b", 5)),
    ),
    mutant(
        "requests: another payload joins the first", "engine", "OneAnswer", ENTRY,
        ("        name = work.inbox, work.fingerprint\n", "        name = work.inbox, b\"\"\n"),
        amounts=(), asked=(("k1", "a", 5), ("k1", "a", 3)), front_batch=2,
    ),
    mutant(
        "requests: an unknown end is an answer", "engine", "NothingLeavesEarly", ENTRY,
        ("            return self._log.unavailable(error)\n        except CorruptRecord as error:\n            return self._log.unreadable(error)\n        self._log.ended(attempt, outcome)\n        if", "            return Response(204)\n        except CorruptRecord as error:\n            return self._log.unreadable(error)\n        self._log.ended(attempt, outcome)\n        if"),
        amounts=(), asked=(("k1", "a", 5),), faults={"error": 3},
    ),
)  # fmt: skip

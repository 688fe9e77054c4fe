"""Faults that exploring finds, each planted alone: what the text of one module is changed to, where, and as what.

With the tables that it takes in these are all that explorations look for, and the faults in the engine that a comparison
with its model finds.  Which rule of the protocol pages a fault takes out is in `rules`; rules of what is not explored
have their faults in `direct_mutants` and the tables of the log and of the adapters.  Data only; nothing of the package is
imported here.
"""

from __future__ import annotations

from tests.simulation.discard_mutants import DISCARD_MUTANTS
from tests.simulation.edit_mutants import EDIT_MUTANTS
from tests.simulation.guard_mutants import GUARD_MUTANTS
from tests.simulation.inline_mutants import INLINE_MUTANTS
from tests.simulation.ledger_mutants import LEDGER_MUTANTS
from tests.simulation.overflow_mutants import OVERFLOW_MUTANTS
from tests.simulation.pipeline_mutants import PIPELINE_MUTANTS
from tests.simulation.planting import (
    BATCH,
    ENDINGS,
    ENGINE_BUS,
    ENGINE_STORE,
    GROUP,
    ITEM,
    JOURNAL,
    LANES,
    MARKS,
    PARTITION,
    PLAIN,
    PLAN,
    STATE,
    mutant,
)
from tests.simulation.request_mutants import REQUEST_MUTANTS
from tests.simulation.resubmission_mutants import RESUBMISSION_MUTANTS
from tests.simulation.rule_mutants import RULE_MUTANTS
from tests.simulation.settling_mutants import SETTLING_MUTANTS
from tests.simulation.stream_mutants import STREAM_MUTANTS
from tests.simulation.trigger_mutants import TRIGGER_MUTANTS
from tests.simulation.verdict_mutants import VERDICT_MUTANTS

STEP_COUNT_MAX = 45


MUTANTS = (
    # Order
    mutant(
        "a stopped session goes on", "partition", "InOrder", LANES,
        ("        if behind is None:\n", "        if behind is None or behind:\n"),
        app="standing", amounts=(-50, 5), patience_ms=11_000,
    ),
    mutant(
        "a head that is rescheduled is overtaken", "partition", "InOrder", LANES,
        ("            free = [one for one in group if holder in (None, one.work.delivery.sequence)]\n            await self._release([one for one in group if holder not in (None, one.work.delivery.sequence)])\n", "            free = list(group)\n"),
        ("            if holder not in (None, attempt.work.delivery.sequence):\n                await self._settlement.release(attempt)\n            elif await", "            if await"),
        app="standing", amounts=(5, 3), batch=2, faults={"error": 3}, patience_ms=11_000,
    ),
    # Partition scope
    mutant(
        "pushes before the commit", "partition", "NoGhost", PARTITION,
        ("            lost = await self._commit(batch, state_id)  # 5, 6\n            if lost", "            await self._push(batch)\n            lost = await self._commit(batch, state_id)  # 5, 6\n            if lost"),
    ),
    mutant(
        "no dedupe: a record is written over", "partition", "NoDuplicate", PARTITION,
        ("            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n", "            for entry in batch.entries:\n                there = await read(self._store, record_key(state_id, entry.attempt.work.inbox))\n                entry.attempt.replaces = there.version if there else \"\"\n            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n"),
        copies=2,
    ),
    mutant(
        "marked before the push", "partition", "NoLost", PARTITION,
        ("        await self._push(batch)  # 7\n        self._mark(batch, state_id)  # 8\n        return outcome\n", "        self._mark(batch, state_id)\n        await self.marks.write()\n        await self._push(batch)\n        return outcome\n"),
        faults={"crash": 1},
    ),
    mutant(
        "a mark is due before its push", "partition", "NoLost", PARTITION,
        ("        await self._push(batch)  # 7\n        self._mark(batch, state_id)  # 8\n        return outcome\n", "        self._mark(batch, state_id)\n        await self._push(batch)\n        return outcome\n"),
        amounts=(5, 3), workers=1, lingers=True, faults={"error": 3, "crash": 1},
    ),
    mutant(
        "ETag is not checked", "partition", "ConsistentOutput|OneChangePerETag", PARTITION,
        ("            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n", "            if state_id is not None:\n                fresh = await read(self._store, state_key(state_id))\n                batch.loaded = type(batch.loaded)(batch.loaded.item, fresh.version if fresh else \"\")\n            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n"),
        amounts=(5, 3), workers=2,
    ),
    mutant(
        "a state at version 0 is written over", "partition", "OneChangePerETag|Serializable|ConsistentOutput", PARTITION,
        ("            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n", "            if state_id is not None and not batch.loaded.version:\n                fresh = await read(self._store, state_key(state_id))\n                batch.loaded = type(batch.loaded)(batch.loaded.item, fresh.version if fresh else \"\")\n            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n"),
        amounts=(5, 3), workers=2, given=None,
    ),
    mutant(
        "a state that is unchanged is not written", "partition", "OneChangePerETag|Serializable", PARTITION,
        ("        if state_id is not None:\n            item, tag", "        if state_id is not None and bytes(batch.state_after.value) != bytes(batch.loaded.item.value):\n            item, tag"),
        app="asking", amounts=(5, 0), workers=2,
    ),
    mutant(
        "new ids when pushed again", "partition", "NoGhost", "outbox/runtime/commit/recovery.py",
        ("            await self._parts.settlement.push(outputs)\n", "            again = [type(o)(o.destination, o.due_ms, msgspec.structs.replace(o.message, outbox_id=self._parts.new_tx())) for o in outputs]\n            await self._parts.settlement.push(again)\n"),
        faults={"crash": 1},
    ),
    mutant(
        "the loser pushes its own", "partition", "ConsistentOutput|NoGhost", PARTITION,
        ("            lost = await self._commit(batch, state_id)  # 5, 6\n            if lost is not None:\n                raise Superseded", "            lost = await self._commit(batch, state_id)  # 5, 6\n            if lost is not None:\n                await self._push(batch)\n                raise Superseded"),
        copies=2,
    ),
    mutant(
        "completes before the commit", "partition", "NothingLeavesEarly", PARTITION,
        ("            lost = await self._commit(batch, state_id)  # 5, 6\n            if lost", "            await self._settlement.settle(attempt, outcome)\n            lost = await self._commit(batch, state_id)  # 5, 6\n            if lost"),
    ),
    mutant(
        "completes before the push", "partition", "NoLost", PARTITION,
        ("        await self._push(batch)  # 7\n        self._mark(batch, state_id)  # 8\n        return outcome\n", "        await self._settlement.settle(attempt, outcome)\n        await self._push(batch)  # 7\n        self._mark(batch, state_id)  # 8\n        return outcome\n"),
        faults={"crash": 1},
    ),
    mutant(
        "a pending record has a time to live", "partition", "NoLost", PARTITION,
        ("        ttl_s = None if record.pending else self._plan", "        ttl_s = self._plan"),
        faults={"crash": 1, "jump": 1},
    ),
    mutant(
        "a refusal is dead-lettered before its record commits", "partition", "NoDuplicate|NothingLeavesEarly", PARTITION,
        ("            if not batch.entries:\n                return outcome\n            lost", "            if not batch.entries or isinstance(outcome, PoisonMessage):\n                return outcome\n            lost"),
        amounts=(-8,), copies=2,
    ),
    mutant(
        "fence and expiry at one age", "partition", "NoDuplicate", PLAN,
        ("RetentionWindow(retention_ms, retention_ms + margin_ms)", "RetentionWindow(retention_ms, retention_ms)"),
        copies=2, faults={"jump": 1}, ahead_ms=1_000,
    ),
    mutant(
        "no age fence", "partition", "NoDuplicate", BATCH,
        ("is_past = work.created_ms <= self._plan.retention.oldest_ms(self.now_ms)\n", "is_past = work.created_ms <= -(1 << 50)\n"),
        copies=2, faults={"jump": 1},
    ),
    mutant(
        "record and state are two writes", "partition", "NoGhost|NoLost|OneChangePerETag|Serializable|NoDuplicate", PARTITION,
        ("            answer = await self.marks.write_with_riders(writes, state_id, left_bytes=left_bytes, check=check)  # 6\n", "            answer = await self._store.write(writes[:1])\n            if isinstance(answer, Won) and len(writes) > 1:\n                answer = await self._store.write(writes[1:])\n"),
        faults={"crash": 1},
    ),
    mutant(
        "an unknown outcome is taken as won", "partition", "NoGhost", PARTITION,
        ("        if record is None:\n            raise NothingCommitted  # it may still land: the next create loses then\n", "        if record is None:\n            return None\n"),
        faults={"delay": 1},
    ),
    mutant(
        "an unknown outcome is taken as lost on the record", "partition", "NothingLeavesEarly", PARTITION,
        ("            return await self._resolved(batch, state_id)\n", "            return Lost(0)\n"),
        ("            if found is not None:\n                return found\n        raise NothingCommitted\n", "            if found is not None:\n                return found\n        return Document(record_key(work.state_id, work.inbox), stored.encode(Record(\"\", work.fingerprint, 0)), \"\")\n"),
        faults={"delay": 1},
    ),
    mutant(
        "a push that failed is taken as done", "partition", "NoLost", ENDINGS,
        ("            await self._bus.send(outputs)\n            return\n        except (*MAY_RETRY, UnknownDestination):\n            pass\n", "            await self._bus.send(outputs)\n            return\n        except (*MAY_RETRY, UnknownDestination):\n            return\n"),
        faults={"error": 1},
    ),
    mutant(
        "a mark deletes the record", "partition", "NoDuplicate", MARKS,
        ("            answer = await self._store.write([mark.write for mark in left])\n", "            answer = await self._store.write([Delete(m.write.key, m.write.if_match) for m in left])\n"),
        ("from outbox.ports import BlobStore, DocumentKey,", "from outbox.ports import BlobStore, Delete, DocumentKey,"),
        copies=2,
    ),
    mutant(
        "what is found pending is marked and not pushed", "partition", "NoLost", "outbox/runtime/commit/recovery.py",
        ("            await self._parts.settlement.push(outputs)\n            self._marks", "            self._marks"),
        faults={"crash": 1},
    ),
    mutant(
        "what is found pending is neither marked nor pushed", "partition", "NoLost", "outbox/runtime/commit/recovery.py",
        ("        elif record.pending and not self._marks.is_due(document.key):\n", "        elif False:\n"),
        faults={"crash": 1},
    ),
    mutant(
        "a handler gets the object of the message before", "partition", "ConsistentOutput|Serializable", BATCH,
        ("        return codec.fresh() if value == b\"null\" else codec.decode(value, self._schema)\n", "        if value not in SHARED:\n            SHARED[value] = codec.fresh() if value == b\"null\" else codec.decode(value, self._schema)\n        return SHARED[value]\n"),
        ("async def never_durable", "SHARED: dict[bytes, Any] = {}\n\n\nasync def never_durable"),
        amounts=(5, 3), workers=2,
    ),
    mutant(
        "the warm cache keeps what has lost", "partition", "Progress", "outbox/runtime/commit/loaded_states.py",
        ("        self.cache.forget(state_id)\n", "        if isinstance(end, Later):\n            self.cache.forget(state_id)\n"),
        amounts=(5, 3), warm=True, faults={"lost": 1}, live=True,
    ),
    mutant(
        "keys without the handler's name", "partition", "EveryMessageEnds", "outbox/lineage.py",
        ('    return b"inbox1" + field(app) + field(handler) + field(state_type)\n', '    return b"inbox1" + field(app) + field("")\n'),
        app="twofold",
    ),
    mutant(
        "a stateless record in the partition of its attempt", "partition", "NoDuplicate", PARTITION,
        ("        key, body = record_key(state_id, work.inbox), stored", "        key, body = record_key(state_id or record.tx, work.inbox), stored"),
        app="stateless", copies=2,
    ),
    # Item scope
    mutant(
        "the staged record goes after an ambiguous failure", "item", "StagedVanish|NoLost|NoAlarm", ITEM,
        ("            if found.item.pointer == batch.tx:\n                return found\n", "            gone = await read(self._infrastructure, staged_key(state_id, batch.tx))\n            await self.orphans.delete(gone.key, gone.version, batch.tx) if gone else None\n            if found.item.pointer == batch.tx:\n                return found\n"),
        faults={"delay": 1}, staged=True,
    ),
    mutant(
        "the staged record goes when the swap loses and a client re-sends", "item", "StagedVanish|NoLost|NoAlarm", ITEM,
        ("        if isinstance(answer, Lost):\n            raise NothingCommitted\n        return CachedState(item", "        if isinstance(answer, Lost):\n            gone = await read(self._infrastructure, staged_key(state_id, batch.tx))\n            await self.orphans.delete(gone.key, gone.version, batch.tx) if gone else None\n            raise NothingCommitted\n        return CachedState(item"),
        ("            answer = await write_one(self._states, write)\n        except OutcomeUnknown as error:\n            found", "            try:\n                answer = await write_one(self._states, write)\n            except OutcomeUnknown:\n                answer = await write_one(self._states, write)\n        except OutcomeUnknown as error:\n            found"),
        faults={"lost": 1}, staged=True,
    ),
    mutant(
        "a staged record goes by an opaque version", "item", "StagedVanish|NoLost|NoAlarm", ITEM,
        ("            found = cached_state(await read(self._states, key))\n            if found.item.pointer == batch.tx:\n                return found\n", "            found = cached_state(await read(self._states, key))\n            if found.item.pointer == batch.tx:\n                return found\n            if found.version != batch.loaded.version:\n                gone = await read(self._infrastructure, staged_key(state_id, batch.tx))\n                await self.orphans.delete(gone.key, gone.version, batch.tx) if gone else None\n"),
        amounts=(5, 3), faults={"lost": 1, "stale": 1}, workers=2, staged=True,
    ),
    mutant(
        "a staged record has a time to live", "item", "NoAlarm|NoLost|StagedVanish", ITEM,
        ('Create(key, stored.encode(staged), None, Tag("stage"', 'Create(key, stored.encode(staged), self._plan.record_life_ms / 1_000, Tag("stage"'),
        faults={"crash": 1, "jump": 1}, copies=2, workers=2, staged=True,
    ),
    mutant(
        "a redo clears the pointer of a missing record", "item", "StagedVanish|NoLost", ITEM,
        ("                await self._confirm(state_id, state)\n", "                item = msgspec.structs.replace(state.item, pending=\"\")\n                answer = await write_one(self._states, Replace(state_key(state_id), stored.encode(item), state.version))\n                if isinstance(answer, Lost):\n                    raise NothingCommitted\n                return CachedState(item, answer.versions[0], answer.session)\n"),
        ('Create(key, stored.encode(staged), None, Tag("stage"', 'Create(key, stored.encode(staged), self._plan.record_life_ms / 1_000, Tag("stage"'),
        faults={"crash": 1, "jump": 1}, copies=2, workers=2, staged=True,
    ),
    mutant(
        "a missing staged record is confirmed by a read", "item", "NoAlarm", ITEM,
        ("                await self._confirm(state_id, state)\n", "                state = cached_state(await read(self._states, state_key(state_id), state.session))\n                if state.item.pointer != tx:\n                    raise NothingCommitted\n"),
        copies=2, workers=2, faults={"stale": 1}, staged=True,
    ),
    mutant(
        "the staged record goes before the pointer", "item", "NoAlarm|StagedVanish", ITEM,
        ("        tx = state.item.pointer\n        item = msgspec.structs.replace(state.item, pending=\"\", token=token)\n", "        tx = state.item.pointer\n        await self.orphans.delete(staged_key(state_id, tx), found.version, tx)\n        item = msgspec.structs.replace(state.item, pending=\"\", token=token)\n"),
        faults={"crash": 1}, staged=True,
    ),
    mutant(
        "the sweeper starts from staged records", "item", "NoGhost", ITEM,
        ("                return await self.orphans.redo(document)\n", "                await self._settlement.push(stored.decode(document, Staged).record.outputs)\n                return True\n"),
        sweepers=1, faults={"crash": 1}, staged=True,
    ),
    mutant(
        "no marker is read", "item", "NoDuplicate", ITEM,
        ("            await self._decide(attempt, state_id, loaded.state.item.token)  # 3\n", ""),
        copies=2,
    ),
    mutant(
        "markers are read without their session", "item", "NoDuplicate", ITEM,
        ("            await self._decide(attempt, state_id, loaded.state.item.token)  # 3\n", "            await self._decide(attempt, state_id, \"\")  # 3\n"),
        copies=2, workers=2, faults={"stale": 2},
    ),
    mutant(
        "the pointer is cleared before what is staged leaves", "item", "NoLost|NoGhost|StagedVanish", ITEM,
        ("            await self._push_staged(tx, found)  # 7\n            token = await self._mark(state_id, staged.inbox, staged.record)  # 8\n            found = await self._mark_dispatched(tx, found)\n        return await self._clear(state_id, state, found, token)  # 9\n", "            token = await self._mark(state_id, staged.inbox, staged.record)  # 8\n            state = await self._clear(state_id, state, found, token)  # 9\n            await self._push_staged(tx, found)  # 7\n            return state\n        return await self._clear(state_id, state, found, token)\n"),
        faults={"crash": 1}, staged=True,
    ),
    mutant(
        "cleared without a marker", "item", "NoDuplicate", ITEM,
        ("            token = await self._mark(state_id, staged.inbox, staged.record)  # 8\n", "            token = found.session\n"),
        copies=2, staged=True,
    ),
    mutant(
        "a blind swap at version 0", "item", "NoLost|OneChangePerETag|ConsistentOutput", ITEM,
        ("        write = Replace(key, body, etag, None, tag) if etag else Create(key, body, None, tag)\n        self.cache.forget(state_id)\n        try:\n            answer = await write_one(self._states, write)\n", "        fresh = await read(self._states, key)\n        write = Replace(key, body, fresh.version, None, tag) if fresh else Create(key, body, None, tag)\n        try:\n            answer = await write_one(self._states, write)\n"),
        amounts=(5, 3), workers=2, given=None,
    ),
    mutant(
        "a deleted state is deleted for good", "item", "NoDuplicate|OneChangePerETag|Serializable", ITEM,
        ("        self.cache.remember(state_id, state)\n        await self.orphans.delete(staged_key", "        if item.is_tombstone:\n            from outbox.ports import Delete\n            await self._states.write([Delete(state_key(state_id), state.version)])\n        await self.orphans.delete(staged_key"),
        app="ending", amounts=(5, -1), given=None, copies=(2, 1), workers=2, staged=True,
    ),
    mutant(
        "pushed before the swap", "item", "NoGhost", ITEM,
        ("            swapped = await self._commit(attempt, state_id, batch, item)  # 6\n", "            await self._settlement.push(batch.entries[0].record.outputs)\n            swapped = await self._commit(attempt, state_id, batch, item)  # 6\n"),
    ),
    # Engine scope
    mutant(
        "engine: no marker", "engine", "NoDuplicate", PLAIN,
        ("        if remembered:\n            markers[work.inbox]", "        if False:\n            markers[work.inbox]"),
        copies=2,
    ),
    mutant(
        "engine: states are not conditional", "engine", "OneChangePerETag|Serializable", PLAIN,
        ("        if_versions[id] = 0 if loaded is None else loaded.version\n", ""),
        amounts=(5, 3), workers=2,
    ),
    mutant(
        "engine: the state of a handler that fails is kept", "engine", "Serializable|OneChangePerETag|NoGhost", PLAIN,
        ("            return index, (attempt := attempt_at(work)), failed(plan, group, attempt, error)\n", "            if codec is not None and id is not None:\n                states[id] = StateChange(codec.codec.encode(state), codec.version, 9)\n            return index, (attempt := attempt_at(work)), failed(plan, group, attempt, error)\n"),
        amounts=(-11,),
    ),
    mutant(
        "engine: a refusal is not conditional", "engine", "Serializable|OneChangePerETag|NoDuplicate", GROUP,
        ("            self.commit.if_versions[id] = 0 if loaded is None else loaded.version\n        fingerprint = with_replaced(", "            pass\n        fingerprint = with_replaced("),
        amounts=(-11, 5), workers=2,
    ),
    mutant(
        "engine: a refusal leaves no record", "engine", "NothingLeavesEarly", GROUP,
        ("        self._mark(work, Refusal(fingerprint, poison.reason, poison.description, work.delivery.message.attempt))\n", "        self.markers.get(fingerprint)\n"),
        amounts=(-11,), copies=2,
    ),
    *GUARD_MUTANTS,
    *INLINE_MUTANTS,
    *LEDGER_MUTANTS,
    *REQUEST_MUTANTS,
    *OVERFLOW_MUTANTS,
    *RESUBMISSION_MUTANTS,
    *EDIT_MUTANTS,
    *DISCARD_MUTANTS,
    *SETTLING_MUTANTS,
    *STREAM_MUTANTS,
    *PIPELINE_MUTANTS,
    *TRIGGER_MUTANTS,
    *VERDICT_MUTANTS,
    *RULE_MUTANTS,
    # The engine, against the models that explorations run on
    mutant(
        "journal: a lost lock commits", "journal", "Differs", JOURNAL,
        ("            if task is None or task.lock != delivery.lock or task.status != LOCKED:\n", "            if task is None:\n"),
    ),
    mutant(
        "journal: a state that has moved commits", "journal", "Differs", JOURNAL,
        ("                moved.append(id)\n", "                moved.clear()\n"),
    ),
    mutant(
        "journal: a marker that is there is written over", "journal", "Differs", JOURNAL,
        ("        return [key for key in keys if not _may_replace(markers[key], replacing.get(key))]\n", "        return []\n"),
    ),
    mutant(
        "journal: a resubmission of the same attempt replaces", "journal", "Differs", JOURNAL,
        ("attempt is not None and marker.attempt < attempt\n", "attempt is not None and marker.attempt <= attempt\n"),
    ),
    mutant(
        "journal: what is consumed stays", "journal", "Differs", STATE,
        ("        for number, sequences in record.consumed.items():\n", "        for number, sequences in ():\n"),
    ),
    mutant(
        "journal: a failure is not counted", "journal", "Differs", STATE,
        ("        task.failures, task.due_ms, task.lock, task.version = postponed.failures, postponed.due_ms, 0, version\n", "        task.due_ms, task.lock, task.version = postponed.due_ms, 0, version\n"),
    ),
    mutant(
        "store: a condition is not checked", "store", "Differs", ENGINE_STORE,
        ("        for index, operation in enumerate(operations):\n            namespace", "        operations = [\n            op if isinstance(op, Create) or (there := self._read(op.key)) is None else replace(op, if_match=there.version)\n            for op in operations\n        ]\n        for index, operation in enumerate(operations):\n            namespace"),
    ),
    mutant(
        "store: a create writes over", "store", "Differs", ENGINE_STORE,
        ("            if wanted != str(version) or (", "            if (wanted != str(version) and not isinstance(operation, Create)) or ("),
    ),
    mutant(
        "store: nothing ever expires", "store", "Differs", ENGINE_STORE,
        ("        expires_ms = 0 if operation.ttl_s is None else self._core.now_ms() + round(operation.ttl_s * 1_000)\n", "        expires_ms = 0\n"),
    ),
    mutant(
        "store: the operation that lost is always the first", "store", "Differs", ENGINE_STORE,
        ("                return Lost(index, None if", "                return Lost(0, None if"),
    ),
    mutant(
        "bus: a lost lock settles", "bus", "Differs", "outbox/engine/broker.py",
        ("            if task is not None and held and task.locked_until_ms > self._core.now_ms():\n", "            if task is not None:\n"),
    ),
    mutant(
        "bus: what is rescheduled comes at once", "bus", "Differs", ENGINE_BUS,
        ("delivery.sequence, settle.due_ms, count, why)", "delivery.sequence, 0, count, why)"),
    ),
)  # fmt: skip

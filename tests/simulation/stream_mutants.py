"""Faults in ordered logs and processors that exploring finds; `app` names a scope of `streamed`."""

from __future__ import annotations

from tests.simulation.planting import mutant

CELLS = "outbox/streams/cells.py"
DATABASE = "outbox/streams/database.py"
FAILURES = "outbox/streams/failures.py"
HORIZON = "outbox/streams/horizon.py"
INGEST = "outbox/streams/ingest.py"
LAST_CELL = "outbox/streams/register.py"
PLAN = "outbox/streams/plan.py"
READ_AHEAD = "outbox/streams/read_ahead.py"
QUEUES = "outbox/streams/plan.py"
REGISTER = "outbox/streams/register.py"
REPLICA = "outbox/streams/replica.py"
ROW = "outbox/streams/row.py"
SINKS = "outbox/streams/sinks.py"
VALUES = "outbox/streams/values.py"

STREAM_MUTANTS = (
    mutant(
        "an append begins at the end and not where it may lie", "log", "OnePlace", PLAN,
        ("await self.row.place_cell(cell, since, until_ms=until_ms)", "await self.row.place_cell(cell, await self.row.cells.find_end(since), until_ms=until_ms)"),
        app="replicas", inputs=[1], faults={},
    ),
    mutant(
        "an append moves on where its cell is not found", "log", "NoHole", CELLS,
        ("                misses += is_looked_for\n", "                index += is_looked_for\n"),
        app="produced", faults={"delay": 1},
    ),
    mutant(
        "an append without an answer tries the next cell", "log", "OnePlace|NoHole", CELLS,
        ("                is_looked_for = True  # taken", "                index += not session\n                is_looked_for = True  # taken"),
        app="produced", faults={"lost": 1},
    ),
    mutant(
        "cells are known by their entries", "log", "NoLost", CELLS,
        ("            elif there.id == cell.id:", "            elif there.v == cell.v:"),
        app="alike", replicas=1, faults={},
    ),
    mutant(
        "an identity without its serial", "log", "NoLost|OnePlace", REPLICA,
        ("step_id(self.plan.name, register.serial, out.to)", "step_id(self.plan.name, 1, out.to)"),
        app="replicas", inputs=[1, 2], replicas=1, batch_max=1, faults={},
    ),
    mutant(
        "an identity without its processor", "log", "NoLost|NoGhost|OnePlace", REPLICA,
        ("step_id(self.plan.name, register.serial, out.to)", 'step_id("", register.serial, out.to)'),
        app="alike", replicas=1, faults={},
    ),
    mutant(
        "the register is swapped before what it held is appended", "log", "NoLost", REPLICA,
        ("        since = await self._write(register)\n", "        since = dict(register.since)\n"),
        ("        self._known_ms, self.won_count = swapped_ms, self.won_count + 1\n", "        self._known_ms, self.won_count = swapped_ms, self.won_count + 1\n        await self._write(register)\n"),
        app="replicas", inputs=[1], replicas=1, faults={},
    ),
    mutant(
        "where to look for what was emitted is kept in memory", "log", "OnePlace", REPLICA,
        ("                since=register.since[out.to],\n", "                since=max(register.since[out.to], self._target_rows()[out.to].cells.end),\n"),
        app="replicas", inputs=[1], warm=True, faults={"error": 1},
    ),
    mutant(
        "a lost swap counts as won", "log", "NoGhost|OnePlace|NoLost", REGISTER,
        ("        return Kept(made, answer.versions[0]) if isinstance(answer, Won) else None", '        return Kept(made, answer.versions[0] if isinstance(answer, Won) else "")'),
        app="produced", warm=True, faults={},
    ),
    mutant(
        "a swap without an answer counts as won", "log", "NoGhost", REGISTER,
        ("            return await self.mine(made)", '            return Kept(made, "")'),
        app="replicas", inputs=[1], warm=True, faults={"delay": 1},
    ),
    mutant(
        "a register that another has created is written over", "log", "Monotone", REGISTER,
        ("        return Kept(made, answer.versions[0]) if isinstance(answer, Won) else None", "        if known is None and not isinstance(answer, Won):\n            there = await self.read()\n            assert there is not None\n            answer = await self.store.write([put(self.key, made, there.version, Tag(\"register\"))])\n        return Kept(made, answer.versions[0]) if isinstance(answer, Won) else None"),
        app="replicas", inputs=[1], began=False, faults={},
    ),
    mutant(
        "the rest of a cell is passed over", "log", "ConsistentOutput", READ_AHEAD,
        ("            at = Position(at.index, offset) if offset < cell.count else Position(at.index + 1)\n", "            at = Position(at.index + 1)\n"),
        app="in one cell", replicas=1, faults={},
    ),
    mutant(
        "a step without input", "log", "ConsistentOutput", REPLICA,
        ("        if not any(ready.entries.values()) and not 0 < register.wake <= now_ms:\n", "        if not any(ready.entries.values()) and register.outs and not 0 < register.wake <= now_ms:\n"),
        app="produced", faults={},
    ),
    mutant(
        "cells are deleted and not buried", "log", "NoHole|OnePlace", CELLS,
        ('                Replace(document.key, tombstone_of(cell), document.version, ttl_s, Tag("bury", (), cell.id))\n', '                Delete(document.key, document.version, Tag("bury", (), cell.id))\n'),
        ("from outbox.ports import Create, Document,", "from outbox.ports import Create, Delete, Document,"),
        app="trimmed", keeps=False, faults={},
    ),
    mutant(
        "a trim waits for readers only", "log", "Kept", HORIZON,
        ("        return min([end, *self.readers.values(), *self.writers.values()])", "        return min([end, *self.readers.values()])"),
        app="trimmed", replicas=1, reader=True, faults={},
    ),
    mutant(
        "a trim passes who has registered meanwhile", "log", "Kept", HORIZON,
        ("                lambda floor: _raised(floor, min(upto, floor.horizon(end))) if", "                lambda floor: _raised(floor, upto) if"),
        app="registering", faults={},
    ),
    mutant(
        "a trim takes what no reader has registered for", "log", "Kept", HORIZON,
        ("        if upto > known.index and (by_age or known.readers):\n", "        if upto > known.index:\n"),
        (" if by_age or floor.readers else floor\n", "\n"),
        app="first reader", faults={},
    ),
    mutant(
        "a reader begins where the floor was", "log", "AttemptEnds", ROW,
        ("        await self.opened()\n        return self.horizon.index  #", "        return (await self.opened()).index  #"),
        app="registering", faults={"stale": 1},
    ),
    mutant(
        "a trim takes what a reader that left had not read", "log", "Kept", HORIZON,
        (" if by_age or floor.readers else floor\n", "\n"),
        app="leaving", faults={},
    ),
    mutant(
        "an append has no deadline", "log", "NoHole|OnePlace", CELLS,
        ("        if self._now_ms() >= until_ms:\n", "        if self._now_ms() >= until_ms + (1 << 50):\n"),
        app="trimmed", keeps=False, faults={"jump": 1},
    ),
    mutant(
        "a hint behind the end", "log", "NoHole|NoLeftover", CELLS,
        ("put(DocumentKey(self.row, HINT), Hint(self.end), version", "put(DocumentKey(self.row, HINT), Hint(self.end + 1), version"),
        app="small", of="repeated", faults={},
    ),
    mutant(
        "an append that took long lies where it lies", "log", "NoLost", ROW,
        ("        is_late = self.place.now_ms() >= until_ms and not found.cell.gone\n", "        is_late = False\n"),
        app="paused", faults={"jump": 1},
    ),
    mutant(
        "messages are completed before they are committed", "log", "NoLost", INGEST,
        ("            try:\n                outcomes = await self._commit(group)\n", "            await together([self._settlement.settle(attempt_at(work), None) for work in group])\n            try:\n                outcomes = await self._commit(group)\n"),
        app="ingested", messages=1, faults={"crash": 1},
    ),
    mutant(
        "messages are committed over another register than was appended", "log", "NoLost|Monotone", INGEST,
        ("            since = await self._append(known.register)\n", "            since = await self._append((await self._read()).register)\n"),
        app="ingested", processes=2, faults={"stale": 1},
    ),
    mutant(
        "messages leave no record", "log", "NoDuplicate", INGEST,
        ("            answer = await self._store.write([*records, write])\n", "            answer = await self._store.write([write])\n"),
        app="ingested", messages=1, copies=2, faults={},
    ),
    mutant(
        "a commit before what the last one held is appended", "log", "NoLost", INGEST,
        ("            since = await self._append(known.register)\n", "            since = dict(known.register.since)\n"),
        app="ingested", processes=2, faults={},
    ),
    mutant(
        "what a copy was committed with is left unappended", "log", "NoLost", INGEST,
        ("            known = await self._fresh()  # what a copy's record was committed with may not be appended yet\n            settling = [self._settlement.settle(attempt_at(work), outcome) for work, outcome in outcomes]\n            await together([*settling, self._append_known(known)])\n", "            settling = [self._settlement.settle(attempt_at(work), outcome) for work, outcome in outcomes]\n            await together(settling)\n            if self.known is not None:\n                await self._append(self.known.register)\n"),
        app="ingested", copies=2, faults={"delay": 1},
    ),
    mutant(
        "a sink's cursor moves by itself", "sink", "EffectOnce", DATABASE,
        ("            self._take_effect(connection, to, entries)\n", "            connection.commit()\n            return True\n            self._take_effect(connection, to, entries)\n"),
        app="database", faults={},
    ),
    mutant(
        "entries are applied whatever the cursor says", "sink", "EffectOnce", DATABASE,
        ("            if moved.rowcount != 1:\n", "            if moved.rowcount > 1:\n"),
        ("            if last is not None and known.last is None:\n", "            if last is None:\n"),
        app="database", faults={},
    ),
    mutant(
        "a sink moves past a cell that is not there", "sink", "EffectOnce", SINKS,
        ("        if not entries:\n            self.reached = after.at\n            return Progress.IDLE\n        if not await self._database", "        if not entries:\n            await self._database.applied(known, Cursor(Position(known.at.index + 1)), [])\n            self.reached = after.at\n            return Progress.IDLE\n        if not await self._database"),
        app="database", faults={},
    ),
    mutant(
        "a sink that begins at once with another begins where it likes", "sink", "EffectOnce", DATABASE,
        ("VALUES (?, ?, ?)\"", "VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET cell = excluded.cell, entry = excluded.entry\""),
        app="database", began=False, appended=(), faults={},
    ),
    mutant(
        "a sink's cursor is at the beginning of a cell", "sink", "EffectOnce", SINKS,
        ("        if not await self._database.applied(known, after, entries):\n", "        if not await self._database.applied(known, Cursor(Position(after.at.index), after.last), entries):\n"),
        app="database", given=[(1, 2)], appended=(), faults={},
    ),
    mutant(
        "a sink's cursor passes the rest of a cell", "sink", "EffectOnce", SINKS,
        ("        return entries, Cursor(after, last_of(", "        return entries, Cursor(Position(after.index + (after.offset > 0)), last_of("),
        app="documents", given=[(1, 2)], appended=(), faults={},
    ),
    mutant(
        "a sink that reads on keeps the cursor of its first read", "sink", "EffectOnce", SINKS,
        ("            more, after = await self._ahead.entries(", "            more, _ = await self._ahead.entries("),
        app="documents", given=[(1, 2), (3, 4, 5)], appended=(), batch_max=4, faults={},
    ),
    mutant(
        "documents are written before their cursor", "sink", "EffectOnce", SINKS,
        ('        answer = await self._store.write([put(self.key, after, version, Tag("sink")), *writes])\n', '        await self._store.write(writes)\n        answer = await self._store.write([put(self.key, after, version, Tag("sink"))])\n'),
        app="documents", faults={},
    ),
    mutant(
        "documents are written whatever the cursor says", "sink", "EffectOnce", SINKS,
        ('        answer = await self._store.write([put(self.key, after, version, Tag("sink")), *writes])\n', '        now = await self._store.read(self.key)\n        answer = await self._store.write([put(self.key, after, now.version if now else "", Tag("sink")), *writes])\n'),
        app="documents", faults={"stale": 1},
    ),
    mutant(
        "messages of a step under one identity", "log", "NoGhost|NoLost", QUEUES,
        ('            outbox_id=f"{id}-{offset}",\n', '            outbox_id=f"{id}-0",\n'),
        app="to a queue", replicas=1, faults={},
    ),
    mutant(
        "the next step before the messages of one are sent", "log", "NoLost", REPLICA,
        ("            for id, out in zip(ids, register.outs, strict=True)\n        ]\n        ends = await together(calls)\n", "            for id, out in zip(ids, register.outs, strict=True)\n            if isinstance(self._targets[out.to], RowTarget)\n        ]\n        ends = await together(calls)\n"),
        ("zip(register.outs, ends, strict=True)", "zip([out for out in register.outs if isinstance(self._targets[out.to], RowTarget)], ends, strict=True)"),
        ("        self._written = lasts_at(rows, register.outs, ids, ends)\n", ""),
        app="to a queue", faults={},
    ),
    mutant(
        "a cell before the blob that it names", "log", "NoLost", VALUES,
        ("    await blobs.write(name, data)  # one of this name holds these bytes\n", ""),
        app="overflowing", faults={},
    ),
    mutant(
        "a blob is named by the id of its entry", "log", "OneOwner", ROW,
        ('owner=f"{made.id}/{nonce}"', "owner=made.id"),
        app="repeated", faults={},
    ),
    mutant(
        "a blob stays though another's cell has the id", "log", "NoLeftover", ROW,
        ("        await self.discard_unless_named(cell, found)\n        return index", "        return index"),
        app="repeated", faults={},
    ),
    mutant(
        "a slow replica writes the blob of a trimmed cell", "log", "NoLeftover", PLAN,
        ("        await self.row.discard_unless_named(cell, found)\n", ""),
        app="trimmed blobs", faults={},
    ),
    mutant(
        "a blob is deleted before its cell is trimmed", "log", "OneOwner", HORIZON,
        ("        buried = await self._cells.bury(range(known.cleared, known.index), ttl_s=tombstone_s)\n        for cell in buried:\n            if cell.blob:\n                await drop(cell.blob)\n", "        for index in range(known.cleared, known.index):\n            cell = await self._cells.read(index)\n            if cell is not None and cell.blob:\n                await drop(cell.blob)\n        buried = await self._cells.bury(range(known.cleared, known.index), ttl_s=tombstone_s)\n"),
        app="repeated", faults={},
    ),
    mutant(
        "a trim leaves its blobs", "log", "NoLeftover", HORIZON,
        ("            if cell.blob:\n                await drop(cell.blob)\n", "            pass\n"),
        app="repeated", faults={},
    ),
    mutant(
        "a trim leaves a cell that a stale read does not show", "log", "NoLeftover", CELLS,
        ("                if document is None\n", "                if document is None and not ttl_s\n"),
        app="repeated", faults={"stale": 1},
    ),
    mutant(
        "a replica that another has overtaken stops", "log", "AttemptEnds", REPLICA,
        ("            if known is None or await self.register.is_current(known):\n", "            if True:\n"),
        app="resting", faults={},
    ),
    mutant(
        "a stale read says that nobody has gone on", "log", "AttemptEnds", CELLS,
        ("    return isinstance(answer, Won)\n\n\ndef tombstone_of", "    return True\n\n\ndef tombstone_of"),
        app="resting", faults={"stale": 1},
    ),
    mutant(
        "a last cell that is not to be seen is that of another log", "log", "AttemptEnds", LAST_CELL,
        ("        raise row.ends_before(last.index + 1, what)\n", "        raise OtherLog(what)\n"),
        app="in one cell", upkeep=True, faults={"stale": 1},
    ),
    mutant(
        "a tombstone that was put where another had expired is another cell", "log", "AttemptEnds", LAST_CELL,
        ("    if cell is not None and cell.id and (", "    if cell is not None and ("),
        app="resting", upkeep=True, faults={"lost": 1, "jump": 1},
    ),
    mutant(
        "the last cell that was written is where it was looked for", "log", "AttemptEnds", REPLICA,
        ("lasts_at(rows, register.outs, ids, ends)", "lasts_at(rows, register.outs, ids, [register.since[out.to] + 1 for out in register.outs])"),
        app="alike", replicas=1, upkeep=True, faults={},
    ),
    mutant(
        "a sink that another has overtaken stops", "sink", "AttemptEnds", SINKS,
        ("            if await self._database.cursor() == known:\n", "            if True:\n"),
        app="database", given=[1], appended=[], trims=True, faults={},
    ),
    mutant(
        "a sink into documents that another has overtaken stops", "sink", "AttemptEnds", SINKS,
        ("            if await self._is_current(known.at, version):\n", "            if True:\n"),
        app="documents", given=[1], appended=[], trims=True, faults={},
    ),
    mutant(
        "a sink that another was before at the beginning stops", "sink", "AttemptEnds", SINKS,
        ("            return isinstance(await self._store.write([put(self.key, Cursor(at), \"\", Tag(\"sink\"))]), Won)\n", "            return True\n"),
        app="documents", given=[1], appended=[], began=False, trims=True, faults={},
    ),
    mutant(
        "a failure counts for what did not fail alone", "log", "Invariant", FAILURES,
        ("    elif count == 1 and (not is_due or failed.timer):\n        (alone,) = reached\n", "    else:\n        alone = next(iter(reached))\n"),
        app="failing", busy=[9], given=[-2], traffic=[], replicas=1, faults={},
    ),
    mutant(
        "how far a failed step had read is not kept", "log", "Bounded", FAILURES,
        ("        failed = Failed(until=reached)\n", "        failed = Failed(until=dict.fromkeys(ready.cursors, Position(1 << 40)))\n"),
        app="failing", replicas=1, faults={},
    ),
    mutant(
        "a success of something else counts a failure anew", "log", "Invariant", FAILURES,
        ("        if (not is_timer if key == TIMER else before.cursors.get(key) == ready.cursors.get(key))\n", "        if not ready\n"),
        app="alarmed", replicas=1, faults={},
    ),
    mutant(
        "a timer's failure counts for the entry beside it", "log", "Invariant", FAILURES,
        ("    elif count == 1 and (not is_due or failed.timer):\n", "    elif count == 1:\n"),
        app="failing alarm once", replicas=1, faults={},
    ),
    mutant(
        "of two timers of a step the one that was asked for last", "log", "EveryTimer", PLAN,
        ("        self.wake_ms = ms if not self.wake_ms else min(self.wake_ms, ms)\n", "        self.wake_ms = max(self.wake_ms, ms)\n"),
        app="two timers", replicas=1, faults={},
    ),
    mutant(
        "a step forgets the timer that has not come", "log", "EveryTimer", REPLICA,
        ("        wake = register.wake if register.wake > now_ms else 0\n", "        wake = 0\n"),
        app="two timers", replicas=1, faults={},
    ),
    mutant(
        "a timer that is asked for puts an earlier one off", "log", "EveryTimer", REPLICA,
        ("            wake=min(wake, step.wake_ms) if wake and step.wake_ms else wake or step.wake_ms,\n", "            wake=step.wake_ms or wake,\n"),
        app="two timers", replicas=1, faults={},
    ),
    mutant(
        "an entry counts the failures of a timer", "log", "Invariant", FAILURES,
        ("    return is_due(register, now_ms) and not failed.timer\n", "    return False\n"),
        ("    elif count == 1 and (not is_due or failed.timer):\n", "    elif count == 1:\n"),
        app="failing alarm", replicas=1, faults={},
    ),
)  # fmt: skip

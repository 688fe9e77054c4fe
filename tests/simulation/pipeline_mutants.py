"""Faults in pipelines that exploring finds; `app` is unused, the pages and replicas are options of `piped.explored`."""

from __future__ import annotations

from tests.simulation.planting import mutant

BARRIER = "outbox/streams/pipeline/barrier.py"
CORES = "outbox/streams/pipeline/cores.py"
EVENT_TIME = "outbox/streams/pipeline/event_time.py"
CHECKPOINT = "outbox/streams/pipeline/checkpoint.py"
STATES = "outbox/streams/pipeline/states.py"
STATE_FIELDS = "outbox/streams/pipeline/state_fields.py"
REPLICA = "outbox/streams/pipeline/replica.py"
LINEAGE = "outbox/lineage.py"

PIPELINE_MUTANTS = (
    mutant(
        "pipeline: a create walks past another's bundle", "pipeline", "NoHole|ConsistentOutput|AttemptEnds", REPLICA,
        ("    raise _Passed(index, cell)\n", "    return None\n"),
        pages=("a", "a"), checkpoint_every=0,
    ),
    mutant(
        "pipeline: another's bundle counts as one's own", "pipeline", "NoHole|NoLost|AttemptEnds", REPLICA,
        ("                return other.index, other.cell\n", "                return other.index, bundle\n"),
        pages=("a", "b"), checkpoint_every=0,
    ),
    mutant(
        "pipeline: a bundle's identity without the version", "pipeline", "Monotone|ConsistentOutput|AttemptEnds", LINEAGE,
        ("    fields: tuple[Key, ...] = (pipeline, version, graph, sink, *places)\n", "    fields: tuple[Key, ...] = (pipeline, 1, \"\", sink, *places)\n"),
        pages=("a",), versions=(1, 2),
    ),
    mutant(
        "pipeline: a checkpoint does not wait for what lies below it to have left", "pipeline", "NoLost", REPLICA,
        ("        await self._until((lambda: self._made) if waits else (lambda: self.released), until)\n", ""),
        pages=("a",), replicas=1, beside=True,
    ),
    mutant(
        "pipeline: a chain is taken to begin where the checkpoint is", "pipeline", "NoHole|AttemptEnds", BARRIER,
        ("        return Chain(index, begin, sum(count for made_at, count in self._counts if made_at < at))\n", "        return Chain(index, at, 0)\n"),
        pages=("a", "b", "a"), seldom=True, replicas=1, faults={"crash": 1},
    ),
    mutant(
        "pipeline: what lies in a bundle below the checkpoint is made again", "pipeline", "AttemptEnds|ConsistentOutput", BARRIER,
        ("        self._below = chain.below\n", "        self._below = 0\n"),
        pages=("a", "b"), faults={"crash": 1},
    ),
    mutant(
        "pipeline: how many items lie below a checkpoint is counted by what an older version released", "pipeline", "AttemptEnds", BARRIER,
        ("        while self._counts and self._counts[0][0] < begin:\n            self._counts.popleft()\n", ""),
        pages=("a", "b"), versions=(1, 2), faults={"crash": 1},
    ),
    mutant(
        "pipeline: changes count as saved when their part is written", "pipeline", "Recoverable", STATES,
        ("        return self._saved\n", "        self._taken = {}\n        return self._saved\n"),
        pages=("a", "b", "a"), sizes=(2, 1),
    ),
    mutant(
        "pipeline: a checkpoint takes the place of one that another replica has made meanwhile", "pipeline", "Monotone|Recoverable|NoLost", REPLICA,
        ("            found = await self.register.read() if swapped is None else None\n            if found is None or not found.register.confirms(known.register):\n", "            found = await self.register.read() if swapped is None else None\n            if found is None:\n"),
        pages=("a", "b"), sizes=(1, 2),
    ),
    mutant(
        "pipeline: members count as saved when they are saved", "pipeline", "Recoverable", STATES,
        ("            self._marked[key] = [(self._at, marked)]\n", "            pass\n"),
        pages=("a", "b", "a"), members=True, replicas=1, faults={"error": 1},
    ),
    mutant(
        "pipeline: a box counts as saved as a whole when it is saved", "pipeline", "Recoverable|AttemptEnds", STATE_FIELDS,
        ("                members = {**each[len(marked)], **members}\n", "                members = {**{one: None for one in each[len(marked)] if one is not WHOLE}, **members}\n"),
        pages=("a", "b"), members=True, replicas=1, faults={"lost": 1},
    ),
    mutant(
        "pipeline: of a state in a part that is written anew only what changed is kept", "pipeline", "Recoverable", CHECKPOINT,
        ("            states[key] = applied(states[key], found)\n", "            rest[key] = combined(found)\n            del states[key]\n"),
        pages=("a", "b"), members=True, replicas=1,
    ),
    mutant(
        "pipeline: an older checkpoint takes the place of a later one", "pipeline", "Monotone", REPLICA,
        ("        if until <= stands.c:\n", "        if until < Position(0):\n"),
        pages=("a", "b", "a"), sizes=(1, 3),
    ),
    mutant(
        "pipeline: a newer version begins without a swap to it", "pipeline", "Monotone|AttemptEnds|ConsistentOutput", REPLICA,
        ("        before = (*found.before, (found.version, found.graph))\n", "        return found\n        before = ()\n"),
        pages=("a", "b"), versions=(1, 2, 2),
    ),
    mutant(
        "pipeline: an older version confirms the register of a newer one", "pipeline", "AttemptEnds", CHECKPOINT,
        ("        is_same = (self.version, self.graph, self.stands) == (earlier.version, earlier.graph, earlier.stands)\n", "        is_same = self.stands == earlier.stands\n"),
        pages=("a",), versions=(1, 2),
    ),
    mutant(
        "pipeline: what an older version released is compared", "pipeline", "AttemptEnds", BARRIER,
        ("            self._unowed = until\n", "            self._owed.extend(there.v)\n"),
        pages=("a",), versions=(1, 2), checkpoint_every=0,
    ),
    mutant(
        "pipeline: floors follow the checkpoint that stands, and not the oldest that is kept", "pipeline", "AttemptEnds", REPLICA,
        ("        oldest, source = register.oldest, self._source\n", "        oldest, source = register.stands, self._source\n"),
        pages=("a", "b"), sizes=(1,), trims=True,
    ),
    mutant(
        "pipeline: the floor of the source follows what was fed", "pipeline", "AttemptEnds", REPLICA,
        ("at=oldest.c.index, kind=source.kind", "at=self.at.index + 1, kind=source.kind"),
        pages=("a", "b", "a"), replicas=1, trims=True,
    ),
    mutant(
        "pipeline: a part that was written is not named", "pipeline", "Recoverable", REPLICA,
        ("        return [*kept, *[await self._written(part) for part in in_parts(lines)]]\n", "        return [*kept, *again]\n"),
        pages=("a",), replicas=1,
    ),
    mutant(
        "pipeline: the parts that are written anew are left out", "pipeline", "Recoverable", REPLICA,
        ("                found.setdefault(section.place, []).append(section)\n                await", "                await"),
        pages=("a", "b"), replicas=1,
    ),
    mutant(
        "pipeline: the source goes on from the position of the last entry that was fed by anybody", "pipeline", "NoLost|ConsistentOutput|AttemptEnds|Recoverable", REPLICA,
        ("        self.at, self.time_ms = checkpoint.c, checkpoint.time\n", "        self.at, self.time_ms = Position(await self._source.end()), checkpoint.time\n"),
        pages=("a",), replicas=1, faults={"crash": 1},
    ),
    mutant(
        "pipeline: a checkpoint does not wait for what is refused to have left", "pipeline", "NoLost", REPLICA,
        ("        return min(sink.barrier.released for sink in self.sinks.values())\n", "        return min(sink.barrier.released for name, sink in self.sinks.items() if name != \"refused\")\n"),
        pages=("a a",), refuses=True, replicas=1, beside=True,
    ),
    mutant(
        "pipeline: a checkpoint does not wait for what is late to have left", "pipeline", "NoLost", REPLICA,
        ("        return min(sink.barrier.released for sink in self.sinks.values())\n", "        return min(sink.barrier.released for name, sink in self.sinks.items() if name != \"late\")\n"),
        pages=("a1 b12 a2",), timed=True, replicas=1, beside=True,
    ),
    mutant(
        "pipeline: a bundle of refused entries is not taken over", "pipeline", "NoLost|NoHole", REPLICA,
        ("                sink.barrier.adopt(index, there)\n", "                sink.barrier.adopt(index, there) if sink.row.name[:11] != \"log/refused\" else sink.barrier._waiting.clear()\n"),
        pages=("a a", "a"), refuses=True, replicas=1,
    ),
    mutant(
        "pipeline: why an entry is refused depends on its frame", "pipeline", "ConsistentOutput|AttemptEnds", CORES,
        ("RefusedEntry(log.name, str(at), id, reason, value)", "RefusedEntry(log.name, str(at), id, f\"{reason} of {len(ids)}\", value)"),
        pages=("a", "a"), refuses=True, sizes=(2,), replicas=1,
    ),
    mutant(
        "pipeline: the time of a window's values is not in the checkpoint", "pipeline", "Recoverable", EVENT_TIME,
        ("            self.states.touch(NOW, ticks[-1][0])\n", ""),
        pages=("a1",), timed=True, replicas=1,
    ),
    mutant(
        "pipeline: a value is late by the time of its frame", "pipeline", "ConsistentOutput|AttemptEnds", EVENT_TIME,
        ("        for record in frame.records:\n            at, path, _, value = record\n", "        now_ms = max([now_ms, *[self._time_of(record[3]) for record in frame.records]])\n        for record in frame.records:\n            at, path, _, value = record\n"),
        pages=("a1", "b12"), timed=True, sizes=(2,), replicas=1,
    ),
    mutant(
        "pipeline: the next epoch's checkpoint stands before the outputs of the last lie in their chains", "pipeline", "NoLost", REPLICA,
        ("            await self.release()\n            is_new = await self._checkpoint()\n", "            is_new = await self._checkpoint()\n"),
        pages=("a", ""), releases=("by_epoch",), replicas=1, beside=True, faults={"error": 1},
    ),
    mutant(
        "pipeline: an epoch's outputs leave before its checkpoint stands", "pipeline", "Held", REPLICA,
        ("        return self.known.register.stands.c if self.plan.release.waits and", "        return self.known.register.stands.c if self.plan.release.claims and"),
        pages=("a",), releases=("by_epoch",), replicas=1,
    ),
    mutant(
        "pipeline: a checkpoint has no outputs of its epoch", "pipeline", "NoLost", REPLICA,
        ("if held and self.plan.release.holds else []\n", "if held and not self.plan.release.holds else []\n"),
        pages=("a",), releases=("by_epoch",), replicas=1,
    ),
    mutant(
        "pipeline: what a checkpoint holds is not released by who begins", "pipeline", "NoLost|NoHole|AttemptEnds", BARRIER,
        ("            if line.sink == names.sink:\n", "            if line.sink != names.sink:\n"),
        pages=("a", "b"), releases=("by_epoch",), replicas=1, faults={"crash": 1},
    ),
    mutant(
        "pipeline: an epoch's chain is noted as of its own checkpoint", "pipeline", "NoLost|NoHole|AttemptEnds|ConsistentOutput", REPLICA,
        ("        least = stands.c if waits else until ", "        least = until "),
        pages=("a", "b"), releases=("by_epoch",), replicas=1, faults={"crash": 1},
    ),
    mutant(
        "pipeline: an epoch's chain is noted as of the checkpoint before though others have gone on", "pipeline", "Recoverable", REPLICA,
        ("min(until, max(least, sink.barrier.begin))", "min(until, least)"),
        pages=("a", "b"), releases=("by_epoch", "in_order"), sizes=(1, 2),
    ),
    mutant(
        "pipeline: at most once, outputs leave before their checkpoint and are made again", "pipeline", "NoRepeat", REPLICA,
        ("        return self.known.register.stands.c if self.plan.release.waits and", "        return self.known.register.stands.c if self.plan.release.holds and"),
        pages=("a", "b"), releases=("at_most_once",), sizes=(2,), replicas=1, faults={"crash": 1},
    ),
    mutant(
        "pipeline: at most once, who loses a swap releases what the winner has passed", "pipeline", "NoRepeat", REPLICA,
        ("                sink.barrier.pass_by(found.register.stands.c, 0)\n", "                pass\n"),
        pages=("a", "b"), releases=("at_most_once",), sizes=(1, 2),
    ),
    mutant(
        "pipeline: at least once, a checkpoint does not wait for what lies below it to have left", "pipeline", "NoLost", REPLICA,
        ("        await self._until((lambda: self._made) if waits else (lambda: self.released), until)\n", ""),
        pages=("a",), releases=("at_least_once",), replicas=1, beside=True,
    ),
)  # fmt: skip

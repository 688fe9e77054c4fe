"""A document store as a model: versions that never repeat, batches in a partition or single items, time to live.

A version counts the writes of its document, deletions included, and is kept when the document goes: created anew it
has another one.  A store that may answer from the past keeps it: a read without a token, or with an old one, may answer
from any moment since then (a fault, `stale`).  The token of an answer names the document's version in it:
what carries it sees that version and all that was there before it.  So much a real token says at least, and it does
not depend on what others did meanwhile.  After the last such answer (`stale_count`) the past is dropped.

Documents whose ids begin with `private` are created once, under an id that is not known to others, and not again when
they are gone: creating one is independent of whatever others do, and of one that is gone nothing is kept.  So is a read
of partitions that begin with one of `settled`, into which no program writes.  In a store that `keeps` nothing is
deleted and nothing expires.
A sweeper looks `look_count` times without success: more than once where a stale answer may have misled it.  What is
younger than its `grace_ms` it leaves alone, so it looks when something is as old as that.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from outbox.ports import Create, Delete, Document, DocumentKey, Lost, Replace, Session, StoreCapabilities, Won, Write
from outbox.runtime.commit.sweeper import written_ms
from outbox.runtime.delivery.stored_dead_letters import LETTER, LETTERS
from outbox.verify.explorer.ops import NO_LOCKS, Event, FaultKind, Locks, Op, Outcome, Raised, Reach, canonical

CAPABILITIES = StoreCapabilities(
    atomic_scope="partition",
    batch_count_max=100,
    item_bytes_max=2 << 20,
    tells_current=False,
    ambiguous_replies=True,
)
"""The capabilities of a store like Cosmos DB."""


class Doc(msgspec.Struct, frozen=True):
    """A document: its bytes (None: deleted), how often it was written, and when it expires (0: never)."""

    body: bytes | None
    count: int
    expires_ms: int = 0


class Partition(msgspec.Struct, frozen=True):
    """The documents of a partition by id, how often it was written, and its past as (moment, id, document).

    A moment below 0: no past is kept any more.
    """

    docs: tuple[tuple[str, Doc], ...] = ()
    moment: int = 0
    past: tuple[tuple[int, str, Doc], ...] = ()


StoreState = tuple[tuple[str, Partition], ...]
"""Partitions by name."""


class StoreModel:
    """A model of a state store."""

    def __init__(
        self,
        *,
        capabilities: StoreCapabilities = CAPABILITIES,
        documents: Mapping[DocumentKey, bytes] | None = None,
        stale_count: int = 0,
        private: str = "",
        settled: Sequence[str] = (),
        keeps: bool = False,
        look_count: int = 1,
        grace_ms: int = 0,
        name: str = "store",
    ) -> None:
        self.name = name
        self._grace_ms = grace_ms
        self._look_count = look_count
        self._private = private
        self._settled = tuple(settled)
        self._keeps = keeps
        self.capabilities = capabilities
        self._sessions = stale_count > 0
        self._forgets = stale_count == 1
        state: dict[str, dict[str, Doc]] = {}
        for key, body in (documents or {}).items():
            state.setdefault(key.partition, {})[key.id] = Doc(body, 1)
        self._initial: StoreState = tuple(
            (name, Partition(tuple(sorted(docs.items())))) for name, docs in sorted(state.items())
        )

    def initial(self) -> StoreState:
        return self._initial

    def reach(self, verb: str) -> Reach:
        return "write" if verb == "write" else "read"

    def outcomes(self, state: StoreState, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        match op.verb:
            case "read":
                return list(self._read(state, op.args[0], op.args[1], now_ms))
            case "write":
                return [self._write(state, op.args[0], now_ms)]
            case "scan":
                partition, prefix = op.args
                found = [d for d in self._all(state, now_ms) if d.key.partition == partition]
                return [Outcome("", state, tuple(d for d in found if d.key.id.startswith(prefix)))]
            case "changed":
                has_changed = any(self._differs(state, key, version, now_ms) for key, version in op.args[0])
                return [Outcome("", state, None)] if has_changed else []
            case "unsent":
                return list(self._unsent(state, op.args[0], op.args[1], now_ms))
            case "wake":
                has_work = self._has_work(state, op.args[0], now_ms)
                return [Outcome("", state, self._seen(state, now_ms))] if has_work else []
            case "letters":
                return list(self._letters(state, now_ms)) if op.args[0] > 0 else []
        return list(self._unfinished(state, op.args[0], now_ms))

    def _unfinished(self, state: StoreState, seen: str, now_ms: int) -> Iterator[Outcome]:
        """The pending documents; a sweeper that has nothing to do waits until something changes.

        So does one that could do nothing, so many times at this very state of the store (`seen`), and one that would
        find nothing but what is too young for it.

        The query may see one of the partitions as it was (a fault, `stale`).
        """
        now = self._seen(state, now_ms)
        if not self._has_work(state, seen, now_ms):
            return
        found = set[tuple[Document, ...]]()
        for label, after, there, fault in self._views(state):
            pending = tuple(document for document in self._all(there, now_ms) if "pending" in _members(document.body))
            if pending and pending not in found:
                yield Outcome(f"-> {len(pending)} unfinished{label}", after, (pending, now), fault)
            found.add(pending)

    def _unsent(self, state: StoreState, first: str, before: str, now_ms: int) -> Iterator[Outcome]:
        """The records of a dispatch ledger's entries; one of the partitions may be seen as it was (`stale`)."""
        for label, after, there, fault in self._views(state):
            found = [document for document in self._all(there, now_ms) if first <= _entry(document.body) < before]
            yield Outcome(f"-> {len(found)} of {first[-4:]} to {before[-4:]}{label}", after, tuple(found), fault)

    def _views(self, state: StoreState) -> Iterator[tuple[str, StoreState, StoreState, FaultKind | None]]:
        """The store as a query over all partitions may see it, each time with its remaining past."""
        yield "", state, state, None
        for name, partition in state if self._sessions else ():
            for moment in sorted({moment for moment, _, _ in partition.past}):
                before = tuple(sorted({**dict(state), name: _at(partition, moment)}.items(), key=_first))
                yield " (stale)", self._without_past(state), before, "stale"

    def _letters(self, state: StoreState, now_ms: int) -> Iterator[Outcome]:
        """Each dead letter that a host has stored: its queue and its number."""
        for document in self._all(state, now_ms):
            queue, number = document.key.partition.removeprefix(LETTERS), document.key.id.removeprefix(LETTER)
            if document.key.id.startswith(LETTER):
                yield Outcome(f"-> {number[-4:]} of {queue}", state, (queue, int(number)))

    def _seen(self, state: StoreState, now_ms: int) -> str:
        """The digest of a sweeper's view now; another where something has changed, or has grown old enough."""
        grown = sum(ms <= now_ms for ms in self._grown_ms(state, now_ms)) if self._grace_ms else 0
        return blake2b(canonical((state, grown)), digest_size=8).hexdigest()

    def _has_work(self, state: StoreState, seen: str, now_ms: int) -> bool:
        if seen == f"{self._seen(state, now_ms)}/{self._look_count}":
            return False
        return not self._grace_ms or any(ms <= now_ms for ms in self._grown_ms(state, now_ms))

    def _grown_ms(self, state: StoreState, now_ms: int) -> list[int]:
        """When each pending document is as old as the grace of a sweeper."""
        pending = [document for document in self._all(state, now_ms) if "pending" in _members(document.body)]
        return [written_ms(document) + self._grace_ms for document in pending]

    def is_private(self, op: Op) -> bool:
        if op.verb == "read" and self._settled:
            key: DocumentKey = op.args[0]
            return key.partition.startswith(self._settled)
        if op.verb != "write" or not self._private:
            return False
        return all(isinstance(write, Create) and write.key.id.startswith(self._private) for write in op.args[0])

    def is_spent(self, state: StoreState, op: Op) -> bool:
        """One whose condition names a version that is gone: versions never come back.

        Where the store `keeps` every document, also one that creates what is there.
        """
        return any(
            self._keeps and write.key.id in dict(partition_of(state, write.key.partition).docs)
            if isinstance(write, Create)
            else _is_past(partition_of(state, write.key.partition), write.key.id, write.if_match)
            for write in op.args[0]
        )

    # Reading

    def _read(self, state: StoreState, key: DocumentKey, session: Session, now_ms: int) -> Iterator[Outcome]:
        partition = partition_of(state, key.partition)
        doc = dict(partition.docs).get(key.id)
        fresh = self._document(key, doc, now_ms)
        yield Outcome(_found(fresh), state, fresh)
        if not self._sessions:
            return
        seen, oldest = {fresh.version if fresh else None}, _moment(partition, session)
        at, known = partition.moment, doc
        for moment, id, before in reversed(partition.past):
            if id == key.id:
                known, at = before, moment
            else:
                at = moment
            if at < oldest:
                return
            stale = self._document(key, known, now_ms)
            version = stale.version if stale else None
            if version not in seen:
                seen.add(version)
                yield Outcome(f"{_found(stale)} (stale)", self._without_past(state), stale, "stale")

    def _without_past(self, state: StoreState) -> StoreState:
        """The state after a stale answer: no other will be given."""
        if not self._forgets:
            return state
        return tuple((name, Partition(partition.docs, -1)) for name, partition in state)

    def _differs(self, state: StoreState, key: DocumentKey, version: str, now_ms: int) -> bool:
        """Whether a document has another version than this; empty: it was absent."""
        doc = dict(partition_of(state, key.partition).docs).get(key.id)
        return version != ("" if doc is None or not _is_there(doc, now_ms) else _version(doc))

    def _document(self, key: DocumentKey, doc: Doc | None, now_ms: int) -> Document | None:
        if doc is None or not _is_there(doc, now_ms):
            return None
        assert doc.body is not None, "what is there has a body"
        return Document(key, doc.body, _version(doc), self._session(key.id, doc))

    def _all(self, state: StoreState, now_ms: int) -> Iterator[Document]:
        for name, partition in state:
            for id, doc in partition.docs:
                document = self._document(DocumentKey(name, id), doc, now_ms)
                if document is not None:
                    yield document

    def _session(self, id: str, doc: Doc | None) -> Session:
        return f"{id}@{doc.count}" if self._sessions and doc is not None else ""

    # Writing

    def _write(self, state: StoreState, writes: Sequence[Write], now_ms: int) -> Outcome:
        refusal = self._refusal(writes)
        if refusal is not None:
            return Outcome("-> too large", state, refusal)
        name = writes[0].key.partition
        partition = partition_of(state, name)
        docs = dict(partition.docs)
        for index, write in enumerate(writes):
            doc = docs.get(write.key.id)
            current = doc if doc is not None and _is_there(doc, now_ms) else None
            wanted = None if isinstance(write, Create) else write.if_match
            if wanted != (None if current is None else _version(current)):
                seen = self._document(write.key, current, now_ms) if self.capabilities.tells_current else None
                lost = Lost(index, seen, self._session(write.key.id, doc))
                return Outcome(f"-> lost on {write.key.id[:16]}", state, lost)
        past = list(partition.past)
        versions, remembers = [], self._sessions and partition.moment >= 0
        for write in writes:
            before = docs.get(write.key.id)
            past.append((partition.moment, write.key.id, before or Doc(None, 0)))
            docs[write.key.id] = doc = _written(before, write, now_ms)
            versions.append("" if doc.body is None else _version(doc))
            if doc.body is None and self._private and write.key.id.startswith(self._private):
                del docs[write.key.id]
        after = Partition(
            tuple(sorted(docs.items(), key=_first)),
            partition.moment + 1 if remembers else partition.moment,
            tuple(past) if remembers else (),
        )
        last = writes[-1].key.id
        result = Won(tuple(versions), self._session(last, docs.get(last)))
        return Outcome("", tuple(sorted({**dict(state), name: after}.items(), key=_first)), result)

    def _refusal(self, writes: Sequence[Write]) -> Raised | None:
        assert not self._keeps or not any(isinstance(write, Delete) for write in writes), "it keeps everything"
        assert not self._settled or not any(w.key.partition.startswith(self._settled) for w in writes), "it is settled"
        known = self.capabilities
        size_bytes = sum(len(write.body) for write in writes if not isinstance(write, Delete))
        count_max = known.batch_count_max if known.atomic_scope == "partition" else 1
        if len(writes) > count_max or size_bytes > known.item_bytes_max:
            return Raised("TooLarge", f"{len(writes)} operations of {size_bytes} bytes are over the limits")
        if len({write.key.partition for write in writes}) > 1 or len({write.key for write in writes}) < len(writes):
            return Raised("TooLarge", "a batch stays in one partition and names each document once")
        return None

    # What happens by itself

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset()

    def events(self, state: StoreState, now_ms: int) -> list[Event]:
        return []

    def due_ms(self, state: StoreState, now_ms: int) -> int | None:
        ahead_ms = self._grown_ms(state, now_ms) if self._grace_ms else []
        return min([ms for ms in ahead_ms if ms > now_ms], default=None)

    def moments_ms(self, state: StoreState, now_ms: int) -> tuple[int, ...]:
        times = {doc.expires_ms for _, partition in state for _, doc in partition.docs}
        times |= set(self._grown_ms(state, now_ms)) if self._grace_ms else set()
        return tuple(sorted(time for time in times if time > now_ms))

    def show(self, state: StoreState, now_ms: int) -> list[str]:
        return [
            f"{_place(DocumentKey(name, id))} {_version(doc)} = {doc.body.decode(errors='replace')[:120]}"
            for name, partition in state
            for id, doc in partition.docs
            if doc.body is not None and _is_there(doc, now_ms)
        ]

    def describe(self, op: Op) -> str:
        match op.verb:
            case "read":
                return f"read {_place(op.args[0])}"
            case "write":
                return "; ".join(map(_said, op.args[0]))
            case "scan":
                return f"scan {op.args[0]}"
            case "changed":
                return f"wait for {', '.join(_place(key) for key, _ in op.args[0]) or 'nothing'}"
            case "unsent":
                return "look for unsent records"
        return {"wake": "sleep", "letters": "choose a dead letter"}.get(op.verb, "look for unfinished documents")


def partition_of(state: StoreState, name: str) -> Partition:
    """A partition; an empty one where nothing was ever written."""
    return next((partition for known, partition in state if known == name), Partition())


def _at(partition: Partition, moment: int) -> Partition:
    """A partition as it was before the write of that moment."""
    docs = dict(partition.docs)
    for at, id, before in reversed(partition.past):
        if at >= moment:
            docs[id] = before
    return Partition(tuple(sorted(docs.items(), key=_first)), moment)


def visible(state: StoreState, now_ms: int) -> dict[DocumentKey, bytes]:
    """The bodies of all documents that are there."""
    return {
        DocumentKey(name, id): doc.body
        for name, partition in state
        for id, doc in partition.docs
        if doc.body is not None and _is_there(doc, now_ms)
    }


def body_at(state: StoreState, key: DocumentKey, now_ms: int) -> bytes | None:
    """The body of a document, if it is there."""
    for id, doc in partition_of(state, key.partition).docs:
        if id == key.id:
            return doc.body if _is_there(doc, now_ms) else None
    return None


def _is_past(partition: Partition, id: str, version: str) -> bool:
    return any(known == id and doc.count > int(version[1:]) for known, doc in partition.docs)


def _is_there(doc: Doc, now_ms: int) -> bool:
    return doc.body is not None and not 0 < doc.expires_ms <= now_ms


def _written(before: Doc | None, write: Write, now_ms: int) -> Doc:
    count = 1 + (0 if before is None else before.count)
    if isinstance(write, Delete):
        return Doc(None, count)
    return Doc(write.body, count, 0 if write.ttl_s is None else now_ms + round(write.ttl_s * 1_000))


def _version(doc: Doc) -> str:
    return f"v{doc.count}"


def _moment(partition: Partition, session: Session) -> int:
    """From when on what a token names is there."""
    id, _, count = session.rpartition("@")
    made = (at + 1 for at, known, before in partition.past if known == id and str(before.count + 1) == count)
    return next(made, 0)


def _members(body: bytes) -> dict[str, Any]:
    """The members of a document; none if it is no JSON object."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _entry(body: bytes) -> str:
    """A record's place in a dispatch ledger; of what has none, one before all."""
    entry = _members(body).get("entry", "")
    return entry if isinstance(entry, str) else ""


def _found(document: Document | None) -> str:
    return "-> nothing" if document is None else f"-> {document.version}"


def _place(key: DocumentKey) -> str:
    return f"{key.partition[:24]}/{key.id[:16]}"


def _said(write: Write) -> str:
    what = write.tag.what or type(write).__name__.lower()
    match write:
        case Create():
            return f"{what}: create {_place(write.key)}"
        case Replace():
            return f"{what}: replace {_place(write.key)} at {write.if_match}"
    return f"{what}: delete {_place(write.key)} at {write.if_match}"


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


BlobState = tuple[tuple[str, bytes], ...]


class BlobModel:
    """Write-once bytes."""

    name = "blobs"

    def initial(self) -> BlobState:
        return ()

    def reach(self, verb: str) -> Reach:
        return "read" if verb == "read" else "write"

    def is_private(self, op: Op) -> bool:
        return False

    def is_spent(self, state: BlobState, op: Op) -> bool:
        return False

    def outcomes(self, state: BlobState, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        blobs = dict(state)
        name = op.args[0]
        match op.verb:
            case "read":
                found = blobs.get(name)
                if found is not None and len(found) > op.args[1]:
                    return [Outcome("-> too large", state, Raised("TooLarge", f"blob {name} is over {op.args[1]}"))]
                return [Outcome("-> nothing" if found is None else "", state, found)]
            case "write":
                if name in blobs:
                    return [Outcome("-> exists", state, False)]
                return [Outcome("", tuple(sorted((*state, (name, op.args[1])))), True)]
        blobs.pop(name, None)
        return [Outcome("", tuple(sorted(blobs.items())), None)]

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset()

    def events(self, state: BlobState, now_ms: int) -> list[Event]:
        return []

    def due_ms(self, state: BlobState, now_ms: int) -> int | None:
        return None

    def moments_ms(self, state: BlobState, now_ms: int) -> tuple[int, ...]:
        return ()

    def describe(self, op: Op) -> str:
        return f"{op.verb} blob {op.args[0]}"

    def show(self, state: BlobState, now_ms: int) -> list[str]:
        return [f"blob {name}, {len(data)} bytes" for name, data in state]

"""The containers and blobs of an account, in the engine, read at once, written one record at a time.

*Theory of operation.*  A container is a document; so is each blob, without its bytes; and so is each piece of bytes,
which is written once under a fresh id and never changed.  A write puts the pieces first, of which nobody knows, and
then, in one record, the blob that names them: that record is the commit, and takes the pieces that nothing names any
more with it.  Whatever a crash leaves of pieces is removed at the next start.  Blocks that were put and not committed
are documents as well.  Beside the documents there is their index: blobs by name, in order.

What was done may be spoken of once the engine's gate is passed, which is the gateway's business.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from outbox.emulator.blobs.catalog import Blob, Block, Container, Piece
from outbox.emulator.blobs.requests import Rejection
from outbox.emulator.faults import Faults
from outbox.engine.engine import Engine
from outbox.engine.log import records
from outbox.errors import Refused

T = TypeVar("T", Blob, Container)

CONTAINERS, DATA = "blobs", "blobs.data"
BLOBS, BLOCKS = "blobs.of/", "blobs.blocks/"
"""Before a container's id, the namespaces of its blobs and of the blocks that are not committed."""
PIECE_BYTES = 4 << 20
PAGE_COUNT_MAX = 5_000
CONTAINER_COUNT_MAX = 2_000
DROP_COUNT = 1_000
"""The number of documents that one record deletes."""
TAG_CHANGE_COUNT_MAX = 10_000
UNCOMMITTED_MAX_MS = 7 * 86_400_000
"""Blocks that nothing is done with for so long are removed, as the service does."""


@dataclass(slots=True)
class Held:
    """A container with its blobs."""

    definition: Container
    blobs: dict[str, Blob] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Of the blobs, in order."""
    uncommitted: dict[str, dict[str, Block]] = field(default_factory=dict)
    """Blocks by their blob's name and their id."""

    def pieces_of(self, name: str) -> Iterator[Piece]:
        """The pieces that a blob and the blocks that were put for it name."""
        if name in self.blobs:
            yield from self.blobs[name].all_pieces
        for block in self.uncommitted.get(name, {}).values():
            yield from block.pieces


class Store:
    """The containers of one account."""

    def __init__(self, engine: Engine, faults: Faults, account: str, page_count_max: int) -> None:
        """`page_count_max` is how many entries a page of a list has at most, however many a client asks for."""
        self.engine = engine
        self.account = account
        self.page_count_max = page_count_max
        self.containers: dict[str, Held] = {}
        self._faults = faults
        self._last_piece = 0
        self._last_rid = 0
        self._tag_changes: deque[tuple[str, str, dict[str, str]]] = deque(maxlen=TAG_CHANGE_COUNT_MAX)
        """A container's id, a blob's name, and its tags before they were changed, for searches of the past."""
        self._load()

    @property
    def now_ms(self) -> int:
        """The engine's time."""
        return self.engine.now_ms()

    def container(self, name: str) -> Held:
        """The container of this name.

        Raises:
            Rejection: 404.
        """
        found = self.containers.get(name)
        if found is None:
            raise Rejection("ContainerNotFound", f"there is no container {name!r}")
        return found

    # Containers

    def create(self, name: str, metadata: dict[str, str]) -> Container:
        """Make a container.

        Raises:
            Rejection: 409, it is there; 503, there are too many.
        """
        if name in self.containers:
            raise Rejection("ContainerAlreadyExists")
        if len(self.containers) >= CONTAINER_COUNT_MAX:
            raise Rejection("ServerBusy", f"the emulator takes {CONTAINER_COUNT_MAX} containers; delete some")
        self._check_room()
        self._last_rid += 1
        definition = Container(name=name, rid=f"{self._last_rid:08x}", modified_ms=self.now_ms, metadata=metadata)
        held = Held(definition)
        self.replace(held, definition)
        self.containers[name] = held
        return held.definition

    def replace(self, held: Held, definition: Container) -> None:
        """Keep a container's definition in place of the old one."""
        version = self._do([records.DocWrite(CONTAINERS, definition.rid, msgspec.json.encode(definition))])
        held.definition = with_etag(definition, version)

    def delete(self, held: Held) -> None:
        """Delete a container; it is gone at once, its blobs follow in steps."""
        rid = held.definition.rid
        self._do([], [records.DocRef(CONTAINERS, rid, 1)])
        del self.containers[held.definition.name]
        gone = [records.DocRef(BLOBS + rid, name, 1) for name in held.blobs]
        for name, blocks in held.uncommitted.items():
            gone += [records.DocRef(_blocks_of(rid, name), id, 1) for id in blocks]
        pieces = dict.fromkeys(piece for name in (*held.blobs, *held.uncommitted) for piece in held.pieces_of(name))
        self._drop_all((*gone, *map(_ref, pieces)))

    # Bytes

    async def put_pieces(self, data: bytes) -> tuple[Piece, ...]:
        """Keep bytes of which nothing knows yet; others get their turn between large pieces.

        Raises:
            Rejection: 503, the engine holds all that it may.
        """
        self._check_room(len(data))
        pieces: list[Piece] = []
        try:
            for at in range(0, len(data), PIECE_BYTES):
                self._last_piece += 1
                piece = Piece(f"{self._last_piece:012x}", len(data[at : at + PIECE_BYTES]))
                self._do([records.DocWrite(DATA, piece.id, data[at : at + PIECE_BYTES])])
                pieces.append(piece)
                if at + PIECE_BYTES < len(data):
                    await asyncio.sleep(0)
        except BaseException:
            self.drop_pieces(pieces)
            raise
        return tuple(pieces)

    def drop_pieces(self, pieces: Iterable[Piece]) -> None:
        """Forget bytes that nothing names."""
        self._drop_all(tuple(map(_ref, pieces)))

    def bytes_of(self, pieces: Sequence[Piece]) -> tuple[bytes, ...]:
        """The bytes of pieces."""
        data = self.engine.state.documents.spaces.get(DATA, {})
        return tuple(data[piece.id].value for piece in pieces)

    # Blobs

    def put(self, held: Held, name: str, blob: Blob, *, commits: bool = False) -> Blob:
        """Keep a blob in place of the old one, as one record; `commits` also forgets its uncommitted blocks."""
        rid, old = held.definition.rid, held.blobs.get(name)
        blocks = held.uncommitted.get(name, {}) if commits else {}
        named = {piece.id for piece in blob.all_pieces}
        unnamed = {} if old is None else {piece.id: piece for piece in old.all_pieces}
        unnamed |= {piece.id: piece for block in blocks.values() for piece in block.pieces}
        gone = [records.DocRef(_blocks_of(rid, name), id, 1) for id in blocks]
        gone += [_ref(piece) for piece in unnamed.values() if piece.id not in named]
        version = self._do([records.DocWrite(BLOBS + rid, name, msgspec.json.encode(blob))], gone)
        self._note_tags(held, name, {} if old is None else old.tags, blob.tags)
        if commits:
            held.uncommitted.pop(name, None)
        if old is None:
            insort(held.names, name)
        held.blobs[name] = kept = with_etag(blob, version)
        return kept

    def remove(self, held: Held, name: str) -> None:
        """Delete a blob, with the blocks that were put for it."""
        rid, pieces = held.definition.rid, dict.fromkeys(held.pieces_of(name))
        old, blocks = held.blobs.pop(name), held.uncommitted.pop(name, {})
        del held.names[bisect_left(held.names, name)]
        gone = [records.DocRef(_blocks_of(rid, name), id, 1) for id in blocks]
        self._do([], [records.DocRef(BLOBS + rid, name, 1), *gone, *map(_ref, pieces)])
        self._note_tags(held, name, old.tags, {})

    def put_block(self, held: Held, name: str, block: Block) -> None:
        """Keep a block that is not committed, in place of one of the same id."""
        blocks = held.uncommitted.setdefault(name, {})
        old = blocks.get(block.id)
        gone = [_ref(piece) for piece in old.pieces] if old is not None else []
        space = _blocks_of(held.definition.rid, name)
        self._do([records.DocWrite(space, block.id, msgspec.json.encode(block))], gone)
        blocks[block.id] = block

    # The index of tags

    def _note_tags(self, held: Held, name: str, before: dict[str, str], after: dict[str, str]) -> None:
        """Remember what a search from the past needs, while a rule asks for one."""
        if not (self._faults and self._faults.has("stale-read")):
            self._tag_changes.clear()
        elif before != after:
            self._tag_changes.append((held.definition.rid, name, before))

    def tags_past(self, held: Held, behind_count: int | None) -> dict[str, dict[str, str]]:
        """The tags of a container's blobs `behind_count` changes ago (None: as long ago as is remembered)."""
        found = {name: blob.tags for name, blob in held.blobs.items()}
        changes = list(self._tag_changes)
        for rid, name, before in reversed(changes if behind_count is None else changes[-behind_count:]):
            if rid == held.definition.rid:
                found[name] = before
        return found

    # Upkeep

    def sweep(self) -> int:
        """Remove blocks that nothing was done with for a week; how many."""
        before_ms, count = self.now_ms - UNCOMMITTED_MAX_MS, 0
        for held in self.containers.values():
            for name, blocks in list(held.uncommitted.items()):
                if blocks and max(block.put_ms for block in blocks.values()) < before_ms:
                    space = _blocks_of(held.definition.rid, name)
                    pieces = [piece for block in blocks.values() for piece in block.pieces]
                    self._drop_all((*(records.DocRef(space, id, 1) for id in blocks), *map(_ref, pieces)))
                    count += len(held.uncommitted.pop(name))
        return count

    # The engine

    def _do(self, writes: Sequence[records.DocWrite], gone: Sequence[records.DocRef] = ()) -> int:
        change = records.Modify(documents=list(writes), document_deletes=list(gone))
        try:
            return self.engine.core.do(records.Modified(self.engine.now_ms(), change))
        except Refused as refused:
            raise Rejection("InvalidInput", str(refused)) from refused

    def _drop_all(self, gone: Sequence[records.DocRef]) -> None:
        for at in range(0, len(gone), DROP_COUNT):
            self._do([], gone[at : at + DROP_COUNT])

    def _check_room(self, size_bytes: int = 0) -> None:
        state, limit = self.engine.state, self.engine.core.limits.memory_bytes_max
        if state.held_bytes + size_bytes > limit:
            raise Rejection("ServerBusy", f"the engine holds {limit} bytes, all that it may; delete blobs first")

    def _load(self) -> None:
        """Read what there is, and remove what nothing names."""
        spaces: Mapping[str, Mapping[str, Any]] = self.engine.state.documents.spaces
        by_rid: dict[str, Held] = {}
        for rid, document in spaces.get(CONTAINERS, {}).items():
            definition = msgspec.json.decode(document.value, type=Container)
            by_rid[rid] = self.containers[definition.name] = Held(with_etag(definition, document.version))
            self._last_rid = max(self._last_rid, int(rid, 16))
        named: set[str] = set()
        gone: list[records.DocRef] = []
        for space, documents in spaces.items():
            kind, rid, name = _read_space(space)
            if kind and rid not in by_rid:
                gone += [records.DocRef(space, id, 1) for id in documents]
            elif kind == BLOBS:
                _load_blobs(by_rid[rid], documents, named)
            elif kind == BLOCKS:
                blocks = [msgspec.json.decode(found.value, type=Block) for found in documents.values()]
                by_rid[rid].uncommitted[name] = {block.id: block for block in blocks}
                named |= {piece.id for block in blocks for piece in block.pieces}
        pieces = spaces.get(DATA, {})
        self._last_piece = max((int(id, 16) for id in pieces), default=0)
        self._drop_all((*gone, *(records.DocRef(DATA, id, 1) for id in pieces if id not in named)))


def with_etag(kept: T, version: int) -> T:
    """The document with its ETag, which is that of the record if the document names none."""
    return kept if kept.etag else msgspec.structs.replace(kept, etag=version)


def _ref(piece: Piece) -> records.DocRef:
    return records.DocRef(DATA, piece.id, 1)


def _blocks_of(rid: str, name: str) -> str:
    return f"{BLOCKS}{rid}/{name}"


def _read_space(space: str) -> tuple[str, str, str]:
    """The owner of a namespace: its kind, a container's id and a blob's name; empty for other namespaces."""
    if space.startswith(BLOBS):
        return BLOBS, space[len(BLOBS) :], ""
    if space.startswith(BLOCKS):
        rid, _, name = space[len(BLOCKS) :].partition("/")
        return BLOCKS, rid, name
    return "", "", ""


def _load_blobs(held: Held, documents: Mapping[str, Any], named: set[str]) -> None:
    for name, document in documents.items():
        blob = msgspec.json.decode(document.value, type=Blob)
        held.blobs[name] = with_etag(blob, document.version)
        named |= {piece.id for piece in blob.all_pieces}
    held.names = sorted(held.blobs)

"""The checkpoints of a pipeline: its register, and the parts that hold the states at a position of the source.

    pipeline/<name>   `register`   {"serial", "nonce", "version", "graph", "n", "c", "time", "parts", "sinks", "kept"}

A checkpoint says: at `c`, these are the states, and what lies below it has left.  Nothing waits for one; it shortens
what a replica that begins has to replay.  A part is a blob of the states that changed since the part before, absolute
values, a line for each operator and slot; the parts one after the other, the later ones winning, are the states.

`kept` are up to two checkpoints before, some time apart: a replica that loads one while others go on must still find
its parts, its entries of the source, and the chain of its sinks from there on.

Where outputs wait for a checkpoint, it has one blob more, of those since the checkpoint before: they leave once it
stands, and the next one stands only when they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec

from outbox.errors import CorruptRecord
from outbox.streams.cells import DECODE_ERRORS, Position
from outbox.streams.pipeline.changes import applied, combined
from outbox.streams.pipeline.states import GONE
from outbox.streams.register import Swapped

PIPELINE = "pipeline/"
"""The beginning of the names of pipelines, as a register, a reader and a writer of logs."""
PART_BYTES = 8 << 20
"""The size of a full part, in bytes.  A larger save continues in the next part."""
PARTS_MAX = 16
"""The most parts of changes that a replica reads when it begins."""
ALIKE = 3
"""Parts of about a size that the next part is written together with."""


class PartRef(msgspec.Struct, frozen=True, array_like=True):
    """A part: its blob, the digest of its bytes, and how many they are."""

    blob: str
    digest: str
    size_bytes: int


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """A place in the chain of a sink: a bundle's index, and where it begins, at or before `c`.

    `below` is how many of its items are of positions below `c`, which a replica that begins at `c` does not make again.
    """

    next: int
    begin: Position
    below: int = 0


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A consistent cut at position `c` of the source: parts, and for each sink the bundle at or before it.

    `time` is the greatest `at_ms` below `c`, and `made` when it was made, both milliseconds since 1970.  `held` is the
    blob of outputs below `c` that leave now that it stands, where there are any.
    """

    n: int
    c: Position
    sinks: dict[str, Chain]
    parts: list[PartRef] = []
    time: int = 0
    made: int = 0
    held: list[PartRef] = []

    def blobs(self) -> set[str]:
        """The blobs that it names."""
        return {part.blob for part in (*self.parts, *self.held)}


class PipelineRegister(Swapped, frozen=True, omit_defaults=True):
    """A pipeline's register as stored: the checkpoint that stands, and those before it, the oldest first.

    `source` is the row that is read; `before` has the versions before this one with their graphs: what they have
    released stays.  `release` names the release of a pipeline whose bundles are no chain.
    """

    version: int
    graph: str
    source: str
    stands: Checkpoint
    kept: tuple[Checkpoint, ...] = ()
    before: tuple[tuple[int, str], ...] = ()
    release: str = ""

    @property
    def oldest(self) -> Checkpoint:
        """The oldest checkpoint that a replica may still load."""
        return self.kept[0] if self.kept else self.stands

    def confirms(self, earlier: PipelineRegister) -> bool:
        """Whether it is a later one that says the same: of this version, with the checkpoint that stood."""
        is_same = (self.version, self.graph, self.stands) == (earlier.version, earlier.graph, earlier.stands)
        return is_same and self.serial > earlier.serial

    def blobs(self) -> set[str]:
        """The blobs that it names."""
        return {blob for each in (*self.kept, self.stands) for blob in each.blobs()}

    def after(self, made: Checkpoint, apart_ms: int) -> PipelineRegister:
        """The register with a new checkpoint.

        The last that is kept stays for at least `apart_ms` behind the next one that is, so a replica has as long to
        load it: the one that stands may be followed by two others while its parts are read.
        """
        kept = self.kept
        if not kept or self.stands.made - kept[-1].made >= apart_ms:
            kept = (*kept[-1:], self.stands)
        return msgspec.structs.replace(self, stands=made, kept=kept)


States = Mapping[str, Mapping[int, Mapping[str, msgspec.Raw]]]
"""States as stored, by operator, slot and key."""


class Section(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a part: the states of an operator's slot, and their schema version.

    Of a key in `changes` only these are here, see `Changes`; the rest is in an earlier part.
    """

    operator: str
    slot: int
    schema: int
    states: dict[str, msgspec.Raw]
    changes: dict[str, msgspec.Raw] = {}

    @property
    def place(self) -> tuple[str, int]:
        """Its operator and slot."""
        return self.operator, self.slot


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the outputs that wait for a checkpoint: those of a position for one sink."""

    sink: str
    at: Position
    v: list[msgspec.Raw]
    types: list[str] = []


Line = TypeVar("Line", Section, Held)


def line_of(line: Section | Held) -> bytes:
    """A line of a part; line breaks in it, between the tokens of a `Raw`, become spaces."""
    return msgspec.json.encode(line).replace(b"\n", b" ")


def in_parts(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines of each part; all parts but the last are full."""
    waiting, size_bytes = list[bytes](), 0
    for line in lines:
        waiting.append(line)
        size_bytes += len(line) + 1
        if size_bytes > PART_BYTES:
            yield waiting
            waiting, size_bytes = [], 0
    if waiting:
        yield waiting


def base_count(sizes: Sequence[int]) -> int:
    """How many of the first parts have all states: full ones, and one more."""
    return next((number for number, size in enumerate(sizes, 1) if size < PART_BYTES), len(sizes))


def sections_of(data: bytes, ref: PartRef) -> Iterator[Section]:
    """The states of a part, one line after the other; see `lines_of`."""
    return lines_of(data, ref, Section)


def lines_of(data: bytes, ref: PartRef, kind: type[Line]) -> Iterator[Line]:
    """The lines of a part, one after the other; the last one is followed by the check of its digest.

    Raises:
        CorruptRecord: it is not the part that was written.
    """
    digest, what = sha256(), f"part {ref.blob} of a checkpoint is not the one that was written"
    end = 0
    try:
        while (begin := end) < len(data):
            end = data.find(b"\n", begin) + 1 or len(data)
            line = data[begin:end]
            digest.update(line)
            yield msgspec.json.decode(line, type=kind)
    except DECODE_ERRORS as error:
        raise CorruptRecord(f"{what} ({error}); restore it from a backup") from error
    if digest.hexdigest() != ref.digest:
        raise CorruptRecord(f"{what}; restore it from a backup")


def merged(sections: Sequence[Section]) -> Section:
    """Join the sections of an operator's slot, the oldest first, into one.

    The later states win, changes are applied to those before, and the schema is the last one's.
    """
    return next(section for section in merging(sections) if section is not None)


def merging(sections: Sequence[Section]) -> Iterator[Section | None]:
    """Do as `merged` in steps: None behind each key, and the section at the end."""
    states: dict[str, msgspec.Raw] = {}
    changes: dict[str, list[msgspec.Raw]] = {}
    for section in sections:
        states.update(section.states)
        for key in changes.keys() & section.states.keys():
            del changes[key]
        for key, each in section.changes.items():
            changes.setdefault(key, []).append(each)
    rest: dict[str, msgspec.Raw] = {}
    for key, found in changes.items():
        if key in states:
            states[key] = applied(states[key], found)
        else:
            rest[key] = combined(found)
        yield None
    yield Section(section.operator, section.slot, section.schema, states, rest)


def without_gone(section: Section) -> Section:
    """A section of the first part: it names no key that has no state any more."""
    states = {key: raw for key, raw in section.states.items() if raw != GONE}
    return msgspec.structs.replace(section, states=states)


def merge_count(parts: Sequence[PartRef], size_bytes: int) -> int:
    """How many of the last parts to write anew together with one of `size_bytes`.

    All, once those behind the base are as large as it; else parts of about a size, as soon as there are `ALIKE`.  So
    a state is written again about as often as the number of states grows `ALIKE` times, few parts are read by a
    replica that begins, and these are no more than twice the states.
    """
    sizes = [part.size_bytes for part in parts]
    base = base_count(sizes)
    rest = sizes[base:]
    if size_bytes + sum(rest) >= sum(sizes[:base]):
        return len(parts)
    while True:
        alike = next((n for n, each in enumerate(reversed(rest)) if each > 2 * size_bytes), len(rest))
        if alike < ALIKE and len(rest) < PARTS_MAX - 1:
            return len(parts) - base - len(rest)
        for _ in range(max(alike, 1)):
            size_bytes += rest.pop()

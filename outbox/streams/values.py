"""The entries of a log as bytes: one type or several, their schema version, and what exceeds a cell.

A type is a dataclass, a msgspec Struct, a pydantic model, or plain data such as `int` or `float | None`.  A log of a
union of classes stores each entry's type name beside it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from outbox.codec import DECODE_ERRORS, Codec, Upcast, codec_for
from outbox.encoding import encoded_plain, is_pydantic
from outbox.errors import CorruptRecord, FormatTooNew, NotRegistrable, PoisonMessage, TooLarge
from outbox.ports import BlobStore, NoBlobs, StateStore
from outbox.streams.cells import Cell

CELL_BYTES_MAX = 1 << 20
"""A cell's entries above this go to a blob."""
BLOB_BYTES_MAX = 64 << 20
ENTRIES_MAX = 1_000
ENVELOPE_BYTES = 32 << 10
"""Room for an identity and the other members of a cell beside its entries."""
_raws = msgspec.json.Decoder(list[msgspec.Raw])


class Values:
    """How the values of one log are stored."""

    def __init__(self, log: str, kind: Any, *, version: int = 1, upcasts: Mapping[int, Upcast] | None = None) -> None:
        self.version = version
        self.kind = kind
        self._log = log
        members = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
        classes = [each for each in members if is_class(each)]
        is_union = len(classes) > 1 and len(classes) == len(members)
        kinds = classes if is_union else [kind]
        self._codecs = {name_of(each): codec_of(each, version, upcasts) for each in kinds}
        self._is_union = is_union
        self.name = " | ".join(sorted(self._codecs))
        """The name of the type, as the log's floor has it."""
        self._kind = kind if len(classes) == 1 == len(members) and not is_pydantic(kind) else None
        """The class that all values have, where msgspec takes it; then many are encoded at once."""
        shape: Any = None if self._kind is None else list[self._kind]  # type: ignore[name-defined]  # known when it runs
        self._many: msgspec.json.Decoder[list[Any]] | None = None if shape is None else msgspec.json.Decoder(shape)

    def encoded(self, values: Sequence[Any]) -> tuple[list[msgspec.Raw], list[str]]:
        """Values as stored, and the type of each where there are several.

        Raises:
            PoisonMessage: a value cannot be stored, or would be read back as another.
        """
        if self._kind is not None and (raws := self._encoded_at_once(values)) is not None:
            return raws, []
        pairs = [self._encoded(value) for value in values]
        return [raw for raw, _ in pairs], [name for _, name in pairs] if self._is_union else []

    def _encoded_at_once(self, values: Sequence[Any]) -> list[msgspec.Raw] | None:
        """Values of one class as stored; None where one needs a closer look, or cannot be stored."""
        many = self._many
        if many is None or {*map(type, values)} != {self._kind}:
            return None
        try:
            again = many.decode(msgspec.json.encode(values))  # what cannot be read would stop every reader
            data = msgspec.json.encode(again)  # of 2 and 2.0 what a reader has
        except (TypeError, *DECODE_ERRORS):
            return None
        return None if b"null" in data else _raws.decode(data)

    def _encoded(self, value: Any) -> tuple[msgspec.Raw, str]:
        name = type(value).__name__ if self._is_union else self.name
        codec = self._codecs.get(name)
        if codec is None or (is_class(codec.type) and type(value) is not codec.type):  # a subclass is read as its base
            raise PoisonMessage(
                "unstorable",
                f"log {self._log!r} has entries of {self.name}, not {type(value).__name__}; for those give it a union",
            )
        try:
            data = codec.encode(value)
            again = codec.decode(data)  # what cannot be read would stop every reader
            if isinstance(again, str) and not isinstance(value, str):
                raise TypeError(f"it is a {type(value).__name__}, and would be read as text")
            data = data if is_pydantic(codec.type) else codec.encode(again)
        except (TypeError, PoisonMessage, *DECODE_ERRORS) as error:
            raise PoisonMessage(
                "unstorable", f"an entry for log {self._log!r} cannot be stored as {name}: {error}; store plain data"
            ) from error
        return msgspec.Raw(data), name

    def read(self, data: bytes, types: list[str]) -> list[Any]:
        """Values of this schema version, as one JSON array of what `encoded` made.

        Raises:
            CorruptRecord, msgspec.MsgspecError: they are of no such type.
        """
        if self._many is not None:
            return self._many.decode(data)
        raws = _raws.decode(data)
        return self.decoded(Cell("", 0, len(raws), raws, types, self.version), self._log)

    def decoded(self, cell: Cell, place: str) -> list[Any]:
        """The values of a cell's entries; `place` names it in errors.

        Raises:
            FormatTooNew: a newer version of the code wrote it.
            CorruptRecord: an entry is of no type of this log.
        """
        names = cell.types or [self.name] * len(cell.v)
        return [self._decoded(raw, name, cell.schema, place) for raw, name in zip(cell.v, names, strict=True)]

    def _decoded(self, raw: msgspec.Raw, name: str, schema: int, place: str) -> Any:
        codec = self._codecs.get(name)
        try:
            if codec is not None:
                return codec.read(bytes(raw), schema)
            error: Exception | str = f"it is a {name}"
        except FormatTooNew:
            raise
        except (PoisonMessage, *DECODE_ERRORS) as found:
            error = found
        raise CorruptRecord(
            f"{place}: an entry is no {self.name} ({error}); read it with the type that it was written as"
        )


def is_class(kind: Any) -> bool:
    """Whether a type is a class of its own, and not plain data."""
    return isinstance(kind, type) and (
        hasattr(kind, "__dataclass_fields__") or hasattr(kind, "model_fields") or issubclass(kind, msgspec.Struct)
    )


def name_of(kind: Any) -> str:
    """A type by name."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


def codec_of(kind: Any, version: int = 1, upcasts: Mapping[int, Upcast] | None = None) -> Codec:
    """How values of a type are stored: a class, or plain data.

    Raises:
        NotRegistrable: JSON cannot hold them.
    """
    if is_class(kind):
        made = codec_for(kind, name_of(kind))
    else:
        try:
            msgspec.json.schema(kind)
        except (TypeError, NameError) as error:
            raise NotRegistrable(f"{kind!r} is no type that JSON can hold: {error}; use a dataclass") from error
        made = Codec(kind, name_of(kind), encoded_plain, msgspec.json.Decoder(kind).decode, frozenset())
    return Codec(made.type, made.name, made.encode, made.decode, made.fields, version, dict(upcasts or {}))


# What does not fit


def inline_bytes_max(store: StateStore) -> int:
    """The most bytes of entries that a cell of a store holds."""
    return min(CELL_BYTES_MAX, store.capabilities.item_bytes_max - ENVELOPE_BYTES)


def check_fits(size_bytes: int, store: StateStore, blobs: BlobStore, log: str) -> None:
    """Check that a cell with `size_bytes` of entries can be written.

    Raises:
        TooLarge: it cannot.
    """
    if size_bytes > inline_bytes_max(store) and isinstance(blobs, NoBlobs):
        raise TooLarge(
            f"{size_bytes} bytes of entries for {log} need a blob store, and its place has none; emit less at once, or "
            "give the log a place with blobs"
        )


def size_of(cell: Cell) -> int:
    """How many bytes the entries of a cell take."""
    return size_bytes(cell.v)


def size_bytes(raws: Sequence[msgspec.Raw]) -> int:
    """The bytes of values as stored, and of a comma each."""
    return len(msgspec.json.encode(raws)) - 1 if raws else 0


def is_large(cell: Cell, store: StateStore) -> bool:
    """Whether the entries of a cell go to a blob."""
    return size_of(cell) > inline_bytes_max(store)


async def fitted(cell: Cell, store: StateStore, blobs: BlobStore, prefix: str, owner: str) -> Cell:
    """A cell that fits into the store; entries that do not are in a write-once blob first.

    `owner` names the one append that the blob belongs to.  Two appends of one id are two cells, of which each may be
    trimmed, and its blob deleted, while the other is read.

    Raises:
        TooLarge: they are too large for a blob, too.
        NoBlobStore: there is none to write them to.
    """
    if not is_large(cell, store):
        return cell
    size_bytes = size_of(cell)
    if size_bytes > BLOB_BYTES_MAX:
        raise TooLarge(f"{cell.id}: {size_bytes} bytes of entries are over {BLOB_BYTES_MAX}; append fewer at once")
    data = msgspec.json.encode(cell.v)
    digest = sha256(data).hexdigest()
    name = f"{prefix}/{sha256(owner.encode()).hexdigest()}-{digest[:16]}"
    await blobs.write(name, data)  # one of this name holds these bytes
    return msgspec.structs.replace(cell, v=[], blob=name, digest=digest)


async def whole(cell: Cell, blobs: BlobStore, place: str) -> Cell:
    """A cell with its entries, wherever they lie.

    Raises:
        CorruptRecord: its blob is missing or was changed.
    """
    if not cell.blob:
        return cell
    data = await blobs.read(cell.blob, bytes_max=BLOB_BYTES_MAX + (1 << 20))
    if data is None or sha256(data).hexdigest() != cell.digest:
        state = "missing" if data is None else "not the one that was written"
        raise CorruptRecord(f"{place}: its blob {cell.blob} is {state}; restore it from a backup")
    return msgspec.structs.replace(cell, v=_raws.decode(data), blob="")

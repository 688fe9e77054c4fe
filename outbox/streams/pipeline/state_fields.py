"""How the states of a reduce are stored whose class has boxes: as a whole, and what changed of them.

A state class is a dataclass.  The values of its boxes are stored as those of logs are, pydantic models too.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec
import msgspec.inspect as shapes

from outbox.codec import Codec, codec_for
from outbox.encoding import encoded_plain, is_pydantic
from outbox.errors import CorruptRecord, NotRegistrable, PoisonMessage
from outbox.streams.cells import DECODE_ERRORS
from outbox.streams.pipeline.changes import Changes, Members
from outbox.streams.pipeline.state_types import WHOLE, ListState, MapState, Marks, Value
from outbox.streams.values import codec_of

Marked = Sequence[Mapping[Any, None]]
"""The members that changed, by box."""
_raws_of = msgspec.json.Decoder(list[msgspec.Raw]).decode


def state_codec(kind: type[Any]) -> Codec:
    """How the states of a reduce are stored.

    Raises:
        NotRegistrable: they cannot be.
    """
    fields = fields_of(kind)
    if fields is None:
        return codec_for(kind, kind.__name__)
    return Codec(kind, kind.__name__, fields.encode, fields.decode, frozenset(fields.names))


def fields_of(kind: type[Any]) -> StateFields | None:
    """The fields of a state class; None where there is none of which changes are followed.

    Raises:
        NotRegistrable: one of them cannot be stored.
    """
    return _fields_of(typing.cast(Hashable, kind))


@lru_cache(maxsize=256)
def _fields_of(kind: Any) -> StateFields | None:
    if not dataclasses.is_dataclass(kind):
        return None
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        return None  # whoever makes its codec says so
    has_boxes = any((typing.get_origin(hint) or hint) in _BOXES for hint in hints.values())
    return StateFields(typing.cast("type[Any]", kind), hints) if has_boxes else None


class StateFields:
    """The fields of a state class, of which some are boxes."""

    def __init__(self, kind: type[Any], hints: Mapping[str, Any]) -> None:
        self._kind = kind
        self.boxes: dict[str, Kept] = {}
        self._others: dict[str, Codec] = {}
        stored: list[Any] = []
        for each in dataclasses.fields(kind):
            hint = hints[each.name]
            make = _BOXES.get(typing.get_origin(hint) or hint)
            if make is not None:
                kept = self.boxes[each.name] = make(f"{kind.__name__}.{each.name}", typing.get_args(hint))
                stored.append((each.name, kept.stored | msgspec.UnsetType, msgspec.UNSET))
            else:
                self._others[each.name] = codec_of(hint)
                stored.append((each.name, hint, *_default_of(each)))
        self.names = [each.name for each in dataclasses.fields(kind)]
        self._kept = [*self.boxes.items()]
        self._looks = [(name, typing.get_origin(hints[name]) or hints[name], kept) for name, kept in self.boxes.items()]
        self._decode = codec_for(msgspec.defstruct(kind.__name__, stored, kw_only=True), kind.__name__).decode
        self._check = msgspec.json.Decoder(list[_changes_type(stored, self.boxes)]).decode  # type: ignore[misc]  # known when it runs

    def encode(self, state: Any) -> bytes:
        """A state as a whole.

        Raises:
            PoisonMessage: it cannot be stored.
        """
        found = {name: getattr(state, name) for name in self.names}
        boxes = self._boxes_of(state)
        return encoded_plain(
            found | {name: kept.whole(box) for (name, kept), box in zip(self._kept, boxes, strict=True)}
        )

    def decode(self, data: bytes) -> Any:
        """A state that was stored as a whole."""
        stored = self._decode(data)
        found = {name: value for name in self.names if (value := getattr(stored, name)) is not msgspec.UNSET}
        for name in self.boxes.keys() & found.keys():
            found[name] = self.boxes[name].made(found[name])
            found[name]._marks.stands(name, reads=self.boxes[name].reads)
        return self._kind(**found)

    def changed(self, state: Any, lost: Iterable[Marked]) -> tuple[Changes | None, Marked]:
        """Take the changes of a state since this was last called, and `lost` before that; no changes: all of it.

        With it the members of each box that are new.  Later changes of the state change none of it; `stored` encodes
        many at once, which is cheaper than each.

        Raises:
            PoisonMessage: something of it cannot be stored.
        """
        changes, marked = Changes({}, {}, {}), list[Mapping[Any, None]]()
        wholes: list[tuple[str, Kept, Any]] = []
        for (name, kept), box in zip(self._kept, self._boxes_of(state), strict=True):
            marks: Marks = box._marks
            marks.reads = kept.reads
            members = fresh = marks.taken(name)
            for each in lost:
                members = {**each[len(marked)], **members}
            marked.append(fresh)
            if WHOLE in members:
                wholes.append((name, kept, box))
            elif members:
                kept.put(name, box, members, changes)
        if len(wholes) == len(self._kept):
            return None, marked
        for name, codec in self._others.items():
            changes.fields[name] = msgspec.Raw(codec.encode(getattr(state, name)))
        for name, kept, box in wholes:
            changes.fields[name] = msgspec.Raw(encoded_plain(kept.whole(box)))
        return changes, marked

    def stored(self, found: Sequence[Changes]) -> Sequence[msgspec.Raw]:
        """Encode what changed of some states.

        Raises:
            PoisonMessage: something of it cannot be stored.
        """
        data = encoded_plain(found)
        try:
            self._check(data)
        except DECODE_ERRORS as error:
            what = f"a {self._kind.__name__} would not be read back: {error}; give each field its type's values"
            raise PoisonMessage("unstorable", what) from error
        return _raws_of(data)

    def _boxes_of(self, state: Any) -> list[Any]:
        """The boxes of a state.

        Raises:
            PoisonMessage: a field has none, or another's.
        """
        boxes = [kept.box_of(getattr(state, name)) for name, kept in self._kept]
        if len(boxes) > 1 and len({*map(id, boxes)}) < len(boxes):
            what = f"two fields of a {self._kind.__name__} have one box; give each its own, and copy what it holds"
            raise PoisonMessage("unstorable", what)
        return boxes

    def look(self, state: Any) -> None:
        """Note a box from another field: it is saved as a whole, even if it is moved back.

        Raises:
            PoisonMessage: a field has no box any more.
        """
        for name, box, kept in self._looks:
            value = getattr(state, name)
            if type(value) is not box:
                kept.box_of(value)
            marks: Marks = value._marks
            if marks.field != name and marks.field:
                marks.field = ""

    def copied(self, state: Any) -> Any:
        """A copy of a state; values that cannot be changed in place are shared."""
        found = {name: codec.decode(codec.encode(getattr(state, name))) for name, codec in self._others.items()}
        for name, kept in self.boxes.items():
            box = kept.box_of(getattr(state, name))
            found[name] = kept.read(encoded_plain(kept.whole(box))) if kept.reads else type(box)(box._inner)
        return self._kind(**found)

    def has_kinds_of(self, changes: Changes) -> bool:
        """Whether these changes are of fields that are boxes of members today."""
        with_members = {name for name, kept in self.boxes.items() if not isinstance(kept, KeptValue)}
        return changes.members.keys() <= with_members and changes.fields.keys() <= {*self.names}

    def apply(self, state: Any, changes: Changes) -> None:
        """Apply the changes of a state that were stored."""
        for name, raw in changes.fields.items():
            if name in self._others:
                object.__setattr__(state, name, self._others[name].decode(bytes(raw)))
            else:
                object.__setattr__(state, name, self.boxes[name].read(bytes(raw)))
        for name, members in changes.members.items():
            self.boxes[name].apply(getattr(state, name), members, changes.lengths.get(name, 0))
        for name in self.boxes.keys() & (changes.fields.keys() | changes.members.keys()):
            getattr(state, name)._marks.stands(name, reads=self.boxes[name].reads)


def _default_of(field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    if field.default_factory is not dataclasses.MISSING:
        return (msgspec.field(default_factory=field.default_factory),)
    return () if field.default is dataclasses.MISSING else (field.default,)


def _changes_type(stored: Iterable[tuple[Any, ...]], boxes: Mapping[str, Kept]) -> Any:
    """The type of stored changes of a state, by whose decoder they are checked."""
    unset = msgspec.UnsetType
    fields = msgspec.defstruct("Fields", [(name, kind | unset, msgspec.UNSET) for name, kind, *_ in stored])
    changed = [(name, kept.members | unset, msgspec.UNSET) for name, kept in boxes.items()]
    members = msgspec.defstruct("Members", changed)
    parts = [("fields", fields | unset, msgspec.UNSET), ("members", members | unset, msgspec.UNSET)]
    return msgspec.defstruct("Changed", parts)


class Kept(typing.Protocol):
    """How the boxes of one field are stored."""

    typed: Typed
    """Its values."""
    stored: Any
    """Their type as a whole, for msgspec."""
    members: Any
    """That of some changed members."""
    reads: bool
    """Whether a value that was read may have been changed."""

    def box_of(self, value: Any) -> Any:
        """The box that a field has; PoisonMessage: it has something else."""

    def whole(self, box: Any) -> Any:
        """All of it, for an encoder."""

    def made(self, stored: Any) -> Any:
        """A box of a decoded whole."""

    def read(self, data: bytes) -> Any:
        """A box of the bytes of a whole."""

    def put(self, name: str, box: Any, members: Iterable[Any], changes: Changes) -> None:
        """Add what changed of it to the changes of its state."""

    def apply(self, box: Any, members: Members, length: int) -> None:
        """Apply what changed."""


class Typed:
    """The values of a box: how they are stored; a pydantic model is a text of its own."""

    def __init__(self, box: type[Any], field: str, kind: Any) -> None:
        self._box, self._field = box, field
        self.codec = codec_of(kind)
        self._is_model = isinstance(kind, type) and is_pydantic(kind)
        self.kind: Any = msgspec.Raw if self._is_model else kind
        self.reads = self._is_model or not is_frozen(shapes.type_info(kind))

    def checked(self, value: Any) -> Any:
        """The box that a field has."""
        if type(value) is not self._box:
            raise PoisonMessage(
                "unstorable",
                f"{self._field} is a {type(value).__name__}; leave it a {self._box.__name__}, and change what it holds",
            )
        return value

    def plain(self, values: Iterable[Any]) -> Iterable[Any]:
        """Values, for an encoder."""
        return [msgspec.Raw(self.codec.encode(value)) for value in values] if self._is_model else values

    def kept(self, value: Any) -> Any:
        """A value that stays so, for an encoder that is called later."""
        return msgspec.Raw(self.codec.encode(value)) if self.reads else value

    def values(self, stored: Iterable[Any]) -> Iterable[Any]:
        """Values that were decoded."""
        return [self.codec.decode(bytes(raw)) for raw in stored] if self._is_model else stored


class KeptValue:
    """How a `Value` is stored: as its value."""

    def __init__(self, field: str, given: tuple[Any, ...]) -> None:
        (kind,) = _given(field, given, "Value[int]", 1)
        self.typed = Typed(Value, field, kind)
        self.stored, self.reads, self.box_of = self.typed.kind, self.typed.reads, self.typed.checked
        self.members = None

    def whole(self, box: Any) -> Any:
        (value,) = self.typed.plain([box._inner])
        return value

    def made(self, stored: Any) -> Any:
        return Value(*self.typed.values([stored]))

    def read(self, data: bytes) -> Any:
        return Value(self.typed.codec.decode(data))

    def put(self, name: str, box: Any, members: Iterable[Any], changes: Changes) -> None:
        changes.fields[name] = self.typed.kept(box._inner)

    def apply(self, box: Any, members: Members, length: int) -> None:
        raise CorruptRecord("a value has no members")


class KeptMap:
    """How a `MapState` is stored: as an object, by the texts of its keys."""

    def __init__(self, field: str, given: tuple[Any, ...]) -> None:
        key, value = _given(field, given, "MapState[str, int]", 2)
        if key not in _KEYS:
            raise NotRegistrable(f"{field}: its keys are {key}; a MapState has keys of str, int or UUID")
        self._field, self._key = field, key
        self.typed = Typed(MapState, field, value)
        self.stored, self.reads, self.box_of = dict[key, self.typed.kind], self.typed.reads, self.typed.checked  # type: ignore[valid-type, name-defined]  # known when it runs
        self.members = dict[key, list[self.typed.kind]]  # type: ignore[valid-type, name-defined]  # known when it runs
        self._decode = msgspec.json.Decoder(self.stored).decode

    def _text(self, key: Any) -> str:
        if type(key) is not self._key:
            what = f"{self._field} has the key {key!r}; its keys are all {self._key.__name__}, as its annotation says"
            raise PoisonMessage("unstorable", what)
        return str(key)

    def whole(self, box: Any) -> Any:
        inner = box._inner
        found = dict(zip(map(self._text, inner), self.typed.plain(inner.values()), strict=True))
        return {text: found[text] for text in sorted(found)}

    def made(self, stored: Any) -> Any:
        return MapState(zip(stored, self.typed.values(stored.values()), strict=True))

    def read(self, data: bytes) -> Any:
        return self.made(self._decode(data))

    def put(self, name: str, box: Any, members: Iterable[Any], changes: Changes) -> None:
        inner, text, kept = box._inner, self._text, self.typed.kept
        changes.members[name] = {text(key): [kept(inner[key])] if key in inner else [] for key in members}

    def apply(self, box: Any, members: Members, length: int) -> None:
        for text, each in members.items():
            key = text if self._key is str else self._key(text)
            if each:
                box._inner[key] = self.typed.codec.decode(bytes(each[0]))
            else:
                box._inner.pop(key, None)


class KeptList:
    """How a `ListState` is stored: as an array; of changes the indexes, and its length."""

    def __init__(self, field: str, given: tuple[Any, ...]) -> None:
        (kind,) = _given(field, given, "ListState[int]", 1)
        self.typed = Typed(ListState, field, kind)
        self.stored, self.reads, self.box_of = list[self.typed.kind], self.typed.reads, self.typed.checked  # type: ignore[name-defined]  # known when it runs
        self.members = dict[str, self.stored]  # type: ignore[name-defined]  # known when it runs
        self._decode = msgspec.json.Decoder(self.stored).decode

    def whole(self, box: Any) -> Any:
        return [*self.typed.plain(box._inner)]

    def made(self, stored: Any) -> Any:
        return ListState(self.typed.values(stored))

    def read(self, data: bytes) -> Any:
        return self.made(self._decode(data))

    def put(self, name: str, box: Any, members: Iterable[Any], changes: Changes) -> None:
        inner = box._inner
        changes.lengths[name] = len(inner)
        kept = self.typed.kept
        changes.members[name] = {str(index): [kept(inner[index])] for index in members if index < len(inner)}

    def apply(self, box: Any, members: Members, length: int) -> None:
        inner = box._inner
        del inner[length:]
        inner += [None] * (length - len(inner))
        for text, each in members.items():
            if int(text) < length:
                inner[int(text)] = self.typed.codec.decode(bytes(each[0]))


def _given(field: str, given: tuple[Any, ...], example: str, count: int) -> tuple[Any, ...]:
    if len(given) != count:
        raise NotRegistrable(f"{field}: say what it holds, such as {example}")
    return given


_KEYS = (str, int, UUID)
_BOXES: dict[Any, Callable[[str, tuple[Any, ...]], Kept]] = {Value: KeptValue, MapState: KeptMap, ListState: KeptList}
_ATOMS = (
    *(shapes.NoneType, shapes.BoolType, shapes.IntType, shapes.FloatType, shapes.StrType, shapes.BytesType),
    *(shapes.DateTimeType, shapes.TimeType, shapes.DateType, shapes.TimeDeltaType, shapes.UUIDType),
    *(shapes.DecimalType, shapes.EnumType, shapes.LiteralType),
)


def is_frozen(shape: shapes.Type) -> bool:
    """Whether values of a type cannot be changed in place."""
    return not changeable(shape)


def changeable(shape: shapes.Type, within: tuple[type[Any], ...] = ()) -> set[type[Any]]:
    """The classes inside a type whose values can be changed in place; `within` are the classes around it.

    `object` stands for what is not known.
    """
    match shape:
        case shapes.UnionType(types=parts) | shapes.TupleType(item_types=parts):
            return set[type[Any]]().union(*(changeable(part, within) for part in parts))
        case shapes.VarTupleType(item_type=part) | shapes.FrozenSetType(item_type=part):
            return changeable(part, within)
        case shapes.ListType(item_type=part):
            return {list} | changeable(part, within)
        case shapes.DictType(value_type=part):
            return {dict} | changeable(part, within)
        case shapes.DataclassType(cls=kind) | shapes.StructType(cls=kind) | shapes.NamedTupleType(cls=kind):
            given: Any = getattr(kind, "__dataclass_params__", None) or getattr(kind, "__struct_config__", None)
            found = set[type[Any]]() if given is None or given.frozen else {kind}
            parts = () if kind in within else tuple(each.type for each in shape.fields)
            return found.union(*(changeable(part, (*within, kind)) for part in parts))
        case _:
            return set() if isinstance(shape, _ATOMS) else {object}


@lru_cache(maxsize=1024)
def may_share(state: Any, emitted: Any) -> bool:
    """Whether values of a type may have something in common with a state that can be changed in place."""
    try:
        held = [
            typing.get_args(hint) if typing.get_origin(hint) in _BOXES else (hint,)
            for hint in typing.get_type_hints(state).values()
        ]
        mine = {state}.union(*(changeable(shapes.type_info(part)) for part in chain.from_iterable(held)))
        theirs = changeable(shapes.type_info(emitted))
    except (NameError, TypeError):
        return True
    return bool(theirs) and (object in mine | theirs or not mine.isdisjoint(theirs))

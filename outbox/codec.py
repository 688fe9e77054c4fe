"""Typed values to JSON bytes and back.

Dataclasses and msgspec Structs use msgspec; pydantic models their own validator, imported only where one is registered.
The codec of a state also has its schema version and the upcasts of older ones.

Each field of a pydantic model must be read under the name that it is written under: one that is not would be read back
as its default, without an error.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, get_args

import msgspec
import msgspec.inspect

from outbox.encoding import encoded_model, encoded_plain, is_pydantic, null_in
from outbox.errors import FormatTooNew, NotRegistrable, PoisonMessage

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

_decode_any = msgspec.json.decode

DECODE_ERRORS = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError, ValueError)


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """Encoding and decoding of one type."""

    type: type[Any]
    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    fields: frozenset[str]
    version: int = 1
    """The schema version of a message type; a state's is its `StateCodec`'s."""
    upcasts: Mapping[int, Upcast] = dataclasses.field(default_factory=dict)

    def read(self, body: bytes, schema: int) -> Any:
        """Decode a message of a schema version.

        Raises:
            FormatTooNew: a newer version of the code sent it.
            PoisonMessage: no upcast leads to today's version.
        """
        if schema == self.version:
            return self.decode(body)
        if schema > self.version:
            raise FormatTooNew(
                f"message {self.name!r} was sent with schema {schema}, this code knows {self.version}; deploy the newer"
            )
        return self.decode(_lifted(f"message {self.name!r}", _decode_any(body), schema, self))


def _lifted(what: str, fields: Any, schema: int, codec: Codec | StateCodec) -> bytes:
    for version in range(schema, codec.version):
        upcast = codec.upcasts.get(version)
        if upcast is None:
            raise PoisonMessage("undecodable", f"{what} has no upcast from schema {version}; declare it")
        fields = upcast(fields)
    try:
        return encoded_plain(fields)
    except PoisonMessage as error:
        raise PoisonMessage("undecodable", f"the upcasts of {what} from schema {schema}: {error}") from error


def codec_for(kind: type[Any], name: str, *, strict: bool = False) -> Codec:
    """The codec of a dataclass, a msgspec Struct or a pydantic model; a `strict` one refuses unknown fields.

    Raises:
        NotRegistrable: it is none of these, holds what JSON cannot, or would not be read back as it is written.
    """
    if is_pydantic(kind):
        return _pydantic_codec(kind, name, strict)
    if dataclasses.is_dataclass(kind):
        fields = frozenset(field.name for field in dataclasses.fields(kind))
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = frozenset(kind.__struct_fields__)
    else:
        raise NotRegistrable(f"{kind!r} is neither a dataclass, a msgspec.Struct nor a pydantic model; make it one")
    try:
        decoder = msgspec.json.Decoder(kind)
        msgspec.json.schema_components([kind], schema_hook=_schema_of_unknown)
    except (TypeError, NameError) as error:
        raise NotRegistrable(f"{kind.__name__} has a field that JSON cannot hold: {error}") from error
    return Codec(kind, name, encoded_plain, _strictly(kind, decoder.decode) if strict else decoder.decode, fields)


def _strictly(kind: type[Any], decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A decoder that refuses unknown members of the type, and of types inside it."""
    shape = msgspec.inspect.type_info(kind)

    def strictly(body: bytes) -> Any:
        value = decode(body)
        unknown = _unknown_field(shape, _decode_any(body), "$")
        if unknown:
            raise msgspec.ValidationError(f"Object contains unknown field `{unknown}`")
        return value

    return strictly


def _unknown_field(shape: msgspec.inspect.Type, value: Any, at: str) -> str:
    """The path of the first unknown member of a decoded value; empty without one."""
    if isinstance(shape, msgspec.inspect.UnionType):
        shape = _meant(shape, value)
    match shape:
        case msgspec.inspect.StructType(array_like=True) | msgspec.inspect.NamedTupleType():
            tag_count = 1 if getattr(shape, "tag_field", None) else 0
            names = [(str(index), field.type) for index, field in enumerate(shape.fields, tag_count)]
            extra = [str(index) for index in range(tag_count + len(shape.fields), len(value))]
            values = {str(index): each for index, each in enumerate(value)}
        case msgspec.inspect.StructType() | msgspec.inspect.DataclassType() | msgspec.inspect.TypedDictType():
            names = [(field.encode_name, field.type) for field in shape.fields]
            known = {name for name, _ in names} | {getattr(shape, "tag_field", None)}
            extra, values = [name for name in value if name not in known], value
        case msgspec.inspect.DictType():
            names, extra, values = [(name, shape.value_type) for name in value], [], value
        case msgspec.inspect.TupleType():
            names, extra = [(str(index), each) for index, each in enumerate(shape.item_types)], []
            values = {str(index): each for index, each in enumerate(value)}
        case (
            msgspec.inspect.ListType()
            | msgspec.inspect.SetType()
            | msgspec.inspect.FrozenSetType()
            | msgspec.inspect.VarTupleType()
        ):
            names, extra = [(str(index), shape.item_type) for index in range(len(value))], []
            values = {str(index): each for index, each in enumerate(value)}
        case _:
            return ""
    if extra:
        return f"{at}.{extra[0]}"
    found = (_unknown_field(each, values[name], f"{at}.{name}") for name, each in names if name in values)
    return next(filter(None, found), "")


def _meant(union: msgspec.inspect.UnionType, value: Any) -> msgspec.inspect.Type:
    """The union's type of a decoded object or array; of several Structs by the tag."""
    objects = (
        *(msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType),
        msgspec.inspect.DictType,
    )
    is_object = isinstance(value, dict)
    fitting: list[msgspec.inspect.Type] = []
    for each in union.types:
        is_for_object = isinstance(each, objects) and not getattr(each, "array_like", False)
        if isinstance(value, dict | list) and is_object == is_for_object:
            fitting.append(each)
    for each in fitting:
        if isinstance(each, msgspec.inspect.StructType) and each.tag_field is not None:
            tag = value.get(each.tag_field) if is_object else value[0]
            if tag == each.tag:
                return each
    others = [each for each in fitting if getattr(each, "tag_field", None) is None]
    others = [each for each in others if is_object or isinstance(each, _ARRAYS)]
    return others[0] if others else msgspec.inspect.AnyType()


_ARRAYS = (
    *(msgspec.inspect.ListType, msgspec.inspect.SetType, msgspec.inspect.FrozenSetType, msgspec.inspect.VarTupleType),
    *(msgspec.inspect.TupleType, msgspec.inspect.NamedTupleType, msgspec.inspect.StructType),
)


def _schema_of_unknown(kind: type[Any]) -> dict[str, Any]:
    """Refuse a field of a class without a JSON form; a decoder would fail at its first value only."""
    if kind is object:
        return {"type": "object"}
    raise TypeError(f"{kind.__name__} is neither plain data nor a dataclass or Struct; store its parts")


def _pydantic_codec(kind: type[Any], name: str, strict: bool) -> Codec:
    check_aliases(kind)
    decode = kind.model_validate_json
    if strict:
        if "extra" not in inspect.signature(decode).parameters:
            raise NotRegistrable(
                f"{kind.__name__}: strict=True needs pydantic 2.12 or newer; install it, or give the model "
                'model_config = ConfigDict(extra="forbid") in place of strict=True'
            )
        decode = partial(decode, extra="forbid")

    def decode_json(body: bytes) -> Any:
        _decode_any(body)  # pydantic takes NaN and 1e400 for numbers, which JSON cannot hold
        return decode(body)

    return Codec(kind, name, encoded_model, decode_json, frozenset(kind.model_fields))


@dataclasses.dataclass(frozen=True, slots=True)
class StateCodec:
    """The codec of a state: its schema version, and the upcast of each older version to the next."""

    codec: Codec
    version: int = 1
    upcasts: Mapping[int, Upcast] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The state's name in the store."""
        return self.codec.name

    def fresh(self) -> Any:
        """The state of a key that has none."""
        return self.codec.type()

    def encode(self, state: Any) -> bytes:
        """A state's bytes.

        Raises:
            PoisonMessage: it holds what JSON cannot, or would not be read back.
        """
        data = self.codec.encode(state)
        if null_in(data):
            self.check(data)
        return data

    def check(self, data: bytes) -> None:
        """Check that a state whose bytes hold a null reads back: a field of numbers takes no None.

        Raises:
            PoisonMessage: it would not be.
        """
        try:
            self.codec.decode(data)
        except DECODE_ERRORS as error:
            raise PoisonMessage(
                "unstorable", f"state {self.name!r} would not be read back: {error}; give each field its type's values"
            ) from error

    def decode(self, value: bytes, schema: int) -> Any:
        """Decode a state of a schema version.

        Raises:
            FormatTooNew: a newer version of the code wrote it; it must not be read, or its new fields would be dropped.
            PoisonMessage: it cannot be decoded, or no upcast leads to today's version.
        """
        try:
            if schema == self.version:
                return self.codec.decode(value)
            if schema > self.version:
                raise FormatTooNew(
                    f"state {self.name!r} is stored with schema {schema}, this code knows {self.version}; "
                    "deploy the newer one"
                )
            return self.codec.decode(_lifted(f"state {self.name!r}", _decode_any(value), schema, self))
        except DECODE_ERRORS as error:
            raise PoisonMessage(
                "undecodable", f"state {self.name!r} of schema {schema} cannot be read: {error}"
            ) from error


def check_aliases(model: type[Any]) -> None:
    """Check a pydantic model, and the models of its fields.

    Raises:
        NotRegistrable: a field is not read under the name that it is written under.
    """
    waiting, seen = [model], {model}
    while waiting:
        kind = waiting.pop()
        for name, field in kind.model_fields.items():
            if field.exclude:
                continue  # it is not written
            if not _converts(kind):
                _check_field(kind, name, field)
            found = [each for each in _models_in(field.annotation) if each not in seen]
            seen.update(found)
            waiting += found


def _check_field(kind: type[Any], name: str, field: Any) -> None:
    written, read = field.serialization_alias or field.alias or name, _read_names(kind, name, field)
    if written in read:
        return
    known = " or ".join(map(repr, sorted(read))) or "a path"
    raise NotRegistrable(
        f"{kind.__name__}.{name} is written as {written!r} and read as {known}, so what is written would be "
        f"read back without it; give it one alias=, or add {written!r} to what it is read as: "
        f"validation_alias=AliasChoices(..., {written!r})"
    )


def _read_names(kind: type[Any], name: str, field: Any) -> set[str]:
    """The names under which a model reads a field."""
    config, alias = kind.model_config, field.validation_alias
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    names = {name} if by_name or alias is None or config.get("validate_by_alias") is False else set()
    if alias is None or config.get("validate_by_alias") is False:
        return names
    for each in getattr(alias, "choices", [alias]):
        path = getattr(each, "path", [each])
        if len(path) == 1 and isinstance(path[0], str):
            names.add(path[0])
    return names


def _converts(kind: type[Any]) -> bool:
    """Whether a model has code of its own that may rename what it reads or writes."""
    decorators = kind.__pydantic_decorators__
    return bool(decorators.model_serializers) or any(
        each.info.mode in ("before", "wrap") for each in decorators.model_validators.values()
    )


def _models_in(hint: Any) -> Iterator[type[Any]]:
    """The pydantic models in an annotation."""
    if isinstance(hint, type) and is_pydantic(hint):
        yield hint
    for part in get_args(hint):
        yield from _models_in(part)

"""Arrow columns to the JSON of their values, and texts to Arrow columns; nothing is lost on the way.

Both ways go over the buffers.  From Python values pyarrow would import pandas, 1.5 s of CPU in each worker; and a text
that is no UTF-8, a time with nanoseconds, a day in the year 10,000 have no Python value, but make one row wrong here.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import isfinite

import pyarrow as pa

from outbox.errors import Refused
from spark_jobs.reading.kinds import DAY_S, day_text, timestamp_text
from spark_jobs.reading.texts import double_text, float_text, quoted

MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class Wrong(str):
    """Why a value cannot be in a message; it stands in the place of the value's JSON."""

    __slots__ = ()


Value = bytes | None | Wrong
Json = list[Value]


def json_of(column: pa.Array) -> Json:
    """The JSON of a column's values: None for a null, a `Wrong` for what has none."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return json_of(column.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        return json_of(column.storage)
    for fits, encode in _ENCODERS:
        if fits(kind):
            return encode(column)
    raise AssertionError(kind)  # `group_of` has refused it


def group_of(kind: pa.DataType) -> str:
    """The JSON type of an Arrow type: files of one input may differ within a group only.

    Raises:
        Refused: values of the type have no JSON.
    """
    if pa.types.is_dictionary(kind):
        return group_of(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return group_of(kind.storage_type)
    if pa.types.is_struct(kind):
        for field in kind:
            group_of(field.type)
        return "struct"  # whose fields may become more, as columns may
    if pa.types.is_map(kind):
        if group_of(kind.key_type) not in ("string", "integer"):
            raise Refused(f"a map with keys of type {kind.key_type} has no JSON")
        return f"map({group_of(kind.item_type)})"
    if _is_list(kind):
        return f"list({group_of(kind.value_type)})"
    for name, fits in _GROUPS.items():
        if fits(kind):
            return name
    raise Refused(f"a value of type {kind} has no JSON; cast it to a string")


def groups_of(schema: pa.Schema, name: str) -> dict[str, str]:
    """The group of each column of a schema; `name` is for errors.

    Raises:
        Refused: a column has no JSON, or two have one name.
    """
    groups = dict[str, str]()
    for field in schema:
        if field.name in groups:
            raise Refused(f"{name} has two columns of one name; rename one")
        try:
            groups[field.name] = group_of(field.type)
        except Refused as error:
            raise Refused(f"{name}: column {field.name}: {error}") from None
    return groups


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_small_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float16(kind))


_GROUPS: dict[str, Callable[[pa.DataType], bool]] = {
    "string": _is_text, "integer": pa.types.is_integer, "boolean": pa.types.is_boolean, "decimal": pa.types.is_decimal,
    "float": _is_small_float, "double": pa.types.is_float64, "date": pa.types.is_date,
    "timestamp": pa.types.is_timestamp, "time": pa.types.is_time, "binary": _is_bytes, "null": pa.types.is_null,
}  # fmt: skip


def buffers_of(column: pa.Array) -> list[bytes | None]:
    """The bytes of texts or of binary values."""
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    count, start = len(column), column.offset
    if offsets is None or not count:
        return [None] * count
    at = memoryview(offsets).cast("q" if is_large else "i")[start : start + count + 1].tolist()
    begin = at[0]
    held = b"" if data is None else bytes(memoryview(data)[begin : at[-1]])
    found: list[bytes | None] = [held[a - begin : b - begin] for a, b in pairwise(at)]
    if column.null_count:
        for index, is_null in enumerate(nulls_of(column)):
            if is_null:
                found[index] = None
    return found


def nulls_of(column: pa.Array) -> list[bool]:
    """Whether each value is a null."""
    return [not is_there for is_there in column.is_valid().to_pylist()]


def _texts(column: pa.Array) -> Json:
    found = buffers_of(column)
    try:
        b"\x7f".join([value for value in found if value is not None]).decode()
    except UnicodeDecodeError:
        return [_text(value) for value in found]
    return [None if value is None else quoted(value.decode()).encode() for value in found]


def _text(value: bytes | None) -> Value:
    try:
        return None if value is None else quoted(value.decode()).encode()
    except UnicodeDecodeError:
        return Wrong("bytes that are no UTF-8")


def _integers(column: pa.Array) -> Json:
    return list(buffers_of(column.cast(pa.string())))


def _booleans(column: pa.Array) -> Json:
    return [None if value is None else b"true" if value else b"false" for value in column.to_pylist()]


def _decimals(column: pa.Array) -> Json:
    return [None if value is None else str(value if value else abs(value)).encode() for value in column.to_pylist()]


def _floats(column: pa.Array) -> Json:
    text = float_text if _is_small_float(column.type) else double_text
    wrong = Wrong("NaN or an infinity, which JSON does not have")
    return [
        None if value is None else text(value).encode() if isfinite(value) else wrong
        for value in map(_as_float, column.to_pylist())
    ]


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _days(column: pa.Array) -> Json:
    if pa.types.is_date64(column.type):
        column = column.cast(pa.date32())
    return [None if value is None else _day(value) for value in column.view(pa.int32()).to_pylist()]


def _day(value: int) -> bytes | Wrong:
    try:
        return f'"{day_text(value)}"'.encode()
    except OverflowError:
        return Wrong("a day in no year from 1 to 9999")


def _timestamps(column: pa.Array) -> Json:
    zone, unit = "" if column.type.tz is None else "Z", column.type.unit
    return [None if value is None else _timestamp(value, unit, zone) for value in column.view(pa.int64()).to_pylist()]


def _timestamp(value: int, unit: str, zone: str) -> bytes | Wrong:
    try:
        micros, nanos = divmod(value, 1_000) if unit == "ns" else (value * MICROS[unit], 0)
        return f'"{timestamp_text(micros, nanos)}{zone}"'.encode()
    except OverflowError:
        return Wrong("a time in no year from 1 to 9999")


def _times(column: pa.Array) -> Json:
    unit, ints = column.type.unit, column.view(pa.int32() if pa.types.is_time32(column.type) else pa.int64())
    return [None if value is None else _time(value, unit) for value in ints.to_pylist()]


def _time(value: int, unit: str) -> bytes | Wrong:
    micros, nanos = divmod(value, 1_000) if unit == "ns" else (value * MICROS[unit], 0)
    if not 0 <= micros < DAY_S * 1_000_000:
        return Wrong("a time of no day")
    return f'"{timestamp_text(micros, nanos).partition("T")[2]}"'.encode()


def _binaries(column: pa.Array) -> Json:
    return [None if value is None else b'"%b"' % b64encode(value) for value in buffers_of(column)]


def _nulls(column: pa.Array) -> Json:
    return [None] * len(column)


def _structs(column: pa.Array) -> Json:
    fields = sorted((field.name, at) for at, field in enumerate(column.type))
    names = [quoted(name).encode() for name, _ in fields]
    inner = [json_of(column.field(at)) for _, at in fields]
    rows = zip(*inner, strict=True) if inner else iter([()] * len(column))
    return [None if is_null else joined(names, row) for is_null, row in zip(nulls_of(column), rows, strict=True)]


def joined(names: Sequence[bytes], values: Iterable[Value]) -> bytes | Wrong:
    """An object of quoted names and the JSON of their values, without nulls."""
    parts = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, Wrong):
            return value
        if value is not None:
            parts.append(b"%b:%b" % (name, value))
    return b"{%b}" % b",".join(parts)


def _lists(column: pa.Array) -> Json:
    nulls = nulls_of(column)
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        begins = [(column.offset + at) * size for at in range(len(column) + 1)]
    else:
        begins = column.offsets.to_pylist()
    inner = json_of(column.values)
    return [None if is_null else _listed(inner[begins[at] : begins[at + 1]]) for at, is_null in enumerate(nulls)]


def _listed(values: Json) -> bytes | Wrong:
    wrong = next((value for value in values if isinstance(value, Wrong)), None)
    if wrong is not None:
        return wrong
    return b"[%b]" % b",".join(
        [b"null" if value is None else value for value in values if not isinstance(value, Wrong)]
    )


def _maps(column: pa.Array) -> Json:
    nulls, begins = nulls_of(column), column.offsets.to_pylist()
    keys, items = json_of(column.keys), json_of(column.items)
    return [
        None if is_null else _mapped(keys[begins[at] : begins[at + 1]], items[begins[at] : begins[at + 1]])
        for at, is_null in enumerate(nulls)
    ]


def _mapped(keys: Json, items: Json) -> bytes | Wrong:
    found = dict[bytes, bytes]()
    for key, item in zip(keys, items, strict=True):
        for value in (key, item):
            if isinstance(value, Wrong):
                return value
        if isinstance(key, bytes) and isinstance(item, bytes | None):
            name = key if key.startswith(b'"') else b'"%b"' % key
            if name in found:
                return Wrong("a map that has a key twice")
            found[name] = b"null" if item is None else item
    return b"{%b}" % b",".join(b"%b:%b" % pair for pair in sorted(found.items()))


_ENCODERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Json]]] = [
    (_is_text, _texts), (pa.types.is_integer, _integers), (pa.types.is_boolean, _booleans),
    (pa.types.is_decimal, _decimals), (pa.types.is_floating, _floats), (pa.types.is_date, _days),
    (pa.types.is_timestamp, _timestamps), (pa.types.is_time, _times), (_is_bytes, _binaries),
    (pa.types.is_null, _nulls), (pa.types.is_struct, _structs), (pa.types.is_map, _maps), (_is_list, _lists),
]  # fmt: skip


def text_column(values: Sequence[bytes | None]) -> pa.Array:
    """A column of UTF-8 texts."""
    count = len(values)
    if None in values:
        held = [b"" if value is None else value for value in values]
        nulls = count - sum(value is not None for value in values)
        valid = pa.py_buffer(bits([value is not None for value in values]))
    else:
        held, nulls, valid = list(values), 0, None  # type: ignore[arg-type]  # there is no None
    offsets = array("i", accumulate(map(len, held), initial=0))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(held))]
    return pa.Array.from_buffers(pa.string(), count, buffers, nulls)


def binary_column(values: Sequence[bytes]) -> pa.Array:
    """A column of bytes."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))], 0
    )  # fmt: skip


def integer_column(values: Sequence[int | None]) -> pa.Array:
    """A column of 64-bit integers."""
    nulls = sum(value is None for value in values) if None in values else 0
    valid = pa.py_buffer(bits([value is not None for value in values])) if nulls else None
    held = array("q", [value or 0 for value in values])
    return pa.Array.from_buffers(pa.int64(), len(values), [valid, pa.py_buffer(held)], nulls)


def null_column(kind: pa.DataType, count: int) -> pa.Array:
    """A column of nulls."""
    valid, zeros = pa.py_buffer(bytes(count // 8 + 1)), pa.py_buffer(bytes(8 * (count + 1)))
    buffers = [valid, zeros, pa.py_buffer(b"")] if kind == pa.string() else [valid, zeros]
    return pa.Array.from_buffers(kind, count, buffers, count)


def bits(flags: Sequence[bool]) -> bytes:
    """Flags as Arrow has them, the first in the lowest bit."""
    text = "".join(["1" if flag else "0" for flag in reversed(flags)]) or "0"
    return int(text, 2).to_bytes((len(flags) + 7) // 8 or 1, "little")

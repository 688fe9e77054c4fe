"""AMQP 1.0 types: bytes to Python values, and typed values to bytes.

Decides how every primitive of part 1 of the specification reads and writes, within limits: nothing that a peer sends
can make a value deeper than `DEPTH_MAX`, of more than `COUNT_MAX` elements over all its compounds, or of many elements
without bytes, or a map whose keys all have one hash, or read past its own size.  What the values mean is for others.

*Theory of operation.*  `decode(data, at)` returns the value and the position behind it; one function for each
constructor stands in a table of 256, and takes what is `Spent`.  Decoding loses the AMQP type (symbols and strings
are `str`, all integers `int`, timestamps milliseconds as `int`), because what must be given back unchanged is kept
as its bytes.  Encoding is explicit: one function for each type, each returning bytes that others join.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

DEPTH_MAX = 16
COUNT_MAX = 65_536
FREE_COUNT_MAX = 16
"""The most elements of an array whose constructor says it all (null, true, 0): they take no bytes."""

CHOSEN_HASH_COUNT_MAX = 64
"""The most keys of a map whose hash follows from their bytes, for a peer can make many hash alike."""

NULL = b"\x40"
TRUE = b"\x41"
FALSE = b"\x42"

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


class DecodeError(ValueError):
    """The bytes are not what AMQP 1.0 allows, or exceed a stated limit."""


class Described(NamedTuple):
    """A value with a descriptor of its own."""

    descriptor: object
    value: object


Spent = list[int]
"""The limits that one value has used up while it is decoded, depth and elements; a list, for speed.  A list, for
speed."""
_Decoder = Callable[[bytes, int, Spent], tuple[object, int]]


def decode(data: bytes, at: int = 0) -> tuple[object, int]:
    """Decode the value that starts at `at`; return it and the position behind it.

    Raises: DecodeError.
    """
    try:
        return TABLE[data[at]](data, at + 1, [0, 0])
    except (IndexError, struct.error) as error:
        raise DecodeError(f"value at byte {at} is cut short") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"string at byte {at} is not UTF-8") from error
    except TypeError as error:
        raise DecodeError(f"map at byte {at} has a key that cannot be one") from error


def decode_fields(data: bytes, at: int, end_max: int) -> tuple[list[object], int]:
    """Decode a list (of a performative or a section) that must not reach beyond `end_max`.

    Raises: DecodeError.
    """
    try:
        code = data[at]
        if code == 0xC0:
            size, count, first = data[at + 1], data[at + 2], at + 3
            end = at + 2 + size
        elif code == 0xD0:
            size, count, first = _U32.unpack_from(data, at + 1)[0], _U32.unpack_from(data, at + 5)[0], at + 9
            end = at + 5 + size
        elif code == 0x45:
            return [], at + 1
        else:
            raise DecodeError(f"a list was expected at byte {at}, found constructor 0x{code:02x}")
        if end > end_max or count > COUNT_MAX:
            raise DecodeError(f"list of {count} fields at byte {at} does not fit")
        return _items(data, first, count, end, [1, count]), end
    except (IndexError, struct.error) as error:
        raise DecodeError(f"list at byte {at} is cut short") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"list at byte {at} holds a string that is not UTF-8") from error
    except TypeError as error:
        raise DecodeError(f"list at byte {at} holds a map with a key that cannot be one") from error


def field_spans(data: bytes, at: int) -> list[bytes]:
    """The items of a list or map that was decoded before, each as the bytes that the peer sent."""
    if data[at] == 0x45:
        return []
    count, at, _ = _compound(data, at + 1, data[at] in (0xD0, 0xD1))
    spans = []
    for _ in range(count):
        _, end = decode(data, at)
        spans.append(data[at:end])
        at = end
    return spans


def _items(data: bytes, at: int, count: int, end: int, spent: Spent) -> list[object]:
    values: list[object] = []
    append = values.append
    table = TABLE
    for _ in range(count):
        code = data[at]
        if code == 0x40:  # the most frequent field of every performative
            append(None)
            at += 1
        else:
            value, at = table[code](data, at + 1, spent)
            append(value)
    if at != end:
        raise DecodeError(f"compound ends at byte {at}, its size says {end}")
    return values


def _constant(value: object) -> _Decoder:
    return lambda data, at, spent: (value, at)


def _fixed(fmt: str) -> _Decoder:
    packed = struct.Struct(fmt)
    unpack, width = packed.unpack_from, packed.size
    return lambda data, at, spent: (unpack(data, at)[0], at + width)


def _byte(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    return data[at], at + 1


def _boolean(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    if data[at] > 1:
        raise DecodeError(f"boolean at byte {at} is neither 0 nor 1")
    return data[at] == 1, at + 1


def _char(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    number = _U32.unpack_from(data, at)[0]
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:  # a lone surrogate cannot be written as UTF-8 again
        raise DecodeError(f"character at byte {at} is not one of Unicode")
    return chr(number), at + 4


def _uuid(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    return UUID(bytes=_slice(data, at, 16)), at + 16


def _opaque(width: int) -> _Decoder:
    return lambda data, at, spent: (_slice(data, at, width), at + width)


def _slice(data: bytes, at: int, width: int) -> bytes:
    end = at + width
    if end > len(data):
        raise DecodeError(f"{width} bytes at byte {at} are cut short")
    return data[at:end]


def _binary8(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise DecodeError(f"binary at byte {at} is cut short")
    return data[at + 1 : end], end


def _text8(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise DecodeError(f"string at byte {at} is cut short")
    return data[at + 1 : end].decode(), end


def _binary32(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    end = at + 4 + _U32.unpack_from(data, at)[0]
    if end > len(data):
        raise DecodeError(f"binary at byte {at} is cut short")
    return data[at + 4 : end], end


def _text32(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    end = at + 4 + _U32.unpack_from(data, at)[0]
    if end > len(data):
        raise DecodeError(f"string at byte {at} is cut short")
    return data[at + 4 : end].decode(), end


def _compound(data: bytes, at: int, wide: bool) -> tuple[int, int, int]:
    """Size and count of a list, map or array: (count, first item, end)."""
    if wide:
        count, first, end = _U32.unpack_from(data, at + 4)[0], at + 8, at + 4 + _U32.unpack_from(data, at)[0]
    else:
        count, first, end = data[at + 1], at + 2, at + 1 + data[at]
    if end > len(data) or end < first or count > COUNT_MAX:
        raise DecodeError(f"compound of {count} items at byte {at} does not fit")
    return count, first, end


def _enter(spent: Spent, count: int) -> None:
    """Go one deeper, into a compound of `count` elements."""
    if spent[0] >= DEPTH_MAX:
        raise DecodeError(f"value is nested deeper than {DEPTH_MAX}")
    spent[0] += 1
    spent[1] += count
    if spent[1] > COUNT_MAX:
        raise DecodeError(f"value has more than {COUNT_MAX} elements")


def _list(wide: bool) -> _Decoder:
    def decode_list(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
        count, first, end = _compound(data, at, wide)
        _enter(spent, count)
        values = _items(data, first, count, end, spent)
        spent[0] -= 1
        return values, end

    return decode_list


def _map(wide: bool) -> _Decoder:
    def decode_map(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
        count, first, end = _compound(data, at, wide)
        if count % 2:
            raise DecodeError(f"map at byte {at} has a key without a value")
        _enter(spent, count)
        values = _items(data, first, count, end, spent)
        spent[0] -= 1
        keys = values[::2]
        if (
            len(keys) > CHOSEN_HASH_COUNT_MAX
            and sum(type(key) in (UUID, Described) for key in keys) > CHOSEN_HASH_COUNT_MAX
        ):
            raise DecodeError(f"map at byte {at} has over {CHOSEN_HASH_COUNT_MAX} keys that are UUIDs or described")
        return dict(zip(keys, values[1::2], strict=True)), end

    return decode_map


def _array(wide: bool) -> _Decoder:
    def decode_array(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
        count, first, end = _compound(data, at, wide)
        if count == 0 and first == end:
            return [], end
        code, at = data[first], first + 1
        if code == 0:
            raise DecodeError(f"array at byte {first} holds described values")
        if code >> 4 == 4 and count > FREE_COUNT_MAX:  # else a few bytes would ask for any number of values
            raise DecodeError(f"array of {count} values without bytes at byte {first}")
        _enter(spent, count)
        decoder, values = TABLE[code], []
        for _ in range(count):
            value, at = decoder(data, at, spent)
            values.append(value)
        spent[0] -= 1
        if at != end:
            raise DecodeError(f"array ends at byte {at}, its size says {end}")
        return values, end

    return decode_array


def _described(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    _enter(spent, 1)
    descriptor, at = TABLE[data[at]](data, at + 1, spent)
    value, at = TABLE[data[at]](data, at + 1, spent)
    spent[0] -= 1
    return Described(descriptor, value), at


def _unknown(data: bytes, at: int, spent: Spent) -> tuple[object, int]:
    raise DecodeError(f"constructor 0x{data[at - 1]:02x} at byte {at - 1} is not defined")


TABLE: list[_Decoder] = [_unknown] * 256
for _code, _decoder in {
    0x00: _described, 0x40: _constant(None), 0x41: _constant(True), 0x42: _constant(False),
    0x43: _constant(0), 0x44: _constant(0), 0x45: lambda data, at, spent: ([], at),
    0x50: _byte, 0x51: _fixed(">b"), 0x52: _byte, 0x53: _byte, 0x54: _fixed(">b"), 0x55: _fixed(">b"), 0x56: _boolean,
    0x60: _fixed(">H"), 0x61: _fixed(">h"), 0x70: _fixed(">I"), 0x71: _fixed(">i"), 0x72: _fixed(">f"), 0x73: _char,
    0x74: _opaque(4), 0x80: _fixed(">Q"), 0x81: _fixed(">q"), 0x82: _fixed(">d"), 0x83: _fixed(">q"), 0x84: _opaque(8),
    0x94: _opaque(16), 0x98: _uuid, 0xA0: _binary8, 0xA1: _text8, 0xA3: _text8, 0xB0: _binary32, 0xB1: _text32,
    0xB3: _text32, 0xC0: _list(False), 0xC1: _map(False), 0xD0: _list(True), 0xD1: _map(True), 0xE0: _array(False),
    0xF0: _array(True),
}.items():  # fmt: skip
    TABLE[_code] = _decoder


def boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def ubyte(value: int) -> bytes:
    return bytes((0x50, value))


def ushort(value: int) -> bytes:
    return b"\x60" + _U16.pack(value)


def uint(value: int) -> bytes:
    if value < 256:
        return bytes((0x52, value)) if value else b"\x43"
    return b"\x70" + _U32.pack(value)


def ulong(value: int) -> bytes:
    if value < 256:
        return bytes((0x53, value)) if value else b"\x44"
    return b"\x80" + _U64.pack(value)


def int_(value: int) -> bytes:
    return b"\x71" + struct.pack(">i", value)


def long_(value: int) -> bytes:
    return b"\x81" + _I64.pack(value)


def double(value: float) -> bytes:
    return b"\x82" + struct.pack(">d", value)


def timestamp(value_ms: int) -> bytes:
    return b"\x83" + _I64.pack(value_ms)


def uuid_(value: UUID) -> bytes:
    return b"\x98" + value.bytes


def binary(value: bytes) -> bytes:
    size = len(value)
    return b"\xa0" + bytes((size,)) + value if size < 256 else b"\xb0" + _U32.pack(size) + value


def string(value: str) -> bytes:
    data = value.encode()
    size = len(data)
    return b"\xa1" + bytes((size,)) + data if size < 256 else b"\xb1" + _U32.pack(size) + data


def symbol(value: str) -> bytes:
    data = value.encode("ascii", "replace")
    size = len(data)
    return b"\xa3" + bytes((size,)) + data if size < 256 else b"\xb3" + _U32.pack(size) + data


def list_(items: Sequence[bytes]) -> bytes:
    return _sized(b"\xc0", b"\xd0", items)


def map_(items: Sequence[bytes]) -> bytes:
    """A map from keys and values in turn, each encoded."""
    return _sized(b"\xc1", b"\xd1", items)


def array(constructor: int, items: Sequence[bytes]) -> bytes:
    """An array of items that were encoded *without* their constructor."""
    body = bytes((constructor,)) + b"".join(items)
    return b"\xf0" + _U32.pack(len(body) + 4) + _U32.pack(len(items)) + body


def array_of_numbers(constructor: int, values: Sequence[int]) -> bytes:
    """An array of longs (0x81) or timestamps (0x83)."""
    return array(constructor, [_I64.pack(value) for value in values])


def described(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def scalar(value: str | int | float | bool | bytes | None) -> bytes:
    """Encode a user's property by its Python type; integers become long, or ulong beyond it.

    Raises: ValueError for an integer beyond 64 bits.
    """
    if value is None:
        return NULL
    if isinstance(value, str):
        return string(value)
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return long_(value)
        if 0 <= value < 2**64:
            return ulong(value)
        raise ValueError(f"integer property {value} does not fit 64 bits; send it as a string")
    return double(value) if isinstance(value, float) else binary(value)


def _sized(narrow: bytes, wide: bytes, items: Sequence[bytes]) -> bytes:
    body = b"".join(items)
    if len(body) < 255 and len(items) < 256:
        return narrow + bytes((len(body) + 1, len(items))) + body
    return wide + _U32.pack(len(body) + 4) + _U32.pack(len(items)) + body

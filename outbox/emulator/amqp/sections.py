"""The sections of a message, where each begins and ends, and the two kinds of value read in bulk.

This is the innermost loop of receiving, so it skips by sizes what it need not decode.
"""

from __future__ import annotations

import struct

from outbox.emulator.amqp import types
from outbox.emulator.amqp.types import DecodeError

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

_U32 = struct.Struct(">I")
_NARROW = frozenset((0xA0, 0xA1, 0xC0, 0xC1))
_WIDE = frozenset((0xB0, 0xB1, 0xD0, 0xD1))

Section = tuple[int, int, int]
"""Code, where the value starts, where it ends.  The section itself begins three bytes before its value."""


def sections(data: bytes) -> list[Section]:
    """Find the sections of a message.

    Raises: DecodeError.
    """
    found: list[Section] = []
    at, size = 0, len(data)
    try:
        while at < size:
            if data[at] != 0 or data[at + 1] != 0x53:
                raise DecodeError(f"no section at byte {at}")
            start = at + 3
            code = data[start]
            if code in _NARROW:
                end = at + 5 + data[at + 4]
            elif code in _WIDE:
                end = at + 8 + _U32.unpack_from(data, at + 4)[0]
            else:
                _, end = types.decode(data, start)
            if end > size:
                raise DecodeError(f"section at byte {at} is cut short")
            found.append((data[at + 2], start, end))
            at = end
    except (IndexError, struct.error) as error:
        raise DecodeError(f"section at byte {at} is cut short") from error
    return found


def read_binary(data: bytes, start: int, end: int) -> bytes:
    """The bytes of a data section."""
    code = data[start]
    if code == 0xB0:
        return data[start + 5 : end]
    if code == 0xA0:
        return data[start + 2 : end]
    raise DecodeError(f"data section at byte {start} is not binary")


def read_fields(data: bytes, start: int, end: int) -> list[object]:
    """The fields of a properties section; trailing nulls may be missing."""
    if (
        end - start > 4 and data[start] == 0xC0 and data[start + 3] == 0xA1
    ):  # most often there is a message id and nothing else
        at = start + 5 + data[start + 4]
        nulls = end - at
        if nulls == data[start + 2] - 1 and data.count(b"\x40", at, end) == nulls:
            try:
                return [data[start + 5 : at].decode()]
            except UnicodeDecodeError as error:
                raise DecodeError(f"string at byte {start + 3} is not UTF-8") from error
    return types.decode_fields(data, start, end)[0]


def read_names(data: bytes, start: int, end: int) -> dict[str, object]:
    """A map from names: application properties, or annotations."""
    code = data[start]
    try:
        if code == 0xC1:
            count, at = data[start + 2], start + 3
        elif code == 0xD1:
            count, at = _U32.unpack_from(data, start + 5)[0], start + 9
        else:
            raise DecodeError(f"section at byte {start} is not a map")
        if count % 2 or count > types.COUNT_MAX:
            raise DecodeError(f"map of {count} keys and values at byte {start}")
        values = _read_pairs(data, at, end, count // 2)
    except (IndexError, struct.error) as error:
        raise DecodeError(f"map at byte {start} is cut short") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"map at byte {start} holds a string that is not UTF-8") from error
    except TypeError as error:
        raise DecodeError(f"map at byte {start} holds a map with a key that cannot be one") from error
    return values


def _read_pairs(data: bytes, at: int, end: int, count: int) -> dict[str, object]:
    table = types.TABLE
    values: dict[str, object] = {}
    spent: types.Spent = [1, 2 * count]
    for _ in range(count):
        code = data[at]
        if code == 0xA1 or code == 0xA3:
            stop = at + 2 + data[at + 1]
            name = data[at + 2 : stop].decode()
        else:
            key, stop = table[code](data, at + 1, spent)
            if type(key) is not str:
                raise DecodeError(f"key at byte {at} is not a name")
            name = key
        code = data[stop]
        if code == 0xA1:
            at = stop + 2 + data[stop + 1]
            values[name] = data[stop + 2 : at].decode()
        else:
            values[name], at = table[code](data, stop + 1, spent)
    if at != end:
        raise DecodeError(f"map ends at byte {at}, its size says {end}")
    return values

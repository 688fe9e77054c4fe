"""Effective partition keys: where the hash of a partition key lies, for ranges of hashes that clients ask for.

A client reads the change feed of one partition key, or queries by the first parts of a hierarchical one, by naming a
range of hashes.  The hash is MurmurHash3 (x64, 128 bits) over the type and the bytes of each part, as clients compute
it for version 2 of partition keys.  Source: github.com/aappleby/smhasher, MurmurHash3_x64_128.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from outbox.emulator.cosmos.answers import bad, unsupported
from outbox.emulator.cosmos.catalog import Container
from outbox.emulator.cosmos.values import Json, parse_values

WHOLE = ("", "FF")
RANGE_LENGTH_MAX = 256
_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def range_of(start: str, end: str, container: Container) -> tuple[str, str] | None:
    """The range of hashes that a request names, None for all of them.

    Raises:
        Rejection: 400, it is none, or the container's keys are hashed in another way.
    """
    start, end = start.upper(), end.upper() or WHOLE[1]
    if (start or WHOLE[0], end) == WHOLE:
        return None
    digits = set(start + end)
    if len(start) + len(end) > RANGE_LENGTH_MAX or not digits <= set("0123456789ABCDEF"):
        raise bad("the range of partition keys is none; send hexadecimal digits")
    if container.definition["partitionKey"].get("version") != 2:
        raise unsupported("a range of partition keys of version 1")
    return start, end


@lru_cache(maxsize=1 << 16)
def effective_key(key: str, *, is_hierarchical: bool) -> str:
    """The hash of a partition key, as hexadecimal digits; of a hierarchical one, one hash for each part."""
    parts = [_hashed_form(value) for value in parse_values(key)]
    return "".join(map(_digits, parts)) if is_hierarchical else _digits(b"".join(parts))


def _hashed_form(value: Json) -> bytes:
    match value:
        case True:
            return b"\x03"
        case False:
            return b"\x02"
        case None:
            return b"\x01"
        case str():
            return b"\x08" + value.encode() + b"\xff"
        case int() | float():
            return b"\x05" + struct.pack("<d", float(value))
    return b"\x00"  # undefined


def _digits(data: bytes) -> str:
    found = bytearray(murmur3(data)[::-1])
    found[0] &= 0x3F  # so that every hash is below FF
    return found.hex().upper()


def murmur3(data: bytes) -> bytes:
    """MurmurHash3 of some bytes, x64, 128 bits, seed 0; little-endian."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        k1, k2 = struct.unpack_from("<QQ", data, at)
        h1 = (_rotated(h1 ^ _first(k1), 27) + h2) & _MASK
        h1 = (h1 * 5 + 0x52DCE729) & _MASK
        h2 = (_rotated(h2 ^ _second(k2), 31) + h1) & _MASK
        h2 = (h2 * 5 + 0x38495AB5) & _MASK
    rest = data[whole:].ljust(16, b"\0")
    k1, k2 = struct.unpack("<QQ", rest)
    h1, h2 = h1 ^ _first(k1) ^ len(data), h2 ^ _second(k2) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = (h1 + h2) & _MASK
    return struct.pack("<QQ", h1, (h2 + h1) & _MASK)


def _first(k1: int) -> int:
    return _rotated(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _second(k2: int) -> int:
    return _rotated(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33

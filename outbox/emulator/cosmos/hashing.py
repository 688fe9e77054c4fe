"""Effective partition keys: where the hash of a partition key lies, for ranges of hashes that clients ask for.

A client reads the change feed of one partition key, or queries by the first parts of a hierarchical one, by naming a
range of hashes.  The hash is MurmurHash3 (x64, 128 bits) over the type and the bytes of each part, as clients compute
it for version 2 of partition keys.  For version 1 it is the one of 32 bits over the first 100 characters, followed by
these in a form that is ordered as they are.  Source: github.com/aappleby/smhasher, MurmurHash3_x64_128 and
MurmurHash3_x86_32; the forms as azure-cosmos has them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial

from outbox.emulator.cosmos.catalog import Container
from outbox.emulator.cosmos.wire import Json, bad, parse_values

WHOLE = ("", "FF")
RANGE_LENGTH_MAX = 1_024
_TEXT_LENGTH_MAX = 100
"""The part of a text in version 1: characters in the hash, and bytes, with one more, behind it."""
_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def range_of(start: str, end: str, container: Container) -> tuple[str, str] | None:
    """The range of hashes that a request names, None for all of them.

    Raises:
        Rejection: 400, it is none.
    """
    start, end = start.upper(), end.upper() or WHOLE[1]
    if (start or WHOLE[0], end) == WHOLE:
        return None
    digits = set(start + end)
    if len(start) + len(end) > RANGE_LENGTH_MAX or not digits <= set("0123456789ABCDEF"):
        raise bad("the range of partition keys is none; send hexadecimal digits")
    return start, end


def hash_of(container: Container) -> Callable[[str], str]:
    """The hash function of a container's partition keys."""
    if len(container.key_paths) > 1:
        return partial(effective_key, is_hierarchical=True)
    if container.definition["partitionKey"].get("version") == 1:
        return effective_key_v1
    return partial(effective_key, is_hierarchical=False)


@lru_cache(maxsize=1 << 16)
def effective_key(key: str, *, is_hierarchical: bool) -> str:
    """The hash of a partition key, as hexadecimal digits; of a hierarchical one, one hash for each part."""
    parts = [_hashed_form(value) for value in parse_values(key)]
    return "".join(map(_digits, parts)) if is_hierarchical else _digits(b"".join(parts))


@lru_cache(maxsize=1 << 14)
def effective_key_v1(key: str) -> str:
    """The hash of a partition key of version 1, and the key behind it, as hexadecimal digits."""
    [value] = parse_values(key)
    if isinstance(value, str):
        value = value[:_TEXT_LENGTH_MAX]
    # Clients of this language hash whole numbers so.
    hashed = value & 0xFFFFFFFF if isinstance(value, int) and not isinstance(value, bool) else value
    digest = murmur3_32(_hashed_form(hashed, b"\0"))
    return (_ordered_form(float(digest)) + _ordered_form(value)).hex().upper()


def _ordered_form(value: Json) -> bytes:
    """A value as bytes that are ordered as values are."""
    if isinstance(value, str):
        data = value.encode()
        is_whole = len(data) <= _TEXT_LENGTH_MAX
        shifted = bytes(byte + 1 for byte in data[: _TEXT_LENGTH_MAX + 1])  # no byte of UTF-8 is 255
        return b"\x08" + shifted + (b"\0" if is_whole else b"")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return b"\x05" + _ordered_number(float(value))
    return _hashed_form(value, b"")


def _ordered_number(value: float) -> bytes:
    """A double, its sign turned round: 8 bits, then 7 in each byte, whose last bit says that another comes."""
    [bits] = struct.unpack("<Q", struct.pack("<d", value))
    bits = bits ^ 1 << 63 if bits < 1 << 63 else -bits & _MASK
    found, bits = [bits >> 56], bits << 8 & _MASK
    while bits:
        found.append(bits >> 56 | 1)
        bits = bits << 7 & _MASK
    if len(found) == 1:
        found.append(0)
    found[-1] &= 0xFE
    return bytes(found)


def _hashed_form(value: Json, end: bytes = b"\xff") -> bytes:
    match value:
        case True:
            return b"\x03"
        case False:
            return b"\x02"
        case None:
            return b"\x01"
        case str():
            return b"\x08" + value.encode() + end
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
    k1, k2 = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    h1, h2 = h1 ^ _first(k1) ^ len(data), h2 ^ _second(k2) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = (h1 + h2) & _MASK
    return struct.pack("<QQ", h1, (h2 + h1) & _MASK)


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 of some bytes, x86, 32 bits, seed 0."""
    mask, hash = (1 << 32) - 1, 0
    whole = len(data) & ~3
    for at in range(0, len(data), 4):
        block = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & mask
        hash ^= (block << 15 | block >> 17) * 0x1B873593 & mask
        if at < whole:
            hash = ((hash << 13 | hash >> 19) & mask) * 5 + 0xE6546B64 & mask
    hash ^= len(data)
    hash = (hash ^ hash >> 16) * 0x85EBCA6B & mask
    hash = (hash ^ hash >> 13) * 0xC2B2AE35 & mask
    return hash ^ hash >> 16


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

"""Bytes that are almost right: what a valid input becomes by a few changes, drawn by a seed."""

from __future__ import annotations

import random
import re

TRIPS = (
    *(b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"\x80", b"\x00", b"\xc1", b"\xed\xa0\x80"),
    *(b"[" * 3_000, b'{"a":' * 600, b"1e999", b"-1", b"9" * 5_000, b"0.1e-400", b"NaN", b"\\ud800", b"\\u0000"),
    *(b'"', b"'", b"%ff", b"%00", b"(" * 99, b"null", b"true", b"[]", b"{}", b"<!DOCTYPE a [<!ENTITY b 'c'>]>&b;"),
)
"""What parsers trip over: lengths, depths, numbers, halves of characters, other types."""
_NUMBER = re.compile(rb"\d+")
CHANGE_COUNT_MAX = 5


def mutated(chance: random.Random, data: bytes) -> bytes:
    """`data` with up to five changes: bytes changed, removed, repeated or moved, and what parsers trip over put in."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, CHANGE_COUNT_MAX)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.randint(1, 20)]
            case 2:
                changed[at:at] = changed[at : at + chance.randint(1, 40)] * chance.randint(1, 3)
            case 3:
                changed[at:at] = chance.choice(TRIPS)
            case 4:
                _change_number(chance, changed)
            case 5:
                end = chance.randrange(at, len(changed) + 1)
                piece = bytes(changed[at:end])
                del changed[at:end]
                changed[chance.randrange(len(changed) + 1) :][:0] = piece
    return bytes(changed)


def _change_number(chance: random.Random, changed: bytearray) -> None:
    numbers = list(_NUMBER.finditer(changed))
    if numbers:
        found = chance.choice(numbers)
        changed[found.start() : found.end()] = chance.choice((b"-1", b"0", b"1e3", b"%d" % (1 << 63), b"null", b'"1"'))

"""JSON bodies in a canonical form for comparison, without loss of digits.

A number stays the text that was sent, because only the message's type knows its precision: as a float,
12345678901234567.89 would reach a Decimal as 12345678901234568.  So 1.0 and 1.00 are different bodies, as they are
different decimals; the order of members, white space and escapes make no difference.

Refused here, whatever the message's type: invalid JSON, a repeated member, a number beyond floats or Python's integers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from math import isinf
from typing import Any, NoReturn

import msgspec

DIGIT_COUNT_MAX = 4_300
"""How long a number may be as text: as Python's own integers."""


def read_body(body: bytes) -> Any:
    """A document's values, each number as a `msgspec.Raw` of its text.

    Raises:
        ValueError: it is not JSON, a member is repeated, or a number is out of range.
        RecursionError: it is nested too deeply.
    """
    return _DECODER.decode(body.decode())


def write_body(document: Any) -> bytes:
    """Encode a document in canonical order.

    Raises:
        ValueError: a text in it is half of a surrogate pair.
        RecursionError: it is nested too deeply.
    """
    return msgspec.json.encode(document, order="sorted")


def _integer(text: str) -> msgspec.Raw:
    if len(text) > DIGIT_COUNT_MAX:
        raise ValueError(f"a number of {len(text)} digits is out of range")
    return msgspec.Raw(text)


def _fraction(text: str) -> msgspec.Raw:
    if len(text) > DIGIT_COUNT_MAX or isinf(float(text)):
        raise ValueError(f"number out of range: {text[:40]}")
    return msgspec.Raw(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"member {twice[:40]!r} is there twice; send it once")
    return members


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_fraction, parse_constant=_constant, object_pairs_hook=_members
)

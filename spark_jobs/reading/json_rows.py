"""JSON lines: one object a line, in UTF-8, each key once; its fields become the body's bytes.

Numbers stay as they are written, so 9007199254740993 beside 0.5 stays what it is.  Texts are written anew, because the
same text may be escaped in several ways; keys of inner objects are sorted and their nulls left out, as those of the
body itself are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any

import msgspec
from msgspec import Raw

from outbox.errors import Refused
from spark_jobs.reading.lexer import RECORD_BYTES_MAX, Records
from spark_jobs.reading.rows import ENCODING, MALFORMED, Broken, too_long
from spark_jobs.reading.texts import quoted

LONG_NUMBER = 300
"""Characters from which on a number may be beyond a double without an exponent."""

_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str).decode


class Number(str):
    """A number, in the digits of the input."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Objects:
    """Rows as mappings of fields to JSON; nulls are left out."""

    values: list[Mapping[str, bytes]]
    lines: list[int]
    raw: list[bytes]
    broken: list[Broken] = field(default_factory=list)


def objects(found: Records, *, limit: int = RECORD_BYTES_MAX) -> Objects:
    """The objects of lines; blank lines are none."""
    rows = Objects([], [], [])
    if found.cut:
        rows.broken.extend(too_long(found.lines[at], found.raw[at], limit) for at in sorted(found.cut))
        return rows
    try:
        b"\n".join(found.raw).decode()
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    for line, raw in zip(found.lines, found.raw, strict=True):
        try:
            if not is_text:
                raw.decode()
            rows.values.append(fields_of(raw))
        except UnicodeDecodeError as error:
            reason = f"{ENCODING}: byte {error.start + 1} of the row is not UTF-8"
            rows.broken.append(Broken(line, raw, reason))
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            if not is_blank(raw):
                rows.broken.append(Broken(line, raw, f"{MALFORMED}: {told(error)}"))
        else:
            rows.lines.append(line)
            rows.raw.append(raw)
    return rows


def is_blank(line: bytes) -> bool:
    """Whether a line has nothing but JSON's white space."""
    return not line.strip(b" \t\r")


def told(error: Exception) -> str:
    """The fault of a line, in plain words, by a decoder's error."""
    if isinstance(error, UnicodeEncodeError) or "truncated" in str(error):
        return "no whole JSON object: it is cut off, or has half of a surrogate pair"
    if isinstance(error, RecursionError):
        return "objects or arrays inside each other without end"
    text = str(error)
    if "trailing characters" in text:
        return "something behind the object; one object a line"
    return "not one JSON object: " + text.removeprefix("JSON is malformed: ").partition(" - at `")[0]


def fields_of(line: bytes) -> dict[str, bytes]:
    """The fields of an object, without nulls.

    Raises:
        ValueError: a key comes twice, or a number is beyond what a double holds.
        msgspec.DecodeError: it is no JSON object.
    """
    found, quotes = {}, 0
    decoded = _decode(line)
    for key, value in decoded.items():
        raw = bytes(value)
        first = raw[0]
        if first == 34:
            if b"\\" in raw:
                quotes += raw.count(b'"')
                raw = quoted(_text(raw)).encode()
            else:
                quotes += 2
        elif first in b"{[":
            quotes += raw.count(b'"')
            raw = canonical(raw)
        elif first == 110:
            continue
        elif first not in b"tf":
            check_number(raw)
        found[key] = raw
    # A key that came twice is there once, and its quotes are missing.  Quotes that are escaped in keys are counted too.
    if line.count(b'"') != quotes + 2 * len(decoded):
        json.loads(line, object_pairs_hook=once, parse_int=Number, parse_float=Number)
    return found


def check_number(raw: bytes) -> None:
    """Refuse a number that is infinite as a double: whoever reads the message would get another.

    Raises:
        ValueError: so it is.
    """
    if (b"e" in raw or b"E" in raw or len(raw) > LONG_NUMBER) and isinf(float(raw)):
        raise ValueError(f"{raw[:40].decode()} is beyond what a double holds")


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of some pairs.

    Raises:
        ValueError: a key comes twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:80]!r} comes twice")
    return found


def canonical(raw: bytes) -> bytes:
    """An inner object or array, written anew."""
    value = json.loads(raw, object_pairs_hook=once, parse_int=Number, parse_float=Number)
    return written(value).encode()


def written(value: Any) -> str:
    """A value that `canonical` has read, as JSON."""
    if isinstance(value, Number):
        check_number(value.encode())
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        inner = (f"{quoted(key)}:{written(item)}" for key, item in sorted(value.items()) if item is not None)
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return "null" if value is None else "true" if value else "false"


def check_head(head: bytes, name: str) -> None:
    """Refuse a file that is one array, or whose objects stand on several lines.

    Raises:
        Refused: it is so.
    """
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Refused(f"{name} is UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        raise Refused(f"{name} is one array; feed takes one object a line, as `jq -c '.[]'` writes them")
    if text.startswith(b"{") and text[1:].lstrip(b" \t\r").startswith(b"\n"):
        raise Refused(
            f"{name} has an object over several lines; feed takes one object a line, as `jq -c .` writes them"
        )

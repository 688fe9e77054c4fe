"""A judge of files that shares nothing with the reader: slow, sign by sign, from RFC 4180 and the grammar of JSON.

It says of every row of a file on which line it begins and what its message is, or that it must be set aside.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """One row: where it begins, and the bytes of its body; None: it is set aside."""

    line: int
    id: str | None = None
    body: bytes | None = None


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    separator: str = ","
    quote: str = '"'
    escape: str = ""
    encoding: str = "utf-8"
    multiline: bool = False


class Raw(str):
    """A number, as it is to be written."""


def text_of(value: Any) -> str:
    """A value as JSON: keys sorted, nulls of objects left out, numbers as they are given."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str):
        escaped = json.dumps(value, ensure_ascii=False)
        return re.sub(r"\\u00[01][0-9a-f]", lambda found: "\\u" + found[0][2:].upper(), escaped)
    if isinstance(value, dict):
        return "{" + ",".join(f"{text_of(k)}:{text_of(v)}" for k, v in sorted(value.items()) if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]


def csv_records(data: bytes, dialect: Dialect) -> list[tuple[int, list[str | None] | None]]:
    """Each record with its line and its fields, None where it is none; empty lines are left out."""
    text = data.decode("latin-1")  # a sign for each byte
    found: list[tuple[int, list[str | None] | None]] = []
    at, line = 0, 1
    while at < len(text):
        begin, first = at, line
        fields: list[str | None] = []
        field, state, is_right, was_quoted = "", "start", True, False
        while at < len(text):
            sign = text[at]
            at += 1
            is_end = sign == "\n" or (sign == "\r" and text[at : at + 1] == "\n" and state not in ("quoted", "escaped"))
            if sign == "\n":
                line += 1
            if state == "escaped":
                is_right = is_right and sign in (dialect.quote, dialect.escape)
                field, state = field + sign, "quoted"
            elif state == "quoted":
                if sign == dialect.escape:
                    state = "escaped"
                elif sign == dialect.quote and not dialect.escape and text[at : at + 1] == dialect.quote:
                    field, at = field + sign, at + 1
                elif sign == dialect.quote:
                    state = "closed"
                else:
                    is_right = is_right and (sign != "\n" or dialect.multiline)
                    field += sign
            elif is_end:
                if sign == "\r":
                    at, line = at + 1, line + 1
                break
            elif sign == dialect.separator:
                fields.append(field if was_quoted else field or None)
                field, state, was_quoted = "", "start", False
            elif state == "start" and sign == dialect.quote:
                state, was_quoted = "quoted", True
            elif state == "closed" or sign in ("\r", dialect.quote, dialect.escape):
                is_right, state = False, "closed" if state == "closed" else "plain"
            else:
                field, state = field + sign, "plain"
        fields.append(field if was_quoted else field or None)
        if text[begin:at].strip("\n") in ("", "\r"):
            if text[begin:at] != "\r":
                continue
            is_right = False
        is_right = is_right and state not in ("quoted", "escaped")
        found.append((first, fields if is_right else None))
    return found


def csv(data: bytes, dialect: Dialect, kinds: dict[str, str]) -> list[Verdict]:
    """The verdicts on a CSV file whose header is right; `kinds` are the types that a schema names."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    header, *records = csv_records(data, dialect)
    assert header[1] is not None
    names = [str(name).encode("latin-1").decode(dialect.encoding) for name in header[1]]
    verdicts = []
    for line, fields in records:
        body: dict[str, Any] | None = None
        id = None
        if fields is not None and len(fields) == len(names):
            try:
                texts = [
                    None if field is None else field.encode("latin-1").decode(dialect.encoding) for field in fields
                ]
                row = dict(zip(names, texts, strict=True))
                id = row["id"]
                body = {name: None if row[name] is None else value_of(row[name], kinds[name]) for name in kinds}
            except (UnicodeDecodeError, ValueError, InvalidOperation):
                body = None
        is_right = body is not None and id
        verdicts.append(Verdict(line, id, text_of(body).encode()) if is_right else Verdict(line))
    return verdicts


def value_of(text: str | None, kind: str) -> Any:
    """A text as a value of a type.

    Raises:
        ValueError: it is none, or would lose something.
    """
    assert text is not None
    if kind == "string":
        return text
    if kind == "bigint":
        if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(2**63) <= int(text) < 2**63:
            raise ValueError(text)
        return Raw(int(text))
    if kind == "decimal(10,2)":
        value = Decimal(text)
        if not re.fullmatch(r"[-+0-9.eE]+", text) or value != round(value, 2) or abs(value) >= 10**8:
            raise ValueError(text)
        return Raw(f"{abs(value) if value == 0 else value:.2f}")
    if kind == "date":
        return date.fromisoformat(text).isoformat() if len(text) == 10 else refused(text)
    assert kind == "timestamp"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?)?", text):
        raise ValueError(text)
    moment = datetime.fromisoformat(text)
    moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    fraction = f"{moment.microsecond:06d}"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction[:3] if fraction.endswith('000') else fraction}Z"


def refused(text: str) -> str:
    raise ValueError(text)


def json_lines(data: bytes) -> list[Verdict]:
    """The verdicts on JSON lines."""
    verdicts = []
    for line, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not raw.strip(b" \t\r"):
            continue
        try:
            row = json.loads(
                raw.decode(), object_pairs_hook=pairs, parse_int=number, parse_float=number, parse_constant=refused
            )
            if not isinstance(row, dict):
                raise ValueError
            id = row.get("id")
            body = text_of(row).encode()
        except (ValueError, RecursionError):
            verdicts.append(Verdict(line))
            continue
        if isinstance(id, bool):
            id = "true" if id else "false"
        elif isinstance(id, Raw) and re.fullmatch("-?[0-9]+", id):
            id = str(id)
        is_right = type(id) is str and id
        verdicts.append(Verdict(line, id, body) if is_right else Verdict(line))
    return verdicts


def number(text: str) -> Raw:
    """A number as it is written.

    Raises:
        ValueError: no double is near it.
    """
    if float(text) in (float("inf"), float("-inf")):
        raise ValueError(text)
    return Raw(text)


def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object.

    Raises:
        ValueError: it has a key twice.
    """
    if len({key for key, _ in found}) != len(found):
        raise ValueError(found)
    return dict(found)


def messages(verdicts: list[Verdict]) -> dict[str, bytes]:
    """What is sent of all rows: one message an id, none where two bodies differ."""
    bodies: dict[str, set[bytes]] = {}
    for verdict in verdicts:
        if verdict.body is not None:
            assert verdict.id is not None
            bodies.setdefault(verdict.id, set()).add(verdict.body)
    return {id: body for id, held in bodies.items() if len(held) == 1 for body in held}

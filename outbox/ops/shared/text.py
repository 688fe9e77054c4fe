"""Answers as text for a terminal, and bodies of messages as JSON, else text, else base64."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec

from outbox.errors import Refused
from outbox.ops.values.trail import Fact


def compact_json(id: str, text: bytes) -> bytes:
    """JSON without white space, so that formatting does not make another message.

    Raises:
        Refused: it is not JSON.
    """
    try:
        text.decode()
        return msgspec.json.format(text, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the body of message {id} is not JSON: {error}") from error


def shown(id: str, body: bytes) -> dict[str, Any]:
    """A body as one of the fields `body`, `body_text` and `body_base64`."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
    try:
        return {"body": msgspec.Raw(compact_json(id, body))}
    except Refused:
        return {"body_text": text}


REASON_LENGTH_MAX = 60
WHY_LENGTH_MAX = 160


def facts(found: Sequence[Fact]) -> str:
    """Join the facts of one message into one line."""
    return "; ".join(_fact(fact) for fact in found)


def _fact(fact: Fact) -> str:
    where = f" in {fact.queue}" if fact.queue else ""
    by = f" by {fact.handler}" if fact.handler else ""
    key = f", key {fact.key}" if fact.key else ""
    tx = f", tx {fact.tx}" if fact.tx else ""
    at = "" if isinstance(fact.at, msgspec.UnsetType) else f", {utc(fact.at)}"
    why = f" ({shortened(fact.why, WHY_LENGTH_MAX)})" if fact.why else ""
    return f"{fact.place}{where}{by}{key}{tx}{at}{why}, known by {_KNOWN_BY[fact.known_by]}"


_KNOWN_BY = {
    "queue": "the queue",
    "dead letter": "the dead letter",
    "pending output": "the record that holds it",
    "record": "its record",
    "its output": "its output",
    "history": "the history",
}


def utc(seconds: float) -> str:
    """A time in seconds since 1970, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


_TIMES = frozenset(("created", "enqueued", "due", "locked_until", "since", "committed"))
_VIEWS = frozenset(("message", "dead_letter"))
"""The fields of an answer that are times, and the fields that are nested answers."""


def whole(value: msgspec.Struct) -> str:
    """All of an answer as indented JSON, its times and an absent key as in a list."""
    return indented(_as_in_a_list(msgspec.json.encode(value)))


def _as_in_a_list(data: bytes) -> bytes:
    """Format the times in an answer's JSON for a reader; leave the sender's data, such as the body, unchanged."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    for name, raw in fields.items():
        if name in _VIEWS and bytes(raw) != b"null":
            fields[name] = msgspec.Raw(_as_in_a_list(bytes(raw)))
        elif name in _TIMES:
            fields[name] = msgspec.Raw(msgspec.json.encode(moment(msgspec.json.decode(raw, type=float))))
        elif name == "key" and bytes(raw) == b'""':
            fields[name] = msgspec.Raw(b'"-"')
    return msgspec.json.encode(fields)


def moment(seconds: float) -> str:
    """A time, or `-` where it is not known."""
    return utc(seconds) if seconds else "-"


def moment_if_known(seconds: float | msgspec.UnsetType) -> str:
    return "-" if isinstance(seconds, msgspec.UnsetType) else utc(seconds)


def indented(data: bytes) -> str:
    """Indented JSON, with characters escaped that a terminal obeys and JSON allows (U+009B, U+202E)."""
    shown = msgspec.json.format(data, indent=2).decode()
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in shown)


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; characters that a terminal obeys are replaced."""
    shown = [
        ["".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell) for cell in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)


def age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    units = (("d", 86_400), ("h", 3_600), ("min", 60))
    return next((f"{seconds / s:.0f} {unit}" for unit, s in units if seconds >= 2 * s), f"{seconds:.1f} s")


def shortened(text: str, length_max: int = REASON_LENGTH_MAX) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length_max else line[: length_max - 1] + "\N{HORIZONTAL ELLIPSIS}"

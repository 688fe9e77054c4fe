"""Deterministic identities: the same whichever process computes them, whenever, however often.

An inbox key names one handling of one message: (app, handler, state type, key, identity).  An output's identity
follows from the inbox key of the message that caused it and the position at which it was captured, so that every
attempt, on every machine, gives the same output the same id.  Fields are length-prefixed and carry their type, or
`("a-b", "c")` would equal `("a", "b-c")` and the key `1` the key `"1"`.

Source: lineage ids of the heterogeneous-concurrent-exactly-once design and of Clonos' approach 1, with the
collisions of plain addition and XOR removed by hashing the whole tuple.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from uuid import UUID

Key = str | int | UUID

TRACEPARENT_LENGTH = 55
"""Of `00-TRACE-SPAN-FLAGS`, of which the trace takes 32 letters, the span 16 and the flags 2."""

_TAGS: dict[type, bytes] = {str: b"s", int: b"i", UUID: b"u"}


def as_key(value: object) -> Key:
    """A value as a key: a `str`, an `int` or a `UUID`, of an enumeration its value.

    Raises:
        ValueError: it is missing (None or empty), of another type, or an int of over 4300 digits.
    """
    if isinstance(value, str) and value:
        return str.__str__(value)
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (value.bit_length() < 14_000 or abs(value) < 10**4_300)  # as many digits as Python reads
    ):
        return int(value)
    if isinstance(value, UUID):
        return UUID(int=value.int)
    if value is None or value == "":
        raise ValueError("it has no key; give it one, let a handler without a state take it, or filter it out before")
    raise ValueError(f"this {type(value).__name__} cannot be a key; use a str, an int of up to 4300 digits or a UUID")


def field(value: Key | None) -> bytes:
    """Encode one field as tag, length and text; `None` has a tag of its own."""
    if value is None:
        return b"n0:"
    data = str(value).encode()
    return b"%b%d:%b" % (_TAGS[type(value)], len(data), data)


def inbox_prefix(app: str, handler: str, state_type: str) -> bytes:
    """The part of an inbox key that all messages of a handler share."""
    return b"inbox1" + field(app) + field(handler) + field(state_type)


def inbox_key(prefix: bytes, key: Key | None, identity: str) -> bytes:
    """SHA-256 over the prefix, the key and the message's identity; 32 bytes."""
    return sha256(prefix + field(key) + field(identity)).digest()


TEXT_TAGS = tuple(b"s%d:" % length for length in range(512))
"""The tag and length of short text fields, by length in bytes, for the fast path of admission."""


def output_id(inbox: bytes, position: int) -> str:
    """The identity of the output captured at `position` (from 0): the inbox key in hexadecimal and the position.

    The inbox key is a digest over everything that tells causes apart, so the pair needs no hashing of its own, and
    an id shows the handling that it came from.
    """
    return f"{inbox.hex()}-{position}" if position else inbox.hex() + "-0"  # most have one output


def shard_of(identity: str, count: int) -> int:
    """The shard, of `count`, that an identity belongs to; the same for every copy."""
    return int.from_bytes(sha256(identity.encode()).digest()[:8], "big") % count if count > 1 else 0


def step_id(processor: str, serial: int, output: str) -> str:
    """The identity of what a processor's step appends to one output: 64 hexadecimal digits.

    `serial` counts the swaps of the processor's register, so no two steps share it, whatever they emit.
    """
    return sha256(b"step1" + field(processor) + field(serial) + field(output)).hexdigest()


def bundle_id(pipeline: str, version: int, graph: str, sink: str, places: tuple[int, ...]) -> str:
    """The identity of a pipeline's bundle in one sink: 64 hexadecimal digits.

    `places` are the positions of the source that it covers.  It says nothing about what the bundle holds, which those
    decide; it does name the version, or a newer one would take an older one's bundle for its own.
    """
    fields: tuple[Key, ...] = (pipeline, version, graph, sink, *places)
    return sha256(b"bundle1" + b"".join(map(field, fields))).hexdigest()


def derived_bytes(inbox: bytes, purpose: str, position: int) -> bytes:
    """32 bytes fixed by the inbox key, for `ctx.random()` and `ctx.uuid()`."""
    return sha256(b"%b|%b|%d" % (purpose.encode(), inbox, position)).digest()


FINGERPRINT_BYTES = 32


def traceparent_of(cause: str, inbox: bytes) -> str:
    """The W3C trace context of one handling's outputs: the trace of its cause, and a span of its own.

    The span follows from the inbox key, so every attempt gives its outputs the same bytes.  A `cause` that is
    no trace context of version 00 is carried on unchanged.  Source: W3C Trace Context, section 3.2.
    """
    if len(cause) != TRACEPARENT_LENGTH or not cause.startswith("00-") or not inbox:
        return cause
    return f"{cause[:36]}{inbox[:8].hex()}{cause[52:]}"


def fingerprint(body: bytes, wire_type: str) -> bytes:
    """A digest of the payload under an identity; the same identity with another payload is refused.  32 bytes."""
    return sha256(wire_type.encode() + b"\0" + body).digest()


@lru_cache(maxsize=1 << 16, typed=True)
def state_id(state_type: str, key: Key) -> str:
    """The id of a state document: type and encoded key, safe in a Cosmos id and unambiguous.

    Keys may be long and hold any character: characters that a store refuses are escaped, and a text above 200
    characters is replaced by its digest.
    """
    text = str(key)
    if not _PLAIN(text):
        text = _escape(text)
    tag = "" if type(key) is str else "i." if type(key) is int else "u."
    if len(text) > 200:
        return f"{state_type}:h.{tag}{sha256(text.encode()).hexdigest()}"
    return f"{state_type}:{tag}{text}"


def parse_state_id(id: str) -> tuple[str, Key] | None:
    """The type and key of a state id; None for a digest, or an id that `state_id` never makes."""
    state_type, colon, rest = id.rpartition(":")
    tag, text = (rest[:2], rest[2:]) if rest[1:2] == "." else ("", rest)
    if not colon or tag == "h.":
        return None
    try:
        if tag == "i.":
            key: Key = int(text)
        elif tag == "u.":
            key = UUID(text)
        else:
            key = text if _PLAIN(text) else bytes.fromhex("".join(map(_hex_of, _PARTS(text)))).decode()
    except ValueError:
        return None
    again = str(key)
    return (
        (state_type, key) if text == (again if _PLAIN(again) else _escape(again)) and tag in ("", "i.", "u.") else None
    )


_PLAIN = re.compile(r"[A-Za-z0-9_@-]+").fullmatch


def _escape(text: str) -> str:
    return "".join(c if _PLAIN(c) else "".join(f"~{byte:02x}" for byte in c.encode()) for c in text)


_PARTS = re.compile(r"~..|.", re.DOTALL).findall


def _hex_of(part: str) -> str:
    return part[1:] if len(part) == 3 else part.encode().hex()

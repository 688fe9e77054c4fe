"""A user's value as JSON bytes: the one way in which messages, states, entries and replies are encoded.

JSON has neither NaN nor infinity, and msgspec and pydantic write `null` in their place, which is read back as another
value, or not at all.  So they are refused, and so is a text with half of a surrogate pair; the error names the field.

A value whose bytes hold no `null` holds no such number.  Of the others msgpack tells most apart at the speed of an
encoder: it writes those numbers as they are, a byte for a float and then bits of one.  Only what may hold that is
searched.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec

from outbox.errors import PoisonMessage

_encode = msgspec.json.Encoder().encode
_packed = msgspec.msgpack.Encoder().encode
null_in = re.compile(b"null").search
"""Whether bytes hold a null: of Python's searches the fastest, and every message takes it."""
_may_be_infinite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search
_MARKS = (b"null", b"NaN", b"Infinity")
"""How pydantic writes these numbers; a model may be configured for the last two."""


def encoded(value: Any) -> bytes:
    """Encode a dataclass, a msgspec Struct, a pydantic model or plain data.

    Raises:
        PoisonMessage: it holds a number or a text that JSON cannot (`unstorable`).
    """
    return encoded_model(value) if is_pydantic(type(value)) else encoded_plain(value)


def encoded_plain(value: Any) -> bytes:
    """Encode a dataclass, a msgspec Struct or plain data.

    Raises:
        PoisonMessage: it holds a number or a text that JSON cannot (`unstorable`).
    """
    try:
        data = _encode(value)
    except UnicodeEncodeError as error:
        raise _refusal(value, _plain(value)) or error from error
    if null_in(data) and _is_suspect(value) and (refusal := _refusal(value, _plain(value))):
        raise refusal
    return data


def encoded_model(value: Any) -> bytes:
    """Encode a pydantic model, under the aliases of its fields.

    Raises:
        PoisonMessage: it holds a number or a text that JSON cannot (`unstorable`).
    """
    try:
        data: bytes = value.model_dump_json(by_alias=True).encode()
    except ValueError as error:
        raise _refusal(value, _dumped(value)) or error from error
    if any(mark in data for mark in _MARKS) and (refusal := _refusal(value, _dumped(value), data)):
        raise refusal
    return data


def is_pydantic(kind: type[Any]) -> bool:
    """Whether a class is a pydantic model; pydantic is not imported for that."""
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_fields")


def _is_suspect(value: Any) -> bool:
    """Whether a value may hold an infinite number."""
    try:
        return _may_be_infinite(_packed(value)) is not None
    except (OverflowError, TypeError):  # JSON has larger integers
        return True


def _dumped(value: Any) -> Any:
    return value.model_dump(by_alias=True)


def _plain(value: Any) -> Any:
    """A value as plain data, with its numbers unchanged."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_parsed)


def _parsed(value: Any) -> Any:
    """A value that is JSON already, as plain data; other objects are the encoder's to refuse."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else None


def _refusal(value: Any, plain: Any, data: bytes = b"null") -> PoisonMessage | None:
    """The first part of a value, here as plain data, that its JSON does not hold; None without one."""
    try:
        written = msgspec.json.decode(data)
    except ValueError:  # `NaN` as it is
        written = None
    waiting = [("$", plain, written)]
    while waiting:
        at, found, written = waiting.pop()
        if what := _unfit(found, written):
            place = at.encode(errors="backslashreplace").decode()
            return PoisonMessage("unstorable", f"{type(value).__name__} holds {what} (at `{place}`)")
        if isinstance(found, dict):
            waiting += [(f"{at}.{name}", each, _member(written, name)) for name, each in reversed(found.items())]
            waiting += [(f"{at}, a key", name, None) for name in found]
        elif isinstance(found, list | tuple | set | frozenset):
            waiting += reversed([(f"{at}[{index}]", each, _member(written, index)) for index, each in enumerate(found)])
    return None


def _unfit(value: Any, written: Any) -> str:
    """The fault of a value that JSON or UTF-8 cannot hold; empty if it has none.  A model may write infinite numbers as
    texts."""
    if isinstance(value, float):
        is_lost = not isfinite(value) and not isinstance(written, str)
        return f"{value}, which JSON cannot; keep numbers finite (no inf, no nan)" if is_lost else ""
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair, which UTF-8 cannot; keep texts Unicode"
    return ""


def _member(written: Any, place: str | int) -> Any:
    try:
        return written[place]
    except (TypeError, LookupError):
        return None

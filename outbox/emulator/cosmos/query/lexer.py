"""The words of a query's text."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from outbox.emulator.cosmos.wire import Json, bad

TEXT_LENGTH_MAX = 512 << 10
TOKEN_COUNT_MAX = 100_000

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<number>0[xX][0-9a-fA-F]{1,15}|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<parameter>@\w+)
    | (?P<name>[^\W\d]\w*)
    | (?P<sign>\?\?|<>|!=|<=|>>>|>>|<<|>=|\|\||[-+*/%=<>(){}\[\].,:?&|^~])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Token(NamedTuple):
    """A word: its kind (`number`, `text`, `parameter`, `name`, `sign` or `end`), value and place."""

    kind: str
    value: Json
    at: int

    @property
    def word(self) -> str:
        """A name in upper case, as keywords are compared; else empty."""
        return self.value.upper() if self.kind == "name" else ""


def tokens_of(text: str) -> list[Token]:
    """A query's words, with an end behind them.

    Raises:
        Rejection: 400, naming the place that is no word.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise bad(f"a query of {len(text)} characters is over {TEXT_LENGTH_MAX}")
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise bad(f"syntax error at position {at} of the query: {text[at : at + 20]!r}")
        kind = found.lastgroup or ""
        if kind != "space":
            tokens.append(Token(kind, _value(kind, found.group()), at))
        at = found.end()
        if len(tokens) > TOKEN_COUNT_MAX:
            raise bad(f"a query of more than {TOKEN_COUNT_MAX} words")
    tokens.append(Token("end", "", at))
    return tokens


def _value(kind: str, text: str) -> Json:
    return _number(text) if kind == "number" else _unescaped(text[1:-1]) if kind == "text" else text


def _number(text: str) -> Json:
    if text[:2].lower() == "0x":
        return int(text, 16)
    plain = text.lstrip("0") or "0"
    plain = f"0{plain}" if plain[0] in ".eE" else plain
    try:
        return msgspec.json.decode(plain.replace(".e", "e").replace(".E", "E").rstrip("."))
    except msgspec.DecodeError as error:
        raise bad(f"{text[:40]!r} is no number that JSON has") from error


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        return _ESCAPE.sub(_unescape, text).encode("utf-16", "surrogatepass").decode("utf-16")  # pairs become one
    except UnicodeDecodeError as error:
        raise bad(f"the text {text[:40]!r} holds half a character") from error


def _unescape(found: re.Match[str]) -> str:
    escaped = found.group(1)
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPES.get(escaped, escaped)

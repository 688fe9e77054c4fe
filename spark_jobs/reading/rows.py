"""The results of the grammars: rows as columns of values, and rows set aside with a reason.

A reason is `code: detail`; the codes are those of the quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MALFORMED, ENCODING, TYPE, SIZE = "malformed-row", "bad-encoding", "wrong-type", "oversize"


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that no message can be made of, as it stands, with the line on which it begins."""

    line: int
    raw: bytes
    reason: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """Rows of a table of texts: `values` has one row each, None where a field is empty and unquoted."""

    values: list[Sequence[bytes | None]]
    lines: Sequence[int]
    raw: Sequence[bytes]
    broken: list[Broken] = field(default_factory=list)


def too_long(line: int, raw: bytes, limit: int) -> Broken:
    """A row that was never held whole."""
    return Broken(line, raw, f"{SIZE}: a row of more than {limit} bytes, the most that is read of one")


def shown(raw: bytes) -> str:
    """Some bytes as a text that can be printed, whatever they are."""
    return raw.decode("utf-8", "backslashreplace")

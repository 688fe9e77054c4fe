"""The items that a place lists, and the names that it takes."""

from __future__ import annotations

from typing import NamedTuple

from outbox.errors import Refused


class Item(NamedTuple):
    """A file of a place: its name there, bytes, seconds since 1970 by the place's clock, what every write changes."""

    name: str
    size: int
    changed_s: float
    version: str


def checked(name: str) -> str:
    """A name within a place: parts between slashes, none of which leads out of it.

    Raises:
        Refused: it is none.
    """
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise Refused(f"{name[:80]!r} is no name of a file within a place; say folder/file")
    return name


def changed(place: object, name: str) -> Refused:
    """The error of a read of one version where the file has another."""
    return Refused(f"{place}/{name} has changed while it was read; run the same again when nobody writes it any more")

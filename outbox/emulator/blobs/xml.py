"""The XML of Blob Storage: documents that clients send are flat, and blobs may have names that XML cannot carry."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from outbox.emulator.xml import UNWRITABLE, Element, leaf, parse

HEAD = '<?xml version="1.0" encoding="utf-8"?>'
DEPTH_MAX = 4
ELEMENT_COUNT_MAX = 50_010
TEXT_LENGTH_MAX = 4_096

Leaf = tuple[tuple[str, ...], str]
"""The names around an element and its own, and its text."""


def read_leaves(data: bytes) -> list[Leaf]:
    """The elements of a document that have no children, in order.

    Raises:
        ValueError: it is no document, or beyond a limit; the text says which.
    """
    root = parse(data, depth_max=DEPTH_MAX, element_count_max=ELEMENT_COUNT_MAX, text_length_max=TEXT_LENGTH_MAX)
    return list(_leaves(root, ()))


def _leaves(element: Element, around: tuple[str, ...]) -> Iterator[Leaf]:
    path = (*around, element.name)
    if not element.children:
        yield path, element.text.strip()
    for child in element.children:
        yield from _leaves(child, path)


def named(name: str) -> str:
    """The name of a blob as an element, percent-encoded where XML has no way to write it."""
    if UNWRITABLE.search(name) or "\r" in name:
        return f'<Name Encoded="true">{quote(name, safe="/")}</Name>'
    return leaf("Name", name)

"""XML of the emulators: untrusted in, well-formed out.

In: expat alone, with limits on depth, elements and text, and no document type at all, so that there is nothing to
expand and nothing to fetch.  Names lose their namespaces, because clients differ in them and no two elements do.  Of an
element with children the text is not kept.  Out: what XML cannot carry becomes a replacement character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape

FLAT_DEPTH_MAX = 4
FLAT_ELEMENT_COUNT_MAX = 50_010
FLAT_TEXT_LENGTH_MAX = 4_096
UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


Leaf = tuple[tuple[str, ...], str]
"""The names around an element and its own, and its text."""


@dataclass(slots=True)
class Element:
    """One element of a document that was read: its name and attributes without namespaces, its text, its children."""

    name: str
    attributes: Mapping[str, str]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def child(self, name: str) -> Element | None:
        """The first child of that name."""
        return next((child for child in self.children if child.name == name), None)

    def values(self) -> dict[str, str]:
        """The text of every child that has no children of its own."""
        return {child.name: child.text.strip() for child in self.children if not child.children}


class _Reader:
    """Builds the tree while expat reads, and stops it at the first limit."""

    def __init__(self, depth_max: int, element_count_max: int, text_length_max: int) -> None:
        self.above = Element("", {})
        """Stands above the root."""
        self._open = [self.above]
        self._count = 0
        self._depth_max = depth_max
        self._element_count_max = element_count_max
        self._text_length_max = text_length_max

    def read(self, data: bytes) -> None:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True  # one call for a text, however it is cut up
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(data, True)

    def _doctype(self, *_: object) -> None:
        raise ValueError("a document type is not taken; send plain elements")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > self._element_count_max or len(self._open) > self._depth_max:
            raise ValueError(f"above {self._element_count_max} elements or {self._depth_max} levels; send less")
        element = Element(_local(name), {_local(key): value for key, value in attributes.items()})
        self._open[-1].text = ""
        self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        element = self._open[-1]
        element.text += text
        if len(element.text) > self._text_length_max:
            raise ValueError(f"a text above {self._text_length_max} characters; send less")


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def parse(data: bytes, *, depth_max: int, element_count_max: int, text_length_max: int) -> Element:
    """Read a document.

    Raises:
        ValueError: it is none, or beyond a limit; the text says which.
    """
    reader = _Reader(depth_max, element_count_max, text_length_max)
    try:
        reader.read(data)
    except expat.ExpatError as error:
        raise ValueError(f"no XML ({error})") from error
    return reader.above.children[0]


def read_leaves(data: bytes) -> list[Leaf]:
    """The elements of a flat document that have no children, in order.

    Raises:
        ValueError: it is no document, or beyond a limit; the text says which.
    """
    root = parse(
        data, depth_max=FLAT_DEPTH_MAX, element_count_max=FLAT_ELEMENT_COUNT_MAX, text_length_max=FLAT_TEXT_LENGTH_MAX
    )
    return list(_leaves(root, ()))


def _leaves(element: Element, around: tuple[str, ...]) -> Iterator[Leaf]:
    path = (*around, element.name)
    if not element.children:
        yield path, element.text.strip()
    for child in element.children:
        yield from _leaves(child, path)


def text(value: object) -> str:
    """A value as the text of an element."""
    plain = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return escape(UNWRITABLE.sub("\ufffd", plain))


def leaf(name: str, value: object) -> str:
    """An element with a text."""
    return f"<{name}>{text(value)}</{name}>"

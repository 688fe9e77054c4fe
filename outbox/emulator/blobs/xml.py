"""The XML of Blob Storage: untrusted in, well-formed out.

In: expat alone, with limits on depth and elements, and no document type at all, so that there is nothing to expand and
nothing to fetch.  Documents that clients send are flat: what is read are the texts of their elements, in order.  Out:
what XML cannot carry becomes a replacement character; a name that has such a character goes percent-encoded.
"""

from __future__ import annotations

import re
from urllib.parse import quote
from xml.parsers import expat
from xml.sax.saxutils import escape

HEAD = '<?xml version="1.0" encoding="utf-8"?>'
DEPTH_MAX = 4
ELEMENT_COUNT_MAX = 50_010
TEXT_LENGTH_MAX = 4_096
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Reader:
    """Notes the elements without children while expat reads, and stops it at the first limit."""

    def __init__(self) -> None:
        self.leaves: list[tuple[tuple[str, ...], str]] = []
        self._path: list[str] = []
        self._text = ""
        self._is_leaf = False
        self._count = 0
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters

    def _doctype(self, *_: object) -> None:
        raise ValueError("a document type is not taken; send plain elements")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > ELEMENT_COUNT_MAX or len(self._path) >= DEPTH_MAX:
            raise ValueError(f"above {ELEMENT_COUNT_MAX} elements or {DEPTH_MAX} levels; send less")
        self._path.append(name)
        self._text, self._is_leaf = "", True

    def _end(self, name: str) -> None:
        if self._is_leaf:
            self.leaves.append((tuple(self._path), self._text.strip()))
        self._path.pop()
        self._text, self._is_leaf = "", False

    def _characters(self, text: str) -> None:
        self._text += text
        if len(self._text) > TEXT_LENGTH_MAX:
            raise ValueError(f"a text above {TEXT_LENGTH_MAX} characters; send less")


def read_leaves(data: bytes) -> list[tuple[tuple[str, ...], str]]:
    """The elements of a document that have no children, in order: each with the names around it, and its text.

    Raises:
        ValueError: it is no document, or beyond a limit; the text says which.
    """
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML ({error})") from error
    return reader.leaves


def text(value: object) -> str:
    """A value as the text of an element."""
    return escape(_UNWRITABLE.sub("\ufffd", str(value)))


def leaf(name: str, value: object) -> str:
    """An element with a text."""
    return f"<{name}>{text(value)}</{name}>"


def named(name: str) -> str:
    """The name of a blob as an element, percent-encoded where XML has no way to write it."""
    if _UNWRITABLE.search(name) or "\r" in name:
        return f'<Name Encoded="true">{quote(name, safe="/")}</Name>'
    return leaf("Name", name)

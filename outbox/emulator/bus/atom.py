"""The XML of the administration client: untrusted in, well-formed out.

In: expat alone, with limits on bytes, depth, elements and text, and no document type at all, so that there is nothing
to expand and nothing to fetch.  Names lose their namespaces, because clients differ in them and no two elements do.
Out: Atom entries and feeds as the service writes them; what XML cannot carry becomes a replacement character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

SIZE_MAX_BYTES = 256 * 1024
DEPTH_MAX = 16
ELEMENT_COUNT_MAX = 5_000

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
ATOM = "http://www.w3.org/2005/Atom"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Element:
    """One element of a document that was read: its name and attributes without namespaces, its text, its children."""

    __slots__ = ("attributes", "children", "name", "text")

    def __init__(self, name: str, attributes: Mapping[str, str]) -> None:
        self.name = name
        self.attributes = attributes
        self.text = ""
        self.children: list[Element] = []

    def child(self, name: str) -> Element | None:
        """The first child of that name."""
        return next((child for child in self.children if child.name == name), None)

    def values(self) -> dict[str, str]:
        """The text of every child that has no children of its own."""
        return {child.name: child.text.strip() for child in self.children if not child.children}


class _Reader:
    """Builds the tree while expat reads, and stops it at the first limit."""

    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True  # one call for a text, however it is cut up
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        self.parser = parser

    def _doctype(self, *_: object) -> None:
        raise ValueError("a document type is not taken; send plain elements")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > ELEMENT_COUNT_MAX or len(self._open) >= DEPTH_MAX:
            raise ValueError(f"above {ELEMENT_COUNT_MAX} elements or {DEPTH_MAX} levels; send less")
        element = Element(_local(name), {_local(key): value for key, value in attributes.items()})
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if self._open:
            self._open[-1].text += text


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def parse(data: bytes) -> Element:
    """Read a document.

    Raises:
        ValueError: it is none, or beyond a limit; the text says which.
    """
    if len(data) > SIZE_MAX_BYTES:
        raise ValueError(f"{len(data)} bytes are above {SIZE_MAX_BYTES}; send less")
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML ({error})") from error
    if reader.root is None:
        raise ValueError("no XML (there is no element)")
    return reader.root


def content(data: bytes, name: str) -> Element:
    """The description of that name in an entry that a client sent.

    Raises:
        ValueError: there is none.
    """
    entry = parse(data)
    found = entry.child("content")
    description = None if found is None else found.child(name)
    if description is None:
        raise ValueError(f"the entry holds no {name}; send one in its content")
    return description


# Writing


def text(value: object) -> str:
    """A value as the text of an element."""
    plain = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return escape(_UNWRITABLE.sub("\ufffd", plain))


def element(name: str, inner: str, **attributes: str) -> str:
    """An element around XML."""
    return f"<{name}{''.join(f' {key}={quoteattr(value)}' for key, value in attributes.items())}>{inner}</{name}>"


def leaves(pairs: Iterable[tuple[str, object]]) -> str:
    """An element for each pair that has a value."""
    return "".join(f"<{name}>{text(value)}</{name}>" for name, value in pairs if value is not None)


def moment(time_ms: int) -> str:
    """A time as the service writes it."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def entry(address: str, title: str, description: str, *, created_ms: int, updated_ms: int) -> str:
    """An Atom entry around a description."""
    return (
        f'<entry xmlns="{ATOM}"><id>{text(address)}</id><title type="text">{text(title)}</title>'
        f"<published>{moment(created_ms)}</published><updated>{moment(updated_ms)}</updated>"
        f'<author><name>outbox</name></author><link rel="self" href={quoteattr(address)}/>'
        f'<content type="application/xml">{description}</content></entry>'
    )


def feed(address: str, title: str, entries: Iterable[str], *, now_ms: int, more: str = "") -> str:
    """An Atom feed; `more` is where it goes on."""
    link = f'<link rel="next" href={quoteattr(more)}/>' if more else ""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{text(title)}</title><id>{text(address)}</id>'
        f'<updated>{moment(now_ms)}</updated><link rel="self" href={quoteattr(address)}/>{link}'
        f"{''.join(entries)}</feed>"
    )


def description(name: str, inner: str) -> str:
    """A description's element with the namespaces that it needs."""
    return f'<{name} xmlns="{CONNECT}" xmlns:i="{INSTANCE}">{inner}</{name}>'


def error(status: int, detail: str) -> str:
    """The service's error document."""
    return f"<Error><Code>{status}</Code><Detail>{text(detail)}</Detail></Error>"

"""The XML of the administration client: Atom entries and feeds as the service writes them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from xml.sax.saxutils import quoteattr

from outbox.emulator import xml
from outbox.emulator.xml import Element, leaf, text

SIZE_MAX_BYTES = 256 * 1024
DEPTH_MAX = 16
ELEMENT_COUNT_MAX = 5_000

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
ATOM = "http://www.w3.org/2005/Atom"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"


def parse(data: bytes) -> Element:
    """Read a document.

    Raises:
        ValueError: it is none, or beyond a limit; the text says which.
    """
    if len(data) > SIZE_MAX_BYTES:
        raise ValueError(f"{len(data)} bytes are above {SIZE_MAX_BYTES}; send less")
    return xml.parse(data, depth_max=DEPTH_MAX, element_count_max=ELEMENT_COUNT_MAX, text_length_max=SIZE_MAX_BYTES)


def content(data: bytes, name: str) -> Element:
    """The description of that name in an entry that a client sent.

    Raises:
        ValueError: there is none.
    """
    found = parse(data).child("content")
    description = None if found is None else found.child(name)
    if description is None:
        raise ValueError(f"the entry holds no {name}; send one in its content")
    return description


# Writing


def leaves(pairs: Iterable[tuple[str, object]]) -> str:
    """An element for each pair that has a value."""
    return "".join(leaf(name, value) for name, value in pairs if value is not None)


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

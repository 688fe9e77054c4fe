"""Lists in pages: containers, blobs (by prefix, and in folders), and blobs by their index tags.

A page ends after so many entries, or after so many names were looked at, as the service's may; its marker is opaque
and says behind which name the next one begins, so what is written meanwhile shifts nothing.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

from outbox.emulator.blobs import leases, tags
from outbox.emulator.blobs.catalog import Blob, Container, etag_of, http_date
from outbox.emulator.blobs.requests import Answer, Call, Rejection, bad_parameter, xml_answer
from outbox.emulator.blobs.store import Held, Store
from outbox.emulator.xml import UNWRITABLE, leaf, text

DELIMITER_LENGTH_MAX = 1_024
_LAST = "\U0010ffff"
_INCLUDES = frozenset(
    ("metadata", "tags", "uncommittedblobs", "copy", "snapshots", "versions", "deleted", "deletedwithversions",
     "immutabilitypolicy", "legalhold", "permissions", "system")
)  # fmt: skip
_SHOWN = {
    "Content-Type": "content_type", "Content-Encoding": "content_encoding", "Content-Language": "content_language",
    "Content-MD5": "content_md5", "Cache-Control": "cache_control", "Content-Disposition": "content_disposition",
}  # fmt: skip


class Entry(NamedTuple):
    """A blob in a list, or the folder that stands for several (`blob` None and `is_folder`)."""

    name: str
    blob: Blob | None = None
    is_folder: bool = False


async def list_containers(store: Store, call: Call) -> Answer:
    """List Containers."""
    prefix, after, count = call.parameter("prefix"), read_marker(call.parameter("marker")), _count(store, call)
    includes = _includes(call)
    names = [name for name in sorted(store.containers) if name.startswith(prefix) and name > after]
    page = names[:count]
    each = "".join(_container(store, store.containers[name].definition, includes) for name in page)
    return _page(store, call, f"<Containers>{each}</Containers>", page[-1] if len(names) > count else "")


async def list_blobs(store: Store, call: Call) -> Answer:
    """List Blobs, in one list or in folders."""
    held = store.container(call.route.container)
    prefix, delimiter, includes = call.parameter("prefix"), call.parameter("delimiter"), _includes(call)
    if len(delimiter) > DELIMITER_LENGTH_MAX:
        raise bad_parameter("delimiter", f"{DELIMITER_LENGTH_MAX} characters at most")
    count, after = _count(store, call), read_marker(call.parameter("marker"))
    start = call.parameter("startfrom")
    entries = _entries(held, prefix, delimiter, after, start, "uncommittedblobs" in includes)
    found = list(islice(entries, count + 1))
    page = found[:count]
    each = "".join(_entry(store, entry, includes) for entry in page)
    more = (f"{page[-1].name}{_LAST}" if page[-1].is_folder else page[-1].name) if len(found) > count else ""
    return _page(store, call, f"<Blobs>{each}</Blobs>", more, container=call.route.container)


async def find_blobs(store: Store, call: Call) -> Answer:
    """Find Blobs by Tags, in the account or in one container."""
    where = call.parameter("where")
    condition = tags.read_condition(where, "where")
    after, count = read_marker(call.parameter("marker")).partition("/")[::2], _count(store, call)
    place = call.route.container
    searched = {place: store.container(place)} if place else store.containers
    found: list[tuple[str, str, Mapping[str, str]]] = []
    for name, held in sorted(searched.items()):
        if call.rule is not None:
            by_name: Mapping[str, Mapping[str, str]] = store.tags_past(held, call.rule.behind_count)
        else:
            by_name = {blob: held.blobs[blob].tags for blob in held.names}
        for blob in sorted(by_name):
            if (name, blob) > after and condition.holds({**by_name[blob], tags.CONTAINER: name}):
                found.append((name, blob, by_name[blob]))
    page = found[:count]
    each = "".join(
        f"<Blob>{_named(blob)}{leaf('ContainerName', name)}"
        f"{tags.document({tag: value for tag, value in kept.items() if tag in condition.names})}</Blob>"
        for name, blob, kept in page
    )
    more = "/".join(page[-1][:2]) if len(found) > count else ""
    return _page(store, call, f"{leaf('Where', where)}<Blobs>{each}</Blobs>", more)


def _count(store: Store, call: Call) -> int:
    return call.count("maxresults", store.page_count_max, 1, store.page_count_max)


def _page(store: Store, call: Call, inner: str, more: str, *, container: str = "") -> Answer:
    of = f' ContainerName="{container}"' if container else ""
    given = "".join(
        leaf(name, value)
        for name in ("Prefix", "Marker", "MaxResults", "Delimiter")
        if (value := call.parameter(name.lower()))
    )
    marker = leaf("NextMarker", write_marker(more)) if more else "<NextMarker/>"
    return xml_answer(
        f'<EnumerationResults ServiceEndpoint="http://{text(store.account)}"{of}>{given}{inner}{marker}'
        "</EnumerationResults>"
    )


def _container(store: Store, container: Container, includes: frozenset[str]) -> str:
    lease = leases.shown(container.lease, store.now_ms)
    inner = leaf("Last-Modified", http_date(container.modified_ms)) + leaf("Etag", etag_of(container.etag))
    inner += "".join(leaf(f"Lease{name}", value) for name, value in lease.items())
    inner += leaf("HasImmutabilityPolicy", "false") + leaf("HasLegalHold", "false")
    inner += leaf("ImmutableStorageWithVersioningEnabled", "false")
    metadata = _metadata(container.metadata) if "metadata" in includes else ""
    return f"<Container>{leaf('Name', container.name)}<Properties>{inner}</Properties>{metadata}</Container>"


def _entry(store: Store, entry: Entry, includes: frozenset[str]) -> str:
    if entry.is_folder:
        return f"<BlobPrefix>{_named(entry.name)}</BlobPrefix>"
    blob = entry.blob
    if blob is None:  # nothing but blocks that are not committed
        nothing = leaf("Content-Length", 0) + leaf("BlobType", "BlockBlob")
        return f"<Blob>{_named(entry.name)}<Properties>{nothing}</Properties></Blob>"
    inner = leaf("Creation-Time", http_date(blob.created_ms)) + leaf("Last-Modified", http_date(blob.modified_ms))
    inner += leaf("Etag", etag_of(blob.etag)) + leaf("Content-Length", blob.size_bytes)
    inner += "".join(leaf(name, getattr(blob.properties, field)) for name, field in _SHOWN.items())
    inner += leaf("BlobType", "BlockBlob") + leaf("AccessTier", "Hot") + leaf("AccessTierInferred", "true")
    lease = leases.shown(blob.lease, store.now_ms)
    inner += "".join(leaf(f"Lease{name}", value) for name, value in lease.items())
    inner += leaf("ServerEncrypted", "true") + (leaf("TagCount", len(blob.tags)) if blob.tags else "")
    more = _metadata(blob.metadata) if "metadata" in includes else ""
    more += tags.document(blob.tags) if "tags" in includes and blob.tags else ""
    return f"<Blob>{_named(entry.name)}<Properties>{inner}</Properties>{more}</Blob>"


def _entries(
    held: Held, prefix: str, delimiter: str, after: str, start: str, with_uncommitted: bool
) -> Iterator[Entry]:
    """List the entries after the marker and from `startFrom` on; a shared folder is one entry."""
    names = sorted({*held.names, *held.uncommitted}) if with_uncommitted else held.names
    listed = _folder_of(after, prefix, delimiter)
    at = bisect_left(names, max(prefix, after, start))
    while at < len(names) and names[at].startswith(prefix):
        name = names[at]
        if name <= after or (listed and name.startswith(listed)):
            at += 1
            continue
        end = name.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            yield Entry(name, held.blobs.get(name))
            at += 1
            continue
        folder = name[: end + len(delimiter)]
        yield Entry(folder, is_folder=True)
        at, listed = bisect_left(names, folder + _LAST, at), folder  # some of its names may lie behind even that


def _folder_of(after: str, prefix: str, delimiter: str) -> str:
    """The folder that a page ended with, if it did."""
    folder = after.removesuffix(_LAST)
    is_folder = delimiter and folder != after and folder.endswith(delimiter) and len(folder) > len(prefix)
    return folder if is_folder else ""


def _includes(call: Call) -> frozenset[str]:
    """The parts that a list shows besides the usual; parts of the service that are not here stay empty.

    Raises:
        Rejection: 400.
    """
    found = frozenset(part.strip().lower() for part in call.parameter("include").split(",") if part.strip())
    if not found <= _INCLUDES:
        raise bad_parameter("include", f"some of {', '.join(sorted(_INCLUDES))}")
    return found


def _metadata(metadata: Mapping[str, str]) -> str:
    return f"<Metadata>{''.join(leaf(name, value) for name, value in metadata.items())}</Metadata>"


def _named(name: str) -> str:
    """The name of a blob as an element, percent-encoded where XML has no way to write it."""
    if UNWRITABLE.search(name) or "\r" in name:
        return f'<Name Encoded="true">{quote(name, safe="/")}</Name>'
    return leaf("Name", name)


def write_marker(name: str) -> str:
    """Behind which name the next page begins, as clients hand it back."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def read_marker(marker: str) -> str:
    """The name of a marker; empty for the first page.

    Raises:
        Rejection: 400.
    """
    try:
        return base64.b64decode(marker, b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise Rejection("OutOfRangeInput", "marker: hand back one that a page had") from error

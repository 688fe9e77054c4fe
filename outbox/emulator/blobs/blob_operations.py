"""Operations on blobs: put, whole or in blocks, read, properties, metadata, tags, delete.

A block that was put is nobody's until a list names it; the commit is one step, and forgets the blocks that it does not
name.  Source: learn.microsoft.com/rest/api/storageservices/put-block, put-block-list, get-block-list.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from hashlib import md5

from msgspec.structs import replace

from outbox.emulator.blobs import leases, tags
from outbox.emulator.blobs.catalog import Blob, Block, Lease, Properties, etag_of, http_date
from outbox.emulator.blobs.conditions import check_read, check_write, read_conditions
from outbox.emulator.blobs.requests import (
    ACCEPTED,
    CREATED,
    METADATA,
    NO_CONTENT,
    OK,
    PARTIAL,
    TAGS_PREFIX,
    Answer,
    Call,
    Rejection,
    bad_header,
    bad_parameter,
    read_metadata,
    xml_answer,
)
from outbox.emulator.blobs.store import Held, Store
from outbox.emulator.xml import leaf, read_leaves

RANGE_MD5_MAX_BYTES = 4 << 20
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?")
_PROPERTIES = {
    "content_type": "x-ms-blob-content-type",
    "content_encoding": "x-ms-blob-content-encoding",
    "content_language": "x-ms-blob-content-language",
    "content_disposition": "x-ms-blob-content-disposition",
    "cache_control": "x-ms-blob-cache-control",
    "content_md5": "x-ms-blob-content-md5",
}
_SHOWN = {
    "content_type": "Content-Type",
    "content_encoding": "Content-Encoding",
    "content_language": "Content-Language",
    "content_disposition": "Content-Disposition",
    "cache_control": "Cache-Control",
    "content_md5": "Content-MD5",
}
ID_MAX_BYTES = 64
LIST_COUNT_MAX = 50_000
UNCOMMITTED_COUNT_MAX = 100_000
_KINDS = ("Committed", "Uncommitted", "Latest")


async def put(store: Store, call: Call) -> Answer:
    """Put Blob: a block blob with all of its bytes."""
    kind = call.header("x-ms-blob-type")
    if not kind:
        raise Rejection("MissingRequiredHeader", "x-ms-blob-type: say BlockBlob")
    if kind != "BlockBlob":
        raise bad_header("x-ms-blob-type", f"{kind[:40]!r} is not supported by this emulator; say BlockBlob")
    computed = check_md5(call.body, call.header("content-md5"), call.header(_PROPERTIES["content_md5"]))
    fresh = fresh_blob(call, store.now_ms)
    fresh = replace(fresh, properties=replace(fresh.properties, content_md5=computed))
    replaced(store, call)
    pieces = await store.put_pieces(call.body)
    try:
        held, old, lease = replaced(store, call)  # others had their turn
    except Rejection:
        store.drop_pieces(pieces)
        raise
    created_ms = fresh.created_ms if old is None else old.created_ms
    blob = replace(fresh, pieces=pieces, lease=lease, created_ms=created_ms)
    kept = store.put(held, call.route.blob, blob, commits=True)
    return Answer(CREATED, version_headers(kept) | {"Content-MD5": computed} | ENCRYPTED)


async def read(store: Store, call: Call) -> Answer:
    """Get Blob: its bytes, or a range of them."""
    blob = _read(store, call)
    wanted = read_range(call.headers, blob.size_bytes)
    headers = blob_headers(blob, store.now_ms)
    pieces = store.bytes_of(blob.all_pieces)
    wants_md5 = call.header("x-ms-range-get-content-md5").lower() == "true"
    if wanted is None:
        if wants_md5:
            raise bad_header("x-ms-range-get-content-md5", "it needs a range; say which in x-ms-range")
        return Answer(OK, headers, pieces)
    first, end = wanted
    body = cut(pieces, first, end)
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{blob.size_bytes}"
    whole_md5 = headers.pop("Content-MD5", "")
    if whole_md5:
        headers["x-ms-blob-content-md5"] = whole_md5
    if wants_md5:
        if end - first > RANGE_MD5_MAX_BYTES:
            raise bad_header("x-ms-range-get-content-md5", f"a range of {RANGE_MD5_MAX_BYTES} bytes at most")
        headers["Content-MD5"] = md5_of(b"".join(body))
    return Answer(PARTIAL, headers, body)


async def head(store: Store, call: Call) -> Answer:
    """Get Blob Properties, and Get Blob Metadata."""
    blob = _read(store, call)
    headers = blob_headers(blob, store.now_ms)
    if call.method == "HEAD":
        headers["Content-Length"] = str(blob.size_bytes)
        headers |= {"x-ms-access-tier": "Hot", "x-ms-access-tier-inferred": "true"}
    return Answer(OK, headers)


async def delete(store: Store, call: Call) -> Answer:
    """Delete Blob."""
    if call.header("x-ms-delete-snapshots").lower() == "only":
        raise bad_header("x-ms-delete-snapshots", "there are no snapshots in this emulator")
    held, _, _ = _written(store, call)
    store.remove(held, call.route.blob)
    return Answer(ACCEPTED, {"x-ms-delete-type-permanent": "true"})


async def metadata(store: Store, call: Call) -> Answer:
    """Set Blob Metadata: all of it anew."""
    metadata = read_metadata(call.headers)
    held, blob, lease = _written(store, call)
    return _changed(store, call, held, replace(blob, metadata=metadata, lease=lease), OK, ENCRYPTED)


async def properties(store: Store, call: Call) -> Answer:
    """Set Blob Properties: all of the HTTP properties anew."""
    properties = read_properties(call)
    held, blob, lease = _written(store, call)
    return _changed(store, call, held, replace(blob, properties=properties, lease=lease), OK, {})


def _changed(store: Store, call: Call, held: Held, blob: Blob, status: int, headers: dict[str, str]) -> Answer:
    fresh = replace(blob, etag=0, modified_ms=store.now_ms)
    return Answer(status, version_headers(store.put(held, call.route.blob, fresh)) | headers)


async def tags_read(store: Store, call: Call) -> Answer:
    """Get Blob Tags."""
    return xml_answer(tags.document(_read(store, call, TAGS_PREFIX).tags))


async def tags_write(store: Store, call: Call) -> Answer:
    """Set Blob Tags: all of them anew; ETag and time stay."""
    check_md5(call.body, call.header("content-md5"))
    fresh = tags.read_document(call.body)
    held, blob, lease = _written(store, call, TAGS_PREFIX)
    store.put(held, call.route.blob, replace(blob, tags=fresh, lease=lease))
    return Answer(NO_CONTENT)


def _read(store: Store, call: Call, prefix: str = "") -> Blob:
    """The blob that a call reads, under conditions whose names have a prefix.

    Raises:
        Rejection: 304, 400, 404 or 412.
    """
    held = store.container(call.route.container)
    wanted = read_conditions(call.headers, is_write=False, prefix=prefix)
    blob = found(held, call)
    leases.check_read(blob.lease, store.now_ms, lease_id(call), "Blob")
    check_read(wanted, blob)
    return blob


def _written(store: Store, call: Call, prefix: str = "") -> tuple[Held, Blob, Lease | None]:
    """The blob that a call changes, its container, and its lease afterwards; conditions as for a read.

    Raises:
        Rejection: 400, 404 or 412.
    """
    held = store.container(call.route.container)
    blob = found(held, call)
    check_write(read_conditions(call.headers, is_write=True, prefix=prefix), blob)
    return held, blob, leases.check_write(blob.lease, store.now_ms, lease_id(call), "Blob")


ENCRYPTED = {"x-ms-request-server-encrypted": "true"}


def replaced(store: Store, call: Call) -> tuple[Held, Blob | None, Lease | None]:
    """The target of a call that writes a blob: container, replaced blob, and that one's lease afterwards.

    Raises:
        Rejection: 400, 404, 409 or 412.
    """
    held = store.container(call.route.container)
    old, id = held.blobs.get(call.route.blob), lease_id(call)
    lease = None if old is None else old.lease
    # who names the lease that a blob has writes it, If-None-Match: * or not, as Microsoft's recorded tests want it
    is_own = lease is not None and lease.id == id and leases.state_of(lease, store.now_ms) in ("leased", "breaking")
    check_write(read_conditions(call.headers, is_write=True), old, creates=not is_own)
    return held, old, leases.check_write(lease, store.now_ms, id, "Blob")


def fresh_blob(call: Call, now_ms: int) -> Blob:
    """A blob as a call describes it, without its bytes.

    Raises:
        Rejection: 400.
    """
    return Blob(
        created_ms=now_ms,
        modified_ms=now_ms,
        properties=read_properties(call, call.header("content-type") if call.route.operation == "blob.put" else ""),
        metadata=read_metadata(call.headers),
        tags=tags.read_header(call.header("x-ms-tags")),
    )


def found(held: Held, call: Call) -> Blob:
    """The blob that a call names.

    Raises:
        Rejection: 404.
    """
    blob = held.blobs.get(call.route.blob)
    if blob is None:
        raise Rejection("BlobNotFound")
    return blob


def lease_id(call: Call) -> str:
    """The lease that a call names, empty for none.

    Raises:
        Rejection: 400.
    """
    text = call.header("x-ms-lease-id")
    return leases.read_id(text, "x-ms-lease-id") if text else ""


def read_properties(call: Call, content_type: str = "") -> Properties:
    """The HTTP properties that a call sets; `content_type` is that of its body.

    Raises:
        Rejection: 400.
    """
    given = {field: call.header(header) for field, header in _PROPERTIES.items()}
    given["content_type"] = given["content_type"] or content_type
    for field, value in given.items():
        if not value.isascii() or not value.isprintable():
            raise bad_header(_PROPERTIES[field], "printable ASCII")
    _bytes_of(given["content_md5"])  # how many they are nobody asks, unless there is a body that they are of
    return Properties(**{field: value for field, value in given.items() if value})


def check_md5(body: bytes, *given: str) -> str:
    """The MD5 of a body, base64, if the MD5s of headers (empty: none) are the same.

    Raises:
        Rejection: 400.
    """
    computed = md5_of(body)
    for digest in filter(None, map(_bytes_of, given)):
        if len(digest) != md5(usedforsecurity=False).digest_size:
            raise Rejection("InvalidMd5")
        if digest != base64.b64decode(computed):
            raise Rejection("Md5Mismatch")
    return computed


def _bytes_of(given: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Rejection("InvalidMd5") from error


def md5_of(data: bytes) -> str:
    """The MD5 of bytes, base64."""
    return base64.b64encode(md5(data, usedforsecurity=False).digest()).decode()


def version_headers(blob: Blob) -> dict[str, str]:
    """ETag and time of a blob."""
    return {"ETag": etag_of(blob.etag), "Last-Modified": http_date(blob.modified_ms)}


def blob_headers(blob: Blob, now_ms: int) -> dict[str, str]:
    """All that is said about a blob in headers."""
    headers = version_headers(blob) | {
        "Accept-Ranges": "bytes",
        "x-ms-blob-type": "BlockBlob",
        "x-ms-creation-time": http_date(blob.created_ms),
        "x-ms-server-encrypted": "true",
    }
    headers |= {name: value for field, name in _SHOWN.items() if (value := getattr(blob.properties, field))}
    headers |= {f"x-ms-lease-{name.lower()}": value for name, value in leases.shown(blob.lease, now_ms).items()}
    headers |= {METADATA + name: value for name, value in blob.metadata.items()}
    if blob.tags:
        headers["x-ms-tag-count"] = str(len(blob.tags))
    return headers


def read_range(headers: Mapping[str, str], size_bytes: int) -> tuple[int, int] | None:
    """The bytes asked for, from and up to (exclusive), or None for all; `x-ms-range` goes before `Range`.

    Raises:
        Rejection: 400, it is no range; 416, it begins behind the end.
    """
    wanted = headers.get("x-ms-range", "") or headers.get("range", "")
    if not wanted:
        return None
    found = _RANGE.fullmatch(wanted)
    if found is None:
        raise bad_header("x-ms-range", "say bytes=FIRST-LAST or bytes=FIRST-")
    first, last = int(found[1]), int(found[2]) if found[2] else size_bytes - 1
    if first >= size_bytes:
        raise Rejection("InvalidRange", headers={"Content-Range": f"bytes */{size_bytes}"})
    if last < first:
        raise bad_header("x-ms-range", "the last byte comes before the first")
    return first, min(last + 1, size_bytes)


def cut(pieces: Sequence[bytes], first: int, end: int) -> tuple[bytes, ...]:
    """The bytes from `first` up to `end` of what the pieces hold together, in pieces."""
    found, at = [], 0
    for piece in pieces:
        begin, stop = max(first - at, 0), min(end - at, len(piece))
        if begin < stop:
            found.append(piece if (begin, stop) == (0, len(piece)) else piece[begin:stop])
        at += len(piece)
        if at >= end:
            break
    return tuple(found)


async def put_block(store: Store, call: Call) -> Answer:
    """Put Block."""
    id = read_block_id(call.parameter("blockid"))
    if not call.body:
        raise bad_header("Content-Length", "a block has at least one byte")
    computed = check_md5(call.body, call.header("content-md5"))
    _check_put(store, call, id)
    pieces = await store.put_pieces(call.body)
    try:
        _check_put(store, call, id)  # others had their turn
    except Rejection:
        store.drop_pieces(pieces)
        raise
    held = store.container(call.route.container)
    store.put_block(held, call.route.blob, Block(id, pieces, store.now_ms))
    return Answer(CREATED, {"Content-MD5": computed} | ENCRYPTED)


def _check_put(store: Store, call: Call, id: str) -> None:
    """Let a block pass that its blob can take.

    Raises:
        Rejection: 400, 404, 409 or 412.
    """
    held = store.container(call.route.container)
    blob, blocks = held.blobs.get(call.route.blob), held.uncommitted.get(call.route.blob, {})
    leases.check_write(None if blob is None else blob.lease, store.now_ms, lease_id(call), "Blob")
    others = (*list(blocks)[:1], *(block.id for block in (blob.blocks[:1] if blob is not None else ())))
    if any(len(_id_bytes(other)) != len(_id_bytes(id)) for other in others):
        raise Rejection("InvalidBlobOrBlock")
    if len(blocks) >= UNCOMMITTED_COUNT_MAX and id not in blocks:
        raise Rejection("BlockCountExceedsLimit")


async def commit_blocks(store: Store, call: Call) -> Answer:
    """Put Block List: the blob is what the blocks hold, in the order of the list."""
    wanted = read_block_list(call.body)
    check_md5(call.body, call.header("content-md5"))
    fresh = fresh_blob(call, store.now_ms)
    held, old, lease = replaced(store, call)
    committed = {} if old is None else {block.id: block for block in old.blocks}
    uncommitted = held.uncommitted.get(call.route.blob, {})
    blocks = []
    for kind, id in wanted:
        block = uncommitted.get(id) if kind != "Committed" else None
        if block is None and kind != "Uncommitted":
            block = committed.get(id)
        if block is None:
            raise Rejection("InvalidBlockList")
        blocks.append(block)
    created_ms = fresh.created_ms if old is None else old.created_ms
    blob = replace(fresh, blocks=tuple(blocks), lease=lease, created_ms=created_ms)
    kept = store.put(held, call.route.blob, blob, commits=True)
    return Answer(CREATED, version_headers(kept) | ENCRYPTED)


async def list_blocks(store: Store, call: Call) -> Answer:
    """Get Block List."""
    wanted = call.parameter("blocklisttype").lower() or "committed"
    if wanted not in ("committed", "uncommitted", "all"):
        raise bad_parameter("blocklisttype", "committed, uncommitted or all")
    held = store.container(call.route.container)
    blob, uncommitted = held.blobs.get(call.route.blob), held.uncommitted.get(call.route.blob, {})
    if blob is None and not uncommitted:
        raise Rejection("BlobNotFound")
    headers: dict[str, str] = {"x-ms-blob-content-length": "0"}
    if blob is not None:
        leases.check_read(blob.lease, store.now_ms, lease_id(call), "Blob")
        check_read(read_conditions(call.headers, is_write=False), blob)
        headers = version_headers(blob) | {"x-ms-blob-content-length": str(blob.size_bytes)}
    parts = ""
    if wanted != "uncommitted":
        parts += _listed("CommittedBlocks", () if blob is None else blob.blocks)
    if wanted != "committed":
        parts += _listed("UncommittedBlocks", tuple(uncommitted[id] for id in sorted(uncommitted)))
    return xml_answer(f"<BlockList>{parts}</BlockList>", headers)


def read_block_id(text: str) -> str:
    """A block's id as the client encodes it.

    Raises:
        Rejection: 400.
    """
    if not text:
        raise Rejection("MissingRequiredQueryParameter", "blockid: name the block")
    _id_bytes(text)
    return text


def _id_bytes(id: str) -> bytes:
    try:
        found = base64.b64decode(id, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Rejection("InvalidBlockId") from error
    if not 1 <= len(found) <= ID_MAX_BYTES:
        raise Rejection("InvalidBlockId")
    return found


def read_block_list(data: bytes) -> list[tuple[str, str]]:
    """Where to look for each block, and its id.

    Raises:
        Rejection: 400.
    """
    try:
        leaves = read_leaves(data)
    except ValueError as error:
        raise Rejection("InvalidXmlDocument", str(error)) from error
    if len(leaves) > LIST_COUNT_MAX:
        raise Rejection("BlockListTooLong")
    found = []
    for path, id in leaves:
        if path == ("BlockList",) and not id:
            continue  # an empty list
        if len(path) != 2 or path[0] != "BlockList" or path[1] not in _KINDS:
            raise Rejection("InvalidXmlDocument", f"say BlockList, and in it {', '.join(_KINDS)}")
        found.append((path[1], read_block_id(id)))
    return found


def _listed(name: str, blocks: tuple[Block, ...]) -> str:
    each = (f"<Block>{leaf('Name', block.id)}{leaf('Size', block.size_bytes)}</Block>" for block in blocks)
    return f"<{name}>{''.join(each)}</{name}>"

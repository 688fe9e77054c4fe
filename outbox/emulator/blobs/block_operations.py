"""Blobs in blocks: put a block, commit a list of them, list them.

A block that was put is nobody's until a list names it; the commit is one step, and forgets the blocks that it does not
name.  Source: learn.microsoft.com/rest/api/storageservices/put-block, put-block-list, get-block-list.
"""

from __future__ import annotations

import base64
import binascii

from msgspec.structs import replace

from outbox.emulator.blobs import leases
from outbox.emulator.blobs.answers import CREATED, Answer, Rejection, bad_header, bad_parameter, xml_answer
from outbox.emulator.blobs.blob_operations import (
    ENCRYPTED,
    check_md5,
    fresh_blob,
    lease_id,
    replaced,
    version_headers,
)
from outbox.emulator.blobs.catalog import Block
from outbox.emulator.blobs.conditions import check_read, read_conditions
from outbox.emulator.blobs.requests import Call
from outbox.emulator.blobs.store import Store
from outbox.emulator.xml import leaf, read_leaves

ID_MAX_BYTES = 64
LIST_COUNT_MAX = 50_000
UNCOMMITTED_COUNT_MAX = 100_000
_KINDS = ("Committed", "Uncommitted", "Latest")


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
    if any(len(_bytes_of(other)) != len(_bytes_of(id)) for other in others):
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
    _bytes_of(text)
    return text


def _bytes_of(id: str) -> bytes:
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

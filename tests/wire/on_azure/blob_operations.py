"""Drawn operations on Blob Storage, sent through the real SDK, and their answers in a form that can be compared.

An answer is a status, an error code and what the operation gave.  ETags differ from service to service, so each is
replaced by its number among those that a side has issued, and an operation names one by that number.
"""

from __future__ import annotations

import base64
import random
from typing import Any, NamedTuple

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobBlock, BlobProperties, ContentSettings
from azure.storage.blob.aio import BlobClient, BlobLeaseClient, BlobServiceClient, ContainerClient

CONTAINER = "drawn"
NAMES = ("a/1", "a/2", "b")
LEASES = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")
BLOCKS = ("one", "two", "six")
METADATA: tuple[dict[str, str], ...] = ({}, {"kind": "x"}, {"kind": "y", "a_b": "1"})
TAGS: tuple[dict[str, str], ...] = ({}, {"pending": "1"}, {"pending": "2", "Color": "red"})
WEIGHTS = {
    "create": 5, "drop": 1, "put": 8, "read": 6, "head": 3, "delete": 3, "metadata": 3, "headers": 2, "block": 6,
    "commit": 6, "blocks": 3, "acquire": 5, "renew": 3, "change": 3, "release": 3, "break": 3, "tags": 2,
    "set_tags": 3, "find": 2, "list": 4, "acquire_container": 1, "release_container": 1,
}  # fmt: skip


class Op(NamedTuple):
    """One drawn operation: its name, the blob that it is about, and all else."""

    name: str
    blob: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def get(self, name: str, default: Any = None) -> Any:
        """An option."""
        return dict(self.options).get(name, default)


class Result(NamedTuple):
    """What an operation came to."""

    status: int
    code: str = ""
    content: Any = None


def drawn(chance: random.Random) -> Op:
    """An operation."""
    name = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    blob, options = chance.choice(NAMES), dict[str, Any]()
    if name in ("put", "read", "head", "delete", "metadata", "headers", "block", "commit", "tags", "set_tags"):
        options["lease"] = chance.choice((None, None, None, *LEASES))
    if name in ("put", "read", "head", "delete", "metadata", "headers", "commit", "acquire", "release"):
        options["condition"] = chance.choice((None, None, None, "match", "none-match", "exists", "missing"))
        options["etag"] = chance.randrange(-3, 0)
    if name in ("put", "block"):
        options["data"] = chance.randbytes(chance.choice((0, 1, 7, 30))) if name == "put" else chance.randbytes(3)
    if name in ("put", "metadata", "commit"):
        options["metadata"] = chance.choice(METADATA)
    if name in ("put", "set_tags", "commit"):
        options["tags"] = chance.choice(TAGS)
    if name in ("put", "headers"):
        options["content_type"] = chance.choice(("", "text/plain"))
    if name == "read":
        options["range"] = chance.choice((None, None, (0, 3), (2, 100), (5, 1), (29, None), (30, 5)))
    if name == "block":
        options["id"] = chance.choice(BLOCKS)
    if name == "commit":
        options["list"] = tuple(chance.choice(BLOCKS) for _ in range(chance.randrange(4)))
    if name == "blocks":
        options["kind"] = chance.choice(("committed", "uncommitted", "all"))
    if name in ("acquire", "renew", "change", "release", "release_container", "acquire_container"):
        options["id"] = chance.choice(LEASES)
    if name in ("acquire", "acquire_container"):
        options["duration"] = chance.choice((-1, 15, 60))
    if name == "change":
        options["to"] = chance.choice(LEASES)
    if name == "break":
        options["period"] = chance.choice((None, 0, 20))
    if name == "find":
        options["where"] = chance.choice(("\"pending\"='1'", "\"pending\">='1' AND \"Color\"='red'"))
    if name == "list":
        options |= {"prefix": chance.choice(("", "a/", "b")), "delimiter": chance.choice(("", "/"))}
        options["uncommitted"] = chance.random() < 0.5
    return Op(name, blob, tuple(sorted(options.items())))


class Side:
    """A service that drawn operations are sent to, through the SDK."""

    def __init__(self, service: BlobServiceClient) -> None:
        self.service = service
        self._etags: list[str] = []

    @property
    def container(self) -> ContainerClient:
        """The container that everything is about."""
        return self.service.get_container_client(CONTAINER)

    async def run(self, op: Op) -> Result:
        """Send one operation; what it came to."""
        try:
            content = await getattr(self, f"_{op.name}")(op, self.container.get_blob_client(op.blob or "b"))
        except HttpResponseError as error:
            found = getattr(error, "error_code", "")
            code = getattr(found, "value", found) or ""
            return Result(error.status_code or 0, str(code))
        return Result(200, "", content)

    def _number(self, etag: Any) -> int:
        if etag not in self._etags:
            self._etags.append(etag)
        return self._etags.index(etag)

    def _conditions(self, op: Op) -> dict[str, Any]:
        found: dict[str, Any] = {} if op.get("lease") is None else {"lease": op.get("lease")}
        kind = op.get("condition")
        if kind == "exists":
            found |= {"match_condition": MatchConditions.IfPresent}
        if kind == "missing":
            found |= {"match_condition": MatchConditions.IfMissing}
        if kind in ("match", "none-match"):
            last = MatchConditions.IfNotModified if kind == "match" else MatchConditions.IfModified
            known = len(self._etags) >= -op.get("etag")
            found |= {"etag": self._etags[op.get("etag")] if known else '"0x0"', "match_condition": last}
        return found

    async def _create(self, op: Op, blob: BlobClient) -> None:
        await self.container.create_container()

    async def _drop(self, op: Op, blob: BlobClient) -> None:
        await self.container.delete_container()

    async def _put(self, op: Op, blob: BlobClient) -> Any:
        options: dict[str, Any] = {"metadata": op.get("metadata"), "tags": op.get("tags") or None}
        if op.get("content_type"):
            options["content_settings"] = ContentSettings(content_type=op.get("content_type"))
        answer = await blob.upload_blob(op.get("data"), overwrite=True, **options, **self._conditions(op))
        return self._number(answer["etag"])

    async def _read(self, op: Op, blob: BlobClient) -> Any:
        where = op.get("range")
        options = {} if where is None else {"offset": where[0], "length": where[1]}
        stream = await blob.download_blob(**options, **self._conditions(op))
        data: bytes = await stream.readall()
        return data, self._shown(stream.properties)

    async def _head(self, op: Op, blob: BlobClient) -> Any:
        found = await blob.get_blob_properties(**self._conditions(op))
        return found.size, found.lease.state, self._shown(found)

    def _shown(self, found: BlobProperties) -> Any:
        return self._number(found.etag), found.metadata, found.content_settings.content_type, found.tag_count or 0

    async def _delete(self, op: Op, blob: BlobClient) -> None:
        await blob.delete_blob(**self._conditions(op))

    async def _metadata(self, op: Op, blob: BlobClient) -> Any:
        return self._number((await blob.set_blob_metadata(op.get("metadata"), **self._conditions(op)))["etag"])

    async def _headers(self, op: Op, blob: BlobClient) -> Any:
        settings = ContentSettings(content_type=op.get("content_type") or None, content_language="de")
        return self._number((await blob.set_http_headers(settings, **self._conditions(op)))["etag"])

    async def _block(self, op: Op, blob: BlobClient) -> None:
        await blob.stage_block(op.get("id"), op.get("data"), lease=op.get("lease"))

    async def _commit(self, op: Op, blob: BlobClient) -> Any:
        blocks = [BlobBlock(id) for id in op.get("list")]  # the SDK asks for the latest, whatever it is given
        options = {"metadata": op.get("metadata"), "tags": op.get("tags") or None}
        return self._number((await blob.commit_block_list(blocks, **options, **self._conditions(op)))["etag"])

    async def _blocks(self, op: Op, blob: BlobClient) -> Any:
        both = await blob.get_block_list(op.get("kind"))
        return [sorted((_plain(block.id), block.size) for block in blocks) for blocks in both]

    def _lease(self, op: Op, client: Any) -> BlobLeaseClient:
        return BlobLeaseClient(client, lease_id=op.get("id"))

    async def _acquire(self, op: Op, blob: BlobClient) -> Any:
        lease = self._lease(op, blob)
        await lease.acquire(op.get("duration"), **self._conditions(op))
        return lease.id, self._number(lease.etag)

    async def _renew(self, op: Op, blob: BlobClient) -> Any:
        lease = self._lease(op, blob)
        await lease.renew()
        return lease.id

    async def _change(self, op: Op, blob: BlobClient) -> Any:
        lease = self._lease(op, blob)
        await lease.change(op.get("to"))
        return lease.id

    async def _release(self, op: Op, blob: BlobClient) -> None:
        await self._lease(op, blob).release(**self._conditions(op))

    async def _break(self, op: Op, blob: BlobClient) -> Any:
        return await BlobLeaseClient(blob).break_lease(op.get("period"))

    async def _acquire_container(self, op: Op, blob: BlobClient) -> None:
        await self._lease(op, self.container).acquire(op.get("duration"))

    async def _release_container(self, op: Op, blob: BlobClient) -> None:
        await self._lease(op, self.container).release()

    async def _tags(self, op: Op, blob: BlobClient) -> Any:
        return await blob.get_blob_tags(lease=op.get("lease"))

    async def _set_tags(self, op: Op, blob: BlobClient) -> None:
        await blob.set_blob_tags(op.get("tags") or None, lease=op.get("lease"))

    async def _find(self, op: Op, blob: BlobClient) -> Any:
        return sorted([found.name async for found in self.container.find_blobs_by_tags(op.get("where"))])

    async def _list(self, op: Op, blob: BlobClient) -> Any:
        include = ["metadata", "tags", *(["uncommittedblobs"] if op.get("uncommitted") else [])]
        options = {"name_starts_with": op.get("prefix"), "include": include, "results_per_page": 2}
        if op.get("delimiter"):
            found = [item async for item in self.container.walk_blobs(delimiter=op.get("delimiter"), **options)]
        else:
            found = [item async for item in self.container.list_blobs(**options)]
        return [_entry(item) for item in found]


def _plain(id: str) -> str:
    """A block's id as it was given; the SDK encodes it when it sends and leaves it so when it reads."""
    return id if id in BLOCKS else base64.b64decode(id).decode()


def _entry(item: Any) -> Any:
    if not hasattr(item, "blob_type"):
        return item.name
    return item.name, item.size, item.metadata or {}, item.tags or {}

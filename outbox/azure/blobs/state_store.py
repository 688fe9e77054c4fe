"""Blob Storage as a state store of item scope: one document a blob, swapped by its ETag.

For states where there is no Cosmos DB.  A body is stored as it is; its partition and id are the blob's name.  What has
a time to live says in its metadata when it ends: from then on it is not there any more for a reader, and
`purge` deletes it (a lifecycle rule of the container may do so as well, later).  A body with a member `pending` has an
index tag, by which the sweeper finds it; on an account that keeps no tags those of all blobs would have to be read, so
there `tags=False` looks at every blob's metadata instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob.aio import ContainerClient

from outbox.azure.blobs.account import TIMEOUT_S, BlobAccount
from outbox.azure.blobs.outcomes import FAILURES, as_error, is_no_container
from outbox.azure.usage import Usage
from outbox.documents import is_pending
from outbox.errors import TooLarge
from outbox.ports import (
    Create,
    Delete,
    Document,
    DocumentKey,
    Lost,
    Replace,
    Session,
    StateStore,
    StoreCapabilities,
    Won,
    Write,
)

T = TypeVar("T")

ITEM_BYTES_MAX = 8 << 20
NAME_LENGTH_MAX = 1_000
PENDING, EXPIRES = "pending", "expires"
_LOSING = frozenset((404, 409, 412))


class BlobStateStore:
    """The documents in one container of blobs."""

    capabilities = StoreCapabilities(
        atomic_scope="item",
        batch_count_max=1,
        item_bytes_max=ITEM_BYTES_MAX,
        tells_current=False,
        ambiguous_replies=True,
    )

    def __init__(
        self,
        account: BlobAccount,
        *,
        now_ms: Callable[[], int],
        tags: bool = True,
        timeout_s: float = TIMEOUT_S,
        usage: Usage | None = None,
    ) -> None:
        """Take a container that holds nothing else, and the time."""
        self.usage = Usage() if usage is None else usage
        self._account = account
        self._now_ms = now_ms
        self._tags = tags
        self._timeout_s = timeout_s

    # Reading

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await self._find(name_of(key), key)
        return None if found is None or self._is_over(found[1]) else found[0]

    async def _find(self, name: str, key: DocumentKey) -> tuple[Document, Mapping[str, str]] | None:
        """A document with its metadata, whether it is over or not."""

        async def download(container: ContainerClient) -> tuple[Document, Mapping[str, str]]:
            stream = await container.download_blob(name)  # its parts, if several, are of one version
            data: bytes = await stream.readall()
            return Document(key, data, str(stream.properties.etag)), stream.properties.metadata or {}

        what = f"read of {key.partition}/{key.id}"
        try:
            return await self._call("read", download)
        except ResourceNotFoundError as error:
            if is_no_container(error):
                raise as_error(error, what) from error
            return None
        except FAILURES as error:
            raise as_error(error, what) from error

    def _is_over(self, metadata: Mapping[str, str]) -> bool:
        return int(metadata.get(EXPIRES, 0) or 1 << 62) <= self._now_ms()

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        keys = [key_of(name) async for name, _ in self._names(f"{encode_part(partition)}/")]
        for key in sorted((key for key in keys if key.id.startswith(prefix)), key=lambda key: key.id):
            document = await self.read(key)
            if document is not None:
                yield document

    async def partitions(self, prefix: str, *, holding: str) -> AsyncIterator[str]:
        """The partitions that begin with `prefix`, up to 5,000 a request, whatever each holds.

        Which of them hold a document of the id `holding` is not asked, because that would be a request for each.
        """
        pages = self._account.container().walk_blobs(name_starts_with=encode_part(prefix), delimiter="/").by_page()
        async for folder in self._items(pages):
            yield key_of(folder["name"]).partition

    async def unfinished(self) -> AsyncIterator[Document]:
        names = self._tagged() if self._tags else self._flagged()
        async for name in names:
            document = await self.read(key_of(name))
            if document is not None and is_pending(document.body):  # tags lag behind
                yield document

    async def _tagged(self) -> AsyncIterator[str]:
        pages = self._account.container().find_blobs_by_tags(f"\"{PENDING}\"='1'").by_page()
        async for blob in self._items(pages):
            yield blob["name"]

    async def _flagged(self) -> AsyncIterator[str]:
        async for name, metadata in self._names(""):
            if PENDING in metadata:
                yield name

    async def _names(self, begins: str) -> AsyncIterator[tuple[str, Mapping[str, str]]]:
        """The names of blobs, with their metadata."""
        pages = self._account.container().list_blobs(name_starts_with=begins, include=["metadata"]).by_page()
        async for blob in self._items(pages):
            yield blob["name"], blob["metadata"] or {}

    def _items(self, pages: Any) -> AsyncIterator[Any]:
        return self._account.items(pages, usage=self.usage, timeout_s=self._timeout_s)

    # Writing

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        if len(operations) != 1:
            raise TooLarge(f"{len(operations)} operations; this store writes one document at a time")
        (operation,) = operations
        if not isinstance(operation, Delete) and len(operation.body) > ITEM_BYTES_MAX:
            raise TooLarge(f"a body of {len(operation.body)} bytes, over {ITEM_BYTES_MAX}; move large values to a blob")
        outcome = await self._write(operation)
        if isinstance(outcome, Lost) and isinstance(operation, Create):
            known = await self._find(name_of(operation.key), operation.key)
            if known is not None and self._is_over(known[1]):  # what is over gives way, if it is still that
                outcome = await self._write(Replace(operation.key, operation.body, known[0].version, operation.ttl_s))
        return outcome

    async def _write(self, operation: Write) -> Won | Lost:
        name, what = name_of(operation.key), f"write of {operation.key.partition}/{operation.key.id}"
        try:
            if isinstance(operation, Delete):
                condition: dict[str, Any] = {
                    "etag": operation.if_match,
                    "match_condition": MatchConditions.IfNotModified,
                }
                await self._call("delete", lambda container: container.delete_blob(name, **condition))
                return Won(("",))
            answer = await self._call("write", lambda container: self._upload(container, name, operation))
        except FAILURES as error:
            if getattr(error, "status_code", None) in _LOSING and not is_no_container(error):
                return Lost(0)
            raise as_error(error, what) from error
        return Won((str(answer["etag"]),))

    async def _upload(self, container: ContainerClient, name: str, operation: Create | Replace) -> Mapping[str, Any]:
        options: dict[str, Any] = {"metadata": {}}
        if is_pending(operation.body):
            options["metadata"][PENDING] = "1"
            if self._tags:
                options["tags"] = {PENDING: "1"}
        if operation.ttl_s is not None:
            options["metadata"][EXPIRES] = str(self._now_ms() + round(operation.ttl_s * 1_000))
        if isinstance(operation, Replace):
            options |= {"overwrite": True, "etag": operation.if_match, "match_condition": MatchConditions.IfNotModified}
        answer: Mapping[str, Any] = await container.get_blob_client(name).upload_blob(operation.body, **options)
        return answer

    # Upkeep

    async def purge(self) -> int:
        """Delete expired documents, and return their number."""
        count = 0
        async for name, metadata in self._names(""):
            if self._is_over(metadata):
                known = await self._find(name, key_of(name))
                if known is not None and self._is_over(known[1]):
                    count += isinstance(await self._write(Delete(known[0].key, known[0].version)), Won)
        return count

    async def _call(self, kind: str, send: Callable[[ContainerClient], Awaitable[T]]) -> T:
        return await self._account.call(kind, send, usage=self.usage, timeout_s=self._timeout_s)


def name_of(key: DocumentKey) -> str:
    """The name of a document's blob.

    Raises:
        TooLarge: it would be longer than Azure takes.
    """
    name = f"{encode_part(key.partition)}/{encode_part(key.id)}"
    if len(name) > NAME_LENGTH_MAX:
        raise TooLarge(f"document {name[:80]}... has a name of {len(name)} characters; Azure takes {NAME_LENGTH_MAX}")
    return name


def key_of(name: str) -> DocumentKey:
    """The document whose blob has this name."""
    partition, _, id = name.partition("/")
    return DocumentKey(_decode(partition), _decode(id))


def encode_part(text: str) -> str:
    """Encode a partition or id for a name: letters, digits, `_` and `-` stay, else `~` and two hexadecimal digits."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else _escape(c) for c in text) or "~"


def _escape(character: str) -> str:
    return "".join(f"~{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def _decode(part: str) -> str:
    if part == "~":
        return ""
    first, *escaped = part.split("~")
    decoded = b"".join(bytes.fromhex(one[:2]) + one[2:].encode() for one in escaped)
    return first + decoded.decode("utf-8", "surrogatepass")


_conforms: type[StateStore] = BlobStateStore

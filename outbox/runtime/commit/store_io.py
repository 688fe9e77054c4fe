"""The reads and writes of a store protocol; a failure becomes `NothingCommitted`, which starts another attempt."""

from __future__ import annotations

from collections.abc import Iterable

from outbox.errors import NoBlobStore, OutcomeUnknown
from outbox.ports import BlobStore, Document, DocumentKey, Lost, Replace, Session, StateStore, Tag, Won, Write
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted

LOOK_COUNT_MAX = 5
"""How often to read a document that must exist, before the attempt starts again."""


async def read(store: StateStore, key: DocumentKey, session: Session = "") -> Document | None:
    """Read a document, at least as fresh as `session`.

    Raises:
        NothingCommitted: the store cannot be read now.
    """
    try:
        return await store.read(key, session=session)
    except MAY_RETRY as error:
        raise NothingCommitted from error


async def write_one(store: StateStore, write: Write) -> Won | Lost:
    """Write one document.

    Raises:
        OutcomeUnknown: it may have been written.
        NothingCommitted: it was not.
    """
    try:
        return await store.write([write])
    except OutcomeUnknown:
        raise
    except MAY_RETRY as error:
        raise NothingCommitted from error


async def write_known(store: StateStore, write: Write) -> Won | Lost:
    """Write one document whose unknown outcome needs no resolving, because the next attempt meets the document.

    Raises:
        NothingCommitted: it was not written, or the outcome is unknown.
    """
    try:
        return await store.write([write])
    except MAY_RETRY as error:
        raise NothingCommitted from error


async def confirmed(store: StateStore, document: Document) -> Document:
    """Write a document back unchanged, which proves that the read was not stale.

    Raises:
        NothingCommitted: it has changed, or the outcome is unknown.
    """
    answer = await write_known(store, Replace(document.key, document.body, document.version, None, Tag("confirm")))
    if isinstance(answer, Lost):
        raise NothingCommitted
    return Document(document.key, document.body, answer.versions[0], answer.session)


async def write_blobs(blobs: BlobStore, named: Iterable[tuple[str, bytes]]) -> None:
    """Write blobs named by their content, so an existing one is the same.

    Raises:
        NoBlobStore: there is no blob store.
        NothingCommitted: a blob may be missing.
    """
    for name, data in named:
        try:
            await blobs.write(name, data)
        except NoBlobStore:
            raise
        except MAY_RETRY as error:
            raise NothingCommitted from error

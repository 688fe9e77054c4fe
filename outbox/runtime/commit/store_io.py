"""Reads and writes as a store protocol makes them: what failed for now starts the attempt again."""

from __future__ import annotations

from collections.abc import Iterable

from outbox.errors import NoBlobStore, OutcomeUnknown
from outbox.ports import BlobStore, Document, DocumentKey, Lost, Replace, Session, StateStore, Tag, Won, Write
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted

LOOK_COUNT_MAX = 5
"""How often a document is read that must be there, before the attempt starts again."""


async def read(store: StateStore, key: DocumentKey, session: Session = "") -> Document | None:
    """A document, at least as fresh as `session`.

    Raises:
        NothingCommitted: it cannot be read now.
    """
    try:
        return await store.read(key, session=session)
    except MAY_RETRY as error:
        raise NothingCommitted from error


async def write_one(store: StateStore, write: Write) -> Won | Lost:
    """Write one document.

    Raises:
        OutcomeUnknown: nobody can tell whether it was written.
        NothingCommitted: it was not.
    """
    try:
        return await store.write([write])
    except OutcomeUnknown:
        raise
    except MAY_RETRY as error:
        raise NothingCommitted from error


async def confirmed(store: StateStore, document: Document) -> Document:
    """A document that was read, written as it is: so it is not of the past, and what came before it can be seen.

    Raises:
        NothingCommitted: it is otherwise by now, or nobody can tell.
    """
    try:
        answer = await write_one(store, Replace(document.key, document.body, document.version, None, Tag("confirm")))
    except OutcomeUnknown as error:
        raise NothingCommitted from error
    if isinstance(answer, Lost):
        raise NothingCommitted
    return Document(document.key, document.body, answer.versions[0], answer.session)


async def write_blobs(blobs: BlobStore, named: Iterable[tuple[str, bytes]]) -> None:
    """Write blobs whose names say what is in them; one that is there already is the same.

    Raises:
        NoBlobStore: none of them can be.
        NothingCommitted: one of them may not be there.
    """
    for name, data in named:
        try:
            await blobs.write(name, data)
        except NoBlobStore:
            raise
        except MAY_RETRY as error:
            raise NothingCommitted from error

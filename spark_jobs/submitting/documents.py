"""The documents of runs: one for each, changed only by compare-and-swap.

Submitters claim a run in it before they ask for a batch, the job takes its lease in it before it touches anything, and
both read there what the other did.  The framework's notes keep it (the same on the embedded engine, on the emulator and
on Cosmos DB), or a folder of this machine for runs that stay on it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from outbox.errors import CorruptRecord, OutcomeUnknown
from outbox.ports import Create, Document, DocumentKey, Replace, StateStore, Tag, Version, Won
from outbox.spark import ENDED, Phase, RunId, RunRequest
from spark_jobs.common.folder import local_path

NOTE_PREFIX = "spark-run:"
DETAIL_CHARACTERS = 500
CHANGE_COUNT_MAX = 20


class Claim(msgspec.Struct, frozen=True):
    """The submitter that may be asking for a batch, and how long its request may still take effect."""

    owner: str
    until_ms: int


class Lease(msgspec.Struct, frozen=True):
    """The process that works on the run, and the time until which no other may."""

    holder: str
    until_ms: int


class RunDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of a run; times are milliseconds since 1970."""

    job: str
    arguments: tuple[str, ...] = ()
    asked_ms: int
    claim: Claim | None = None
    claim_count: int = 0
    batch: str = ""
    lease: Lease | None = None
    is_cancelled: bool = False
    ended: Phase | None = None
    detail: str = ""

    @property
    def request(self) -> RunRequest:
        """The request that began the run."""
        return RunRequest(self.job, self.arguments)

    def is_leased(self, now_ms: int, *, but_for: str = "") -> bool:
        """Whether somebody works on it, other than `but_for`."""
        return self.lease is not None and self.lease.holder != but_for and self.lease.until_ms > now_ms


class Seen(NamedTuple):
    """A document as it was read, and the version that it must still have to be changed."""

    document: RunDocument
    version: Version


class RunDocuments(Protocol):
    """Where the documents of runs are."""

    async def read(self, run: RunId) -> Seen | None:
        """The document of a run, None where there is none.

        Raises:
            OutcomeUnknown, Throttled: it cannot be read now.
        """

    async def write(self, run: RunId, document: RunDocument, version: Version) -> bool:
        """Write a document that still has this version (empty: is not there); whether it was written.

        Raises:
            OutcomeUnknown: nobody can tell.
            Throttled: it was not.
        """


class Notes(Protocol):
    """The framework's notes: the `Operations` of any backend."""

    async def note(self, name: str) -> Document | None: ...

    async def write_note(self, name: str, body: bytes, version: Version) -> bool: ...


class NotedRuns:
    """Documents of runs among the notes of a backend."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def read(self, run: RunId) -> Seen | None:
        note = await self._notes.note(NOTE_PREFIX + run)
        return None if note is None else Seen(_decoded(run, bytes(note.body)), note.version)

    async def write(self, run: RunId, document: RunDocument, version: Version) -> bool:
        body = msgspec.json.encode(document)
        try:
            return await self._notes.write_note(NOTE_PREFIX + run, body, version)
        except OutcomeUnknown:
            note = await self._notes.note(NOTE_PREFIX + run)  # every change has its own content: owner, time or both
            return note is not None and bytes(note.body) == body


class StoreNotes:
    """The notes of a state store, for a process without a backend: a job in a Spark pool."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def note(self, name: str) -> Document | None:
        """The note of a name."""
        return await self._store.read(DocumentKey("notes", name))

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        """Write a note that still has this version."""
        key, tag = DocumentKey("notes", name), Tag("note")
        write = Replace(key, body, version, tag=tag) if version else Create(key, body, tag=tag)
        return isinstance(await self._store.write([write]), Won)


class FolderRuns:
    """Documents of runs as files of one machine, each changed under its lock and replaced whole."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = local_path(str(folder))

    async def read(self, run: RunId) -> Seen | None:
        return await asyncio.to_thread(self._read, run)

    async def write(self, run: RunId, document: RunDocument, version: Version) -> bool:
        return await asyncio.to_thread(self._write, run, document, version)

    def _read(self, run: RunId) -> Seen | None:
        try:
            body = self._file(run).read_bytes()
        except FileNotFoundError:
            return None
        return Seen(_decoded(run, body), _digest(body))

    def _write(self, run: RunId, document: RunDocument, version: Version) -> bool:
        self.path.mkdir(parents=True, exist_ok=True)
        with self._locked(run):
            seen = self._read(run)
            if ("" if seen is None else seen.version) != version:
                return False
            part = self.path / f"{run}.json.part"
            with part.open("wb") as file:
                file.write(msgspec.json.encode(document))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._file(run))
            return True

    def _file(self, run: RunId) -> Path:
        return self.path / f"{run}.json"

    @contextmanager
    def _locked(self, run: RunId) -> Iterator[None]:
        with (self.path / f"{run}.json.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for one small write; the system lets go if its holder dies
            yield


async def change(
    documents: RunDocuments, run: RunId, changed: Callable[[RunDocument], RunDocument]
) -> RunDocument | None:
    """Change a document, again from its newest version while others change it too; None where there is none.

    Raises:
        OutcomeUnknown, Throttled: it may not have been changed.
    """
    for _ in range(CHANGE_COUNT_MAX):
        seen = await documents.read(run)
        if seen is None:
            return None
        wanted = changed(seen.document)
        if wanted == seen.document or await documents.write(run, wanted, seen.version):
            return wanted
    raise OutcomeUnknown(f"run {run} is being changed by others all the time; ask again")


def ended(document: RunDocument, phase: Phase, detail: str = "") -> RunDocument:
    """A document of a run that is over; the first end counts."""
    assert phase in ENDED
    if document.ended is not None:
        return document
    return msgspec.structs.replace(document, ended=phase, detail=detail[:DETAIL_CHARACTERS], lease=None)


def _digest(body: bytes) -> Version:
    return sha256(body).hexdigest()


def _decoded(run: RunId, body: bytes) -> RunDocument:
    try:
        return msgspec.json.decode(body, type=RunDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(
            f"the document of run {run} is none: {error}; look who else writes there, and use another id"
        ) from error


_noted: type[RunDocuments] = NotedRuns
_in_folder: type[RunDocuments] = FolderRuns

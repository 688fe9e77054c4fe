"""The log of a ledger: one immutable file a commit, and of several writers of a version exactly one wins.

    _log/00000000000000000007.json      {"version": 7, "add": [...], "conflicts": [...], "consumed": [...], "rows": n}
    _log/00000000000000000256.state     everything up to that version, so that reading stays short

A commit names the data files that it adds and the landing files that they came from, so progress and data can never
disagree.  Whoever loses a version reads again and decides anew.
"""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from outbox.errors import CorruptRecord
from spark_jobs.common.folder import Folder

LOG = "_log"
LANDING = "_landing"
COMMIT = ".json"
STATE = ".state"
STATE_EVERY = 256


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One version: paths are relative to the ledger, `consumed` are names of landing files."""

    version: int
    add: list[str]
    conflicts: list[str]
    consumed: list[str]
    rows: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger at a version; version 0 is the empty one."""

    version: int = 0
    files: list[str] = msgspec.field(default_factory=list)
    conflicts: list[str] = msgspec.field(default_factory=list)
    consumed: list[str] = msgspec.field(default_factory=list)
    rows: int = 0

    def after(self, commit: Commit) -> State:
        """The next version."""
        return State(
            version=commit.version,
            files=self.files + commit.add,
            conflicts=self.conflicts + commit.conflicts,
            consumed=self.consumed + commit.consumed,
            rows=self.rows + commit.rows,
        )


Decoded = TypeVar("Decoded", Commit, State)


class ManifestLog:
    """Reads and appends commits of one ledger."""

    def __init__(self, ledger: str | os.PathLike[str]) -> None:
        self.folder = Folder(ledger) / LOG

    def read(self) -> State:
        """The newest version.

        Raises:
            CorruptRecord: a commit cannot be decoded or one is missing.
        """
        states = self.folder.names(STATE)
        state = State()
        if states:
            state = self._decoded(states[-1], State)
        for name in self.folder.names(COMMIT):
            if name > file_name(state.version, COMMIT):
                commit = self._decoded(name, Commit)
                if commit.version != state.version + 1:
                    raise CorruptRecord(
                        f"{self.folder.path} has no version {state.version + 1} but {commit.version}; restore the "
                        "missing file, its rows are in no other"
                    )
                state = state.after(commit)
        return state

    def append(self, state: State, commit: Commit) -> bool:
        """Write the version that follows `state`; False where somebody else wrote it."""
        assert commit.version == state.version + 1
        if not self.folder.create(file_name(commit.version, COMMIT), msgspec.json.encode(commit)):
            return False
        if commit.version % STATE_EVERY == 0:
            whole = self._without_swept(state.after(commit))
            self.folder.create(file_name(commit.version, STATE), msgspec.json.encode(whole))
        return True

    def _without_swept(self, state: State) -> State:
        """Forget landing files that are gone: their names are random, so none comes back."""
        landing = self.folder.path.parent / LANDING
        return msgspec.structs.replace(state, consumed=[name for name in state.consumed if (landing / name).exists()])

    def _decoded(self, name: str, kind: type[Decoded]) -> Decoded:
        try:
            return msgspec.json.decode(self.folder.read(name) or b"", type=kind)
        except msgspec.DecodeError as error:
            raise CorruptRecord(f"{self.folder.path / name} cannot be read: {error}; restore it from a copy") from error


def file_name(version: int, suffix: str) -> str:
    """Twenty digits, so that names sort as versions do."""
    return f"{version:020}{suffix}"

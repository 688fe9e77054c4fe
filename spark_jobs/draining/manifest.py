"""The log of a ledger before it was a Delta table: read for the take-over, and closed by it.

    _log/00000000000000000007.json      {"version": 7, "add": [...], "conflicts": [...], "consumed": [...], "rows": n}
    _log/00000000000000000256.state     everything up to that version
    _log/00000000000000000300.json      {"taken_over": "...", "state": {...}}: closed, with all that it said

The closing record has the name of the next version, so a build that still writes this log loses that version to it and
then cannot decode it: it stops, and no row goes into a ledger that nobody reads.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from outbox.errors import CorruptRecord, Refused
from spark_jobs.common.places import Place
from spark_jobs.draining.entries import LOG as DELTA_LOG
from spark_jobs.draining.entries import UNDECODABLE

LOG = "_log"
COMMIT, STATE = ".json", ".state"
CLOSED = "this ledger is a Delta table now; write to it with a build that says so in its changelog"


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


class Closing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last record of a log."""

    taken_over: str = CLOSED
    state: State


Decoded = TypeVar("Decoded", Commit, State, Closing)


class ManifestLog:
    """Reads the log of one ledger, and closes it."""

    def __init__(self, ledger: Place) -> None:
        self.place = ledger / LOG

    def is_there(self) -> bool:
        """Whether the ledger has, or had, this form."""
        return any(True for _ in self.place.list())

    def read(self) -> tuple[State, bool]:
        """The newest version, and whether the log is closed.

        Raises:
            CorruptRecord: a commit cannot be decoded or one is missing.
        """
        names = [item.name for item in self.place.list()]
        commits = [name for name in names if name.endswith(COMMIT)]
        if commits and (closing := self._closing(commits[-1])) is not None:
            return closing.state, True
        states = [name for name in names if name.endswith(STATE)]
        state = self._decoded(states[-1], State) if states else State()
        for name in commits:
            if name > file_name(state.version, COMMIT):
                commit = self._decoded(name, Commit)
                if commit.version != state.version + 1:
                    raise CorruptRecord(
                        f"{self.place} has no version {state.version + 1} but {commit.version}; restore the "
                        "missing file, its rows are in no other"
                    )
                state = state.after(commit)
        return state, False

    def close(self, state: State) -> bool:
        """End the log behind this version; False where another writer has the next one."""
        data = msgspec.json.encode(Closing(state=state))
        return self.place.create(file_name(state.version + 1, COMMIT), data)

    def let_go(self, state: State) -> None:
        """Delete what the closing record repeats."""
        closing = file_name(state.version + 1, COMMIT)
        for name in [item.name for item in self.place.list() if item.name != closing]:
            self.place.delete(name)

    def _closing(self, name: str) -> Closing | None:
        try:
            return msgspec.json.decode(self.place.read(name) or b"", type=Closing)
        except UNDECODABLE:
            return None

    def _decoded(self, name: str, kind: type[Decoded]) -> Decoded:
        try:
            return msgspec.json.decode(self.place.read(name) or b"", type=kind)
        except UNDECODABLE as error:
            raise CorruptRecord(f"{self.place / name} cannot be read: {error}; restore it from a copy") from error


def refuse_older_form(ledger: Place) -> None:
    """Write to no ledger that is not taken over yet.

    Raises:
        Refused: with the command that does it.
    """
    log = ManifestLog(ledger)
    if not log.is_there():
        return
    _, is_closed = log.read()
    is_delta = any(True for _ in ledger.list(f"{DELTA_LOG}/"))
    if is_closed and is_delta:
        return
    if is_delta:
        raise two_ledgers(ledger)
    raise Refused(
        f"{ledger} is a ledger of the form before Delta; run this once, it takes the ledger over in place: "
        f"python -m spark_jobs.take_over --ledger {ledger}"
    )


def two_ledgers(ledger: Place) -> Refused:
    """A log of each form, neither of which knows of the other."""
    return Refused(
        f"{ledger} has two ledgers of one name, {LOG} and {DELTA_LOG}: an older build wrote here again; move {LOG} and "
        "the files that it names to a folder of their own"
    )


def file_name(version: int, suffix: str) -> str:
    """Twenty digits, so that names sort as versions do."""
    return f"{version:020}{suffix}"

"""A processor's register: the one document that its replicas swap, and with it decide what happens next.

    processor/<name>   `register`   {"serial", "state", "now", "cursors", "since", "outs", ...}

Its outs are what the last step emitted; they may not be in their logs yet, and until they are the register does not
leave its serial.  `since` says for each output from where on they are looked for.  A serial counts the swaps, so
identities that name it never repeat; the store's versions are opaque.

The last cell that was read, or written, tells a log from another one of the same name.  A cursor is a place, and says
nothing of what lies before it.  So the index and identity of the last cell are kept with it, and a process that begins
reads that cell once.  A cell never gets another identity, so another one there is another log, or the same one
restored.  Where none is there it was trimmed, if it is below the floor and the floor knows the reader; else the log is
another one, or ends before, unless the read was stale: it is looked for again a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from outbox.errors import CorruptRecord, OtherLog, OutcomeUnknown, TooLarge
from outbox.lineage import step_id
from outbox.ports import Create, DocumentKey, NoBlobs, Replace, Session, StateStore, Tag, Version, Won
from outbox.runtime.work import Work
from outbox.streams.cells import DECODE_ERRORS, Position, is_current, put
from outbox.streams.log_places import Place
from outbox.streams.row import Entry, NotThere, Row
from outbox.streams.values import ENVELOPE_BYTES, check_fits, inline_bytes_max

NOTHING = msgspec.Raw(b"null")
REGISTER = "register"


class Out(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a step to one row, as one cell, or to a queue, as messages with their keys."""

    to: str
    v: list[msgspec.Raw]
    types: list[str] = []
    schema: int = 1
    keys: list[str] = []


class Failed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A register's note of a step whose handler failed; see `failures`.

    `until` says for each row how far that step had read; rows that are past it are left out.  `tries` counts how often
    the entry at the cursor of a row has failed alone, or under "" a timer.  The next step takes at most `take` entries,
    those after it at most `most` (0: any number).  `waits` counts the failures that the next step waits for, 0 after
    one that succeeded; `timer` says that the last step was that of a timer, and succeeded.
    """

    until: dict[str, Position] = {}
    tries: dict[str, int] = {}
    take: int = 1
    most: int = 0
    waits: int = 0
    timer: bool = False


class LastCell(msgspec.Struct, frozen=True, array_like=True):
    """The last cell that was read or written: its index, and a digest of its identity, of 31 bits."""

    index: int
    mark: int


class Register(msgspec.Struct, frozen=True, omit_defaults=True):
    """A register as stored.

    `cursors` say for each row of an input which entry is next, `since` for each row of an output from which index on
    the outs of this serial are looked for; `reads` and `writes` name these rows.  `now` is the time of the last step
    and `wake` when one is due without input, in milliseconds since 1970; `failures` counts how often the handler failed
    on what is next, and `failed` is the note of it.  `clock` is the time of the replica that took the last step, where
    that is well behind `now`.  `code` and `version` name the handler; `nonce` tells one swap from another with the same
    serial.  `lasts` has for each row, by its name, the last cell that was read from it, or written to it.
    """

    serial: int = 0
    nonce: str = ""
    code: str = ""
    version: int = 1
    state: msgspec.Raw = NOTHING
    schema: int = 1
    now: int = 0
    cursors: dict[str, Position] = {}
    since: dict[str, int] = {}
    outs: list[Out] = []
    wake: int = 0
    failures: int = 0
    reads: dict[str, str] = {}
    writes: dict[str, str] = {}
    failed: Failed | None = None
    clock: int = 0
    lasts: dict[str, LastCell] = {}

    @property
    def made_ms(self) -> int:
        """When the messages of the last step were made: of all their copies, whoever sends them."""
        return self.clock or self.now


INGEST = "ingest/"
"""How the names of ingests begin; those of processors have no slash."""
BY_NONCE = 2
"""From this version on an ingest's register names its cells by its nonce."""


def cell_id(name: str, register: Register, to: str) -> str:
    """The identity of what a register holds for one row or queue.

    A processor's follows from the serial: a register that is restored from a backup takes its steps again, and they
    are the same.  Those of an ingest are not, because the messages are others, so there the nonce stands for the swap:
    by their serials they would be taken for cells that an ingest of the same name wrote after the backup.
    """
    if name.startswith(INGEST) and register.version >= BY_NONCE:
        return step_id(f"{name}/{register.nonce}", register.serial, to)
    return step_id(name, register.serial, to)


class Swapped(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The members of every register: `serial` counts the swaps, `nonce` tells one from another of the same serial."""

    serial: int = 0
    nonce: str = ""


R = TypeVar("R", bound=Register | Swapped)


class Kept(NamedTuple, Generic[R]):
    """A register as read or written, and its version then."""

    register: R
    version: Version


class RegisterCell(Generic[R]):
    """The document of one register, of type `kind`."""

    def __init__(self, store: StateStore, partition: str, kind: type[R], *, new_id: Callable[[], str]) -> None:
        self.store = store
        self._kind = kind
        self.key = DocumentKey(partition, REGISTER)
        self._new_id = new_id

    async def read(self, *, session: Session = "") -> Kept[R] | None:
        """The register, at least as new as `session` knows it; None where there is none.

        Raises:
            CorruptRecord: its document cannot be decoded.
        """
        document = await self.store.read(self.key, session=session)
        if document is None:
            return None
        try:
            return Kept(msgspec.json.decode(document.body, type=self._kind), document.version)
        except DECODE_ERRORS as error:
            raise CorruptRecord(
                f"{self.key.partition}/register is not a processor's register ({error}); restore it from a backup"
            ) from error

    def swapping(self, known: Kept[R] | None, after: R) -> tuple[Create | Replace, R]:
        """The write that swaps a register, or creates it, and the register that it writes."""
        serial = 0 if known is None else known.register.serial + 1
        made = msgspec.structs.replace(after, serial=serial, nonce=self._new_id())
        version = "" if known is None else known.version
        return put(self.key, made, version, Tag("register", (), str(serial))), made

    async def is_current(self, known: Kept[R]) -> bool:
        """Whether nobody has swapped a register since it was known."""
        return await is_current(self.store, self.key, known.version)

    async def mine(self, made: R) -> Kept[R] | None:
        """Read back a register whose swap had no answer; None where another one is there, so the swap lost."""
        found = await self.read()
        is_mine = found is not None and (found.register.serial, found.register.nonce) == (made.serial, made.nonce)
        return found if is_mine else None

    async def swap(self, known: Kept[R] | None, after: R) -> Kept[R] | None:
        """Swap a register, or create it; None where another replica was first, or may have been."""
        write, made = self.swapping(known, after)
        try:
            answer = await self.store.write([write])
        except OutcomeUnknown:
            return await self.mine(made)
        return Kept(made, answer.versions[0]) if isinstance(answer, Won) else None


def last_cell(index: int, id: str) -> LastCell:
    """A cell of this identity as the last one."""
    return LastCell(index, int.from_bytes(sha256(id.encode()).digest()[:4], "big") >> 1)


def lasts_at(
    rows: Mapping[str, Row[Any]], outs: Sequence[Out], ids: Sequence[str], ends: Sequence[int]
) -> dict[str, LastCell]:
    """The last cells of rows, by name, that these outs were written to under these identities, up to these ends."""
    return {
        rows[out.to].name: last_cell(end - 1, id)
        for out, id, end in zip(outs, ids, ends, strict=True)
        if out.to in rows
    }


def last_of(entry: Entry[Any]) -> LastCell:
    """The cell of an entry."""
    return last_cell(entry.position.index, entry.id)


async def check_lasts(
    who: str, lasts: Mapping[str, LastCell], read: Iterable[tuple[Row[Any], Position]], written: Iterable[Row[Any]]
) -> None:
    """Check that the logs `read` up to cursors, and `written`, hold the last cells that `who` knows.

    A cursor that does not fit to its last cell was set, and is taken as it is.

    Raises:
        OtherLog: another cell lies in the place of one.
        NotThere: none does, and none was trimmed, as far as a read can tell.
    """
    looked = {row.name: (row, "where an output goes on") for row in written if row.name in lasts}
    for row, at in read:
        looked.pop(row.name, None)
        if row.name in lasts and lasts[row.name].index == at.before:
            looked[row.name] = row, f"the cursor of {who.replace('/', ' ')}"
    for name, (row, what) in looked.items():
        await _check(row, lasts[name], who, what)


async def _check(row: Row[Any], last: LastCell, who: str, what: str) -> None:
    cell = await row.cells.read(last.index)
    if cell is not None and last_cell(last.index, cell.id) == last:
        return
    known = await row.horizon.read()
    is_trimmed = last.index < row.horizon.index
    # A tombstone without an identity lies where another had expired, and so does a cell that came too late to be read.
    if cell is not None and cell.id and (cell.gone or not is_trimmed):
        raise OtherLog(
            f"{row.name}: {what} is {last.index + 1}, and cell {last.index} is not the one that it was; this is "
            "another log, or one that was restored from an older backup and written to since: give the log that was "
            f"meant, or {who} another name, or restore both from one time"
        )
    if not is_trimmed:
        raise row.ends_before(last.index + 1, what)
    if who not in known.readers and who not in known.writers:
        raise NotThere(
            f"{row.name}: {what} is {last.index + 1}, the cell before was trimmed, and the floor does not know {who}; "
            f"this is another log, or {who} was unregistered: give the log that was meant, or {who} another name"
        )


class StateFull(TooLarge):
    """A processor's state has outgrown its register."""


def register_bytes_max(store: StateStore) -> int:
    """The most bytes of state and outputs that a register of a store holds."""
    return store.capabilities.item_bytes_max - ENVELOPE_BYTES


def check_size(rows: Mapping[str, Row[Any]], store: StateStore, state_bytes: int, outs: Sequence[Out]) -> None:
    """Check that a register holds what a step made, and that the rows of its outputs take it.

    Raises:
        TooLarge: it does not; fewer entries at once may.
    """
    sizes = {out.to: sum(len(bytes(raw)) + 1 for raw in out.v) for out in outs}
    for key, row in rows.items():
        check_fits(sizes.get(key, 0), row.place.store, row.place.blobs, row.name)
    size_bytes = state_bytes + sum(sizes.values())
    size_bytes += sum(len(text.encode()) + 3 for out in outs for text in (*out.keys, *out.types))
    limit_bytes = register_bytes_max(store)
    if size_bytes > limit_bytes:
        raise TooLarge(
            f"the state and what the step emits are {size_bytes} bytes, the register holds {limit_bytes}; keep a "
            "smaller state, or handle fewer entries at once: batch_max="
        )


def check_state(processor: str, store: StateStore, before: Register, state_bytes: int, entry_count: int) -> None:
    """Check that a state that was large before has room for what one more entry adds.

    Raises:
        StateFull: it has none, which is not that entry's fault.
    """
    limit_bytes = register_bytes_max(store)
    if entry_count <= 1 and state_bytes > limit_bytes and 2 * len(bytes(before.state)) > limit_bytes:
        raise StateFull(
            f"processor {processor}: its state is {state_bytes} bytes, the register holds {limit_bytes}; keep less in "
            "it, with what grows in a log or in a database, and start again"
        )


def entry_bytes_max(store: StateStore, place: Place) -> int:
    """The most bytes that one commit may bring: what a register holds and, without blobs, a cell of the log."""
    limit_bytes = register_bytes_max(store)
    return min(limit_bytes, inline_bytes_max(place.store)) if isinstance(place.blobs, NoBlobs) else limit_bytes


def groups_of(works: Sequence[Work], bytes_max: int) -> list[list[Work]]:
    """Groups in which no message is there twice, and which one commit holds.

    A copy goes into another group, and finds the record; a message that is larger by itself is alone.
    """
    groups: list[list[Work]] = []
    sizes: list[int] = []
    for work in works:
        size_bytes = len(work.delivery.message.body)
        for at, group in enumerate(groups):
            fits = sizes[at] + size_bytes <= bytes_max
            if fits and (not work.inbox or all(other.inbox != work.inbox for other in group)):
                group.append(work)
                sizes[at] += size_bytes
                break
        else:
            groups.append([work])
            sizes.append(size_bytes)
    return groups

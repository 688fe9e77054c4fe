"""A processor's register: the one document that its replicas swap, and with it decide what happens next.

    processor/<name>   `register`   {"serial", "state", "now", "cursors", "since", "outs", ...}

Its outs are what the last step emitted; they may not be in their logs yet, and until they are the register does not
leave its serial.  `since` says for each output from where on they are looked for.  A serial counts the swaps, so
identities that name it never repeat; the store's versions are opaque.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from outbox.errors import CorruptRecord, OutcomeUnknown
from outbox.lineage import step_id
from outbox.ports import Create, DocumentKey, Replace, Session, StateStore, Tag, Version, Won
from outbox.streams.cells import DECODE_ERRORS, Position, is_current, put

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

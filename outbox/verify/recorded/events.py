"""The events of a history: one value for each line of it.

Operations come in two lines: the invocation with all that it is about to do, then how it ended (`ok`, `fail`,
`unknown`) under the same number.  An operation without an end is one whose process died meanwhile: like `unknown` it
may have taken effect.  What only tells something (`claim`, `put`) takes one line.

    life      a process began to record; whatever the one before it had open is unknown now
    in        messages were accepted from outside
    claim     messages were handed to a worker
    held      a renewal showed a worker that its locks still hold
    found     a process read what a transaction had written
    commit    an atomic change was asked for: messages ended, states, outputs, markers
    push      messages were asked to leave for another system
    settle    a delivery was asked to end at its broker
    blob      a blob was asked for
    put       a state was written by other means than a handler
    read      cells of an ordered log were read
    result, durable, left    what Theorem 1 needs to know of systems that have no commits, such as pipelines
    quiesce   nothing was waiting or being handled
    end       the process stopped of its own accord
    cut       recording stopped here, though the process went on
    torn      (made by the reader) a line that cannot be read because its process died while writing it

Texts are identities and names; payloads appear as digests only (`digest_of`), so that a history holds no personal data,
unless it was asked to keep `bodies`.  Inner values are JSON arrays that grow at the end only.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

import msgspec

from outbox.message import Message


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as handed out; `outside` says that no commit of the recorded system made it."""

    id: str
    queue: str
    sequence: int
    outside: bool = True
    attempt: int = 0
    digest: int = 0


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that a commit ends because its message is applied, now or before."""

    queue: str
    sequence: int
    id: str


class Buried(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that a commit dead-letters."""

    queue: str
    sequence: int
    id: str
    reason: str = ""
    attempt: int = 0


class Postponed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that a commit reschedules to `due_ms` (0: at once)."""

    queue: str
    sequence: int
    id: str
    due_ms: int = 0


class Emitted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that a commit or push sends, or a cell for an ordered log.

    `cause` is the identity of the message, or the step of a processor, that made it; `index` is where in its log a
    push asks for it to lie (-1: it is no append).
    """

    id: str
    destination: str
    digest: int = 0
    cause: str = ""
    due_ms: int = 0
    index: int = -1


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Entries that a step of a processor takes from a log, between two positions (index and offset).

    `since` is (-1, -1) where it is not known.
    """

    log: str
    since: tuple[int, int]
    until: tuple[int, int]


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A state that goes from version `before` (0: absent, -1: not known) to `version`; digest 0 deletes it."""

    state: str
    before: int
    version: int
    digest: int = 0


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A state that must still have this version (-1: not known), and stays unchanged."""

    state: str
    version: int


class Whole(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery with its message, kept so that its handling can be run again."""

    message: Message
    enqueued_ms: int = 0
    failures: int = 0
    delivery_count: int = 0
    outside: bool = True


class Tally(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many messages were ever put into a queue, and how many of them have left it."""

    received: int
    left: int


class Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True, kw_only=True):
    """One line; `at_ms` is milliseconds since 1970 by the recorder's clock."""

    at_ms: int = 0


class Life(Event, frozen=True, tag="life"):
    """A process began to record.

    `boot` names the run of the machine: what a process of the same run had handed to the operating system is still in
    the history, so that nothing can be missing.  `sequence` is the greatest sequence number that was given out before,
    `is_empty` says that there was nothing at all.  `left` counts the messages that had left each queue.
    """

    name: str = ""
    boot: str = ""
    sequence: int = 0
    is_empty: bool = False
    tallies: dict[str, Tally] = {}


class In(Event, frozen=True, tag="in"):
    """Messages were accepted from outside: from here on they must not get lost."""

    queue: str
    messages: list[tuple[str, int]]
    """Identity and digest of each."""
    index: int = -1
    """Where in a pipeline's source the one cell lies that it takes (-1: it is none)."""
    values: list[msgspec.Raw] = []
    """The entries of the cell, in a history with bodies."""


class Claim(Event, frozen=True, tag="claim"):
    """Messages were handed to a worker; `wholes` in a history with bodies."""

    deliveries: list[Delivered]
    wholes: list[Whole] = []


class Held(Event, frozen=True, tag="held"):
    """These deliveries are still the worker's: no commit that was to end them has taken effect."""

    deliveries: list[tuple[str, int]]
    """Queue and sequence of each."""


class Found(Event, frozen=True, tag="found"):
    """These transactions were read: they took effect."""

    txs: list[str]


class Commit(Event, frozen=True, tag="commit"):
    """An atomic change is asked for.

    `applied` and `refused` are the inbox keys, in hexadecimal, of the messages whose handlers ran in it and of those
    that were turned down; a duplicate is in neither, nor is one that waits behind a blocked key.  Those in `replacing`
    had a refusal on record, or that they wait, so they were run however old they are.  An output is named `<inbox
    key>-<position>`.  `staged` says that the outputs are only stored by it and leave by a push, else they are in their
    queues with the commit.  `at_ms` is its handlers' time; `tx` names the transaction where the
    protocol does, `is_spilled` says that the outputs lie elsewhere.  The swap of a processor's register names its
    `step` and what that has `taken`; its outputs are cells, or messages named `<step's identity>-<offset>`, and
    of those in `spilled` the contents lie elsewhere.
    """

    op: int
    ended: list[Ended] = []
    buried: list[Buried] = []
    postponed: list[Postponed] = []
    changes: list[Change] = []
    seen: list[Seen] = []
    outputs: list[Emitted] = []
    applied: list[str] = []
    refused: list[str] = []
    staged: bool = False
    tx: str = ""
    is_spilled: bool = False
    replacing: list[str] = []
    step: str = ""
    taken: list[Taken] = []
    spilled: list[str] = []


class Push(Event, frozen=True, tag="push"):
    """Messages are asked to leave."""

    op: int
    outputs: list[Emitted]


class Settled(Event, frozen=True, tag="settle"):
    """A delivery is asked to end at its broker: complete, abandon, release, defer or dead-letter."""

    op: int
    queue: str
    sequence: int
    id: str
    how: str
    reason: str = ""


class Blob(Event, frozen=True, tag="blob"):
    """A blob is asked for."""

    op: int
    name: str
    digest: int
    size_bytes: int


class Ok(Event, frozen=True, tag="ok"):
    """The operation took effect."""

    op: int


class Fail(Event, frozen=True, tag="fail"):
    """The operation had no effect."""

    op: int
    why: str = ""


class Unknown(Event, frozen=True, tag="unknown"):
    """The outcome of the operation is unknown."""

    op: int
    why: str = ""


class Put(Event, frozen=True, tag="put"):
    """A state was written by other means: from here on it has this version."""

    state: str
    version: int


class Read(Event, frozen=True, tag="read"):
    """Cells of an ordered log were read: they lie there."""

    log: str
    cells: list[tuple[int, str, int]]
    """Index, identity and digest of each."""


class Result(Event, frozen=True, tag="result"):
    """An operator's result and what it was computed from.

    Of a pipeline of this `version` it is the digests of all `items` for a `sink` at a position (index and offset) of
    its source; without items it says that all below the position has been made.  Its parent is that place.
    """

    id: str
    parents: list[str] = []
    is_commutative: bool = False
    is_ordered: bool = False
    sink: str = ""
    version: int = 0
    at: tuple[int, int] = (-1, -1)
    items: list[int] = []


class Durable(Event, frozen=True, tag="durable"):
    """From here on a result can be recovered, whatever of the declared failures happens.

    Of a pipeline of this `version` it is a checkpoint: all results below a position, whose items lie in these `sinks`.
    """

    id: str
    sinks: list[str] = []
    version: int = 0
    until: tuple[int, int] = (-1, -1)


class Left(Event, frozen=True, tag="left"):
    """Something that depends on a result left the system.

    A bundle that lies at `index` of a `sink` holds these items, of the positions from `since` to before `until`, made
    by a pipeline of this `version` (0: by another writer); `values` in a history with bodies.
    """

    id: str
    parents: list[str]
    sink: str = ""
    version: int = 0
    index: int = -1
    digest: int = 0
    since: tuple[int, int] = (-1, -1)
    until: tuple[int, int] = (-1, -1)
    items: list[int] = []
    values: list[msgspec.Raw] = []


class Quiesce(Event, frozen=True, tag="quiesce"):
    """Nothing waited in these queues or was being handled; messages due later do not count.

    `tallies` is what the system itself counted for each queue, `dead` names its dead letters by sequence.
    """

    queues: list[str]
    tallies: dict[str, Tally] = {}
    dead: dict[str, list[int]] = {}


class End(Event, frozen=True, tag="end"):
    """The process stopped of its own accord."""


class Cut(Event, frozen=True, tag="cut"):
    """Recording stopped here."""

    why: str


class Torn(Event, frozen=True, tag="torn"):
    """A line of `size_bytes` that cannot be read."""

    size_bytes: int


Operation = Commit | Push | Settled | Blob
AnyEvent = (
    Life
    | In
    | Claim
    | Held
    | Found
    | Commit
    | Push
    | Settled
    | Blob
    | Ok
    | Fail
    | Unknown
    | Put
    | Read
    | Result
    | Durable
    | Left
    | Quiesce
    | End
    | Cut
    | Torn
)


def digest_of(message: Message) -> int:
    """A check number of what a message says: its type, body and claim; tells accidents apart, not forgeries."""
    found = crc32(message.body, _type_digest(message.type))
    return crc32(message.claim.encode(errors="replace"), found) if message.claim else found


@lru_cache(maxsize=1 << 10)
def _type_digest(type: str) -> int:
    return crc32(type.encode(errors="replace"))

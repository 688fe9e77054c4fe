"""What one commit of engine scope holds, and what it finds: states, markers, deliveries that end, outputs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from outbox.deliveries import Delivery, Output


class StateDocument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A state as stored: its bytes (empty: a tombstone), schema version and serial, a count of its versions."""

    value: bytes
    version: int
    schema: int = 1
    serial: int = 1
    expires_ms: int = 0


WAITING, WAITING_ATTEMPT = "waiting", -1
"""The reason and attempt of a record that says of a message only that it waits: any attempt at it is a later one."""


class Refusal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The marker of a message that was refused: why, and at which resubmission; or of one that waits."""

    fingerprint: bytes
    reason: str
    description: str
    attempt: int = 0

    @property
    def waits(self) -> bool:
        """Whether it says only that its message waits behind a blocked key: nothing has become of it yet."""
        return self.reason == WAITING and self.attempt == WAITING_ATTEMPT


Marker = bytes | Refusal
"""What is remembered of a handled message: the fingerprint of what was applied, or the refusal."""


class StateChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A state to write: its bytes (empty: a tombstone), schema version and serial."""

    value: bytes
    schema: int
    serial: int


class Burial(msgspec.Struct, gc=False):
    """A delivery that is dead-lettered."""

    delivery: Delivery
    reason: str
    description: str
    failures: int
    stops_key: bool = False


class Postponement(msgspec.Struct, gc=False):
    """A delivery that is given back until `due_ms` (0: at once), with its count of failures."""

    delivery: Delivery
    due_ms: int
    failures: int


class Commit(msgspec.Struct, gc=False):
    """Everything that a batch of messages does, committed as one.

    It takes effect if every state in `if_versions` still has that version (0: absent), those that `states` writes and
    those that stay as they are.  `applied` and `refused` are markers to create; a key in `replacing` may instead
    replace a refusal of a lower attempt number.  Markers are kept until `markers_expire_ms`; with 0, which is for those
    of messages that wait and nothing else, until they are replaced.
    """

    now_ms: int
    markers_expire_ms: int
    consumed: list[Delivery]
    if_versions: dict[str, int]
    states: dict[str, StateChange]
    outputs: list[Output]
    applied: dict[bytes, bytes]
    refused: dict[bytes, Refusal]
    replacing: dict[bytes, int]
    buried: list[Burial]
    postponed: list[Postponement]
    handled: list[bytes] = []
    """The inbox keys of the messages that were run in this commit, for those who watch; nothing acts on it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A commit whose conditions did not hold; nothing was written.

    `locks` are the sequences of deliveries that are not ours any more, `states` and `markers` what had changed.
    """

    locks: frozenset[int] = frozenset()
    states: frozenset[str] = frozenset()
    markers: frozenset[bytes] = frozenset()

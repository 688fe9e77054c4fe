"""The commit of engine scope: states, markers, settled deliveries, outputs, and the conflict that prevents it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from outbox.deliveries import Delivery, Output
from outbox.resubmission import Replaced


class StateDocument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A state as stored: its bytes (empty: a tombstone), schema version and serial, a count of its versions."""

    value: bytes
    version: int
    schema: int = 1
    serial: int = 1
    expires_ms: int = 0


WAITING, WAITING_ATTEMPT = "waiting", -1
"""The reason and attempt of a waiting record: every attempt at its message is a later one."""


class Refusal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The marker of a refused message: the reason, and the attempt; or of a waiting message.

    Behind the fingerprint lies what edits have replaced, where there were any (`runtime.commit.marker_replies`).
    """

    fingerprint: bytes
    reason: str
    description: str
    attempt: int = 0

    @property
    def replaced(self) -> tuple[Replaced, ...]:
        """Nothing: this is the record of a marker without edits."""
        return ()

    @property
    def waits(self) -> bool:
        """Whether it is a waiting marker: the message waits behind a blocked key, without an outcome."""
        return self.reason == WAITING and self.attempt == WAITING_ATTEMPT


Marker = bytes | Refusal
"""The record of a handled message in engine scope: the fingerprint of an applied one, or the refusal.

Behind the fingerprint of an applied one lies its reply, or what edits have replaced.
"""


class StateChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A state to write: its bytes (empty: a tombstone), schema version and serial."""

    value: bytes
    schema: int
    serial: int


class DeadLettering(msgspec.Struct, gc=False):
    """A delivery that is dead-lettered."""

    delivery: Delivery
    reason: str
    description: str
    failures: int
    stops_key: bool = False


class Postponement(msgspec.Struct, gc=False):
    """A delivery that is rescheduled to `due_ms` (0: at once), with its failure count and why."""

    delivery: Delivery
    due_ms: int
    failures: int
    error: str = ""


class Commit(msgspec.Struct, gc=False):
    """All effects of a batch of messages, committed as one.

    It takes effect if every state in `if_versions` still has that version (0: absent), whether `states` writes it or
    not.  `applied` and `refused` are markers to create; a key in `replacing` may instead
    replace a refusal of a lower attempt number.  Markers are kept until `markers_expire_ms`; with 0, for waiting
    markers only, until they are replaced.
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
    dead_lettered: list[DeadLettering]
    postponed: list[Postponement]
    handled: list[bytes] = []
    """The inbox keys of the messages that ran in this commit, for monitors; nothing acts on it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A commit whose conditions did not hold; nothing was written.

    `locks` are the sequences of deliveries with a lost lock, `states` and `markers` the changed ones.
    """

    locks: frozenset[int] = frozenset()
    states: frozenset[str] = frozenset()
    markers: frozenset[bytes] = frozenset()

"""The verdict on a message, from its record and its age: one table for all three scopes and for HTTP requests.

A record is found under the inbox key: a document in partition and item scope, a marker in engine scope.  It lives for
retention and a margin, so for a message as old as retention a missing record proves nothing: that is the age fence.  A
record that proves that the message was not applied (it was refused, or waits behind a blocked key) exempts from the
fence, because a resubmission replaces it under its version.  A refusal by the fence itself proves nothing.

No I/O and no clock.  The scopes ask here with the record they have; a record they have not read makes their commit
lose.
"""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import NamedTuple, Protocol

from outbox.engine_commit import WAITING, WAITING_ATTEMPT
from outbox.errors import PoisonMessage
from outbox.resubmission import may_have_been_applied


class Stored(Protocol):
    """A record: a `stored.Record`, or a `Refusal` in engine scope."""

    @property
    def fingerprint(self) -> bytes:
        """The digest of the payload."""

    @property
    def reason(self) -> str:
        """Why it was refused; empty where it was applied."""

    @property
    def description(self) -> str:
        """The detail of that reason."""

    @property
    def attempt(self) -> int:
        """The resubmission that it answers."""


class OnRecord(Enum):
    """The kind of record that a message has."""

    NOTHING = "nothing"
    APPLIED = "applied"
    REFUSED = "refused"
    REFUSED_FOR_AGE = "refused for its age"
    WAITING = "waiting"


class Verdict(Enum):
    """What to do with the message."""

    FRESH = "run it, and create its record"
    RESUBMISSION = "run it, and replace its record"
    DUPLICATE = "complete it: it was applied"
    REFUSED = "dead-letter it for the reason on record"
    TOO_OLD = "dead-letter it as too-old"
    PAYLOAD_DIFFERS = "dead-letter it as payload-differs, and leave the record as it is"


class Row(NamedTuple):
    """A row of the table; a fact that is None makes no difference."""

    record: OnRecord
    is_same_payload: bool | None
    is_later_attempt: bool | None
    is_past_retention: bool | None
    verdict: Verdict


TABLE = (
    #   on record                 same payload  later attempt  past retention
    Row(OnRecord.NOTHING,         None,         None,          False, Verdict.FRESH),
    Row(OnRecord.NOTHING,         None,         None,          True,  Verdict.TOO_OLD),
    Row(OnRecord.APPLIED,         True,         None,          None,  Verdict.DUPLICATE),
    Row(OnRecord.APPLIED,         False,        None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.REFUSED,         True,         False,         None,  Verdict.REFUSED),
    Row(OnRecord.REFUSED,         True,         True,          None,  Verdict.RESUBMISSION),
    Row(OnRecord.REFUSED,         False,        None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.REFUSED_FOR_AGE, True,         False,         None,  Verdict.REFUSED),
    Row(OnRecord.REFUSED_FOR_AGE, True,         True,          False, Verdict.RESUBMISSION),
    Row(OnRecord.REFUSED_FOR_AGE, True,         True,          True,  Verdict.TOO_OLD),
    Row(OnRecord.REFUSED_FOR_AGE, False,        None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.WAITING,         True,         None,          None,  Verdict.RESUBMISSION),
    Row(OnRecord.WAITING,         False,        None,          None,  Verdict.PAYLOAD_DIFFERS),
)  # fmt: skip


def _expanded(rows: tuple[Row, ...]) -> dict[tuple[OnRecord, bool, bool, bool], Verdict]:
    """Each combination of facts and its one verdict."""
    found: dict[tuple[OnRecord, bool, bool, bool], Verdict] = {}
    for row in rows:
        facts = [(False, True) if fact is None else (fact,) for fact in row[1:4]]
        for is_same_payload, is_later_attempt, is_past_retention in product(*facts):
            key = (row.record, is_same_payload, is_later_attempt, is_past_retention)
            assert key not in found, f"two rows of the table judge {key}"
            found[key] = row.verdict
    assert len(found) == len(OnRecord) * 8, "no row of the table judges one of the combinations"
    return found


_VERDICTS = _expanded(TABLE)


def kind_of(record: Stored | None) -> OnRecord:
    if record is None:
        return OnRecord.NOTHING
    if not record.reason:
        return OnRecord.APPLIED
    if record.reason == WAITING and record.attempt == WAITING_ATTEMPT:
        return OnRecord.WAITING
    return OnRecord.REFUSED_FOR_AGE if may_have_been_applied(record.reason, record.description) else OnRecord.REFUSED


def judged(record: Stored | None, *, fingerprint: bytes, attempt: int, is_past_retention: bool) -> Verdict:
    """The verdict on a message of this payload and attempt; an empty `fingerprint` matches any payload."""
    is_same_payload = record is None or not fingerprint or record.fingerprint == fingerprint
    is_later_attempt = record is None or attempt > record.attempt
    return _VERDICTS[kind_of(record), is_same_payload, is_later_attempt, is_past_retention]


LEAVES_OPEN = frozenset((OnRecord.NOTHING, OnRecord.REFUSED_FOR_AGE))
"""The records that leave open whether a message past retention was applied before."""


def payload_differs(identity: str) -> PoisonMessage:
    """The refusal of a message under the id of another."""
    return PoisonMessage("payload-differs", f"id {identity} was used with another payload; use a new id")

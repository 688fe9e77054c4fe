"""The verdict on a message, from its record and its age, for all scopes and HTTP requests.

A record is found under the inbox key: a document in partition and item scope, a marker in engine scope.  It lives for
retention and a margin, so for a message as old as retention a missing record proves nothing: that is the age fence.  A
record that proves that the message was not applied (it was refused, or waits behind a blocked key) exempts from the
fence, because a resubmission replaces it under its version.  A refusal by the fence itself proves nothing.

A resubmission has the payload on record.  An edit has another: it names the payload that it replaces, and runs where
that very payload is on record as refused.  Then copies of the replaced payload follow the record as copies of the edit
do.  An edit of what is not on record is refused, on record: nothing shows that its message was not applied, under this
key or under another.

No I/O and no clock.  The scopes ask here with the record they have; a record they have not read makes their commit
lose.
"""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import NamedTuple

from outbox.engine_commit import WAITING, WAITING_ATTEMPT, Refusal
from outbox.errors import PoisonMessage
from outbox.message import Message
from outbox.resubmission import (
    EDIT_WITHOUT_RECORD,
    REPLACED_COUNT_MAX,
    Replaced,
    is_edit_without_record,
    may_have_been_applied,
)
from outbox.stored import Record

StoredRecord = Record | Refusal
"""The record of a message: a `Refusal` in engine scope."""


class OnRecord(Enum):
    """The kind of record that a message has."""

    NOTHING = "nothing"
    APPLIED = "applied"
    REFUSED = "refused"
    REFUSED_FOR_AGE = "refused for its age"
    EDIT_WITHOUT_RECORD = "refused as an edit of nothing"
    WAITING = "waiting"


class Payload(Enum):
    """The relation of a message's payload to its record.

    An edit without a record is an `EDIT`; over a record it is one where it names that payload and its attempt is later.
    """

    SAME = "the same"
    EDIT = "an edit"
    REPLACED = "one it replaced"
    OTHER = "another"


class Verdict(Enum):
    """The verdict: how a message is to end."""

    FRESH = "run it, and create its record"
    RESUBMISSION = "run it, and replace its record"
    DUPLICATE = "complete it: it was applied"
    REFUSED = "dead-letter it for the reason on record"
    TOO_OLD = "dead-letter it as too-old"
    PAYLOAD_DIFFERS = "dead-letter it as payload-differs, and leave the record as it is"
    EDIT_WITHOUT_RECORD = "dead-letter it as edit-without-record"


class Row(NamedTuple):
    """A row of the table; a fact that is None makes no difference."""

    record: OnRecord
    payload: Payload
    is_later_attempt: bool | None
    is_past_retention: bool | None
    verdict: Verdict


TABLE = (
    #   on record                     payload           later attempt  past retention
    Row(OnRecord.NOTHING,             Payload.SAME,     None,          False, Verdict.FRESH),
    Row(OnRecord.NOTHING,             Payload.SAME,     None,          True,  Verdict.TOO_OLD),
    Row(OnRecord.NOTHING,             Payload.EDIT,     None,          None,  Verdict.EDIT_WITHOUT_RECORD),
    Row(OnRecord.APPLIED,             Payload.SAME,     None,          None,  Verdict.DUPLICATE),
    Row(OnRecord.APPLIED,             Payload.EDIT,     None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.APPLIED,             Payload.REPLACED, None,          None,  Verdict.DUPLICATE),
    Row(OnRecord.APPLIED,             Payload.OTHER,    None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.REFUSED,             Payload.SAME,     False,         None,  Verdict.REFUSED),
    Row(OnRecord.REFUSED,             Payload.SAME,     True,          None,  Verdict.RESUBMISSION),
    Row(OnRecord.REFUSED,             Payload.EDIT,     None,          None,  Verdict.RESUBMISSION),
    Row(OnRecord.REFUSED,             Payload.REPLACED, None,          None,  Verdict.REFUSED),
    Row(OnRecord.REFUSED,             Payload.OTHER,    None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.REFUSED_FOR_AGE,     Payload.SAME,     False,         None,  Verdict.REFUSED),
    Row(OnRecord.REFUSED_FOR_AGE,     Payload.SAME,     True,          False, Verdict.RESUBMISSION),
    Row(OnRecord.REFUSED_FOR_AGE,     Payload.SAME,     True,          True,  Verdict.TOO_OLD),
    Row(OnRecord.REFUSED_FOR_AGE,     Payload.EDIT,     None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.REFUSED_FOR_AGE,     Payload.REPLACED, None,          None,  Verdict.REFUSED),
    Row(OnRecord.REFUSED_FOR_AGE,     Payload.OTHER,    None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.EDIT_WITHOUT_RECORD, Payload.SAME,     None,          None,  Verdict.REFUSED),
    Row(OnRecord.EDIT_WITHOUT_RECORD, Payload.EDIT,     None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.EDIT_WITHOUT_RECORD, Payload.REPLACED, None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.EDIT_WITHOUT_RECORD, Payload.OTHER,    None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.WAITING,             Payload.SAME,     None,          None,  Verdict.RESUBMISSION),
    Row(OnRecord.WAITING,             Payload.EDIT,     None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.WAITING,             Payload.REPLACED, None,          None,  Verdict.PAYLOAD_DIFFERS),
    Row(OnRecord.WAITING,             Payload.OTHER,    None,          None,  Verdict.PAYLOAD_DIFFERS),
)  # fmt: skip


def _expanded(rows: tuple[Row, ...]) -> dict[tuple[OnRecord, Payload, bool, bool], Verdict]:
    """Expand the rows into one verdict for each combination of facts.  Without a record a payload is an edit's, or the
    same."""
    found: dict[tuple[OnRecord, Payload, bool, bool], Verdict] = {}
    for row in rows:
        facts = [(False, True) if fact is None else (fact,) for fact in row[2:4]]
        for is_later_attempt, is_past_retention in product(*facts):
            key = (row.record, row.payload, is_later_attempt, is_past_retention)
            assert key not in found, f"two rows of the table judge {key}"
            found[key] = row.verdict
    count = (len(OnRecord) - 1) * len(Payload) + len((Payload.SAME, Payload.EDIT))
    assert len(found) == count * 4, "no row of the table judges one of the combinations"
    return found


_VERDICTS = _expanded(TABLE)


def kind_of(record: StoredRecord | None) -> OnRecord:
    if record is None:
        return OnRecord.NOTHING
    if not record.reason:
        return OnRecord.APPLIED
    if record.reason == WAITING and record.attempt == WAITING_ATTEMPT:
        return OnRecord.WAITING
    if is_edit_without_record(record.reason, record.description):
        return OnRecord.EDIT_WITHOUT_RECORD
    return OnRecord.REFUSED_FOR_AGE if may_have_been_applied(record.reason, record.description) else OnRecord.REFUSED


def payload_of(record: StoredRecord | None, *, fingerprint: bytes, attempt: int, replaces: bytes | None) -> Payload:
    """Relate the payload of this digest to a record; an empty one matches any.  `replaces` is that of an edit."""
    if record is None:
        return Payload.SAME if replaces is None else Payload.EDIT
    if not fingerprint or record.fingerprint == fingerprint:
        return Payload.SAME
    if replaces == record.fingerprint and attempt > record.attempt:
        return Payload.EDIT
    is_replaced = any(each.fingerprint == fingerprint for each in record.replaced)
    return Payload.REPLACED if is_replaced else Payload.OTHER


def judged(
    record: StoredRecord | None,
    *,
    fingerprint: bytes,
    attempt: int,
    replaces: bytes | None = None,
    is_past_retention: bool,
) -> Verdict:
    """The verdict on a message of this payload and attempt, which may be an edit that `replaces` another payload."""
    payload = payload_of(record, fingerprint=fingerprint, attempt=attempt, replaces=replaces)
    is_later_attempt = record is None or attempt > record.attempt
    return _VERDICTS[kind_of(record), payload, is_later_attempt, is_past_retention]


def replaced_over(record: StoredRecord | None, fingerprint: bytes, now_ms: int) -> tuple[Replaced, ...]:
    """The replaced payloads for the record of this payload, which takes the place of the given one."""
    if record is None:
        return ()
    replaced = tuple(record.replaced)
    if record.fingerprint == fingerprint:
        return replaced
    return (*replaced, Replaced(record.fingerprint, record.attempt, now_ms))[-REPLACED_COUNT_MAX:]


LEAVES_OPEN = frozenset((OnRecord.NOTHING, OnRecord.REFUSED_FOR_AGE, OnRecord.EDIT_WITHOUT_RECORD))
"""The records that leave open whether a message past retention was applied before."""


def payload_differs(identity: str) -> PoisonMessage:
    """The refusal of a message under the id of another."""
    return PoisonMessage("payload-differs", f"id {identity} was used with another payload; use a new id")


def differs_from_record(message: Message) -> PoisonMessage:
    """Refuse a message whose payload differs from the one on record: another's id, or an edit too late."""
    if message.replaces is None:
        return payload_differs(message.identity)
    return PoisonMessage(
        "payload-differs",
        f"what this edit of id {message.identity} replaces is not the refused payload on record: that was applied "
        "meanwhile, or edited otherwise; look at its state and its other dead letters, and discard this one",
    )


def edit_without_record(identity: str) -> PoisonMessage:
    """The refusal of an edit where nothing is on record."""
    return PoisonMessage(
        EDIT_WITHOUT_RECORD,
        f"id {identity} has no refusal on record under this key that an edit could replace; if it is still to be done, "
        "send it under a new id",
    )

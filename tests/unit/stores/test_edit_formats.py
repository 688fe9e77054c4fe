"""What edits add to stored documents and markers: only where something was edited, and earlier builds read the rest."""

from __future__ import annotations

import msgspec

from outbox import stored
from outbox.engine_commit import Refusal
from outbox.http import Reply
from outbox.message import Message
from outbox.resubmission import REJECTED, REPLACED_COUNT_MAX, Replaced, edited
from outbox.runtime.commit.marker_replies import as_record, fingerprint_in, reply_in, with_replaced, with_reply
from outbox.runtime.delivery.blocked_sessions import BlockedSession
from outbox.runtime.verdict import OnRecord, kind_of, replaced_over
from outbox.stored import Record

OLD, NEW = b"o" * 32, b"n" * 32
REPLACED = (Replaced(OLD, 1, 1_000),)


class EarlierRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a record that a build without edits reads."""

    tx: str
    fingerprint: bytes
    at_ms: int
    reason: str = ""
    attempt: int = 0


class EarlierBlock(msgspec.Struct, frozen=True):
    """The fields of a block that a build without edits reads."""

    identity: str
    resubmitted: bool = False
    fingerprint: bytes = b""
    again: Message | None = None


def test_a_record_without_an_edit_has_no_entry() -> None:
    assert b"replaced" not in stored.encode(Record("t", NEW, 1))


def test_an_earlier_build_reads_the_record_of_an_edit() -> None:
    record = Record("t", NEW, 1, pending=True, reason="no", attempt=2, replaced=REPLACED)
    body = stored.encode(record.marked())
    assert msgspec.json.decode(body, type=EarlierRecord) == EarlierRecord("t", NEW, 1, "no", 2)
    assert msgspec.json.decode(body, type=Record).replaced == REPLACED


def test_a_block_without_an_edit_is_as_before_and_one_with_an_edit_can_be_read() -> None:
    assert b"edits" not in stored.encode(BlockedSession("m1"))
    found = msgspec.json.decode(stored.encode(BlockedSession("m1", edits=(NEW,))), type=EarlierBlock)
    assert found == EarlierBlock("m1")


def test_the_marker_of_an_applied_edit_begins_with_its_fingerprint() -> None:
    marker = with_replaced(NEW, REPLACED)
    record = as_record(marker)
    assert fingerprint_in(marker) == NEW and marker.startswith(NEW) and with_replaced(NEW, ()) == NEW
    assert record is not None and (record.fingerprint, record.replaced) == (NEW, REPLACED)
    assert kind_of(record) is OnRecord.APPLIED and reply_in(marker) is None


def test_the_marker_of_a_refused_edit_says_what_it_replaced() -> None:
    record = as_record(Refusal(with_replaced(NEW, REPLACED), "no", REJECTED, 2))
    assert record is not None
    assert (record.fingerprint, record.replaced, record.attempt) == (NEW, REPLACED, 2)
    assert kind_of(record) is OnRecord.REFUSED


def test_a_reply_is_not_taken_for_what_was_replaced() -> None:
    reply = Reply(200, {"a": "b"}, b"{}")
    marker = with_reply(NEW, reply)
    record = as_record(marker)
    assert record is not None and (record.fingerprint, tuple(record.replaced)) == (NEW, ())
    assert reply_in(marker) == reply


def test_a_record_remembers_the_last_edits() -> None:
    record = Record("t", b"%032d" % 0, 0)
    for n in range(1, REPLACED_COUNT_MAX + 3):
        digest = b"%032d" % n
        record = Record("t", digest, n, attempt=n, replaced=replaced_over(record, digest, n))
    assert len(record.replaced) == REPLACED_COUNT_MAX
    assert record.replaced[-1] == Replaced(b"%032d" % (REPLACED_COUNT_MAX + 1), REPLACED_COUNT_MAX + 1, record.at_ms)


def test_a_resubmission_of_the_payload_on_record_replaces_none_and_takes_no_place_of_an_edit() -> None:
    record = Record("t", NEW, 7, attempt=2, replaced=REPLACED)
    assert replaced_over(record, NEW, 9) == REPLACED
    assert replaced_over(record, OLD, 9) == (*REPLACED, Replaced(NEW, 2, 9))
    assert replaced_over(None, NEW, 9) == ()


def test_only_a_resubmission_is_an_edit_and_one_that_names_no_digest_replaces_nothing() -> None:
    message = Message(body=b"a", outbox_id="1", properties={"mine": 1})
    edit = edited(message, b"b")
    assert edit.replaces is None and msgspec.structs.replace(edit, attempt=1).replaces is not None
    assert edit.properties is not None and edit.properties["mine"] == 1 and edited(message, b"a") is message
    odd = msgspec.structs.replace(message, attempt=1, properties={"outbox-replaces": "no digest"})
    assert odd.replaces == b""

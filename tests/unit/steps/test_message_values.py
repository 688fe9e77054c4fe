"""What messages, records and their names are made of, at the edges where one field or one limit decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from outbox import log_throttle
from outbox.cancellation import PROPERTY_CANCELS, PROPERTY_CANCELS_DUE, PROPERTY_CANCELS_TYPE, cancelled_by, read_ticket
from outbox.deliveries import STACK_HEAD, split_stack
from outbox.documents import is_pending
from outbox.errors import CorruptRecord, PoisonMessage, Refused
from outbox.generators import is_generator, yields
from outbox.lineage import parse_state_id, shard_of, state_id
from outbox.log_throttle import LogThrottle
from outbox.message import Message, message_from_properties, properties_of, with_error
from outbox.ports import Document, DocumentKey, Output
from outbox.resubmission import (
    NO_RECORD_OF_ITS_OWN,
    REJECTED,
    check_editable,
    check_resubmittable,
    is_copy,
    resubmission,
)
from outbox.stored import Record, StateItem, decode, entry_of

PLAIN = Message(body=b"{}", outbox_id="1", type="T", created_ms=5)
DEEP = b'{"a":' * 100_000


@pytest.mark.parametrize(("given", "schema"), [(3, 3), (0, 1), (-3, 1), ("x", 1), (float("inf"), 1), (None, 1)])
def test_a_schema_is_a_number_from_one(given: Any, schema: int) -> None:
    assert msgspec.structs.replace(PLAIN, properties={"outbox-schema": given}).schema == schema


def test_what_a_message_carries_is_the_same_behind_a_wire() -> None:
    sent = msgspec.structs.replace(PLAIN, attempt=2, hops=3, failures=4, claim="c", properties={"own": 1})
    assert message_from_properties(sent.body, properties_of(sent)) == sent
    below = message_from_properties(
        b"", {name: -value for name, value in properties_of(sent).items() if value in (3, 4)}
    )
    assert (below.hops, below.failures) == (0, 0)
    assert with_error(sent, "") is sent


def test_a_resubmission_begins_anew() -> None:
    failed = with_error(msgspec.structs.replace(PLAIN, failures=3, hops=4, created_ms=0), "it broke")
    again = resubmission(failed, attempt=1, enqueued_ms=7)
    assert again == msgspec.structs.replace(PLAIN, attempt=1, created_ms=7)


REASONS = (
    *("payload-differs", "undecodable", "unknown-type", "missing-key", "no-identity", "from-the-future"),
    *("MaxDeliveryCountExceeded", "TTLExpiredException"),
)


def test_what_has_no_record_cannot_be_edited_unless_its_handler_said_so() -> None:
    assert set(REASONS) == NO_RECORD_OF_ITS_OWN
    for reason in REASONS:
        with pytest.raises(Refused, match="without a record that an edit could replace"):
            check_editable("q/1", reason, "")
        check_editable("q/1", reason, REJECTED)
    with pytest.raises(Refused, match="replaces a refusal that is not on record"):
        check_resubmittable("q/1", "edit-without-record", "")
    check_resubmittable("q/1", "edit-without-record", REJECTED)


def test_copies_agree_in_what_they_say_wherever_it_lies() -> None:
    assert is_copy(PLAIN, msgspec.structs.replace(PLAIN, attempt=9))
    assert not is_copy(PLAIN, msgspec.structs.replace(PLAIN, claim="c"))
    assert not is_copy(Message(body=b""), Message(body=b""))


def test_a_record_that_has_left_keeps_its_outcome_alone() -> None:
    output = Output("q", 0, PLAIN)
    record = Record("t", b"f", 1, pending=True, outputs=(output,), spilled="b", life_ms=9, attempt=2)
    assert record.marked() == Record("t", b"f", 1, attempt=2)
    assert sorted([entry_of("l", 10), entry_of("l", 9)]) == [entry_of("l", 9), entry_of("l", 10)]


def test_a_document_nested_too_deep_is_none_of_ours() -> None:
    assert not is_pending(DEEP)
    with pytest.raises(CorruptRecord, match="document p/i is not a StateItem"):
        decode(Document(DocumentKey("p", "i"), DEEP, "1"), StateItem)


def test_a_cancellation_names_what_it_cancels() -> None:
    named: dict[str, Any] = {PROPERTY_CANCELS: "m", PROPERTY_CANCELS_TYPE: "T", PROPERTY_CANCELS_DUE: 0}
    message, due_ms = cancelled_by(msgspec.structs.replace(PLAIN, properties=named))
    assert (message.identity, due_ms) == ("m", 1)
    for wrong in ({PROPERTY_CANCELS: ""}, {PROPERTY_CANCELS_DUE: 1 << 53}, {PROPERTY_CANCELS_TYPE: 1}):
        with pytest.raises(PoisonMessage):
            cancelled_by(msgspec.structs.replace(PLAIN, properties=named | wrong))
    for text in ("m", "m!", "m!AAAA", "m!é"):
        with pytest.raises(ValueError, match="it is no ticket"):
            read_ticket(text)


def test_a_subject_is_logged_once_a_period_with_the_number_of_lines_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_throttle, "SUBJECT_COUNT_MAX", 2)
    now_ms = [0]
    throttle = LogThrottle(10, lambda: now_ms[0])
    assert [throttle.due("a") for _ in range(3)] == [(True, 0), (False, 1), (False, 2)]
    assert throttle.due("b") == (True, 0)
    now_ms[0] = 10
    assert throttle.due("a") == (True, 2) and throttle.due("c") == (True, 0)
    assert throttle.due("a") == (False, 1) and throttle._due.keys() == {"a", "c"}, "b was the oldest"


def test_a_description_is_split_at_its_stack() -> None:
    assert split_stack(f"it broke{STACK_HEAD}  line 1") == ("it broke", f"{STACK_HEAD.lstrip()}  line 1")
    assert split_stack("it broke") == ("it broke", "")


def test_a_generator_is_one_of_either_kind() -> None:
    async def each() -> AsyncIterator[int]:
        yield 1

    class Called:
        def __call__(self) -> Any:
            yield 1

    assert is_generator(each()) and yields(each) and yields(Called()) and not yields(len)


def test_a_long_key_is_a_digest_that_names_no_key() -> None:
    assert parse_state_id(state_id("S", "k" * 200)) == ("S", "k" * 200)
    assert state_id("S", "k" * 201).startswith("S:h.") and parse_state_id(state_id("S", "k" * 201)) is None
    assert shard_of("m", 0) == shard_of("m", 1) == 0 and {shard_of(str(n), 2) for n in range(9)} == {0, 1}

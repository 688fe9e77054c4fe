"""What an operator promises, directly on an engine and through the control endpoint alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from outbox.app import App
from outbox.engine.entities import dead_letter_path
from outbox.errors import EngineStopped, Refused, TooLarge
from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.values.dead_letters import DeadLetterView, Discard, ListDeadLetters, Moved, Resubmit, ShowDeadLetter
from outbox.ops.values.messages import NewMessage, Send
from outbox.ops.values.requests import BATCH_COUNT_MAX, Admin
from outbox.ops.values.states import Export, ReadState
from outbox.ops.values.status import Check, Compact, ReadStatus
from outbox.ports import StateDocument
from outbox.worker import Worker
from tests.unit.ops.conftest import app

EMPTY = StateDocument(b"", 1)


def message(id: str = "m1", body: str = '{"account": "alice", "amount": 5}', **more: Any) -> NewMessage:
    return NewMessage(id=id, body=msgspec.Raw(body.encode()), **more)


def raw(letter: DeadLetterView) -> bytes:
    assert isinstance(letter.body, msgspec.Raw)
    return bytes(letter.body)


async def exported(admin: Admin, type: str = "") -> list[dict[str, Any]]:
    data = b"".join([piece async for piece in admin.stream(Export(type))])
    return [json.loads(line) for line in data.splitlines()]


async def test_a_sent_message_arrives_with_everything_it_was_given(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message(type="Deposit", created=12.5, key="k", correlation_id="c")]))
    (task,) = bank.engine.broker.peek("deposits", 0, 10)
    found = task.message
    assert (found.identity, found.type, found.created_ms, found.session_id) == ("m1", "Deposit", 12_500, "k")
    assert (found.correlation_id, found.body) == ("c", b'{"account":"alice","amount":5}')


async def test_messages_that_are_due_later_are_scheduled_together(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message("m1"), message("m2", created=5)], due=4e9))
    await admin.ask(Send("deposits", [message("m3")], due=5))
    found = [(task.state, task.due_ms, task.message.created_ms) for task in bank.engine.broker.peek("deposits", 0, 9)]
    due_ms = 4_000_000_000_000
    assert found[:2] == [("scheduled", due_ms, due_ms), ("scheduled", due_ms, 5_000)]
    assert found[2][:2] == ("active", 0)


async def test_what_is_sent_is_durable_when_send_returns(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message(f"m{n}") for n in range(5)]))
    assert bank.engine.log.synced == bank.engine.log.appended


async def test_white_space_does_not_make_another_message(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message("a", '{ "account" : "x",\n "amount": 1.50 }'), message("b", '"é"')]))
    assert [task.message.body for task in bank.engine.broker.peek("deposits", 0, 9)] == [
        b'{"account":"x","amount":1.50}',
        '"é"'.encode(),
    ]


async def test_a_large_body_travels_as_a_claim_check(bank: Any, admin: Admin) -> None:
    body = json.dumps("x" * 300_000)
    await admin.ask(Send("deposits", [message(body=body)]))
    (task,) = bank.engine.broker.peek("deposits", 0, 9)
    assert task.message.claim and not task.message.body
    bank.bury("deposits", "too much")
    assert raw(await admin.ask(ShowDeadLetter("deposits", "m1"))) == body.encode()


@pytest.mark.parametrize("body", ['{"a": }', "", "[" * 5_000, '{"a": 1} x', "nan"])
async def test_a_body_that_is_not_json_is_refused_and_sends_none_of_the_batch(
    bank: Any, admin: Admin, body: str
) -> None:
    try:
        bad = [message("good"), message("bad", body)]
        with pytest.raises(Refused):
            await admin.ask(Send("deposits", bad))
    finally:
        assert bank.engine.broker.peek("deposits", 0, 9) == []


async def test_status_counts_what_is_there(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message(f"m{n}") for n in range(3)]))
    bank.engine.broker.send(
        "deposits", [bank.engine.broker.peek("deposits", 0, 1)[0].message], due_ms=bank.engine.now_ms() + 60_000
    )
    bank.engine.broker.claim("deposits", 1)
    found = await admin.ask(ReadStatus())
    queue = found.queues["deposits"]
    assert (queue.active, queue.scheduled, queue.deferred, queue.dead_letters, found.pending) == (3, 1, 0, 0, 1)
    assert queue.oldest_s is not None and 0 <= queue.oldest_s < 60
    assert found.queues["ledger"].oldest_s is None


async def test_dead_letters_without_an_id_are_distinguished_by_their_numbers(bank: Any, admin: Admin) -> None:
    bank.engine.broker.send("deposits", [Message(body=b'{"account":"alice","amount":5}', type="Deposit")] * 2)
    bank.bury("deposits", "broken")
    first, second = [letter.id for letter in await admin.ask(ListDeadLetters("deposits"))]
    assert first.startswith("sequence-") and first != second
    assert (await admin.ask(Resubmit("deposits", first))).count == 1
    assert [letter.id for letter in await admin.ask(ListDeadLetters("deposits"))] == [second]
    assert (await admin.ask(Discard("deposits", second))).count == 1


async def test_a_state_is_its_json_and_none_where_there_is_none(bank: Any, admin: Admin) -> None:
    await bank.pay("alice", 7)
    await bank.pay(5, 9)
    assert await admin.ask(ReadState("Account", "alice")) == b'{"balance":7}'
    assert await admin.ask(ReadState("Account", "5", "int")) == b'{"balance":9}'
    assert await admin.ask(ReadState("Account", "5")) is None
    with pytest.raises(Refused, match="'x' is not int"):
        await admin.ask(ReadState("Account", "x", "int"))


async def test_an_export_holds_every_state_with_its_key(bank: Any, admin: Admin) -> None:
    for account in ("alice", "b/ob~", 5, "l" * 300):
        await bank.pay(account, 1)
    lines = await exported(admin)
    assert [line["key"] for line in lines] == ["alice", "b/ob~", 5, None]
    assert {line["state"] for line in lines} == {"Account"} and all(line["value"] == {"balance": 1} for line in lines)
    assert lines[3]["id"].startswith("Account:h.")
    assert await exported(admin, "Account") == lines


async def test_the_state_of_a_handler_is_known_before_there_is_one(bank: Any, admin: Admin) -> None:
    with pytest.raises(LookupError, match="there are: none yet"):
        await admin.ask(ReadState("Account", "alice"))
    assert await EngineAdmin(bank.engine, app=app).ask(ReadState("Account", "alice")) is None, (
        "a host knows its application"
    )
    async with Worker(app, bank.engine):
        """It registers what its handlers have."""
    assert await admin.ask(ReadState("Account", "alice")) is None and await exported(admin, "Account") == []
    with pytest.raises(LookupError, match="there are: Account"):
        await admin.ask(ReadState("Acount", "alice"))


async def test_an_export_is_of_one_instant(bank: Any, admin: Admin) -> None:
    for number in range(1_200):
        bank.engine.state.documents.spaces["state"][f"A:{number}"] = msgspec.structs.replace(EMPTY, value=b'{"n":0}')
    pieces = admin.stream(Export())
    first = await anext(pieces)
    for id in bank.engine.state.documents.spaces["state"]:
        bank.engine.state.documents.spaces["state"][id] = msgspec.structs.replace(EMPTY, value=b'{"n":1}')
    rest = b"".join([piece async for piece in pieces])
    found = [json.loads(line)["value"]["n"] for line in (first + rest).splitlines()]
    assert found == [0] * 1_200


async def test_dead_letters_are_listed_in_pages_and_shown_with_their_body(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message(f"m{n}", type="Deposit") for n in range(5)]))
    bank.bury("deposits", "no such account")
    first = await admin.ask(ListDeadLetters("deposits", count_max=3))
    rest = await admin.ask(ListDeadLetters("deposits", after=first[-1].sequence))
    assert [letter.id for letter in [*first, *rest]] == ["m0", "m1", "m2", "m3", "m4"]
    letter = await admin.ask(ShowDeadLetter("deposits", "m1"))
    assert (letter.reason, letter.description, letter.type) == ("no such account", "by the test", "Deposit")
    assert raw(letter) == b'{"account":"alice","amount":5}'


async def test_an_edit_goes_with_another_body_and_says_what_it_replaces(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message("m1")]))
    bank.bury("deposits", "no such account")
    (dead,) = bank.engine.broker.peek(dead_letter_path("deposits"), 0, 9)
    moved = await admin.ask(Resubmit("deposits", "m1", body=b'{"account":"bob","amount":5}'))
    assert (moved.count, moved.id) == (1, "m1")
    (task,) = bank.engine.broker.peek("deposits", 0, 9)
    assert (task.message.body, task.message.attempt) == (b'{"account":"bob","amount":5}', 1)
    assert task.message.replaces == fingerprint(dead.message.body, dead.message.type)
    assert await admin.ask(ListDeadLetters("deposits")) == []


async def test_an_edit_with_the_same_body_is_a_resubmission(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message("m1")]))
    bank.bury("deposits", "later")
    (dead,) = bank.engine.broker.peek(dead_letter_path("deposits"), 0, 9)
    await admin.ask(Resubmit("deposits", "m1", body=dead.message.body))
    (task,) = bank.engine.broker.peek("deposits", 0, 9)
    assert task.message.replaces is None and task.message.attempt == 1


async def test_what_has_no_record_of_its_own_is_not_edited(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message("m1")]))
    bank.bury("deposits", "undecodable")
    with pytest.raises(Refused, match="without a record that an edit could replace"):
        await admin.ask(Resubmit("deposits", "m1", body=b"{}"))
    assert [letter.id for letter in await admin.ask(ListDeadLetters("deposits"))] == ["m1"]


DIGEST = "0123456789abcdef" * 4
IDS = [
    f"{DIGEST}-1",
    f"{DIGEST}-12",
    f"9{DIGEST[1:]}-0",
    "3f2b8c1e-0000-4000-8000-000000000001",
    "order-12",
    "a\x1b[31m",
]


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("9123", IDS[2]),
        (f"9{DIGEST[1:40]}", IDS[2]),
        (f"9{DIGEST[1:]}", IDS[2]),
        (f"{DIGEST}-1", IDS[0]),
        (f"{DIGEST}-12", IDS[1]),
        ("3f2b8c1e-00", IDS[3]),
        ("orde", IDS[4]),
        ("order-", IDS[4]),
        ("order-12", IDS[4]),
    ],
)
async def test_an_id_may_be_cut_short_where_it_is_the_only_one(bank: Any, admin: Admin, text: str, id: str) -> None:
    await admin.ask(Send("deposits", [message(each) for each in IDS]))
    bank.bury("deposits", "later")
    assert (await admin.ask(ShowDeadLetter("deposits", text))).id == id
    assert await admin.ask(Resubmit("deposits", text)) == Moved(1, id=id)
    bank.bury("deposits", "later")
    assert await admin.ask(Discard("deposits", text)) == Moved(1, id=id)
    assert [letter.id for letter in await admin.ask(ListDeadLetters("deposits"))] == [
        each for each in IDS if each != id
    ]


@pytest.mark.parametrize("text", ["ord", "order-1", "order-2", "", "Order", f"9{DIGEST[1:]}-01", "order-12-"])
async def test_what_may_be_another_id_is_not_taken_for_a_short_one(bank: Any, admin: Admin, text: str) -> None:
    await admin.ask(Send("deposits", [message(each) for each in IDS]))
    bank.bury("deposits", "later")
    for move in (ShowDeadLetter, Resubmit, Discard):
        with pytest.raises(LookupError, match="list them to see what is there"):
            await admin.ask(move("deposits", text))
    assert len(await admin.ask(ListDeadLetters("deposits"))) == len(IDS)


async def test_an_id_that_is_cut_too_short_is_refused_with_the_first_that_begin_so(bank: Any, admin: Admin) -> None:
    ids = [f"order-{letter}\x1b[31m{'x' * 500}" for letter in "abcdefghijklmnop"]
    await admin.ask(Send("deposits", [message(each) for each in ids]))
    bank.bury("deposits", "later")
    for move in (ShowDeadLetter, Resubmit, Discard):
        with pytest.raises(
            Refused, match=r"16 dead letters of deposits begin with 'order-': 'order-a.* and 4 more"
        ) as no:
            await admin.ask(move("deposits", "order-"))
        assert len(str(no.value)) < 2_000 and "\x1b" not in str(no.value)
    assert len(await admin.ask(ListDeadLetters("deposits"))) == 16


async def test_all_means_all_without_a_receiver(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message(f"m{n}") for n in range(4)]))
    bank.bury("deposits", "later")
    bank.engine.broker.claim("deposits/$DeadLetterQueue", 1)
    moved = await admin.ask(Discard("deposits", None))
    assert (moved.count, moved.in_hand) == (3, 1)
    with pytest.raises(LookupError, match=r"no dead letter \d+ that is free"):
        await admin.ask(Discard("deposits", "m0"))


async def test_compaction_shrinks_the_log_and_keeps_the_state(bank: Any, admin: Admin) -> None:
    for _ in range(10):
        await bank.pay("alice", 1)
    done = await admin.ask(Compact())
    assert 0 < done.after_bytes < done.before_bytes and done.ordinal
    assert await admin.ask(ReadState("Account", "alice")) == b'{"balance":10}'


async def test_a_batch_has_a_limit(bank: Any, admin: Admin) -> None:
    with pytest.raises((TooLarge, Refused)):
        await admin.ask(Send("deposits", [message(f"m{n}") for n in range(BATCH_COUNT_MAX + 1)]))
    assert bank.engine.broker.peek("deposits", 0, 9) == []


async def test_nothing_is_answered_by_an_engine_that_stopped(bank: Any, admin: Admin) -> None:
    bank.engine.close()
    for ask in (
        admin.ask(Check()),
        admin.ask(ReadStatus()),
        admin.ask(ReadState("Account", "a")),
        admin.ask(Send("deposits", [message()])),
    ):
        with pytest.raises(EngineStopped, match="open it again"):
            await ask
    with pytest.raises(EngineStopped):
        await exported(admin)


async def test_a_discard_of_several_dead_letters_says_which_they_were(bank: Any, admin: Admin) -> None:
    for id in ("m1", "m1", "m2"):
        bank.engine.broker.send("deposits", [Message(body=b"{}", outbox_id=id)])
    bank.bury("deposits", "no")
    numbers = [letter.sequence for letter in await admin.ask(ListDeadLetters("deposits")) if letter.id == "m1"]
    assert await admin.ask(Discard("deposits", "m1")) == Moved(2, id="m1", numbers=numbers)
    assert await admin.ask(Discard("deposits", "m2")) == Moved(1, id="m2")


async def test_a_dead_letter_without_a_type_is_of_the_one_that_its_queue_takes(bank: Any, admin: Admin) -> None:
    await admin.ask(Send("deposits", [message("before")]))
    bank.bury("deposits", "nobody was there")
    assert [letter.handled_as for letter in await admin.ask(ListDeadLetters("deposits"))] == [
        ""
    ]  # no handler is known yet
    await bank.pay("alice", 1)
    bank.engine.broker.send("deposits", [Message(body=b"{}", outbox_id="m1")])  # as another program may
    await admin.ask(Send("deposits", [message("m2", type="Named")]))
    bank.bury("deposits", "no such account")
    dead_letters = await admin.ask(ListDeadLetters("deposits"))
    reported = [(letter.id, letter.type, letter.handled_as) for letter in dead_letters]
    assert reported == [("before", "", "Deposit"), ("m1", "", "Deposit"), ("m2", "Named", "Named")]
    assert (await admin.ask(ShowDeadLetter("deposits", "m1"))).handled_as == "Deposit"


async def test_a_queue_that_takes_several_types_asks_which(bank: Any, admin: Admin) -> None:
    app = App("shapes")

    @dataclass
    class Circle:
        key: str

    @app.message("square", version=3)
    @dataclass
    class Square:
        key: str

    @app.handler("shapes", key="key")
    def draw(shape: Circle | Square) -> None:
        pass

    async with Worker(app, bank.engine):
        pass
    with pytest.raises(Refused, match="shapes takes several types of message; say by --type which: Circle, square"):
        await admin.ask(Send("shapes", [message()]))
    await admin.ask(Send("shapes", [message("c", type="Circle"), message("s", type="square")]))
    found = {task.message.identity: task.message.schema for task in bank.engine.broker.peek("shapes", 0, 9)}
    assert found == {"c": 1, "s": 3}

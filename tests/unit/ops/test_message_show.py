"""A message is found wherever it is, by its id or the beginning of it, with its body."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.errors import Refused, UnknownDestination
from outbox.message import Message
from outbox.ops.cli.parser import main
from outbox.ops.values.messages import Find, FoundMessage
from outbox.ops.values.requests import Admin
from outbox.resubmission import sequence_identity
from outbox.runtime.delivery.claim_check import check_in
from tests.unit.ops.operators import on_folder
from tests.unit.ops.test_message_trace import Order, handled


def put(engine: Engine, queue: str, id: str, body: bytes = b'{"n": 1}', **more: Any) -> None:
    engine.broker.send(queue, [Message(body=body, outbox_id=id, **more)])


async def places(admin: Admin, id: str, queue: str = "") -> list[tuple[str, str]]:
    found = await admin.ask(Find(id, queue))
    return [_place(one) for one in found]


def _place(found: FoundMessage) -> tuple[str, str]:
    if found.message is not None:
        return found.message.queue, found.message.state
    assert found.dead_letter is not None
    return found.dead_letter.queue, f"dead: {found.dead_letter.reason}"


async def test_every_place_of_a_message_is_found(bank: Any, admin: Admin) -> None:
    put(bank.engine, "deposits", "order-1")
    bank.bury("deposits", "no")
    put(bank.engine, "deposits", "order-1")
    put(bank.engine, "ledger", "order-1", session_id="k")
    put(bank.engine, "ledger", "order-12", session_id="k")
    assert await places(admin, "order-1") == [
        ("deposits", "waiting"),
        ("ledger", "waiting"),
        ("deposits", "dead: no"),
    ]
    assert await places(admin, "order-1", "ledger") == [("ledger", "waiting")]
    assert await places(admin, "order-12") == [("ledger", "waiting")]
    with pytest.raises(Refused, match="2 ids begin with 'orde'"):
        await admin.ask(Find("orde"))
    with pytest.raises(LookupError, match="no queue holds a message 'order-3'"):
        await admin.ask(Find("order-3"))
    with pytest.raises(LookupError, match="deposits does not hold a message 'order-12'"):
        await admin.ask(Find("order-12", "deposits"))
    with pytest.raises(UnknownDestination, match="no-such"):
        await admin.ask(Find("order-1", "no-such"))


@pytest.mark.parametrize(
    ("body", "field", "shown"),
    [(b'{ "n": 1 }', "body", {"n": 1}), (b"no JSON", "body_text", "no JSON"), (b"\xff", "body_base64", "/w==")],
)
async def test_a_body_is_shown_as_what_it_is(bank: Any, admin: Admin, body: bytes, field: str, shown: Any) -> None:
    import msgspec

    put(bank.engine, "deposits", "m1", body)
    [found] = await admin.ask(Find("m1"))
    assert json.loads(msgspec.json.encode(found))[field] == shown


async def test_a_message_without_an_id_is_found_by_its_number(bank: Any, admin: Admin) -> None:
    put(bank.engine, "deposits", "")
    [task] = bank.engine.broker.peek("deposits", 0, 1)
    assert await places(admin, sequence_identity(task.sequence)) == [("deposits", "waiting")]


async def test_a_body_in_a_blob_is_fetched_and_one_that_is_gone_is_left_out(bank: Any, admin: Admin) -> None:

    large = await check_in(
        Message(body=b'"' + b"x" * 500 + b'"', outbox_id="large"), bank.engine.blobs, above_bytes=100
    )
    bank.engine.broker.send("deposits", [large])
    [found] = await admin.ask(Find("large"))
    assert isinstance(found.body, msgspec.Raw) and len(bytes(found.body)) == 502
    bank.engine.broker.send("deposits", [Message(body=b"", outbox_id="gone", claim="no-such-blob")])
    [found] = await admin.ask(Find("gone"))
    assert (found.message is not None and found.body_text == "") or not found.body_base64


@pytest.mark.parametrize("verb", ["show", "trace"])
def test_what_begins_with_part_of_a_number_is_named(
    verb: str, disk_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Engine.open(disk_path)) as engine:
        engine.declare(QueueSettings("orders"))
        for n in (1009, 1010, 11):
            put(engine, "orders", f"order-{n}")
    assert main(["message", verb, "order-10", "--data", str(disk_path)]) == 1
    said = capsys.readouterr().err
    assert said.endswith("of a number, and these begin so: 'order-1009', 'order-1010'\n")
    assert main(["message", verb, "nothing", "--data", str(disk_path)]) == 1
    assert "begin so" not in capsys.readouterr().err


def test_the_command_says_in_its_first_line_where_and_why(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Engine.open(disk_path)) as engine:
        engine.declare(QueueSettings("orders"))
        put(engine, "orders", "order-1")
        [claim] = engine.broker.claim("orders", 1)
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no", description="by the test")
        put(engine, "orders", "order-2")
    assert main(["message", "show", "order-2", "--data", str(disk_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("order-2 in orders: waiting, for a worker to take it\n{")
    assert said.endswith(f"nothing is handled until `outbox run APP --data {disk_path}` does\n")
    assert main(["message", "show", "order-1", "--data", str(disk_path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("order-1 in the dead letters of orders: no, by the test; ")
    assert first.endswith(
        f"`outbox dead-letters resubmit --data {disk_path} orders order-1` once its cause is mended, or "
        f"`outbox dead-letters resubmit --data {disk_path} --body FILE orders order-1` with a corrected body, or "
        f"`outbox dead-letters discard --data {disk_path} orders order-1`"
    )
    assert main(["status", "--data", str(disk_path)]) == 0
    assert "no host runs on this folder" in capsys.readouterr().out


def test_of_an_applied_message_the_command_says_once_what_is_on_record_of_it(
    disk_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_folder(disk_path, lambda engine: handled(engine, ("order-1", Order("ann"))))  # its mail and parcel are there
    for asked in ("order-1", "orde"):
        assert main(["message", "show", asked, "--data", str(disk_path)]) == 0
        assert capsys.readouterr().out == (
            "order-1 is in no queue and no dead letter: applied in orders by take, key ann, known by its record; "
            f"`outbox message trace --data {disk_path} order-1` shows what it caused\n"
        )
    assert main(["message", "show", "order-1", "--json", "--data", str(disk_path)]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert [(fact["place"], fact["queue"]) for fact in found["facts"]] == [("applied", "orders")]
    assert main(["message", "show", "order-9", "--data", str(disk_path)]) == 1


def test_what_is_shown_in_full_has_times_and_no_key_as_lists_do(
    disk_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b'{"created":1.50,"key":""}'

    def shown(*arguments: str) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--data", str(disk_path)]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("order-", "no host"))]
        return json.loads("\n".join(lines))

    with closing(Engine.open(disk_path)) as engine:
        engine.declare(QueueSettings("orders"))
        put(engine, "orders", "order-1", body, created_ms=1_800_000_000_000)
        [claim] = engine.broker.claim("orders", 1)
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no", description="by the test")
        engine.broker.send("orders", [Message(body=body, outbox_id="order-2")], due_ms=4_000_000_000_000)
    letter = shown("dead-letters", "show", "orders", "order-1")
    assert (letter["created"], letter["key"]) == ("2027-01-15T08:00:00Z", "-")
    assert letter["body"] == {"created": 1.5, "key": ""}, "what its sender wrote is left alone"
    assert shown("message", "show", "order-1")["dead_letter"] == letter
    assert shown("message", "show", "order-2")["message"]["due"] == "2096-10-02T07:06:40Z"
    as_json = shown("dead-letters", "show", "orders", "order-1", "--json")
    assert (as_json["created"], as_json["key"]) == (1_800_000_000, "")

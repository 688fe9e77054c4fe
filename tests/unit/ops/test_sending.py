"""A message that is sent by hand is judged by its handler's type, where a host or a command knows the application."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.errors import Refused
from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main
from outbox.ops.messages import sending
from outbox.ops.messages.sending import as_handled
from outbox.ops.values.messages import NewMessage, Send
from outbox.ops.values.requests import Admin
from outbox.worker import Worker
from tests.unit.ops.conftest import app
from tests.unit.ops.operators import operator


@pytest.fixture
async def knowing(bank: Any, way: str) -> AsyncIterator[Admin]:
    """An operator that knows the application, as that of a host does."""
    async with operator(bank.engine, bank.folder, way, app=app) as admin:
        yield admin


def deposit(body: str, **more: Any) -> NewMessage:
    return NewMessage(id="m1", body=msgspec.Raw(body.encode()), **more)


def sent(bank: Any, queue: str) -> list[Message]:
    return [task.message for task in bank.engine.broker.peek(queue, 0, 9)]


@pytest.mark.parametrize(
    ("body", "type", "cure"),
    [
        ('{"account": "a", "amount": "5"}', "", r"m1 does not fit Deposit: Expected `int`, got `str` - at `\$.amount`"),
        ('{"account": "a"}', "Deposit", "missing required field `amount`"),
        ('["a", 5]', "Deposit", "Expected `object`, got `array`"),
        ('{"account": "a", "amount": 5}', "Withdrawal", "takes a 'Withdrawal'; they take Deposit"),
    ],
)
async def test_a_body_that_its_handler_cannot_take_is_refused_with_the_field(
    bank: Any, knowing: Admin, body: str, type: str, cure: str
) -> None:
    good = deposit('{"account": "a", "amount": 5}')
    with pytest.raises(Refused, match=cure):
        await knowing.ask(Send("deposits", [good, deposit(body, type=type)]))
    assert sent(bank, "deposits") == [], "all or none"


async def test_the_key_of_an_ordered_queue_is_taken_from_the_body(bank: Any, knowing: Admin) -> None:
    for account in ('"alice"', "7"):
        await knowing.ask(Send("ledger", [deposit(f'{{"account": {account}, "amount": 5}}')]))
    await knowing.ask(Send("ledger", [deposit('{"account": "alice", "amount": 6}', key="alice")]))
    assert [message.session_id for message in sent(bank, "ledger")] == ["alice", "7", "alice"]
    for key in ("bob", "Alice"):
        with pytest.raises(Refused, match=f"has the key 'alice', not '{key}'; leave --key out"):
            await knowing.ask(Send("ledger", [deposit('{"account": "alice", "amount": 5}', key=key)]))
    with pytest.raises(Refused, match="m1 has no key: it has no key"):
        await knowing.ask(Send("ledger", [deposit('{"account": "", "amount": 5}')]))
    assert len(sent(bank, "ledger")) == 3


async def test_the_only_type_of_a_queue_is_filled_in(bank: Any, knowing: Admin) -> None:
    """With it and without it a message would be two payloads under one id."""
    body = '{"account": "a", "amount": 5}'
    await knowing.ask(Send("deposits", [deposit(body), deposit(body, type="Deposit")]))
    first, second = sent(bank, "deposits")
    assert first.type == "Deposit" and fingerprint(first.body, first.type) == fingerprint(second.body, second.type)


async def test_the_only_registered_type_is_filled_in_where_no_application_is_known(bank: Any) -> None:
    async with Worker(app, bank.engine):
        pass  # registers its handlers
    await EngineAdmin(bank.engine).ask(Send("deposits", [deposit('{"account": "a", "amount": 5}')]))
    assert [message.type for message in sent(bank, "deposits")] == ["Deposit"]


def test_a_type_that_another_application_may_read_is_not_filled_in() -> None:
    app, news = App("reads"), deposit('{"id": "a"}')

    @app.handler("topic", subscription="one")
    def one(first: First) -> None: ...

    assert as_handled(app, "topic", news).type == ""
    assert as_handled(app, "topic", news, versions={"First": 1, "Other": 1}).type == ""
    assert as_handled(app, "topic", news, versions={"First": 1}).type == "First"


async def test_a_queue_without_a_handler_takes_what_it_took(bank: Any, knowing: Admin) -> None:
    await knowing.ask(Send("news", [deposit("[1]")]))
    assert bank.engine.broker.peek("news/Subscriptions/audit", 0, 9)


@dataclass
class First:
    id: str


class Second(pydantic.BaseModel):
    id: str
    size: int = pydantic.Field(gt=0)


def several() -> App:
    found = App("several")
    found.queue("others")

    @found.handler("topic", subscription="one")
    def one(first: First) -> None: ...

    @found.handler("topic", subscription="two")
    def two(second: Second) -> None: ...

    return found


def test_what_one_subscription_takes_may_be_published() -> None:
    several_types = several()
    for body, type in (('{"id": "a"}', "First"), ('{"id": "a", "size": 1}', "Second")):
        new = deposit(body, type=type)
        assert as_handled(several_types, "topic", new) == new
    with pytest.raises(Refused, match="say by --type which: First, Second"):
        as_handled(several_types, "topic", deposit('{"id": "a"}'))
    with pytest.raises(Refused, match=r"m1 does not fit Second.*size"):
        as_handled(several_types, "topic", deposit('{"id": "a", "size": 0}', type="Second"))


def test_a_known_type_is_judged_where_it_goes_to_others() -> None:
    anything, app = deposit('{"id": 5}'), several()
    assert as_handled(app, "others", anything) == anything
    with pytest.raises(Refused, match="m1 does not fit First"):
        as_handled(app, "others", deposit('{"id": 5}', type="First"))


def test_a_schema_that_is_newer_than_the_code_is_not_judged_by_it() -> None:
    newer = deposit('{"name": "a"}', type="First")
    assert as_handled(several(), "topic", newer, versions={"First": 2}) == newer
    with pytest.raises(Refused):
        as_handled(several(), "topic", newer, versions={"First": 1})


SHOP = """
from dataclasses import dataclass
from outbox import App

print("hello")
app = App("shop")
app.queue("orders", "per_key")


@dataclass
class Order:
    id: str
    pieces: int


@app.handler("orders", key="id")
def take(order: Order) -> None: ...
"""


@pytest.fixture
def shop(disk_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a queue and no host, beside a module with the application."""
    engine = Engine.open(disk_path)
    engine.declare(QueueSettings("orders", ordering="per_key"), QueueSettings("others"))
    engine.close()
    (tmp_path / "sendshop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return disk_path


def test_a_command_with_app_judges_and_knows_the_key(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def send(*arguments: str) -> tuple[int, str]:
        code = main(["send", "orders", *arguments, "--id", "o1", "--app", "sendshop:app", "--data", str(shop)])
        out, err = capsys.readouterr()
        return code, out + err.replace("hello\n", "")

    refused = "outbox: message o1 does not fit Order: Expected `int`, got `str` - at `$.pieces`; nothing was sent\n"
    assert send('{"id": "a", "pieces": "3"}') == (1, refused)
    assert send('{"id": "a", "pieces": 3}', "--key", "b")[0] == 1
    assert send('{"id": "a", "pieces": 3}') == (0, "sent o1 to orders\n")
    engine = Engine.open(shop)
    assert [task.message.type for task in engine.broker.peek("orders", 0, 9)] == ["Order"]
    engine.close()
    assert main(["send", "others", "{}", "--app", "sendshop:app", "--data", str(shop)]) == 1
    assert "others" in capsys.readouterr().err, "the application does not know it"
    with pytest.raises(SystemExit) as left:
        main(["send", "orders", "{}", "--app", "sendshop", "--data", str(shop)])
    assert left.value.code == 2


def test_of_lines_the_one_that_does_not_fit_is_named(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b'{"id": "a", "pieces": 1}\n\n{"id": "b"}\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(lines.open("rb")))
    arguments = ["send", "orders", "-", "--id-field", "id", "--app", "sendshop:app", "--data", str(shop)]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert "line 3: message b does not fit Order" in err and "1 message was sent before" in err
    engine = Engine.open(shop)
    assert [(task.message.identity, task.message.session_id) for task in engine.broker.peek("orders", 0, 9)] == [
        ("a", "a")
    ]
    engine.close()


@pytest.mark.parametrize(
    ("field", "given", "found"),
    [("type", '""', ""), ("key", '""', ""), ("key", "0", "0"), ("correlation_id", '""', ""), ("created", "0", 0.0)],
)
def test_what_a_line_says_stands_before_what_the_command_says(field: str, given: str, found: object) -> None:
    options = Namespace(type="T", key="k", correlation_id="c", created=5.0)
    plain = sending._enveloped(b'{"id": "a", "body": 1}', options)
    assert [getattr(plain, name) for name in vars(options)] == ["T", "k", "c", 5.0]
    line = f'{{"id": "a", "body": 1, "{field}": {given}}}'.encode()
    assert sending._enveloped(line, options) == msgspec.structs.replace(plain, **{field: found})


async def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sending, "LINE_MAX_BYTES", 10_000)
    monkeypatch.setattr(sending, "READ_BYTES", 8_192)
    (tmp_path / "lines").write_bytes(b"short\n" + b"x" * 400_000)
    found = list[bytes]()
    with (tmp_path / "lines").open("rb") as stream:
        with pytest.raises(Refused, match="a line is over 10000 bytes"):
            async for lines in sending._lines(stream):
                found += lines
        assert found == [b"short"] and stream.tell() < 200_000


async def test_a_batch_is_bounded_by_count_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BATCH_COUNT", 3)
    monkeypatch.setattr(sending, "BATCH_MAX_BYTES", 10)

    async def found() -> AsyncIterator[list[NewMessage]]:
        yield [NewMessage(id=str(n), body=msgspec.Raw(b"1" * size)) for n, size in enumerate((6, 6, 1, 1, 1, 20, 1))]

    sizes = [[len(bytes(one.body)) for one in batch] async for batch in sending._batches(found())]
    assert sizes == [[6, 6], [1, 1, 1], [20], [1]]

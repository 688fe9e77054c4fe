"""A recorded history tells the versions of a state, and by which messages each was made."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from outbox import App, Context, Engine, Worker
from outbox.lineage import state_id
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main
from outbox.ops.host.audit import Audit
from outbox.ops.shared.recorded import ended
from outbox.ops.states import history as histories
from outbox.ops.states.history import UNSURE, state_history
from outbox.ops.values.states import ReadStates, StateLine, WriteStates
from outbox.verify.history import History
from outbox.verify.recorded.events import AnyEvent, Change, Commit, Ended, Fail, Ok, Put
from tests.unit.messages import Account, deliver

SEVEN = msgspec.Raw(b'{"balance":7}')


@dataclass
class Pay:
    account: str
    amount: int


def bank() -> App:
    app = App("bank")

    @app.handler("payments", key="account")
    def pay(pay: Pay, account: Account, ctx: Context) -> None:
        account.balance += pay.amount
        if not pay.amount:
            ctx.delete()

    @app.handler("fees", key="account")
    def fee(pay: Pay, account: Account) -> None:
        account.balance -= pay.amount

    return app


async def recorded(path: Path) -> App:
    """Two accounts in one batch, then a fee, an import, and a deletion."""
    app = bank()
    async with Engine.in_memory() as engine:
        audit = Audit(engine, app, path)
        admin = EngineAdmin(engine, on_written=audit.state_written)
        worker = Worker(app, audit.backend)
        await worker.declare()
        for id, account in (("p1", "ann"), ("p2", "bob"), ("p3", "ann")):
            await worker.send("payments", Pay(account, 5), id=id)
        async with worker:
            await worker.wait_idle()
            await deliver(worker, "fees", Pay("ann", 1), id="f1")
            exported = [piece async for piece in admin.stream(ReadStates("Account"))]
            lines = [msgspec.json.decode(line, type=StateLine) for line in b"".join(exported).splitlines()]
            [ann] = [msgspec.structs.replace(line, value=SEVEN) for line in lines if line.key == "ann"]
            await admin.ask(WriteStates([ann], False))
            await deliver(worker, "payments", Pay("ann", 0), id="p4")
        audit.end()
    return app


def told(path: Path, key: str, app: App | None = None) -> list[tuple[int, str, list[str], bool]]:
    found = state_history(path, "Account", key, app).versions
    return [(each.version, each.how, [message.id for message in each.messages], each.is_sure) for each in found]


async def test_each_version_names_the_messages_that_made_it(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    app = await recorded(path)
    assert told(path, "ann", app) == [
        (2, "handled", ["p1", "p3"], True),  # each message of a batch counts as a change
        (3, "handled", ["f1"], True),
        (4, "written", [], True),
        (5, "deleted", ["p4"], True),
    ]
    assert told(path, "bob", app) == [(1, "handled", ["p2"], True)]
    assert told(path, "ann")[0] == (2, "handled", ["p1", "p2", "p3"], False), "a batch, of which not all were hers"
    first, second, *_ = state_history(path, "Account", "ann", app).versions
    assert (first.before, second.before) == (0, 2) and first.at > 0 and second.messages[0].queue == "fees"


async def test_the_command_prints_a_line_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.jsonl"
    module: Any = ModuleType("bank_of_history")
    module.app = await recorded(path)
    monkeypatch.setitem(sys.modules, "bank_of_history", module)
    command = ["state", "history", "Account", "ann", "--history", str(path)]
    assert main([*command, "--app", "bank_of_history:app"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Account:ann" and lines[1].startswith("  version 2: by p1 in payments, p3 in payments, ")
    assert lines[3].startswith("  version 4: written by an operator") and "deleted, by p4" in lines[4]
    assert main([*command, "--json"]) == 0
    assert [each["version"] for each in json.loads(capsys.readouterr().out)["versions"]] == [2, 3, 4, 5]
    assert main(["state", "history", "Account", "eve", "--history", str(path)]) == 1
    assert "no version of Account eve" in capsys.readouterr().err
    assert main(["state", "history", "Purse", "ann", "--history", str(path), "--app", "bank_of_history:app"]) == 1
    assert "no state of type 'Purse'; it has Account" in capsys.readouterr().err
    assert main(["state", "history", "Account", "ann", "--history", str(tmp_path / "none")]) == 1
    assert "outbox run APP" in capsys.readouterr().err


def test_each_event_that_takes_effect_ends_once() -> None:
    first, second, third, failed = (Commit(op=op, tx=tx) for op, tx in ((1, "a"), (1, "b"), (2, "c"), (3, "d")))
    put = Put(state="Account:ann", version=3)
    events = iter(list[AnyEvent]([first, put, second, Ok(op=1), third, failed, Fail(op=3, why="x")]))
    found = [(getattr(event, "tx", "put"), outcome) for event, outcome in ended(events)]
    assert found == [("put", "ok"), ("a", "unknown"), ("b", "ok"), ("c", "unknown")]


def test_what_is_not_known_is_said_what_failed_is_left_out_and_the_newest_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, id = tmp_path / "history.jsonl", state_id("Account", "ann")
    with History(path, now_ms=lambda: 1_000) as history:
        history.life(name="bank", boot="b", sequence=0, is_empty=True, tallies={})
        for number, answer in enumerate(("ok", "fail", "unknown", "ok"), 1):
            op, message = history.next_op(), Ended("payments", number, f"m{number}")
            change = Change(id, number - 1, number, 7)
            history.begin(Commit(at_ms=number, op=op, ended=[message], changes=[change], tx=f"t{number}"))
            if answer == "ok":
                history.ok(op)
            elif answer == "fail":
                history.fail(op, "lost")
            else:
                history.unknown(op, "no answer")
    versions = state_history(path, "Account", "ann").versions
    assert [(each.version, each.tx, each.why) for each in versions] == [(1, "t1", ""), (3, "t3", UNSURE), (4, "t4", "")]
    monkeypatch.setattr(histories, "VERSION_COUNT_MAX", 2)
    found = state_history(path, "Account", "ann")
    assert [each.version for each in found.versions] == [3, 4] and found.more

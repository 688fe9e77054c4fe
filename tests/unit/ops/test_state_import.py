"""States are exported with their versions, and written back only over the version that was exported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.engine.log.records import DocWrite, Modify
from outbox.errors import OutcomeUnknown, Throttled
from outbox.lineage import state_id
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main, make_parser
from outbox.ops.host.audit import Audit, judge
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.states import command as state_commands
from outbox.ops.states import store as state_store
from outbox.ops.states.lines import Stored, judged
from outbox.ops.states.store import read_states, write_states
from outbox.ops.values.requests import Admin
from outbox.ops.values.states import ReadState, ReadStates, StateLine, StateWritten, WriteStates
from outbox.ports import Create, StateStore, Tag
from outbox.stored import StateItem, encode, state_in, state_key
from outbox.worker import Worker
from tests.unit.ops.conftest import Deposit, app
from tests.unit.stores.store_site import Add, Site, adding, site

Cli = Any


def over(at: Site, store: StateStore) -> StoreSite:
    """A store as an admin has it at hand."""
    return StoreSite(
        replace(at.ports(), store=store, infrastructure=at.ports().infrastructure or at.store), *[cast(Any, None)] * 3
    )


async def exported(admin: Admin, type: str = "") -> list[StateLine]:
    data = b"".join([piece async for piece in admin.stream(ReadStates(type))])
    return [msgspec.json.decode(line, type=StateLine) for line in data.splitlines()]


async def written(admin: Admin, *lines: StateLine, dry_run: bool = False) -> list[tuple[str, str]]:
    answers = await admin.ask(WriteStates(list(lines), dry_run))
    return [(one.outcome, one.why) for one in answers]


def with_value(line: StateLine, value: bytes, **more: Any) -> StateLine:
    return msgspec.structs.replace(line, value=msgspec.Raw(value), **more)


async def test_keys_of_every_kind_come_back_as_they_were(bank: Any, admin: Admin) -> None:
    uuid = UUID("00000000-0000-0000-0000-0000000000ff")
    for key in ("ann", 7, "7", "k" * 300):
        await bank.pay(key, 5)
    bank.engine.state.documents.put(
        "state", state_id("Account", uuid), bank.engine.documents.read("state", "Account:ann")
    )
    lines = await exported(admin, "Account")
    assert [(line.key, line.kind, bool(line.id)) for line in lines] == [
        ("ann", "", False), (7, "", False), ("7", "", False), (None, "", True), (str(uuid), "uuid", False),
    ]  # fmt: skip
    assert all(json.loads(bytes(line.value)) == {"balance": 5} and line.schema == 1 for line in lines)
    assert await written(admin, *(with_value(line, b'{"balance": 9}') for line in lines)) == [("written", "")] * 5
    assert all(json.loads(bytes(line.value)) == {"balance": 9} for line in await exported(admin))
    with pytest.raises(LookupError, match="no state is of type 'Acount'; there are: Account"):
        await exported(admin, "Acount")
    with pytest.raises(LookupError, match="no state is of type 'Acount'"):
        await written(admin, with_value(lines[0], b"{}", type="Acount"))


async def test_a_state_that_changed_meanwhile_is_never_written_over(bank: Any, admin: Admin) -> None:
    await bank.pay("ann", 5)
    [line] = await exported(admin)
    await bank.pay("ann", 2)
    [(outcome, why)] = await written(admin, with_value(line, b'{"balance":0}'))
    assert outcome == "changed" and why.startswith("it has version ") and line.version in why
    assert await admin.ask(ReadState("Account", "ann")) == b'{"balance":7}'
    [(outcome, why)] = await written(admin, with_value(line, b'{"balance":0}', version="0"))
    assert (outcome, "it exists" in why) == ("changed", True)
    [(outcome, why)] = await written(admin, with_value(line, b'{"balance":0}', key="new"))
    assert (outcome, "it does not exist any more" in why) == ("changed", True)


async def test_what_does_not_exist_is_made_where_the_line_says_so_and_repeated_it_is_the_same(
    bank: Any, admin: Admin
) -> None:
    await bank.pay("ann", 5)
    new = StateLine("Account", "new", "0", 1, msgspec.Raw(b'{ "balance": 3 }'))
    assert await written(admin, new, dry_run=True) == [("written", "")]
    assert await admin.ask(ReadState("Account", "new")) is None
    assert await written(admin, new) == [("written", "")]
    assert await written(admin, new) == [("same", "")]
    await bank.pay("new", 1)
    assert await admin.ask(ReadState("Account", "new")) == b'{"balance":4}'


async def test_a_dry_run_changes_nothing(bank: Any, admin: Admin) -> None:
    await bank.pay("ann", 5)
    [line] = await exported(admin)
    assert await written(admin, with_value(line, b'{"balance":0}'), dry_run=True) == [("written", "")]
    assert await exported(admin) == [line]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"value": msgspec.Raw(b"null")}, "states are deleted by their handlers"),
        ({"key": None}, "neither a key nor the id of a long one"),
        ({"key": None, "id": "Other:h.00"}, "neither a key nor the id of a long one"),
        ({"key": ""}, "is no key"),
        ({"key": "x", "kind": "uuid"}, "is no key"),
        ({"value": msgspec.Raw(b"{")}, "is not JSON"),
    ],
)
async def test_a_line_that_means_no_state_is_refused_alone(bank: Any, more: dict[str, Any], why: str) -> None:
    await bank.pay("ann", 5)
    admin = EngineAdmin(bank.engine)
    [line] = await exported(admin)
    bad, good = msgspec.structs.replace(line, **more), with_value(line, b'{"balance":8}')
    [(outcome, said), other] = await written(admin, bad, good)
    assert (outcome, why in said, other) == ("refused", True, ("written", ""))


async def test_a_host_refuses_what_its_application_cannot_read(bank: Any) -> None:
    await bank.pay("ann", 5)
    admin = EngineAdmin(bank.engine, app=app)
    [line] = await exported(admin)
    for bad in (with_value(line, b'{"balance":"five"}'), with_value(line, b'{"balance":5}', schema=9)):
        [(outcome, why)] = await written(admin, bad)
        assert outcome == "refused" and "the application cannot read the value" in why


async def test_a_history_is_told_what_an_operator_wrote(bank: Any) -> None:
    told: list[tuple[str, int]] = []
    await bank.pay("ann", 5)
    admin = EngineAdmin(bank.engine, on_written=lambda id, serial: told.append((id, serial)))
    [line] = await exported(admin)
    await written(admin, with_value(line, b'{"balance":8}'))
    assert told == [("Account:ann", 2)]


@pytest.mark.parametrize("is_told", [True, False])
async def test_an_audit_misses_a_writer_only_where_it_was_not_told_of_an_import(
    bank: Any, tmp_path: Path, is_told: bool
) -> None:
    audit = Audit(bank.engine, app, tmp_path / "history.jsonl")
    admin = EngineAdmin(bank.engine, on_written=audit.state_written if is_told else None)
    async with Worker(app, audit.backend) as worker:
        for number, amount in enumerate((5, 7)):
            await worker.send("deposits", Deposit("ann", amount), id=f"d{number}")
            await worker.wait_idle(timeout_s=5)
            if not number:
                [line] = await exported(admin)
                assert await written(admin, with_value(line, b'{"balance":100}')) == [("written", "")]
    audit.end()
    assert await admin.ask(ReadState("Account", "ann")) == b'{"balance":107}'
    assert judge(tmp_path / "history.jsonl").ok is is_told


async def test_a_worker_goes_on_from_what_was_imported(bank: Any, admin: Admin) -> None:
    await bank.pay("ann", 5)
    async with Worker(app, bank.engine) as worker:
        [line] = await exported(admin)
        assert await written(admin, with_value(line, b'{"balance":100}')) == [("written", "")]
        await worker.send("deposits", Deposit("ann", 1))
        await worker.wait_idle(timeout_s=5)
    assert await admin.ask(ReadState("Account", "ann")) == b'{"balance":101}'


# On a store


class Listed:
    """A store that can list its partitions, as Cosmos DB can."""

    def __init__(self, store: StateStore, ids: list[str]) -> None:
        self.read, self.write, self.ids = store.read, store.write, ids

    async def partitions(self, prefix: str, *, holding: str) -> Any:
        for id in self.ids:
            if id.startswith(prefix):
                yield id


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_store_is_written_by_the_version_of_each_state(scope: Any) -> None:
    async with site(scope=scope) as at:
        async with Worker(adding(), at) as worker:
            for key in ("a", "b"):
                await worker.send("adds", Add(key, 5), id=f"m{key}")
            await worker.wait_idle(timeout_s=5)
        store: Any = Listed(at.store, ["Sum:a", "Sum:b", "Sum:c"])
        data = b"".join([piece async for piece in read_states(over(at, store), ReadStates("Sum"))])
        lines = [msgspec.json.decode(line, type=StateLine) for line in data.splitlines()]
        assert [(line.key, json.loads(bytes(line.value))["n"]) for line in lines] == [("a", 5), ("b", 5)]
        a, b = lines
        async with Worker(adding(), at) as worker:
            await worker.send("adds", Add("b", 1), id="later")
            await worker.wait_idle(timeout_s=5)
        new = StateLine("Sum", "c", "0", 1, msgspec.Raw(b'{"n":1}'))
        asked = WriteStates([with_value(a, b'{"n":50}'), with_value(b, b'{"n":0}'), new])
        assert [one.outcome for one in await write_states(over(at, store), asked)] == [
            "written",
            "changed",
            "written",
        ]
        assert [one.outcome for one in await write_states(over(at, store), asked)] == ["same", "changed", "same"]
        async with Worker(adding(), at) as worker:
            await worker.send("adds", Add("a", 1), id="last")
            await worker.wait_idle(timeout_s=5)
        found = await at.store.read(state_key("Sum:a"))
        assert found is not None and json.loads(found.body)["value"]["n"] == 51


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_state_whose_transaction_is_not_finished_is_left(at: Site, dry_run: bool) -> None:
    item = StateItem(msgspec.Raw(b'{"n":1}'), version=3, pending="tx1")
    await at.store.write([Create(state_key("Sum:a"), encode(item), tag=Tag("x"))])
    line = StateLine("Sum", "a", "3", 1, msgspec.Raw(b'{"n":2}'))
    [one] = await write_states(over(at, at.store), WriteStates([line], dry_run=dry_run))
    assert one == StateWritten(
        "refused", "Sum:a", "its last transaction is not finished; `outbox pending finish` it first"
    )


@pytest.mark.parametrize(
    ("found", "line", "outcome"),
    [
        (None, ("0", b"1", 1), "written"),
        (None, ("3", b"1", 1), "changed"),
        (Stored("3", b"1", 1), ("3", b"2", 1), "written"),
        (Stored("3", b"1", 1), ("3", b"1", 1), "same"),
        (Stored("4", b"1", 1), ("3", b"1", 1), "same"),
        (Stored("3", b"1", 1), ("3", b"1", 2), "written"),
        (Stored("4", b"1", 1), ("3", b"2", 1), "changed"),
        (Stored("3", b"1", 1), ("0", b"2", 1), "changed"),
        (Stored("3", b"", 1), ("0", b"1", 1), "written"),
        (Stored("3", b"", 1), ("3", b"1", 1), "changed"),
    ],
)
def test_a_line_is_written_only_over_what_it_was_exported_from(
    found: Stored | None, line: tuple[str, bytes, int], outcome: str
) -> None:
    version, value, schema = line
    asked = StateLine("Sum", "a", version, schema, msgspec.Raw(value))
    assert judged(asked, "Sum:a", value, found).outcome == outcome


def test_a_file_of_states_is_cut_into_batches_within_both_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        b'{"type":"A","key":%d,"version":"1","schema":1,"value":"%s"}\n' % (n, b"x" * (n * 10)) for n in range(1, 9)
    ]
    (file := tmp_path / "states.jsonl").write_bytes(b"".join(lines))
    monkeypatch.setattr(state_commands, "LINES_COUNT_MAX", 3)
    monkeypatch.setattr(state_commands, "BATCH_BYTES_MAX", len(lines[5]) + len(lines[4]))
    with file.open("rb") as opened:
        assert [[line.key for line in batch] for batch in state_commands.batches(opened, file)] == [
            [1, 2], [3, 4], [5, 6], [7], [8]
        ]  # fmt: skip
    monkeypatch.setattr(state_commands, "BATCH_BYTES_MAX", 10_000)
    with file.open("rb") as opened:
        assert [len(batch) for batch in state_commands.batches(opened, file)] == [3, 3, 2]


async def test_what_is_imported_has_the_schema_of_its_line_and_a_full_engine_takes_none(bank: Any) -> None:
    await bank.pay("ann", 5)
    admin = EngineAdmin(bank.engine)
    [line] = await exported(admin)
    assert await written(admin, with_value(line, b'{"balance": 6}', schema=4)) == [("written", "")]
    [again] = await exported(admin)
    assert (again.schema, bytes(again.value)) == (4, b'{"balance":6}')
    bank.engine.core.limits = replace(bank.engine.core.limits, memory_bytes_max=1)
    with pytest.raises(Throttled):
        await written(admin, with_value(again, b'{"balance": 7}'))
    assert await written(admin, with_value(again, b'{"balance": 7}'), dry_run=True) == [("written", "")]


async def test_types_that_begin_alike_are_exported_apart_and_a_deleted_state_is_none(bank: Any) -> None:
    await bank.pay("ann", 5)
    documents = bank.engine.state.documents
    documents.put("state", "Accounts:all", bank.engine.documents.read("state", "Account:ann"))
    assert [line.type for line in await exported(EngineAdmin(bank.engine), "Account")] == ["Account"]
    gone = DocWrite("state", "Account:ann", b"", bank.engine.documents.version("state", "Account:ann"))
    bank.engine.documents.modify(Modify(documents=[gone]))
    assert await EngineAdmin(bank.engine).ask(ReadState("Account", "ann")) is None


async def test_every_state_of_a_store_is_exported_once_however_many(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "READ_COUNT", 2)
    for key in "abcde":
        item = StateItem(msgspec.Raw(b'{"n":1}'), version=3)
        await at.store.write([Create(state_key(f"Sum:{key}"), encode(item), tag=Tag("x"))])
    store: Any = Listed(at.store, [f"Sum:{key}" for key in "abcde"])
    data = b"".join([piece async for piece in read_states(over(at, store), ReadStates())])
    assert [json.loads(line)["key"] for line in data.splitlines()] == list("abcde")


async def test_what_is_written_by_hand_is_a_newer_version_and_keeps_the_session(at: Site) -> None:
    item = StateItem(msgspec.Raw(b'{"n":1}'), version=3, token="session")
    await at.store.write([Create(state_key("Sum:a"), encode(item), tag=Tag("x"))])
    line = StateLine("Sum", "a", "3", 2, msgspec.Raw(b'{"n":2}'))
    await write_states(over(at, at.store), WriteStates([line]))
    found = state_in(await at.store.read(state_key("Sum:a")))
    assert (found.version, found.schema, found.token, bytes(found.value)) == (4, 2, "session", b'{"n":2}')


async def test_another_write_of_this_version_is_not_taken_for_ones_own(at: Site) -> None:
    class Overtaken:
        """A store whose first write does not arrive, because another's is there by then."""

        def __init__(self, store: Any) -> None:
            self.store, self.read = store, store.read

        async def write(self, operations: Any) -> Any:
            other = StateItem(msgspec.Raw(b'{"n":9}'), version=1)
            await self.store.write([Create(state_key("Sum:a"), encode(other), tag=Tag("x"))])
            raise OutcomeUnknown("no answer")

    line = StateLine("Sum", "a", "0", 1, msgspec.Raw(b'{"n":2}'))
    with pytest.raises(OutcomeUnknown):
        await write_states(over(at, cast(Any, Overtaken(at.store))), WriteStates([line]))


async def test_a_write_whose_answer_is_lost_is_looked_up(at: Site) -> None:
    at.store.lost = "state-put"
    line = StateLine("Sum", "a", "0", 1, msgspec.Raw(b'{"n":2}'))
    [one] = await write_states(over(at, at.store), WriteStates([line]))
    assert one.outcome == "written"


# The commands


def test_state_of_a_key_needs_no_verb(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Engine.open(disk_path).close()
    parse = make_parser().parse_args
    for words in (["state", "Account", "alice"], ["state", "show", "Account", "alice"], ["state", "--int", "A", "5"]):
        assert parse([*words, "--data", "d"]).action == "state show"
    assert parse(["state", "export", "--data", "d"]).action == "state export"
    with pytest.raises(SystemExit):
        parse(["state", "--help"])
    assert "import" in capsys.readouterr().out


def test_what_is_exported_can_be_changed_and_imported(
    disk_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    async def prepare() -> None:
        async with Engine.open(disk_path) as engine, Worker(app, engine) as worker:
            for name in ("ann", "ben", "cyd"):
                await worker.send("deposits", Deposit(name, 5), id=name)
            await worker.wait_idle(timeout_s=5)

    asyncio.run(prepare())
    monkeypatch.setattr(state_commands, "LINES_COUNT_MAX", 2)
    file, place = tmp_path / "states.jsonl", ("--data", str(disk_path))
    assert main(["state", "export", "Account", "--output", str(file), *place]) == 0
    assert capsys.readouterr().out == f"exported 3 states to {file}\n"
    assert main(["state", "export", *place]) == 0
    assert capsys.readouterr().out == file.read_text()
    file.write_text(file.read_text().replace('{"balance":5}', '{"balance":6}'))
    assert main(["state", "import", str(file), "--dry-run", *place]) == 0
    assert capsys.readouterr().out == "would write 3; 0 were stored so already\n"
    assert main(["state", "import", str(file), *place]) == 0
    assert capsys.readouterr().out == "wrote 3; 0 were stored so already\n"
    file.write_text(file.read_text().replace('{"balance":6}', '{"balance":7}', 2))
    assert main(["state", "import", str(file), "--json", *place]) == 1
    out, err = capsys.readouterr()
    assert (json.loads(out)["changed"], json.loads(out)["same"]) == (2, 1) and "2 changed meanwhile, 0 refused" in err
    assert json.loads(out)["left"][0]["id"] == "Account:ann"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "line 2 is no state (Object missing required field"),
        ('{"type":"A","key":"b","version":5,"schema":1,"value":{}}', "line 2 is no state (Expected `str`, got `int`"),
        ('{"type":"A","key":"b","version":"5","schema":1,"value":{},"more":1}', "unknown field"),
        ("[" * 5_000, "line 2 is no state"),
    ],
)
def test_a_file_with_a_bad_line_changes_nothing(
    text: str, why: str, disk_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Engine.open(disk_path).close()
    file = tmp_path / "states.jsonl"
    file.write_text('{"type":"A","key":"b","version":"0","schema":1,"value":{}}\n' + text)
    assert main(["state", "import", str(file), "--data", str(disk_path)]) == 1
    assert why in capsys.readouterr().err
    assert main(["state", "export", "--data", str(disk_path)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["state", "import", str(tmp_path / "no"), "--data", str(disk_path)]) == 1
    assert "is no file; `outbox state export" in capsys.readouterr().err

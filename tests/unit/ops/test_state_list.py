"""States in a list: by type and beginning of key, a page at a time, on an engine, through a host and over a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outbox.engine.engine import Engine
from outbox.engine.log.records import DocWrite, Modify
from outbox.engine.state.documents import STATES
from outbox.errors import Refused
from outbox.lineage import Key, state_id
from outbox.ops.cli import main
from outbox.ops.shared import on_engine
from outbox.ops.states.store import list_states
from outbox.ops.values.requests import Admin
from outbox.ops.values.states import ListStates, StateEntry
from outbox.worker import Worker
from tests.unit.ops.operators import store_site
from tests.unit.ops.test_state_import import Listed
from tests.unit.stores.store_site import Add, Site, adding, site

TEXTS = ("ann", "anna", "ben", "i", "a b", "\u00e9t\u00e9")
ID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")


def put(engine: Engine, type: str, *keys: Key, value: bytes = b'{"n":1}') -> None:
    for key in keys:
        assert engine.documents.modify(Modify(documents=[DocWrite(STATES, state_id(type, key), value, 0)])) is not None


@pytest.fixture
def stocked(bank: Any) -> Engine:
    engine: Engine = bank.engine
    put(engine, "Stock", *TEXTS, 4, 42, 7, ID, "x" * 300)
    put(engine, "Stock:old", "ann")
    put(engine, "Order", "ann")
    return engine


async def keys(admin: Admin, type: str = "", key: str = "", kind: Any = "text") -> list[Any]:
    return [each.key for each in (await admin.ask(ListStates(type, key, kind, count=50))).states]


async def test_states_are_listed_by_type_with_version_and_size(stocked: Engine, admin: Admin) -> None:
    page = await admin.ask(ListStates("Order", count=1))
    assert (page.states, page.more) == ([StateEntry("Order", "ann", page.states[0].version, 7)], "")
    found = await admin.ask(ListStates("Stock", count=50))
    assert {each.key for each in found.states} == {*TEXTS, 4, 42, 7, str(ID), None}
    assert [each.kind for each in found.states if each.key == str(ID)] == ["uuid"]
    [long] = [each for each in found.states if each.key is None]
    assert long.id == state_id("Stock", "x" * 300)
    assert len(await keys(admin)) == len(found.states) + 2


@pytest.mark.parametrize(
    ("key", "kind", "expected"),
    [
        ("an", "text", ["ann", "anna"]),
        ("a b", "text", ["a b"]),
        ("\u00e9", "text", ["\u00e9t\u00e9"]),
        ("i", "text", ["i"]),
        ("4", "text", []),
        ("4", "int", [4, 42]),
        ("", "int", [4, 42, 7]),
        ("1B4E28", "uuid", [str(ID)]),
        ("zz", "text", []),
    ],
)
async def test_a_beginning_of_a_key_is_of_its_kind(
    stocked: Engine, admin: Admin, key: str, kind: Any, expected: list[Any]
) -> None:
    assert await keys(admin, "Stock", key, kind) == expected


async def test_pages_have_every_state_once(stocked: Engine, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_engine, "SLICE_COUNT", 2)
    found, after = list[Any](), ""
    while True:
        page = await admin.ask(ListStates("Stock", after=after, count=3))
        found += page.states
        if not (after := page.more):
            break
        assert len(page.states) == 3
        put(stocked, "Stock", f"a{len(found)}")  # what is new before the page is not looked at again
    assert len(found) == len({(each.key, each.id) for each in found}) == len(TEXTS) + 5


async def test_what_was_deleted_is_not_listed(stocked: Engine, admin: Admin) -> None:
    document = stocked.documents.read(STATES, "Stock:ann")
    assert document is not None
    write = DocWrite(STATES, "Stock:ann", b"", document.version)
    assert stocked.documents.modify(Modify(documents=[write])) is not None
    assert await keys(admin, "Stock", "ann") == ["anna"]


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (("Stok",), LookupError, "no state is of type 'Stok'; there are: .*Stock"),
        (("", "ann"), Refused, "name the TYPE"),
        (("", "", "int"), Refused, "name the TYPE"),
        (("Stock", "4x", "int"), Refused, "'4x' is no beginning of an integer"),
        (("Stock", "\udcff"), Refused, "is not text"),
        (("Stock", "xyz", "uuid"), Refused, "'xyz' is no beginning of a UUID"),
    ],
)
async def test_what_is_no_question_says_why(
    stocked: Engine, admin: Admin, asked: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await admin.ask(ListStates(*asked))


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_store_lists_the_states_that_are_there_in_pages(scope: Any) -> None:
    async with site(scope=scope) as at:
        async with Worker(adding(), at) as worker:
            for key in ("b", "a", "c"):
                await worker.send("adds", Add(key, 5), id=f"m{key}")
            await worker.wait_idle(timeout_s=5)
        ids = ["Sum:c", "Sum:b", "Sum:gone", "Sum:a"]  # in no order, and with one that was deleted
        store: Any = Listed(at.store, ids)
        ports = replace(at.ports(), store=store, infrastructure=at.ports().infrastructure or at.store)
        over = store_site(ports)
        first = await list_states(over, ListStates("Sum", count=2))
        assert ([each.key for each in first.states], first.more) == (["a", "b"], "Sum:b")
        rest = await list_states(over, ListStates("Sum", after=first.more, count=2))
        assert ([each.key for each in rest.states], rest.more) == (["c"], "")
        assert all(each.size_bytes > 0 and int(each.version) > 0 for each in first.states)
        with pytest.raises(LookupError, match="there are: Sum"):
            await list_states(over, ListStates("Summ"))
        with pytest.raises(Refused, match="cannot list its states"):
            await list_states(store_site(at.ports()), ListStates("Sum"))


async def test_a_page_of_many_states_says_that_there_are_more(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.ops.states.store.BATCH_COUNT_MAX", 2)  # ids above twice as many are let go of
    store: Any = Listed(at.store, [f"Sum:{key}" for key in "edcba"])
    ports = replace(at.ports(), store=store, infrastructure=at.store)
    over = store_site(ports)
    assert (await list_states(over, ListStates("Sum", count=1))).more == "Sum:a"


def test_the_command_shows_a_page_and_how_to_go_on(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine.open(disk_path, compact=False)
    put(engine, "Stock", "a b", "ann", "ben")
    engine.close()

    def outbox(*arguments: str, code: int = 0) -> str:
        assert main(["state", "list", *arguments, "--data", str(disk_path)]) == code
        return capsys.readouterr().out

    head, first, more = outbox("Stock", "--limit", "1").splitlines()
    assert head.split() == ["type", "key", "version", "bytes"]
    assert (first.split()[:2], first.split()[-1]) == (["Stock", "ann"], "7")
    assert more == "there may be more: --after Stock:ann"
    found = json.loads(outbox("Stock", "--key", "a", "--after", "Stock:ann", "--json"))
    assert [(each["type"], each["key"], each["size_bytes"]) for each in found["states"]] == [("Stock", "a b", 7)]
    assert outbox("Stock", "--key", "zoe") == "no such states\n"
    assert outbox("Stock", "--int") == "no such states\n"

"""The Cosmos DB emulator's items without a client: what was, what expires, what a patch and a batch take, and costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from outbox.emulator.cosmos import history, store
from outbox.emulator.cosmos.catalog import TTL_MAX_S, Container
from outbox.emulator.cosmos.catalog_operations import _replace_container
from outbox.emulator.cosmos.charges import Usage, query_ru, read_ru
from outbox.emulator.cosmos.decisions import whole
from outbox.emulator.cosmos.feed_operations import OPERATIONS
from outbox.emulator.cosmos.item_operations import (
    SIZE_MAX_BYTES,
    _item_of,
    _listed,
    operations_of,
    run_batch,
    run_bulk,
)
from outbox.emulator.cosmos.patch import Patch
from outbox.emulator.cosmos.requests import TOKEN_LENGTH_MAX, Call, Route, _least_of
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.cosmos.store import Put, Store
from outbox.emulator.cosmos.wire import (
    ITEM_SIZE_MAX_BYTES,
    KEY_MISMATCH,
    STORAGE_FULL,
    Answer,
    Rejection,
    rid_at,
    store_form,
)
from outbox.emulator.faults import FaultRule, Meter
from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from outbox.testing import START_S, VirtualClock

LONGEST = ",".join(["0:5"] * (TOKEN_LENGTH_MAX // 4))
REMOVE = {"op": "remove", "path": "/n"}
KEY, OTHER_KEY = '["a"]', '["b"]'


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_S)


@pytest.fixture
async def items(clock: VirtualClock) -> AsyncIterator[Items]:
    async with Engine.in_memory(clock=clock) as engine:
        yield Items(engine)


class Items:
    """A container's items, written in short."""

    def __init__(self, engine: Engine) -> None:
        self.emulator = CosmosEmulator(engine, port=0)
        self.store: Store = self.emulator.store
        self.container = self.made("c")

    def made(self, name: str, **more: Any) -> Container:
        catalog = self.store.catalog
        database = catalog.databases.get("d") or catalog.create_database({"id": "d"})
        paths = {"paths": ["/pk"], "kind": "Hash", "version": 2}
        return catalog.create_container(database, {"id": name, "partitionKey": paths, **more})

    def put(self, id: str, key: str = KEY, **more: Any) -> str:
        rid = self.store.fresh_rid(self.container)
        body = {"id": id, "pk": msgspec.json.decode(key)[0], **more}
        stored = store_form(body, rid, "", self.store.engine.now_ms() // 1_000)
        self.store.commit(self.container, key, [Put(id, stored)])
        return rid

    def delete(self, id: str, key: str = KEY) -> None:
        self.store.commit(self.container, key, [Put(id, None)])

    def past(self, lsn: int, key: str = KEY) -> list[str]:
        return sorted(id for id, _ in self.store.items_past(self.container, key, lsn))


def refused(call: Any) -> int:
    with pytest.raises(Rejection) as caught:
        call()
    return caught.value.status


# The past


async def test_the_past_has_what_was_deleted_and_not_what_came_since(items: Items) -> None:
    items.emulator.faults.install(FaultRule(kind="stale-read", count=None))
    of, container = items.store, items.container
    for id, key in (("1", KEY), ("2", KEY), ("1", OTHER_KEY)):
        items.put(id, key)
    then = container.lsn
    items.delete("1", OTHER_KEY)
    items.delete("1")
    items.put("3")
    items.put("2", n=1)
    items.put("1", n=2)
    assert items.past(then) == ["1", "2"] and items.past(then, OTHER_KEY) == ["1"]
    assert items.past(then + 2) == ["2"] and items.past(container.lsn) == ["1", "2", "3"]
    assert of.keys(container, then) == [KEY, OTHER_KEY] and of.keys(container, container.lsn) == [KEY]
    old, new = of.read_past(container, KEY, "2", then), of.read(container, KEY, "2")
    assert old is not None and new is not None and old.version < new.version
    assert of.read_past(container, KEY, "3", then) is None and of.read_past(container, KEY, "1", then + 2) is None
    items.emulator.faults.clear()
    items.put("4")
    assert container.history.begin_lsn is None


def test_a_history_forgets_what_is_older_than_its_window_and_over_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "CHANGE_COUNT_MAX", 3)
    kept = history.History()
    kept.keep(1, 10, {})
    monkeypatch.setattr(history, "SIZE_MAX_BYTES", 20)
    assert kept.past(0, 5, None) == 5
    kept.begin(1)
    kept.begin(7)
    for lsn, at_ms in ((2, 20), (3, 30), (4, 40)):
        kept.keep(lsn, at_ms, {})
    assert [kept.past(0, 4, count) for count in (1, 2, 3, 4, None)] == [3, 2, 1, 1, 1]
    assert (kept.past(3, 4, None), kept.past(9, 4, None)) == (3, 4)
    kept.forget(20)
    assert kept.begin_lsn == 1
    kept.forget(21)
    assert kept.begin_lsn == 2
    for lsn in (5, 6):
        kept.keep(lsn, 50, {})
    assert kept.begin_lsn == 3
    for _ in range(2):
        kept.end()
        kept.begin(6)
        for lsn, begin_lsn in ((7, 6), (8, 6), (9, 7)):
            before: Any = {(KEY, "1"): SimpleNamespace(value=bytes(10)), (KEY, "2"): None}
            kept.keep(lsn, 50, before)
            assert kept.begin_lsn == begin_lsn


# Expiry


@pytest.mark.parametrize(
    ("default_ttl", "ttl", "lives_s"),
    [(5, None, 5), (5, 9, 9), (5, 2, 2), (5, -1, None), (-1, None, None), (-1, 3, 3), (None, 3, None)],
)
async def test_an_item_expires_to_the_millisecond(
    items: Items, clock: VirtualClock, default_ttl: int | None, ttl: int | None, lives_s: int | None
) -> None:
    clock.seconds = float(int(clock.seconds))
    items.container = items.made("expiring", **({} if default_ttl is None else {"defaultTtl": default_ttl}))
    items.put("1", KEY, **({} if ttl is None else {"ttl": ttl}))

    def is_there() -> bool:
        return items.store.read(items.container, KEY, "1") is not None

    clock.seconds += 10**6 if lives_s is None else lives_s - 0.001
    assert is_there() and items.store.sweep() == 0 and list(items.store.items(items.container, KEY)) == ["1"]
    clock.seconds += 0.001
    assert is_there() is (lives_s is None)
    assert list(items.store.items(items.container, KEY)) == ([] if lives_s else ["1"])
    assert items.store.sweep() == (1 if lives_s else 0)
    assert items.container.keys == (set() if lives_s else {KEY})


async def test_the_past_goes_back_no_further_than_its_window(items: Items, clock: VirtualClock) -> None:
    items.store._history_s = 10.0
    before = items.container.lsn
    items.put("1")
    clock.seconds += 9
    items.put("2")
    assert items.container.history.begin_lsn == before
    clock.seconds += 2
    items.put("3")
    assert items.container.history.begin_lsn == before + 1


async def test_a_sweep_takes_some_at_a_time_and_leaves_what_was_written_again(
    items: Items, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SWEEP_COUNT_MAX", 2)
    items.container = items.made("expiring", defaultTtl=5)
    for n in range(5):
        items.put(f"{n}", KEY if n % 2 else OTHER_KEY)
    items.put("3")  # noted twice
    clock.seconds += 3
    items.put("1")
    clock.seconds += 3
    assert [items.store.sweep() for _ in range(3)] == [2, 2, 0]
    assert list(items.store.items(items.container, KEY)) == ["1"] and items.container.keys == {KEY}
    clock.seconds += 3
    assert CosmosEmulator(items.store.engine, port=0).store.sweep() == 1  # after a start


async def test_what_is_there_expires_when_its_container_gets_a_time_to_live(items: Items, clock: VirtualClock) -> None:
    items.put("1")
    definition = {"id": "c", "partitionKey": {"paths": ["/pk"]}, "defaultTtl": 5}
    call = Call("PUT", "", {}, msgspec.json.encode(definition), Route("container.replace", ("d", "c"), "colls", ()))
    _replace_container(items.store, call).apply(call)
    clock.seconds += 10
    assert items.store.sweep() == 1 and items.container.keys == set()


# Pages


def asked(operation: str, container: str = "c", body: bytes = b"", **headers: Any) -> Call:
    route = Route(operation, ("d", container), "docs", ())
    return Call("POST", "", {f"x-ms-{name.replace('_', '-')}": text for name, text in headers.items()}, body, route)


async def page(items: Items, call: Call) -> Answer:
    answer = OPERATIONS[call.route.operation](items.store, call).apply(call)
    return answer if isinstance(answer, Answer) else await answer


async def test_a_page_goes_on_in_its_own_container_partition_and_range(items: Items) -> None:
    for id in "123":
        items.put(id)
    items.made("other")
    ways: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"documentdb_partitionkey": KEY}, {"documentdb_partitionkey": OTHER_KEY}),
        ({"start_epk": "", "end_epk": "FF"}, {"start_epk": "00", "end_epk": "FF"}),
    )
    for mine, others in ways:
        first = await page(items, asked("feed", max_item_count="2", **mine))
        more, counts = first.headers["x-ms-continuation"], [first.headers["x-ms-item-count"]]
        counts.append((await page(items, asked("feed", continuation=more, **mine))).headers["x-ms-item-count"])
        assert counts == ["2", "1"]
        for call in (asked("feed", continuation=more, **others), asked("feed", "other", continuation=more, **mine)):
            assert refused(partial(OPERATIONS["feed"], items.store, call)) == 400


async def test_items_come_as_they_were_made_in_whatever_order_a_query_names_them(items: Items) -> None:
    for id in "213":
        items.put(id)
    query = b"{\"query\":\"SELECT VALUE c.id FROM c WHERE c.id IN ('1', '2', '3')\"}"
    found = await page(items, asked("query", body=query, documentdb_partitionkey=KEY))
    assert b'["2","1","3"]' in found.body


def test_an_item_may_have_two_mebibytes_as_it_is_sent() -> None:
    body = b'{"id":"1"}' + b" " * (ITEM_SIZE_MAX_BYTES - 10)
    assert _item_of(asked("item.create", body=body)) == {"id": "1"}
    assert refused(lambda: _item_of(asked("item.create", body=body + b" "))) == 413


# Resource ids


async def test_an_item_is_found_by_its_resource_id_while_it_is_there(items: Items) -> None:
    rids = {id: items.put(id) for id in ("1", "2", "3")}
    of_other = items.put("1", OTHER_KEY)

    def found(rid: str, key: str = KEY) -> str | None:
        return items.store.id_of(items.container, key, rid)

    assert [found(rid) for rid in rids.values()] == ["1", "2", "3"]
    assert (found(of_other), found(of_other, OTHER_KEY), found(of_other, '["c"]')) == (None, "1", None)
    items.delete("2")
    assert found(rids["3"]) == "3"
    anew = items.put("1")
    assert (found(anew), found(rids["2"]), found(rids["1"]), found(rids["3"])) == ("1", None, None, "3")


async def test_a_full_engine_takes_no_item_and_lets_one_go(clock: VirtualClock) -> None:
    async with Engine.in_memory(clock=clock, limits=EngineLimits(memory_bytes_max=20_000)) as engine:
        items, held, count = Items(engine), 0, 0
        with pytest.raises(Rejection) as caught:
            for count in range(100):
                held = engine.state.held_bytes
                items.put(f"{count}", KEY, text="x" * 1_000)
        assert (caught.value.status, caught.value.substatus) == (403, STORAGE_FULL) and held > 20_000
        assert count == len(items.store.items(items.container, KEY)) and count > 5
        items.delete("0")
        items.delete("1")
        items.put("0")


# What is written


@pytest.mark.parametrize(
    ("ttl", "is_taken"),
    [(-1, True), (1, True), (TTL_MAX_S, True), (0, False), (-2, False), (TTL_MAX_S + 1, False), (None, False),
     (True, False), (1.0, False), ("1", False)],
)  # fmt: skip
async def test_a_time_to_live_is_whole_seconds_or_none(items: Items, ttl: Any, is_taken: bool) -> None:
    def take() -> object:
        return whole("create", {"id": "1", "pk": "a", "ttl": ttl}, items.container, KEY)

    assert take() if is_taken else refused(take) == 400


def patched(item: dict[str, Any], *operations: dict[str, Any]) -> dict[str, Any]:
    return Patch({"operations": list(operations)}, None).apply(item)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/list/0", "value": 9}, [9, 1, 2]),
        ({"op": "add", "path": "/list/2", "value": 9}, [1, 2, 9]),
        ({"op": "add", "path": "/list/-", "value": None}, [1, 2, None]),
        ({"op": "add", "path": "/list/3", "value": 9}, None),
        ({"op": "set", "path": "/list/1", "value": None}, [1, None]),
        ({"op": "set", "path": "/list/2", "value": 9}, [1, 2, 9]),
        ({"op": "replace", "path": "/list/1", "value": 9}, [1, 9]),
        ({"op": "replace", "path": "/list/2", "value": 9}, None),
        ({"op": "remove", "path": "/list/0"}, [2]),
        ({"op": "remove", "path": "/list/-"}, None),
        ({"op": "incr", "path": "/list/1", "value": -3}, [1, -1]),
        ({"op": "incr", "path": "/list/2", "value": 1}, None),
        ({"op": "incr", "path": "/list/1", "value": True}, None),
        ({"op": "move", "from": "/list/0", "path": "/list/1"}, [2, 1]),
        ({"op": "set", "path": "/list/1"}, None),
        ({"op": "set", "path": "/list/-1", "value": 1}, None),
        ({"op": "set", "path": "/list/0000000001", "value": 1}, None),
        ({"op": "set", "path": "/list/000000001", "value": 1}, [1, 1]),
        ({"op": [], "path": "/list", "value": 1}, None),
        ({"op": "set", "path": "list", "value": 1}, None),
        ({"op": "set", "path": "/", "value": 1}, None),
        ({"op": 1, "path": "/list", "value": 1}, None),
        ("set", None),
    ],
)
def test_a_patch_names_places_in_an_array(operation: Any, expected: list[Any] | None) -> None:
    item: dict[str, Any] = {"list": [1, 2]}
    if expected is None:
        assert refused(lambda: patched(item, operation)) == 400
    else:
        assert patched(item, operation) == {"list": expected}


@pytest.mark.parametrize("known", [True, False, None, "1", [1]])
def test_a_patch_increments_numbers_only(known: Any) -> None:
    assert refused(lambda: patched({"n": known}, {"op": "incr", "path": "/n", "value": 1})) == 400


def test_a_patch_has_ten_operations_and_paths_of_4096_characters_at_most() -> None:
    one = {"op": "incr", "path": "/n", "value": 1}
    assert patched({}, *[one] * 10) == {"n": 10}
    assert refused(lambda: patched({}, *[one] * 11)) == refused(lambda: patched({})) == 400
    assert len(patched({}, {"op": "set", "path": "/" + "x" * 4_095, "value": 1})) == 1
    assert refused(lambda: patched({}, {"op": "set", "path": "/" + "x" * 4_096, "value": 1})) == 400
    moved = patched({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/a"})
    assert moved == {"a": 1}
    assert refused(lambda: patched({"a": {}}, {"op": "move", "from": "/a", "path": "/a/b"})) == 400
    assert patched({"n": None}, {"op": "replace", "path": "/n", "value": None}) == {"n": None}


@pytest.mark.parametrize(
    "operation",
    [
        "Read",
        {},
        {"operationType": "Execute", "id": "1"},
        {"operationType": "Read"},
        {"operationType": "Read", "id": "1", "ifNoneMatch": 1},
        {"operationType": "Create", "id": "1"},
        {"operationType": "Patch", "id": "1"},
        {"operationType": "Replace", "id": 1, "resourceBody": {"id": "1", "pk": "a"}},
        {"operationType": "Patch", "id": "1", "resourceBody": {"operations": [REMOVE], "condition": 1}},
        {"operationType": "Create", "resourceBody": {"id": "2", "pk": "a", "ttl": 0}},
    ],
)
async def test_a_batch_with_an_operation_that_is_none_is_refused_by_its_index(items: Items, operation: Any) -> None:
    good = {"operationType": "Create", "resourceBody": {"id": "1", "pk": "a"}, "ifMatch": None}
    with pytest.raises(Rejection, match="operation 1 of the batch") as caught:
        operations_of(msgspec.json.encode([good, operation]), items.container, KEY)
    assert caught.value.status == 400


@pytest.mark.parametrize(("wait_s", "said"), [(0.0, None), (0.0004, 0), (1.2345, 1_234), (2.0, 2_000)])
async def test_a_throttled_operation_says_when_to_come_again(items: Items, wait_s: float, said: int | None) -> None:
    body = [{"operationType": "Upsert", "resourceBody": {"id": f"{n}", "pk": "a"}} for n in range(3)]
    operations = operations_of(msgspec.json.encode(body), items.container, KEY)
    rule = FaultRule(kind="throttled", operation="batch", batch_index=1, retry_after_s=wait_s)
    answer = run_batch(items.store, items.container, KEY, operations, rule)
    results = msgspec.json.decode(answer.body)
    assert [one["statusCode"] for one in results] == [424, 429, 424]
    assert results[1].get("retryAfterMilliseconds") == said and not items.store.items(items.container, KEY)


async def test_an_operation_on_an_item_that_came_within_its_batch_keeps_its_resource_id(items: Items) -> None:
    body = [
        {"operationType": "Create", "resourceBody": {"id": "1", "pk": "a"}},
        {"operationType": "Replace", "id": "1", "resourceBody": {"id": "1", "pk": "a", "n": 1}},
        {"operationType": "Read", "id": "1"},
    ]
    operations = operations_of(msgspec.json.encode(body), items.container, KEY)
    answer = run_batch(items.store, items.container, KEY, operations, None)
    results = msgspec.json.decode(answer.body)
    assert len({one["resourceBody"]["_rid"] for one in results}) == 1 and len({one["eTag"] for one in results}) == 1
    assert [one["resourceBody"].get("n") for one in results] == [None, 1, 1]
    stored = items.store.read(items.container, KEY, "1")
    assert stored is not None and rid_at(stored.value) == results[0]["resourceBody"]["_rid"]


async def test_the_parts_of_a_batch_say_why_they_failed_and_what_all_of_them_cost(items: Items) -> None:
    good, elsewhere = ({"operationType": "Upsert", "resourceBody": {"id": "1", "pk": pk}} for pk in "ab")
    operations = operations_of(msgspec.json.encode([good, elsewhere]), items.container, KEY)
    results = msgspec.json.decode(run_batch(items.store, items.container, KEY, operations, None).body)
    assert [(one["statusCode"], one.get("subStatusCode")) for one in results] == [(424, None), (400, KEY_MISMATCH)]
    each = [good | {"partitionKey": KEY}] * 3
    answer = run_bulk(items.store, items.container, each, None, goes_on=True)
    charges = [one["requestCharge"] for one in msgspec.json.decode(answer.body)]
    assert answer.charge_ru == pytest.approx(sum(charges)) and len(charges) == 3


def test_a_batch_may_have_two_mebibytes() -> None:
    data = b"[" + b" " * (SIZE_MAX_BYTES - 3) + b"1]"
    assert _listed(data) == [1] and refused(lambda: _listed(data + b" ")) == 413


# Sessions


@pytest.mark.parametrize(
    ("token", "least"),
    [
        ("", 0),
        ("5", 5),
        (f" {LONGEST}", 5),
        ("0:5", 5),
        ("0:-1#5", 5),
        ("0:-1#5#1=9", 5),
        ("0:-1#2,1:-1#7, 2:-1#3", 7),
        ("0:-1#10", 10),
    ],
)
def test_a_session_is_as_fresh_as_the_freshest_of_its_tokens(token: str, least: int) -> None:
    assert _least_of(token, 10) == least


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ("0:-1#11", 404),
        ("0:-1#", 400),
        ("0:-1#x", 400),
        (",", 400),
        ("0:-1#-1", 400),
        (f"  {LONGEST}", 400),
    ],
)
def test_a_token_that_is_none_or_ahead_is_refused(token: str, status: int) -> None:
    assert refused(lambda: _least_of(token, 10)) == status


# Costs


def test_a_read_steps_with_each_kibibyte_and_a_query_with_what_it_looks_at() -> None:
    assert [read_ru(size) for size in (0, 1, 1_024, 1_025, 2_048, 2_049)] == pytest.approx([1, 1, 1, 1.09, 1.09, 1.18])
    assert [query_ru(*page) for page in ((0, 1_023), (1, 1_024), (10, 2_048))] == pytest.approx([2.3, 2.37, 2.6])


def test_a_meter_counts_what_failed_or_got_no_answer() -> None:
    meter = Meter(Usage)
    for status in (200, 399, 400, 0, 503):
        meter.count("item.read", status, charge_ru=1.111)
    meter.count("batch", 200, charge_ru=2)
    assert meter.usage() == {"batch": Usage(1, 2, 0), "item.read": Usage(5, 5.55, 3)}
    assert list(meter.usage()) == ["batch", "item.read"]
    meter.reset()
    meter.count("item.read", 200, charge_ru=3)
    assert meter.usage() == {"item.read": Usage(1, 3, 0)}

"""States in a container of their own: a state store wherever `place` puts them, and what is said of a wrong `place`."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.cosmos.aio import CosmosClient

from outbox import Client, Engine, Worker, azure
from outbox.azure.cosmos import placed_states
from outbox.azure.cosmos.placed_states import NAME_BYTES_MAX, PlacedStates, named, unnamed
from outbox.azure.cosmos.store import CosmosStateStore, KeyRange
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.blobs import FolderBlobStore
from outbox.engine.backend.store_scopes import ItemStore
from outbox.errors import CorruptRecord, OutboxError, Refused, TooLarge, Unreachable
from outbox.lineage import parse_state_id, state_id
from outbox.ports import Create, Delete, Document, DocumentKey, Lost, Session, StateStore, Won, Write
from outbox.runtime.store_operations import operations_over
from outbox.stored import StateItem, encode, state_key
from outbox.verify.contracts import STATE_STORE, Clause, check_state_store, name_of
from tests.wire.on_azure.ground import Place, cosmos_ground, cosmos_store, place
from tests.wire.on_azure.ledger_app import Account, Order, ledger_app
from tests.wire.on_azure.test_connecting import BLOBS, BUS, COSMOS
from tests.wire.on_azure.test_cosmos_contract import OF_BATCHES

A = state_key(state_id("Account", "alice"))


def by_letter(id: str) -> DocumentKey:
    """The partition of a state's first letter, under the key as the application writes it."""
    parsed = parse_state_id(id)
    key = str(parsed[1]) if parsed else id
    return DocumentKey(f"letter {key[0]}", f"{id.partition(':')[0]}:{key}")


def by_type(id: str) -> DocumentKey:
    """All states of a type in one place."""
    return DocumentKey(id.partition(":")[0], "one")


# The contract


class AsStates:
    """A store of which every document that it is asked for is a state, with a JSON object for a body."""

    def __init__(self, states: StateStore) -> None:
        self._states = states
        room_bytes = states.capabilities.item_bytes_max - len(b'{"v":""}')
        self.capabilities = replace(states.capabilities, item_bytes_max=room_bytes // 4 * 3)

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await self._states.read(as_state(key), session=session)
        return None if found is None else self._plain(found, key)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        answer = await self._states.write([self._moved(one) for one in operations])
        if isinstance(answer, Lost) and answer.current is not None:
            return replace(answer, current=self._plain(answer.current, operations[answer.operation].key))
        return answer

    def _plain(self, found: Document, key: DocumentKey) -> Document:
        assert found.key == as_state(key)
        return replace(found, key=key, body=b64decode(found.body[6:-2]))

    def _moved(self, write: Write) -> Write:
        if isinstance(write, Delete):
            return replace(write, key=as_state(write.key))
        return replace(write, key=as_state(write.key), body=b'{"v":"' + b64encode(write.body) + b'"}')


def as_state(key: DocumentKey) -> DocumentKey:
    return state_key(state_id("Any", f"{key.partition}/{key.id}"))


OF_SCANS = {"a_scan_gives_a_partition_by_id_and_prefix", "partitions_are_apart"}
"""To the runtime each state has a partition of its own: see below."""
CLAUSES = [clause for clause in STATE_STORE if name_of(clause) not in OF_BATCHES | OF_SCANS]


@asynccontextmanager
async def engine_store() -> AsyncIterator[Any]:
    """A store that tells what a write lost to, as that of Cosmos DB does not."""
    async with Engine.in_memory() as engine:
        yield ItemStore(EngineStore(engine.core, engine.documents))


@pytest.mark.parametrize(
    ("behind", "where"),
    [(partial(cosmos_store, "item"), None), (partial(cosmos_store, "item"), by_letter), (engine_store, by_letter)],
    ids=["alone", "by letter", "by letter, told"],
)
@pytest.mark.parametrize("clause", CLAUSES, ids=name_of)
async def test_placed_states_are_a_state_store(clause: Clause[StateStore], behind: Any, where: Any) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        async with behind() as states:
            yield AsStates(PlacedStates(states, where))

    await check_state_store(make, clauses=[clause])


@asynccontextmanager
async def placed(*where: Any) -> AsyncIterator[tuple[Any, ...]]:
    """Stores of placed states over one container, and that container's own."""
    async with cosmos_store("item") as states:
        yield (*(PlacedStates(states, one) for one in where), states)


def state(id: str = A.partition, **members: Any) -> Create:
    return Create(state_key(id), encode(StateItem(version=1, **members)))


class Asked:
    """A store of one document, which notes the session and the range that it is asked for."""

    def __init__(self, document: Document) -> None:
        self.capabilities = CosmosStateStore(cast(Any, None)).capabilities
        self.document, self.asked = document, list[Any]()

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document:
        self.asked.append(session)
        return self.document

    async def unfinished(self, within: KeyRange | None = None) -> AsyncIterator[Document]:
        self.asked.append(within)
        yield self.document


@pytest.mark.parametrize("lies", [DocumentKey("elsewhere", "state"), DocumentKey("Account:a", "elsewhere")])
async def test_sessions_and_ranges_are_passed_on_and_a_state_in_half_its_place_is_elsewhere(lies: DocumentKey) -> None:
    store = Asked(Document(lies, named(b"{}", "Account:a"), "1"))
    placed = PlacedStates(cast(Any, store))
    assert (placed.capabilities.atomic_scope, placed.capabilities.batch_count_max) == ("item", 1)
    assert await placed.read(state_key("Account:a"), session="s") is not None
    [found] = [document async for document in placed.unfinished(KeyRange("1", "2"))]
    assert store.asked == ["s", KeyRange("1", "2")] and found.key == lies


async def test_a_scan_for_a_state_gives_that_state() -> None:
    async with placed(by_letter) as (store, _):
        await store.write([state()])
        await store.write([state(state_id("Account", "anne"))])
        [found] = [document async for document in store.scan(A.partition)]
        assert found.key == A and found.body == state().body
        assert [document async for document in store.scan(A.partition, prefix="inbox:")] == []


async def test_a_state_is_kept_under_the_key_that_its_place_gives_and_escaped_once() -> None:
    async with placed(by_letter) as (store, states):
        await store.write([state(state_id("Account", "a/é b"))])
        found = await states.read(DocumentKey("letter a", "Account:a/é b"))
        assert found is not None and unnamed(found) == (state_id("Account", "a/é b"), state().body)


async def test_what_is_no_state_is_refused() -> None:
    async with placed(None) as (store, _):
        with pytest.raises(Refused, match="notes/handlers:x is no state"):
            await store.read(DocumentKey("notes", "handlers:x"))
        with pytest.raises(Refused, match="is no state"):
            await store.write([Create(DocumentKey("a", "done:1"), b"{}")])
        with pytest.raises(Refused, match="no JSON object"):
            await store.write([Create(A, b"1")])


async def test_a_state_that_just_fits_is_written_with_its_name() -> None:
    async with placed(None) as (store, _):
        limit = store.capabilities.item_bytes_max
        body = b'{"value":"' + b"x" * (limit - 12) + b'"}'
        assert len(body) == limit and isinstance(await store.write([Create(A, body)]), Won)
        found = await store.read(A)
        assert found is not None and found.body == body
        with pytest.raises(TooLarge, match="shorten"):
            await store.write([state("T" * NAME_BYTES_MAX + ":a")])


@pytest.mark.parametrize("body", [b"{}", b'{"value":{"a":1.0},"version":3}', '{"value":"é\\u2028/"}'.encode()])
@pytest.mark.parametrize("id", ["Account:alice", 'T"~:a~2fb', "Ä:ü"])
def test_a_body_comes_back_as_it_was_written_even_if_its_members_come_in_another_order(body: bytes, id: str) -> None:
    whole = Document(A, named(body, id), "1")
    assert unnamed(whole) == (id, body)
    if body != b"{}":
        inner = whole.body[len(whole.body) - len(body) + 1 : -1]
        last = b"{" + inner + whole.body[: -len(inner) - 2].replace(b"{", b",", 1) + b"}"
        assert unnamed(replace(whole, body=last)) == (id, body)


# A place that cannot be right


async def test_two_states_in_one_place_never_mix() -> None:
    other = state_id("Account", "bob")
    async with placed(by_type) as (store, _):
        await store.write([state(at_ms=1)])
        assert isinstance(await store.write([state(other, at_ms=2)]), Lost)
        with pytest.raises(CorruptRecord, match="Account:alice and Account:bob are both placed at Account/one"):
            await store.read(state_key(other))
        found = await store.read(A)
        assert found is not None and found.body == state(at_ms=1).body


async def test_a_place_that_fails_is_named_and_writes_nothing() -> None:
    def fail(id: str) -> DocumentKey:
        raise KeyError(id)

    async with placed(fail, lambda id: (id, "state")) as (store, other, _):
        with pytest.raises(Refused, match="give a DocumentKey"):
            await other.write([state()])
        with pytest.raises(Refused, match="place= fails for state Account:alice"):
            await store.read(A)
        with pytest.raises(Refused, match="place= fails"):
            await store.write([state()])


async def test_the_sweeper_is_given_states_by_their_ids_and_what_lies_elsewhere_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with placed(by_letter, None) as (store, elsewhere, states):
        await store.write([state(pending="t1")])
        await store.write([state(state_id("Account", "anne"))])
        await elsewhere.write([state(state_id("Account", "bob"), pending="t2")])
        await states.write([Create(DocumentKey("x", "staged:1"), b'{"pending":"t3"}')])  # somebody else's
        found = {document.key: document.body async for document in store.unfinished()}
        assert found.pop(A) == state(pending="t1").body
        assert set(found.values()) == {b'{"pending":true}'} and len(found) == 2, "nobody takes these for states"
        reported = [vars(record)["error"] for record in caplog.records if record.levelno == logging.ERROR]
        assert any(
            "Account:bob lies at Account:bob/state and place= puts it at letter b/Account:bob" in x for x in reported
        )
        assert any("x/staged:1 names no state" in text for text in reported)


async def test_a_place_that_has_changed_is_refused_at_the_start() -> None:
    async with cosmos_ground() as ground:
        account = ground.account()
        states = CosmosStateStore(partial(account.container, "outbox"), scope="item")
        await PlacedStates(states, by_letter).write([state()])
        await states.write([Create(DocumentKey("x", "y"), b"{}")])  # somebody else's stops nobody
        items = await account.container("outbox")
        await PlacedStates(states, by_letter).check(items)
        for place in (None, lambda id: replace(by_letter(id), id=f"{id}2")):  # another partition, and the same one
            with pytest.raises(Refused, match="states do not move: give the place= that it was written with"):
                await PlacedStates(states, *([place] if place else [])).check(items)
        await ground.emulator.__aexit__(None, None, None)
        with pytest.raises(Unreachable):
            await PlacedStates(states).check(items)


async def test_what_is_no_state_does_not_hide_a_state_that_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cosmos_ground() as ground:
        account = ground.account()
        states = CosmosStateStore(partial(account.container, "outbox"), scope="item")
        for id in ("!", "~"):  # somebody else's, before the state in any order
            await states.write([Create(DocumentKey("letter a", id), b"{}")])
        await PlacedStates(states, by_letter).write([state()])
        items = await account.container("outbox")
        with pytest.raises(Refused, match="states do not move"):
            await PlacedStates(states).check(items)
        monkeypatch.setattr(placed_states, "CHECKED_COUNT", 2)
        assert len(await placed_states._first(items)) == 2, "of however many there are"
    seen = list[int]()

    async def theirs(*_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        for number in range(9):
            seen.append(number)
            yield {"id": "theirs"}

    assert await placed_states._first(cast(Any, SimpleNamespace(query_items=theirs))) == [] and len(seen) == 2


# azure.connect


def test_what_does_not_go_together_is_refused_with_the_reason() -> None:
    connect: Callable[..., Any] = partial(azure.connect, cosmos=COSMOS, database="bank", servicebus=BUS, blobs=BLOBS)
    for reported, options in (
        ("share a container", {"states": "accounts", "scope": "partition"}),
        ("another container", {"states": "outbox"}),
        ("another container", {"states": ""}),
        ("name that by states=", {"place": by_letter}),
        ("scope=", {"states": "accounts", "scope": "engine"}),
    ):
        with pytest.raises(ValueError, match=reported):
            connect(**options)
    both = [connect(states="accounts", **options).ports() for options in ({}, {"scope": "item"})]
    assert [(ports.store.capabilities.atomic_scope, ports.infrastructure is None) for ports in both] == [
        ("item", False)
    ] * 2


def test_a_store_that_is_given_for_blobs_is_used_as_it_is(tmp_path: Path) -> None:
    folder = FolderBlobStore(tmp_path)
    assert azure.connect(cosmos=COSMOS, database="bank", servicebus=BUS, blobs=folder).ports().blobs is folder


async def contents(world: Place, container: str) -> list[dict[str, Any]]:
    known = world.cosmos.connection
    async with CosmosClient(known.url, known.key) as client:
        items = client.get_database_client("bank").get_container_client(container)
        return [item async for item in items.query_items("SELECT * FROM c")]


async def test_states_lie_in_their_container_and_everything_else_in_the_other() -> None:
    async with place() as world, world.connect(states="accounts", place=by_letter) as backend:
        async with Worker(ledger_app(), backend) as worker:
            for n in range(6):
                await worker.send("orders", Order("alice" if n % 2 else "a/b", 1), id=f"o{n // 2}-{n % 2}")
            await worker.send("orders", Order("alice", -1), id="bad")
            await worker.wait_idle(timeout_s=20)
            assert await worker.state(Account, "a/b") == Account(3, 3)
            assert [dead_letter.id for dead_letter in await worker.dead_letters("orders")] == ["bad"]
        assert {item["pk"] for item in await contents(world, "accounts")} == {"letter a", "letter b"}
        named_so = {item["body"]["state"]: item["id"] for item in await contents(world, "accounts")}
        assert named_so["Account:a~2fb"] == "Account:a~2fb", "the key is escaped once, by Cosmos DB's rules"
        kinds = {item["id"].partition(":")[0] for item in await contents(world, "outbox")}
        assert kinds == {"done", "handlers", "retention"}


async def test_notes_lie_with_the_infrastructure_for_every_client() -> None:
    async with place() as world, world.connect(states="accounts") as backend:
        await Client(ledger_app(), backend).declare()
        operations = operations_over(backend.ports())
        assert await operations.write_note("spark:r1", b"{}", "")
        note = await operations.note("spark:r1")
        assert note is not None and await operations.write_note("spark:r1", b"{}", note.version)
        assert [item["id"] for item in await contents(world, "outbox")] == ["spark:r1"]
        assert await contents(world, "accounts") == []


async def test_a_worker_whose_place_has_changed_does_not_start() -> None:
    async with place() as world:
        async with world.connect(states="accounts") as backend, Worker(ledger_app(), backend) as worker:
            await worker.send("orders", Order("alice", 1), id="o1")
            await worker.wait_idle(timeout_s=20)
        async with world.connect(states="accounts", place=by_letter) as backend:
            with pytest.raises(OutboxError, match="would begin anew"):
                async with Worker(ledger_app(), backend):
                    pass


async def test_the_second_of_two_states_in_one_place_waits_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with place() as world, world.connect(states="accounts", place=by_type) as backend:
        async with Worker(ledger_app(), backend) as worker:
            await worker.send("orders", Order("alice", 1), id="o1")
            await worker.wait_idle(timeout_s=20)
            await worker.send("orders", Order("bob", 2), id="o2")
            async with asyncio.timeout(20):
                while "message rescheduled" not in caplog.messages:  # noqa: ASYNC110  # no event says so
                    await asyncio.sleep(0.01)
            assert await worker.state(Account, "alice") == Account(1, 1)
            with pytest.raises(CorruptRecord, match="Account:alice and Account:bob are both placed"):
                await worker.state(Account, "bob")
        assert len(world.servicebus.engine.broker.queue("orders").tasks) == 1, "it comes again"


async def test_containers_that_are_missing_are_both_named() -> None:
    async with place() as world:
        async with world.connect() as backend:
            await Client(ledger_app(), backend).declare()
        async with world.connect(create=False, states="accounts") as backend:
            with pytest.raises(Refused, match="accounts"):
                await Client(ledger_app(), backend).declare()

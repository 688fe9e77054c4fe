"""An ingest: each message of a queue is one entry of a log or one dead letter, whatever comes twice or dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from outbox.cancellation import CANCELLATION_TYPE, cancelling_properties, read_ticket, ticket_text
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.message import Message
from outbox.ports import Delivery, DocumentKey, MessageBus, Output, Replace, Settle, StateStore, StorePorts
from outbox.resubmission import edited
from outbox.runtime.delivery.claim_check import check_in
from outbox.streams import Ingest, OrderedLog
from outbox.streams.values import ENVELOPE_BYTES
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import Page
from tests.unit.streams.making import made, values


@dataclass
class Link:
    to: str


class Site:
    """A queue `pages` on an engine whose time stands still, and the log `pages` that takes its messages."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START_S)
        self.engine = Engine.in_memory(clock=self.clock)
        self.log: OrderedLog[Page] = made("pages", self.engine, Page)

    def ingest(self, source: Any = None, **options: Any) -> Ingest:
        """Another process that takes messages in."""
        defaults = {"type": Page, "source": source or self.engine, "log": made("pages", self.engine, Page)}
        return Ingest("pages", queue="pages", **{**defaults, **options})

    async def send(
        self, *ids: str, text: str = "", type: str = "Page", body: bytes | None = None, age_s: float = 0
    ) -> None:
        """Send a page under each id; its text is the id unless another is given."""
        ports = self.engine.apart()
        await ports.operations.declare({"pages": "unordered"}, {})
        created_ms = self.engine.now_ms() - round(age_s * 1_000)
        made = [
            Message(
                body=body or b'{"text":"%s"}' % (text or id).encode(), outbox_id=id, type=type, created_ms=created_ms
            )
            for id in ids
        ]
        await ports.bus.send([Output("pages", 0, message) for message in made])

    async def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.engine.tick()

    async def texts(self) -> list[str]:
        return [page.text for page in await values(made("pages", self.engine, Page))]

    async def dead(self) -> list[tuple[str, str]]:
        found = await self.engine.apart().operations.dead_letters("pages")
        return [(each.message.identity, each.reason) for each in found]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    site.engine.close()


class Source:
    """An engine as a backend of partition scope whose bus is another."""

    def __init__(self, engine: Engine, bus: MessageBus) -> None:
        self._ports = replace(engine.apart(), bus=bus)

    def ports(self) -> StorePorts:
        return self._ports


class Dropping:
    """A bus that loses some settlements, as a process does that dies before them."""

    def __init__(self, bus: MessageBus, drops: Any) -> None:
        self._bus = bus
        self._drops = drops

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        if not self._drops(delivery):
            await self._bus.settle(delivery, settle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


async def test_a_message_that_comes_twice_is_one_entry(site: Site) -> None:
    await site.send("a", "b", "a")
    await site.ingest().run_until_idle()
    await site.send("b", "a", "c")
    await site.ingest().run_until_idle()
    assert sorted(await site.texts()) == ["a", "b", "c"]
    assert await site.dead() == []


@pytest.mark.parametrize("at_once", [True, False])
async def test_an_id_with_another_payload_is_a_dead_letter(site: Site, at_once: bool) -> None:
    await site.send("a")
    if not at_once:
        await site.ingest().run_until_idle()
    await site.send("a", text="other")
    await site.ingest().run_until_idle()
    assert await site.texts() == ["a"]
    assert await site.dead() == [("a", "payload-differs")]


@pytest.mark.parametrize("body", [b"no json", b'{"text":7}', b"{}", b"\xff"])
async def test_what_cannot_be_decoded_is_a_dead_letter_and_the_rest_goes_on(site: Site, body: bytes) -> None:
    await site.send("a")
    await site.send("bad", body=body)
    await site.send("c")
    await site.ingest().run_until_idle()
    assert sorted(await site.texts()) == ["a", "c"]
    [(id, reason)] = await site.dead()
    assert id == "bad" and reason == "undecodable"


async def test_a_message_without_a_place_in_the_log_is_a_dead_letter_and_the_rest_goes_on(site: Site) -> None:
    def partition(page: Page) -> str:
        return {"a": "x", "b": "y"}[page.text]

    log: OrderedLog[Page] = OrderedLog("pages", site.engine, type=Page, readers=2, partition=partition)
    await site.send("a", "odd", "b")
    await site.ingest(log=log).run_until_idle()
    assert sorted([page.value.text for n in range(2) async for page in log.reader(n).read()]) == ["a", "b"]
    assert await site.dead() == [("odd", "failed")]


async def test_a_message_of_another_type_is_a_dead_letter(site: Site) -> None:
    await site.send("a", type="Link", body=b'{"to":"x"}')
    await site.ingest().run_until_idle()
    assert await site.texts() == []
    assert [id for id, _ in await site.dead()] == ["a"]


async def test_messages_of_a_union_are_entries_of_their_classes(site: Site) -> None:
    log = made("both", site.engine, Page | Link)
    await site.send("a")
    await site.send("b", type="Link", body=b'{"to":"x"}')
    await site.ingest(type=Page | Link, log=log).run_until_idle()
    assert await values(log) in ([Page("a"), Link("x")], [Link("x"), Page("a")])


@pytest.mark.parametrize("seconds", [3_600 * 24 * 8, 3_600 * 2])
async def test_what_is_older_than_the_retention_is_a_dead_letter(site: Site, seconds: float) -> None:
    await site.send("old", age_s=seconds)
    await site.send("new")
    await site.ingest(retention=timedelta(hours=1)).run_until_idle()
    assert await site.texts() == ["new"]
    assert [id for id, _ in await site.dead()] == ["old"]


async def test_what_comes_again_after_its_record_is_gone_is_not_taken_in_twice(site: Site) -> None:
    source = Source(site.engine, Dropping(site.engine.apart().bus, lambda _: True))
    await site.send("a")
    assert await site.ingest(source, retention=timedelta(hours=1)).turn(wait_s=0) == 1
    await site.pass_time(3_600 * 24 * 30)
    await site.ingest(retention=timedelta(hours=1)).run_until_idle()
    assert await site.texts() == ["a"]


async def test_a_message_from_the_future_is_a_dead_letter(site: Site) -> None:
    await site.send("a", age_s=-600)
    await site.send("b", age_s=-1)
    await site.ingest().run_until_idle()
    assert await site.texts() == ["b"]
    assert await site.dead() == [("a", "from-the-future")]


async def test_a_process_that_dies_between_commit_and_settlement_loses_and_repeats_nothing(site: Site) -> None:
    source = Source(site.engine, Dropping(site.engine.apart().bus, lambda _: True))
    await site.send(*"abc")
    await site.ingest(source).turn(wait_s=0)
    await site.pass_time(120)  # the locks run out
    assert await site.ingest().run_until_idle() == 3
    assert sorted(await site.texts()) == ["a", "b", "c"]
    await site.pass_time(120)
    assert await site.ingest().run_until_idle() == 0


async def test_what_was_committed_is_appended_by_the_next_that_opens(site: Site) -> None:
    await site.send(*"abc")
    dies = site.ingest()
    [shard] = dies._shards
    appended = shard._append

    async def die(register: Any) -> dict[str, int]:
        if register.outs:
            raise asyncio.CancelledError
        return await appended(register)

    shard._append = die  # type: ignore[method-assign]  # a crash there
    with pytest.raises(asyncio.CancelledError):
        await dies.turn(wait_s=0)
    assert await site.texts() == []
    await site.ingest().open()
    assert sorted(await site.texts()) == ["a", "b", "c"]


async def test_a_register_that_is_restored_under_a_running_ingest_loses_nothing_of_another(site: Site) -> None:
    """Its serials come once more: what one process has written under one is not what another commits under it."""
    key, running, dies = DocumentKey("ingest/pages/0", "register"), site.ingest(), site.ingest()
    [shard] = dies._shards
    appended, store = shard._append, site.engine.store()

    async def die(register: Any) -> dict[str, int]:
        if register.serial >= 2:
            raise asyncio.CancelledError
        return await appended(register)

    await site.send("a")
    await running.run_until_idle()
    before = await store.read(key)
    await site.send("b")
    await running.run_until_idle()
    now = await store.read(key)
    assert before is not None and now is not None
    await store.write([Replace(key, before.body, now.version)])  # restored in its place
    await site.send("c")
    shard._append = die  # type: ignore[method-assign]  # a crash there
    with pytest.raises(asyncio.CancelledError):
        await dies.turn(wait_s=0)
    await site.send("d")
    await running.run_until_idle()
    assert await site.texts() == ["a", "b", "c", "d"]


async def test_four_shards_take_in_each_message_once(site: Site) -> None:
    ids = [f"m{n}" for n in range(60)]
    await site.send(*ids, *ids[::3])
    await site.ingest(shards=4).run_until_idle()
    await site.send(*ids[::2])
    await site.ingest(shards=4).run_until_idle()
    assert sorted(await site.texts()) == sorted(ids)
    partitions = {name for name in site.engine.state.documents.spaces if "ingest/" in name}
    assert partitions == {f"p/ingest/pages/{n}" for n in range(4)}


@pytest.mark.parametrize("shards", [1, 4])
async def test_two_ingests_at_once_take_in_each_message_once(site: Site, shards: int) -> None:
    ids = [f"m{n}" for n in range(200)]
    await site.send(*ids, *ids)
    await asyncio.gather(*(site.ingest(shards=shards).run_until_idle() for _ in range(3)))
    assert sorted(await site.texts()) == sorted(ids)


@pytest.mark.parametrize("seed", range(15))
async def test_ingests_that_lose_settlements_or_die_take_in_each_message_once(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    ids = [f"m{n}" for n in range(25)]
    source = Source(site.engine, Dropping(site.engine.apart().bus, lambda _: chance.random() < 0.3))
    await site.send(*ids, *chance.sample(ids, 10))
    for _ in range(6):
        task = asyncio.create_task(site.ingest(source).run_until_idle(groups_max=2))
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await site.pass_time(70)
    await site.ingest().run_until_idle()
    assert sorted(await site.texts()) == sorted(ids), f"seed {seed}"
    assert await site.dead() == []


@pytest.mark.parametrize("count", [90, 200])
async def test_large_messages_are_taken_in_by_groups_that_fit(site: Site, count: int) -> None:
    ids = [f"m{n}" for n in range(count)]
    for id in ids:
        await site.send(id, text=id + "x" * 50_000)
    await asyncio.wait_for(site.ingest().run_until_idle(), 20)
    assert sorted(text.rstrip("x") for text in await site.texts()) == sorted(ids)


async def test_a_log_without_blobs_takes_groups_and_entries_that_a_cell_holds(site: Site) -> None:
    ids = [f"m{n}" for n in range(60)]
    for id in ids:
        await site.send(id, text=id + "x" * 50_000)
    large = Message(body=b'{"text":"%s"}' % (b"x" * 1_200_000), outbox_id="large", type="Page")
    claim = await check_in(large, site.engine.blobs, above_bytes=1 << 20)
    await site.engine.apart().bus.send([Output("pages", 0, claim)])
    log = made("pages", site.engine.store(), Page)
    await asyncio.wait_for(site.ingest(log=log).run_until_idle(), 20)
    assert sorted(text.rstrip("x") for text in await site.texts()) == sorted(ids)
    assert await site.dead() == [("large", "oversize")]


async def test_an_entry_that_no_register_holds_is_a_dead_letter(site: Site) -> None:
    await site.send("ok")
    large = Message(body=b'{"text":"%s"}' % (b"x" * (2 << 20)), outbox_id="large", type="Page")
    claim = await check_in(large, site.engine.blobs, above_bytes=1 << 20)
    await site.engine.apart().bus.send([Output("pages", 0, claim)])
    await site.ingest().run_until_idle()
    assert await site.texts() == ["ok"]
    assert await site.dead() == [("large", "oversize")]


async def test_the_log_may_be_on_a_store_of_another_kind(site: Site) -> None:
    async with Engine.in_memory() as other:
        log = made("pages", NarrowEngine(other, "item"), Page)
        await site.send("a", "b", "a")
        await site.ingest(log=log).run_until_idle()
        assert sorted(page.text for page in await values(log)) == ["a", "b"]


async def test_an_ingest_that_runs_takes_in_what_comes(site: Site) -> None:
    async with site.engine, site.ingest().run():
        await site.send("a", "b")
        found: list[str] = []
        async with asyncio.timeout(10):
            async for entry in site.log.read(wait=True):
                found.append(entry.value.text)
                if len(found) == 2:
                    break
    assert sorted(found) == ["a", "b"]


async def test_the_floor_learns_every_so_many_commits_where_a_busy_ingest_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.streams.ingest.REPORT_EVERY", 2)
    ingest, seen = site.ingest(), list[int]()
    await ingest.open()
    [row] = ingest.rows()["pages/0"].values()
    for n in range(6):
        await site.send(f"m{n}")
        await ingest.turn(wait_s=0)
        seen += (await row.row.horizon.read()).writers.values()
    assert seen == [0, 1, 1, 3, 3, 5]


class Limited:
    """A store that holds so much, in a partition or in a document."""

    def __init__(self, store: StateStore, **limits: Any) -> None:
        self._store = store
        self.capabilities = replace(store.capabilities, **limits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_shard_whose_partition_will_be_full_is_logged_with_the_cure_and_told_by_its_status(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    bytes_max = 90_000_000
    given = site.ingest(shards=2)
    ingest = given.over(lambda ports: replace(ports, store=Limited(ports.store, partition_bytes_max=bytes_max)))
    ids = [f"p{number}" for number in range(60)]
    await site.send(*ids)
    assert await ingest.run_until_idle() == len(ids)
    found = await ingest.status()
    assert [each.name for each in found] == ["pages/0", "pages/1"]
    assert sum(each.entry_count for each in found) == len(ids) and all(each.serial > 0 for each in found)
    life_s, window_s = ingest.plan.record_life_ms / 1_000, 900
    for each in found:
        records = each.entry_count * 524 / window_s * life_s / bytes_max
        assert each.partition_share == pytest.approx(records, rel=0.05) and each.partition_share < 0.8
    assert "partition will be full" not in caplog.text
    for more in range(12):
        await site.send(*(f"{more}-{id}" for id in ids))
        await ingest.run_until_idle()
    lines = [record.getMessage() for record in caplog.records if "partition" in record.getMessage()]
    assert lines == ["partition will be full; shorten retention, or raise shards="] * 2  # once each
    await site.pass_time(86_400)
    assert [each.partition_share for each in await ingest.status()] == [0.0, 0.0]


async def test_a_store_without_a_limit_is_never_full(site: Site) -> None:
    ingest = site.ingest()
    await site.send("a", "b")
    await ingest.run_until_idle()
    (shard,) = await ingest.status()
    assert (shard.entry_count, shard.phase, shard.partition_share) == (2, "writing", 0.0)


# Resubmissions and edits


LONG, SHORT = b'{"text":"%s"}' % (b"x" * 200), b'{"text":"short"}'


class Refusing(Site):
    """A site whose ingest refuses the page `a`, because it is too long."""

    async def begin(self, **options: Any) -> Message:
        """Refuse the page; its message."""
        await self.send("a", body=LONG)
        given = self.ingest(**options)
        limits = {"item_bytes_max": ENVELOPE_BYTES + 100}
        await given.over(lambda ports: replace(ports, store=Limited(ports.store, **limits))).run_until_idle()
        assert await self.dead() == [("a", "oversize")] and await self.texts() == []
        [letter] = await self.engine.apart().operations.dead_letters("pages")
        return letter.message

    async def take_in(self, *messages: Message, **options: Any) -> None:
        await self.engine.apart().bus.send([Output("pages", 0, message) for message in messages])
        await self.ingest(**options).run_until_idle()


@pytest.fixture
async def refusing() -> AsyncIterator[Refusing]:
    site = Refusing()
    yield site
    site.engine.close()


async def test_copies_of_what_an_edit_has_replaced_are_copies_of_the_edit(refusing: Refusing) -> None:
    message = await refusing.begin()
    edit = msgspec.structs.replace(edited(message, SHORT), attempt=1)
    await refusing.take_in(edit)
    await refusing.take_in(msgspec.structs.replace(message, attempt=0), edit)
    assert await refusing.texts() == ["short"]
    assert [reason for _, reason in await refusing.dead()] == ["oversize"]


async def test_an_edit_of_nothing_on_record_is_refused(refusing: Refusing) -> None:
    message = await refusing.begin()
    edit = edited(message, SHORT)
    await refusing.take_in(msgspec.structs.replace(edit, outbox_id="other", attempt=1))
    assert await refusing.texts() == []
    assert ("other", "edit-without-record") in await refusing.dead()


async def test_what_is_on_record_as_refused_may_be_resubmitted_past_retention(refusing: Refusing) -> None:
    hour = timedelta(hours=1)
    message = await refusing.begin(retention=hour)
    await refusing.pass_time(3_600 + 60)  # its record lives on for the margin
    await refusing.take_in(msgspec.structs.replace(message, attempt=1), retention=hour)
    assert await refusing.texts() == ["x" * 200]


async def cancel(site: Site, id: str, due_ms: int) -> None:
    """Send the cancellation of a page that is scheduled under an id."""
    page = Message(body=b'{"text":"%s"}' % id.encode(), outbox_id=id, type="Page")
    ticket = read_ticket(ticket_text("pages", page, due_ms))
    message = msgspec.structs.replace(
        page, outbox_id=f"not {id}", type=CANCELLATION_TYPE, properties=cancelling_properties(ticket)
    )
    await site.engine.apart().bus.send([Output("pages", 0, message)])


@pytest.mark.parametrize("shards", [1, 4])
async def test_what_is_cancelled_is_not_taken_in_however_late_it_comes(site: Site, shards: int) -> None:
    ids, day_s = [f"m{n}" for n in range(12)], 86_400
    await site.send("first")
    for id in ids:
        await cancel(site, id, site.engine.now_ms() + 30 * day_s * 1_000)
    await site.ingest(shards=shards).run_until_idle()
    for _ in range(30):
        await site.pass_time(day_s)
    await site.send(*ids, "last")
    await site.ingest(shards=shards).run_until_idle()
    assert sorted(await site.texts()) == ["first", "last"]
    assert await site.dead() == []


async def test_what_was_taken_in_is_not_cancelled(site: Site) -> None:
    await site.send("a")
    await site.ingest().run_until_idle()
    await cancel(site, "a", site.engine.now_ms())
    await site.ingest().run_until_idle()
    assert await site.texts() == ["a"]
    assert await site.dead() == []


async def test_an_ingest_that_begins_beside_another_leaves_its_registration_where_it_is(site: Site) -> None:
    row = site.log.row(0, 0)
    await row.horizon.register(writer="ingest/pages/0", at=0, kind=row.kind)  # another has come no further yet
    await site.log.append(Page("other"), id="other")
    await site.ingest().open()
    assert (await site.log.row(0, 0).opened()).writers == {"ingest/pages/0": 0}

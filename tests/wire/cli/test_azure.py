"""`outbox dead-letters|status|state` on an application apart from its engine: real SDKs against the emulators."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outbox import App, Client, Context, Engine, Reject, azure
from outbox.azure.functions.processor import Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.errors import Refused
from outbox.ops.admins.azure import Addresses, connect_azure_admin
from outbox.ops.cli.parser import make_parser
from outbox.worker import Worker
from tests.functions.triggered import triggered
from tests.wire.typed import typed, typed_beside

TIMEOUT_S = 60


@dataclass
class Order:
    id: str
    items: int = 1


@dataclass
class Stock:
    ordered: int = 0


def made() -> App:
    app = App("shop")

    @app.handler("orders", key="id")
    def order(order: Order, stock: Stock) -> None:
        if order.items < 1:
            raise Reject("nothing ordered")
        stock.ordered += order.items

    return app


class Site:
    """The application on both emulators, and its command line in a process of its own."""

    def __init__(self, servicebus: str, cosmos: CosmosEmulator) -> None:
        self.app = made()
        self.servicebus = servicebus
        self.cosmos = cosmos
        self.backend = azure.connect(
            cosmos=cosmos.connection.connection_string, database="shop", servicebus=servicebus, create=True
        )
        self.client = Client(self.app, self.backend)
        self.environment = {
            "OUTBOX_SERVICEBUS": servicebus,
            "OUTBOX_COSMOS": cosmos.connection.connection_string,
            "OUTBOX_DATABASE": "shop",
        }

    async def refuse_by_worker(self, id: str) -> None:
        """Have a worker dead-letter an order: it lies with the bus then."""
        await self.client.send("orders", Order(id, 0), id=id)
        await self.work()

    async def refuse_by_trigger(self, id: str) -> None:
        """Have a Functions trigger refuse an order: it lies in the store then."""
        processor = Processor(self.app, self.backend, FunctionsSettings(lambda: self.backend))
        await processor.open()
        body = json.dumps({"id": id, "items": 0}).encode()
        await processor.message("orders", triggered(id, body, "Order"))
        await processor.finish()

    async def outbox(self, *arguments: str, code: int = 0, **environment: str) -> tuple[str, str]:
        """Run a command; what it printed on stdout and stderr."""
        return await typed_beside(arguments, self.environment | environment, code=code)

    async def work(self, app: App | None = None) -> None:
        async with Worker(app or self.app, self.backend) as worker:
            await worker.wait_idle()

    async def spawn(self, *arguments: str, **environment: str) -> tuple[int | None, str, str]:
        """Run a command in a process of its own; its exit code, and what it printed on stdout and stderr."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outbox", *arguments),
            env={"PATH": os.environ["PATH"], **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async def json(self, *arguments: str) -> Any:
        return json.loads((await self.outbox(*arguments, "--json"))[0])


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with (
        Engine.in_memory() as engine,
        ServiceBusServer(engine) as servicebus,
        CosmosEmulator(engine, port=0) as cosmos,
    ):
        site = Site(servicebus.connection_string, cosmos)
        async with site.backend:
            await site.client.declare()
            yield site


async def test_dead_letters_of_both_places_are_resubmitted_and_discarded(site: Site) -> None:
    for id in ("a", "c"):
        await site.refuse_by_worker(id)
    for id in ("b", "d"):
        await site.refuse_by_trigger(id)
    assert await site.json("dead-letters", "resubmit", "orders", "a") == {"count": 1, "in_hand": 0, "id": "a"}
    assert await site.json("dead-letters", "resubmit", "orders", "b") == {"count": 1, "in_hand": 0, "id": "b"}
    status = (await site.json("status"))["queues"]["orders"]
    assert (status["active"], status["dead_letters"]) == (2, 2)
    assert await site.json("dead-letters", "discard", "orders", "d") == {"count": 1, "in_hand": 0, "id": "d"}
    assert await site.json("dead-letters", "resubmit", "orders", "--all") == {"count": 1, "in_hand": 0}
    _, err = await site.outbox("dead-letters", "discard", "orders", "d", code=1)
    assert err.startswith(
        "outbox: orders has no dead letter 'd'; list them to see what is there, or `outbox message show d`"
    )
    waiting = site.backend.operations
    assert (await waiting.counts())["orders"].active == 3


async def test_a_state_in_a_container_of_its_own_is_found_by_its_name(site: Site) -> None:
    addresses: Any = {"cosmos": site.environment["OUTBOX_COSMOS"], "servicebus": site.servicebus, "database": "shop"}
    async with azure.connect(**addresses, states="stocks", container="apart", create=True) as backend:
        client = Client(site.app, backend)
        await client.declare()
        await client.send("orders", Order("ann", 3), id="o1")
        async with Worker(site.app, backend) as worker:
            await worker.wait_idle()
    where = ("--states", "stocks", "--container", "apart", "--json")
    assert (await site.outbox("state", "Stock", "ann", *where))[0] == '{"ordered":3}\n'
    assert (await site.outbox("state", "Stock", "ann", "--json"))[0] == "null\n"


def addresses_of(site: Site, **changed: str) -> Addresses:
    known = {"cosmos": site.environment["OUTBOX_COSMOS"], "servicebus": site.servicebus, "database": "shop"}
    return Addresses(**{"container": "outbox", **known, **changed})


# Where to look, and what is kept to oneself


async def test_nothing_is_made_where_the_database_is_not_there(site: Site) -> None:
    _, err = await site.outbox("status", code=1, OUTBOX_DATABASE="nowhere")
    assert err.startswith("outbox: ") and "database" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"OUTBOX_COSMOS": "AccountEndpoint=http://127.0.0.1:1/;AccountKey=hunter2secret=="},
        {"OUTBOX_COSMOS": "hunter2secret"},
        {"OUTBOX_SERVICEBUS": "hunter2secret=1"},
        {"OUTBOX_SERVICEBUS": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=x;SharedAccessKey=hunter2secret"},
        {"OUTBOX_SERVICEBUS": "Endpoint=sb://localhost;SharedAccessKeyNam=x;SharedAccessKey=hunter2secret;"},
    ],
    ids=str,
)
async def test_no_error_repeats_a_secret(site: Site, broken: dict[str, str]) -> None:
    out, err = await site.outbox("dead-letters", "list", "orders", code=1, **broken)
    assert out == "" and err.startswith("outbox: ") and err.count("\n") == 1, err
    assert "hunter2" not in err


async def test_a_wrong_key_is_refused_without_telling_it(site: Site) -> None:
    key = base64.b64encode(b"hunter2 is a wrong key of a length").decode()
    address = f"AccountEndpoint={site.cosmos.connection.url};AccountKey={key};"
    with pytest.raises(Refused) as refused:
        async with connect_azure_admin(addresses_of(site, cosmos=address)):
            raise AssertionError("it was let in")
    assert key not in str(refused.value) and "keys" in str(refused.value)
    assert key not in repr(addresses_of(site, cosmos=address))


async def test_options_may_be_given_in_place_of_the_environment(site: Site) -> None:
    where = ("--cosmos", site.environment["OUTBOX_COSMOS"], "--servicebus", site.servicebus, "--database", "shop")
    assert await site.spawn("state", "Stock", "ann", *where) == (0, "Stock ann: none\n", "")
    listed = await site.spawn("dead-letters", "list", "orders", **site.environment)
    assert listed == (0, "orders has no dead letters\n", "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "say where to look"),
        (("--cosmos", "https://x"), "--servicebus is missing; give it, or set OUTBOX_SERVICEBUS"),
        (("--data", "d", "--cosmos", "https://x"), "--data and --cosmos name two places"),
        (("--cosmoss", "AccountKey=hunter2"), "AccountKey=***"),
    ],
)
def test_a_command_says_what_it_is_missing(arguments: tuple[str, ...], text: str) -> None:
    code, out, err = typed(["status", *arguments])
    assert (code, out) == (2, "") and text in err and "hunter2" not in err


def test_a_folder_is_looked_at_whatever_the_environment_says(disk_path: Path) -> None:
    Engine.open(disk_path).close()
    elsewhere = {"OUTBOX_COSMOS": "https://nowhere.invalid", "OUTBOX_SERVICEBUS": "nowhere.invalid"}
    code, out, _ = typed(["status", "--data", str(disk_path)], elsewhere)
    assert code == 0 and "pending transactions: 0" in out


def test_a_command_that_needs_a_folder_takes_no_address() -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["export", "--cosmos", "x"])


async def test_the_trail_of_a_message_leads_over_records_and_queues(site: Site) -> None:
    app = App("shop")
    app.queue("parcels")

    @app.handler("orders", key="id")
    def order(order: Order, stock: Stock, ctx: Context) -> None:
        if order.items > 10:
            raise Reject("too many")
        stock.ordered += order.items
        ctx.send("charges", order)

    @app.handler("charges")
    def charge(order: Order, ctx: Context) -> None:
        ctx.send("parcels", order)

    async with Worker(app, site.backend) as worker:
        await worker.send("orders", Order("ann"), id="order-1")
        await worker.send("orders", Order("ben", 50), id="order-2")
        await worker.wait_idle()
    found = await site.json("message", "trace", "order-1", "--key", "ann")
    shown = [(hop["depth"], fact["place"], fact["queue"]) for hop in found["hops"] for fact in hop["facts"]]
    assert shown == [(0, "applied", "orders"), (1, "applied", "charges"), (2, "waiting", "parcels")]
    first, second, third = [hop["facts"][0] for hop in found["hops"]]
    assert first["known_by"] == second["known_by"] == "record" and first["tx"] and first["at"] > 0
    assert third["correlation_id"] == "order-1" and third["known_by"] == "queue"
    found = await site.json("message", "trace", found["hops"][2]["id"][:20])
    assert [hop["depth"] for hop in found["hops"]] == [-1, 0]
    assert any("outbox message trace order-1" in note for note in found["notes"])
    found = await site.json("message", "trace", "order-2")
    assert {fact["place"] for fact in found["hops"][0]["facts"]} == {"dead-letter", "refused"}
    assert "nothing is known of a message 'order-3'" in (await site.outbox("message", "trace", "order-3", code=1))[1]


async def test_states_are_exported_and_written_back_by_their_versions(site: Site, tmp_path: Path) -> None:
    for id in ("ann", "ben"):
        await site.client.send("orders", Order(id, 3), id=f"first-{id}")
    await site.work()
    page = await site.json("state", "list", "Stock", "--limit", "1")
    assert ([each["key"] for each in page["states"]], page["more"]) == (["ann"], "Stock:ann")
    page = await site.json("state", "list", "Stock", "--after", "Stock:ann")
    assert ([(each["key"], each["size_bytes"]) for each in page["states"]], "more" in page) == ([("ben", 13)], False)
    assert [each["key"] for each in (await site.json("state", "list", "Stock", "--key", "b"))["states"]] == ["ben"]
    file = tmp_path / "states.jsonl"
    await site.outbox("state", "export", "Stock", "--output", str(file))
    assert sorted(json.loads(line)["key"] for line in file.read_text().splitlines()) == ["ann", "ben"]
    await site.client.send("orders", Order("ben", 1), id="later")
    await site.work()
    new = '{"type":"Stock","key":"cyd","version":"0","schema":1,"value":{"ordered":9}}\n'
    file.write_text(file.read_text().replace('{"ordered":3}', '{"ordered":30}') + new)
    found = json.loads((await site.outbox("state", "import", str(file), "--dry-run", "--json", code=1))[0])
    assert (found["written"], found["changed"], found["dry_run"]) == (2, 1, True)
    out, err = await site.outbox("state", "import", str(file), code=1)
    assert (
        out.startswith("wrote 2; 0 were stored so already\nchanged Stock:ben: it has version 2") and "1 changed" in err
    )
    shown = [(await site.json("state", "Stock", key))["ordered"] for key in ("ann", "ben", "cyd")]
    assert shown == [30, 4, 9]
    await site.client.send("orders", Order("ann", 1), id="last")
    await site.work()
    assert await site.json("state", "Stock", "ann") == {"ordered": 31}
    _, err = await site.outbox("state", "export", "Stok", code=1)
    assert "no state is of type 'Stok'; there are: Stock" in err


async def test_a_blocked_key_is_listed_with_its_dead_letter_and_goes_on_by_it(site: Site) -> None:
    app = App("shop")
    app.queue("ledger", "per_key")

    @app.handler("ledger", key="id", on_dead_letter="stop_key")
    def enter(order: Order, stock: Stock) -> None:
        if order.items < 1:
            raise Reject("nothing ordered")
        stock.ordered += order.items

    async with Worker(app, site.backend) as worker:
        await worker.send("ledger", Order("ann", 0), id="k1")
        await worker.wait_idle()
    for number in (2, 3):
        await Client(app, site.backend).send("ledger", Order("ann", number), id=f"k{number}")
    [key] = await site.json("blocked", "list")
    assert (key["queue"], key["key"], key["id"], key["waiting"], key["is_there"]) == ("ledger", "ann", "k1", 2, True)
    assert key["reason"] == "nothing ordered" and key["since"] > 0
    assert (
        "no key 'ben' of ledger is blocked"
        in (await site.outbox("blocked", "unblock", "ledger", "ben", "--by", "discard", code=1))[1]
    )
    out, _ = await site.outbox("blocked", "unblock", "ledger", "ann", "--by", "resubmit")
    assert out.startswith("resubmitted 'k1' of ledger; key 'ann' goes on when that is applied")
    [key] = await site.json("blocked", "list", "ledger")
    assert (key["is_there"], "it was resubmitted" in key["why"]) == (False, True)
    async with Worker(app, site.backend), asyncio.timeout(TIMEOUT_S):
        while not await site.client.dead_letters("ledger"):  # noqa: ASYNC110  # no event says that it is refused again
            await asyncio.sleep(0.05)
    [key] = await site.json("blocked", "list", "ledger")
    assert (key["id"], key["waiting"], key["is_there"]) == ("k1", 2, True)
    assert (await site.json("blocked", "unblock", "ledger", "ann", "--by", "discard"))["waiting"] == 2
    assert await site.json("blocked", "list") == []
    await site.work(app)
    assert await site.json("state", "Stock", "ann") == {"ordered": 5}


async def test_a_paused_queue_is_receive_disabled_until_it_is_resumed(site: Site) -> None:
    out, _ = await site.outbox("queue", "pause", "orders")
    assert out == "orders is paused; nothing is taken from it until `outbox queue resume orders`\n"
    admin = site.backend.operations._entities._namespace.administration()
    assert (await admin.get_queue("orders")).status == "ReceiveDisabled"
    await site.client.send("orders", Order("ann", 2), id="o1")
    async with Worker(site.app, site.backend):
        await asyncio.sleep(1.0)
        assert (await site.json("state", "Stock", "ann")) is None
        status = (await site.json("status"))["queues"]["orders"]
        assert (status["paused"], status["active"]) == (True, 1)
        peeked = await site.json("queue", "peek", "orders")
        assert peeked["paused"] and [view["id"] for view in peeked["messages"]] == ["o1"]
        assert any("is paused" in finding["what"] for finding in await site.json("doctor"))
        assert (await site.json("queue", "resume", "orders")) == {"queue": "orders", "paused": False, "changed": True}
        async with asyncio.timeout(TIMEOUT_S):
            while await site.json("state", "Stock", "ann") != {"ordered": 2}:  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.1)
    assert (await admin.get_queue("orders")).status == "Active"
    assert (await site.json("queue", "resume", "orders"))["changed"] is False
    assert "no-such" in (await site.outbox("queue", "pause", "no-such", code=1))[1]

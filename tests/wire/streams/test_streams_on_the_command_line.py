"""`outbox stream list|read|export|trim` on logs in Cosmos DB and in blobs: real SDKs against the emulators."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow.parquet as pq
import pytest

from outbox.azure.blobs.account import BlobAccount
from outbox.azure.blobs.state_store import BlobStateStore
from outbox.azure.blobs.store import AzureBlobStore
from outbox.emulator.faults import FaultRule, Faults
from outbox.errors import Refused
from outbox.ops.streams import logs as listing
from outbox.ops.streams.logs import list_streams, on_store
from outbox.ports import Create, DocumentKey, NoBlobs
from outbox.streams import Inputs, OrderedLog, Position, Processor, Step
from outbox.streams.cells import PAGE_BITS
from outbox.streams.log_places import Place, wall_ms
from tests.unit.messages import Reading, Seen
from tests.wire.on_azure.ground import blob_emulator, cosmos_ground
from tests.wire.typed import typed, typed_beside

READS_MAX = 20
"""The most reads that one row of a list costs: its floor, the hint, and the way from there to the end."""


def watch(seen: Seen, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        seen.count += 1
        step.emit("alarms", Reading(entry.value.sensor, 0.0))


@dataclass
class Site:
    """A store with logs, and the command line's options and environment for it."""

    place: Place
    options: tuple[str, ...]
    environment: dict[str, str]
    usage: Callable[[], Mapping[str, Any]]
    reset_usage: Callable[[], None]
    faults: Faults
    wrong: tuple[str, str]
    """An option that names a container that is not there."""

    async def fill(self) -> None:
        """Two logs, three cells in one of them, and a reader of it."""
        readings: OrderedLog[Reading] = OrderedLog("readings", self.place, type=Reading)
        await readings.extend([Reading("a", 1.0), Reading("b", 2.0)], id="first")
        await readings.append(Reading("c", 3.0), id="second")
        await readings.append(Reading("d", 4.5), id="third")
        await readings.register("audit", Position(2))
        events: OrderedLog[str] = OrderedLog("events", self.place, type=str)
        await events.append("x", id="e")

    async def outbox(self, *arguments: str, code: int = 0, options: tuple[str, ...] | None = None) -> tuple[str, str]:
        """Run a command; what it printed on stdout and stderr."""
        given = [*arguments, *(self.options if options is None else options)]
        return await typed_beside(given, self.environment, code=code)

    async def json(self, *arguments: str) -> Any:
        return json.loads((await self.outbox(*arguments, "--json"))[0])

    def request_count(self) -> int:
        """How many requests the emulator has answered."""
        return sum(each.count for each in self.usage().values())


@asynccontextmanager
async def on_cosmos() -> AsyncIterator[Site]:
    async with cosmos_ground() as ground:
        emulator = ground.emulator
        yield Site(
            Place(ground.store(), NoBlobs()),
            ("--cosmos", emulator.connection.connection_string, "--database", "bank"),
            {},
            emulator.usage,
            emulator.reset_usage,
            emulator.faults,
            ("--container", "nowhere"),
        )


@asynccontextmanager
async def on_blobs() -> AsyncIterator[Site]:
    async with blob_emulator() as emulator:
        account = BlobAccount(emulator.connection.connection_string, "streams")
        await account.prepare(create=True)
        yield Site(
            Place(BlobStateStore(account, now_ms=wall_ms), AzureBlobStore(account)),
            ("--blob-states", "streams"),
            {"OUTBOX_BLOBS": emulator.connection.connection_string, "OUTBOX_COSMOS": "https://elsewhere.invalid"},
            emulator.usage,
            emulator.reset_usage,
            emulator.faults,
            ("--blob-states", "nowhere"),
        )
        await account.close()


@pytest.fixture(params=[on_cosmos, on_blobs])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async with request.param() as site:
        yield site


# As on a folder


async def test_logs_are_listed_with_floors_ends_and_lags(site: Site) -> None:
    await site.fill()
    found = await site.json("stream", "list")
    assert found == {
        "logs": [
            {"name": "events", "type": "str", "rows": [row_of(1)]},
            {"name": "readings", "type": "Reading", "rows": [row_of(3, readers={"audit": 1})]},
        ],
        "processors": [],
    }
    lines = (await site.outbox("stream", "list"))[0].splitlines()
    assert lines[0].split() == ["log", "row", "floor", "end", "cells", "readers", "writers"]
    assert lines[2].split() == ["readings", "0.0", "0", "3", "3", "audit", "1", "-"]


def row_of(end: int, readers: dict[str, int] | None = None) -> dict[str, Any]:
    """An untrimmed row as JSON."""
    return {"row": "0.0", "floor": 0, "end": end, "cells": end, "readers": readers or {}, "writers": {}}


async def test_a_processor_is_listed_with_its_lag(site: Site) -> None:
    await site.fill()
    readings: OrderedLog[Reading] = OrderedLog("readings", site.place, type=Reading)
    alarms: OrderedLog[Reading] = OrderedLog("alarms", site.place, type=Reading)
    inputs, outputs = {"readings": readings}, {"alarms": alarms}
    made = Processor("watch", watch, state=Seen, register=site.place, inputs=inputs, outputs=outputs)
    await made.run_until_idle(seconds=20)
    (processor,) = (await site.json("stream", "list"))["processors"]
    assert (processor["name"], processor["phase"]) == ("processor/watch", "handling")
    assert processor["serial"] > 0 and processor["lag"] == {"readings/0.0": 0}


@pytest.mark.parametrize("form", ["parquet", "delta"])
async def test_an_export_has_the_entries_as_they_are_read_and_goes_on(site: Site, tmp_path: Path, form: str) -> None:
    await site.fill()
    export = ("stream", "export", "readings", "--output", str(tmp_path), "--format", form)
    told = {"log": "readings", "row": "0.0", "begin": "0.0", "end": "3.0", "entries": 4, "files": 1}
    assert await site.json(*export) == told
    assert await site.json(*export) == told | {"begin": "3.0", "entries": 0, "files": 0}
    rows = pq.read_table(str(tmp_path), ignore_prefixes=["_"]).to_pylist()
    out, _ = await site.outbox("stream", "read", "readings")
    for row, line in zip(rows, out.encode().splitlines(), strict=True):
        entry = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        assert row["value"].encode() == bytes(entry["value"])
        assert [row[name] for name in ("position", "id", "at_ms")] == [
            json.loads(bytes(entry[name])) for name in ("position", "id", "at_ms")
        ]


async def test_what_is_not_there_is_refused_with_what_is(site: Site) -> None:
    out, err = await site.outbox("stream", "list")
    assert out == "no ordered logs\n" and "may name another place" in err
    _, err = await site.outbox("stream", "read", "readings", code=1)
    assert "there are: none yet" in err
    await site.fill()
    for name in ("reading", "log/readings", "~2f"):
        _, err = await site.outbox("stream", "read", name, code=1)
        assert f"there is no log {name!r} in container" in err
        assert "there are: events, readings. Check the spelling" in err
    _, err = await site.outbox("stream", "read", "readings", "--row", "1.0", code=1)
    assert "has no row 1.0; there are: 0.0" in err


async def test_rows_are_found_by_the_name_of_their_log(site: Site) -> None:
    log: OrderedLog[int] = OrderedLog("n", site.place, type=int, writers=2, readers=2, partition=lambda n: n)
    for n in range(8):
        await log.writer(n % 2).append(n, id=f"n{n}")
    await OrderedLog("n.2", site.place, type=int).append(9, id="other")
    lines = [json.loads(line) for line in (await site.outbox("stream", "read", "n"))[0].splitlines()]
    assert sorted(line["value"] for line in lines) == list(range(8))
    row = lines[-1]["row"]
    only = [json.loads(line) for line in (await site.outbox("stream", "read", "n", "--row", row))[0].splitlines()]
    assert only == [line for line in lines if line["row"] == row]
    _, err = await site.outbox("stream", "read", "n", "--since", "0.0", code=1)
    assert "say by --row which" in err


# What it costs


async def test_a_list_costs_some_requests_a_row_however_many_cells_there_are(site: Site) -> None:
    log: OrderedLog[int] = OrderedLog("numbers", site.place, type=int)
    for n in range(150):
        await log.append(n, id=f"{n}")
    await site.fill()
    site.reset_usage()
    found = await list_streams(on_store(site.place, "here"))
    assert [(log.name, log.rows[0].end) for log in found.logs] == [("events", 1), ("numbers", 150), ("readings", 3)]
    assert site.request_count() <= 3 + 3 * READS_MAX


async def test_a_page_of_cells_is_no_row_of_its_own(site: Site) -> None:
    log: OrderedLog[int] = OrderedLog("numbers", site.place, type=int)
    await log.append(0, id="0")
    for page in range(1, 40):
        index = page << PAGE_BITS
        await site.place.store.write([Create(DocumentKey(f"log/numbers/0.0/{page}", f"{index:010}"), b"{}")])
    site.reset_usage()
    (found,) = (await list_streams(on_store(site.place, "here"))).logs
    assert [row.row for row in found.rows] == ["0.0"] and site.request_count() <= 3 + READS_MAX


async def test_a_row_that_is_named_is_read_without_a_list(site: Site) -> None:
    await site.fill()
    site.reset_usage()
    await site.outbox("stream", "read", "readings", "--row", "0.0", "--limit", "1")
    assert all("list" not in name.lower() and "query" not in name for name in site.usage()), site.usage().keys()


async def test_a_long_list_ends_and_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.fill()
    monkeypatch.setattr(listing, "LISTED_MAX", 1)
    found = await site.json("stream", "list")
    assert ([log["name"] for log in found["logs"]], found["more"]) == (["events"], True)
    assert "there are more: name one" in (await site.outbox("stream", "list"))[0]
    monkeypatch.setattr(listing, "PARTITIONS_MAX", 1)
    assert (await site.json("stream", "list"))["more"]


# Errors


async def test_a_container_that_is_not_there_is_named_with_its_option(site: Site) -> None:
    options = dict(zip(site.options[::2], site.options[1::2], strict=True)) | dict([site.wrong])
    _, err = await site.outbox("stream", "list", *chain(*options.items()), code=1, options=())
    assert err.startswith("outbox: ") and err.count("\n") == 1 and "no such" in err, err


async def test_a_store_that_does_not_answer_is_named_with_its_options(site: Site) -> None:
    site.faults.install(FaultRule(kind="reset", count=None))
    _, err = await site.outbox("stream", "list", code=1)
    option = "--blob-states" if "--blob-states" in site.options else "--cosmos"
    assert err.count("\n") == 1 and "reachable" in err and option in err, err


@pytest.mark.parametrize("status", [401, 403])
async def test_an_identity_that_is_refused_is_sent_to_its_roles(site: Site, status: int) -> None:
    site.faults.install(FaultRule(kind="status", status=status, count=None))
    _, err = await site.outbox("stream", "list", code=1)
    assert err.count("\n") == 1 and f"({status})" in err and "roles" in err and "a role that reads data" in err, err


@pytest.mark.parametrize(
    "options",
    [
        ("--cosmos", "AccountEndpoint=http://127.0.0.1:1/;AccountKey=hunter2secret=="),
        ("--cosmos", "hunter2secret"),
        ("--cosmos", f"AccountEndpoint=http://127.0.0.1:1/;AccountKey={base64.b64encode(b'hunter2').decode()}"),
        ("--blobs", "hunter2secret", "--blob-states", "x"),
        ("--blobs", "AccountName=x;AccountKey=hunter2secret", "--blob-states", "x"),
    ],
    ids=str,
)
async def test_no_error_repeats_a_secret(options: tuple[str, ...]) -> None:
    out, err = await typed_beside(["stream", "list", *options], {}, code=1)
    assert out == "" and err.startswith("outbox: ") and err.count("\n") == 1, err
    assert "hunter2" not in err and base64.b64encode(b"hunter2").decode() not in err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "say where to look: --data FOLDER, --cosmos ADDRESS, or --blobs ADDRESS"),
        (("--servicebus", "x"), "say where to look"),
        (("--cosmos", "https://x", "--blob-states", "y"), "--cosmos and --blob-states name two places"),
        (("--data", "x", "--blob-states", "y"), "--data and --blob-states name two places"),
        (("--blob-states", "y"), "--blobs is missing"),
    ],
)
def test_a_command_says_what_it_is_missing(options: tuple[str, ...], text: str) -> None:
    code, out, err = typed(["stream", "list", *options])
    assert (code, out) == (2, "") and text in err


async def test_a_store_that_cannot_list_is_refused_with_what_can() -> None:
    with pytest.raises(Refused, match=r"OrderedLog\.status"):
        on_store(Place(mock.Mock(spec=["read", "write"]), NoBlobs()), "this store")

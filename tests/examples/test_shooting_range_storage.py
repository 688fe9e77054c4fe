"""Where the range keeps what, and what its files say: states in partitions of games, limits that hold each other."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from outbox.errors import Refused
from outbox.lineage import state_id
from outbox.ports import Document, DocumentKey, Lost, Session, StateStore, Won, Write
from outbox.verify.contracts import STATE_STORE, Clause, check_state_store, name_of
from shooting_range.handlers import FireAt, Target
from shooting_range.settings import backend_of, read
from shooting_range.storage import INFRASTRUCTURE, STATES, RangeStates, place_of
from tests.examples.conftest import delivered
from tests.wire.on_azure import azurite
from tests.wire.on_azure.ground import cosmos_store
from tests.wire.on_azure.test_cosmos_contract import OF_BATCHES
from tools.local_functions.settings import read_host_file

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "shooting_range"
LOCAL: dict[str, str] = json.loads((FOLDER / "local.settings.json.example").read_text())["Values"]


# Where it lies


@pytest.mark.parametrize(
    ("id", "partition"),
    [
        (state_id("Board", "friday"), "friday"),
        (state_id("Target", "friday/left"), "friday"),
        (state_id("Target", "a%2Fb/left"), "a/b"),
        (state_id("Target", "/left"), state_id("Target", "/left")),
        (state_id("Target", "x" * 300), state_id("Target", "x" * 300)),
    ],
)
def test_a_state_lies_in_the_partition_of_its_game(id: str, partition: str) -> None:
    assert place_of(DocumentKey(id, "state")) == DocumentKey(partition, id)


class AsStates:
    """A store of which every document that it is asked for is a state of the store behind it."""

    def __init__(self, states: StateStore) -> None:
        self._states = states
        self.capabilities = states.capabilities
        self.scan = states.scan
        self.unfinished = states.unfinished

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await self._states.read(as_state(key), session=session)
        return None if found is None else replace(found, key=key)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        return await self._states.write([replace(one, key=as_state(one.key)) for one in operations])


def as_state(key: DocumentKey) -> DocumentKey:
    return DocumentKey(state_id("Target", f"{quote(key.partition, safe='')}/{quote(key.id, safe='')}"), "state")


OF_ITEMS = [clause for clause in STATE_STORE if name_of(clause) not in OF_BATCHES]
OF_SCANS = ("a_scan_gives_a_partition_by_id_and_prefix", "partitions_are_apart")
"""Nobody scans for states: to the runtime each has a partition of its own."""


@pytest.mark.parametrize(
    ("clause", "is_state"),
    [
        *[pytest.param(one, True, id=f"state-{name_of(one)}") for one in OF_ITEMS if name_of(one) not in OF_SCANS],
        *[pytest.param(one, False, id=f"other-{name_of(one)}") for one in OF_ITEMS],
    ],
)
async def test_states_apart_are_a_state_store(clause: Clause[StateStore], is_state: bool) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[StateStore]:
        async with cosmos_store("item") as states, cosmos_store("item") as others:
            both = RangeStates(states, others)
            yield AsStates(both) if is_state else both

    await check_state_store(make, clauses=[clause])


async def test_one_partition_tells_how_a_game_stands_and_holds_nothing_else(range_: Any) -> None:
    host = await range_.host()
    for n, (game, target) in enumerate([("friday", "left"), ("friday", "right"), ("sunday", "left")]):
        await host.deliver(FireAt(f"a{n}", game, target, "ann", 0, 0))
    found = await range_.items(STATES, partition_key="friday")
    assert sorted(item["body"]["value"]["attempts"] for item in found) == [1, 1]
    assert {item["pk"] for item in await range_.items(STATES)} == {"friday", "sunday"}
    kinds = {item["id"].split(":")[0] for item in await range_.items(INFRASTRUCTURE)}
    assert kinds == {"done", "handlers", "retention"}


# Sheets


@pytest.fixture(scope="module")
def blob_storage() -> Iterator[str]:
    yield from azurite.start()


async def test_a_full_sheet_is_one_blob_of_blob_storage_whatever_comes_twice(range_: Any, blob_storage: str) -> None:
    range_.environment |= {"OUTBOX_BLOBS": blob_storage}
    host = await range_.host()
    for n in [*range(10), *range(10)]:
        await host.processor.message("attempts", delivered(FireAt(f"a{n}", "g", "left", "ann", n, n), f"a{n}"))
    [full] = range_.full_sheets().values()
    sheet = await host.backend.blobs.read(full.blob, bytes_max=1 << 20)
    assert re.findall(r'class="hole".*?<title>(.*?)</title>', sheet.decode()) == [f"a{n}" for n in range(10)]
    assert (await range_.target()) == Target(10, 10, 2, [], full.blob)


# Files


def test_the_host_gives_up_an_invocation_before_its_lock_and_after_its_own_limit() -> None:
    host, settings = read_host_file(FOLDER), read(LOCAL)
    assert settings.attempt_s + settings.rest_s < host.timeout_s < host.renew_s == settings.lock_s


def test_the_example_settings_read_as_a_backend_and_show_no_key() -> None:
    shown = repr(backend_of(LOCAL)) + repr(read(LOCAL))
    assert LOCAL["OUTBOX_COSMOS"].split("AccountKey=")[1] not in shown


def test_what_is_missing_is_named_all_at_once() -> None:
    with pytest.raises(Refused, match=r"OUTBOX_SERVICEBUS__.*OUTBOX_COSMOS__.*RANGE_SHEETS_FOLDER"):
        backend_of({})


def test_what_is_installed_in_the_cloud_is_what_the_sample_beside_the_library_installs() -> None:
    ours, theirs = (
        {line for line in (place / "requirements.txt").read_text().splitlines() if line and line[0] != "#"}
        for place in (FOLDER, ROOT)
    )
    assert ours == theirs

"""Where the range keeps what, and what its files say: states in partitions of games, limits that hold each other."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import Refused
from outbox.lineage import state_id
from outbox.ports import DocumentKey
from shooting_range.handlers import FireAt, Target, game_key, target_key
from shooting_range.settings import backend_of, read
from shooting_range.storage import INFRASTRUCTURE, STATES, place_of
from tests.examples.conftest import delivered
from tests.wire.on_azure import azurite
from tests.wire.on_azure.ground import blob_emulator
from tools.local_functions.settings import read_host_file

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "shooting_range"
LOCAL: dict[str, str] = json.loads((FOLDER / "local.settings.json.example").read_text())["Values"]


# Where it lies


@pytest.mark.parametrize(
    ("id", "partition", "under"),
    [
        (state_id("Board", "friday"), "friday", "Board:friday"),
        (state_id("Target", "friday/left"), "friday", "Target:friday/left"),
        (state_id("Target", "a%2Fb/left"), "a/b", "Target:a%2Fb/left"),
        (state_id("Target", "/left"), state_id("Target", "/left"), "Target:/left"),
        (state_id("Target", "x" * 300), state_id("Target", "x" * 300), state_id("Target", "x" * 300)),
    ],
)
def test_a_state_lies_in_the_partition_of_its_game(id: str, partition: str, under: str) -> None:
    assert place_of(id) == DocumentKey(partition, under)


NAMES = st.text(st.sampled_from("aA:/~%.h2fé \\?#"), max_size=6)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=6))
def test_no_two_states_have_one_place(names: list[tuple[str, str]]) -> None:
    """Whatever games and targets are called; a message without either has a key as well."""
    shots = [FireAt("a", game, target, "ann", 0, 0) for game, target in names]
    ids = {state_id("Target", target_key(shot)) for shot in shots}
    ids |= {state_id("Board", game_key(shot)) for shot in shots if shot.game}
    assert len({place_of(id) for id in ids}) == len(ids)


async def test_one_partition_holds_the_standing_of_a_game_and_nothing_else(range_: Any) -> None:
    host = await range_.host()
    for n, (game, target) in enumerate([("friday", "left"), ("friday", "right"), ("sunday", "left")]):
        await host.deliver(FireAt(f"a{n}", game, target, "ann", 0, 0))
    found = await range_.items(STATES, partition_key="friday")
    assert sorted(item["body"]["value"]["attempts"] for item in found) == [1, 1]
    assert {item["pk"] for item in await range_.items(STATES)} == {"friday", "sunday"}
    assert {item["id"] for item in found} == {"Target:friday~2fleft", "Target:friday~2fright"}
    kinds = {item["id"].split(":")[0] for item in await range_.items(INFRASTRUCTURE)}
    assert kinds == {"done", "handlers", "retention"}


# Sheets


@pytest.fixture(scope="module")
def of_azurite() -> Iterator[str]:
    yield from azurite.start()


@pytest.fixture(params=["emulator", "azurite"])
async def blob_storage(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "azurite":
        yield request.getfixturevalue("of_azurite")
        return
    async with blob_emulator() as emulator:
        yield emulator.connection.connection_string


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

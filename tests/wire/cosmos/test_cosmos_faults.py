"""Faults on demand, stale reads and session tokens, as the real SDK meets them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.cosmos import exceptions

from outbox.emulator.faults import FaultRule
from tests.wire.cosmos.conftest import MODES, Cosmos, Sdk, query
from tests.wire.cosmos.test_cosmos_batch import failure
from tests.wire.cosmos.test_cosmos_items import status

OFF = {"retry_read": 0, "retry_connect": 0, "enable_endpoint_discovery": False}
LOST = (ServiceRequestError, ServiceResponseError)


@pytest.fixture(scope="module")
def faulty() -> Iterator[Cosmos]:
    cosmos = Cosmos()
    yield cosmos
    cosmos.close()


@pytest.fixture(scope="module", params=MODES)
def quick(faulty: Cosmos, request: pytest.FixtureRequest) -> Iterator[Sdk]:
    """The SDK without its retries, so that a test sees what the wire says."""
    sdk = Sdk(faulty, request.param, **OFF)
    yield sdk
    sdk.close()


@pytest.fixture
def items(quick: Sdk, faulty: Cosmos, request: pytest.FixtureRequest) -> Iterator[Any]:
    container = quick.container(f"{abs(hash(request.node.nodeid)):x}")
    container.create_item({"id": "0", "pk": "a", "n": 0})
    yield container
    faulty.call(lambda emulator: emulator.faults.clear())


@pytest.fixture
def install(faulty: Cosmos) -> Callable[..., int]:
    """Install a rule."""
    return lambda **fields: faulty.call(lambda emulator: emulator.faults.install(FaultRule(**fields)))


def test_a_lost_reply_has_taken_effect(items: Any, install: Any) -> None:
    install(kind="lost-reply", operation="item.create")
    with pytest.raises(LOST):
        items.create_item({"id": "1", "pk": "a"})
    assert items.read_item("1", "a")["id"] == "1"
    assert status(items.create_item, {"id": "1", "pk": "a"}) == 409


def test_a_lost_reply_of_a_batch_has_taken_effect_once(items: Any, install: Any) -> None:
    install(kind="lost-reply", operation="batch", key="0")
    with pytest.raises(LOST):
        items.execute_item_batch([("patch", ("0", [{"op": "incr", "path": "/n", "value": 1}]))], "a")
    assert items.read_item("0", "a")["n"] == 1


def test_a_connection_that_is_reset_did_nothing(items: Any, install: Any) -> None:
    install(kind="reset", operation="item.*", key="/1")
    with pytest.raises(LOST):
        items.create_item({"id": "1", "pk": "a"})
    assert status(items.read_item, "1", "a") == 404
    items.create_item({"id": "1", "pk": "a"})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"kind": "refused"}, 403),
        ({"kind": "throttled", "retry_after_s": 0.01}, 429),
        ({"kind": "status", "status": 449}, 449),
        ({"kind": "status", "status": 503}, 503),
        ({"kind": "status", "status": 408}, 408),
        ({"kind": "status", "status": 410, "substatus": 1002}, 410),
        ({"kind": "status", "status": 500}, 500),
    ],
)
def test_a_refused_write_did_nothing(items: Any, install: Any, fields: dict[str, Any], expected: int) -> None:
    install(operation="item.create", count=20, **fields)
    assert status(items.create_item, {"id": "1", "pk": "a"}) == expected
    assert status(items.read_item, "1", "a") == 404


def test_the_sdk_waits_out_throttling(faulty: Cosmos, quick: Sdk, install: Any) -> None:
    container = quick.container("throttled")
    patient = Sdk(faulty, quick.mode)
    own = patient.client.get_database_client(f"db-{quick.mode}").get_container_client("throttled")
    own.create_item({"id": "0", "pk": "a"})
    install(kind="throttled", operation="item.create", retry_after_s=0.05, count=3)
    started_s = time.monotonic()
    own.create_item({"id": "1", "pk": "a"})
    assert time.monotonic() - started_s >= 0.15
    assert container.read_item("1", "a")["id"] == "1"
    patient.close()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"kind": "throttled", "retry_after_s": 0.5}, 429), ({"kind": "status", "status": 449}, 449)],
)
def test_one_operation_of_a_batch_can_be_throttled(
    items: Any, install: Any, fields: dict[str, Any], expected: int
) -> None:
    install(operation="batch", batch_index=1, **fields)
    operations = [("create", ({"id": id, "pk": "a"},)) for id in ("1", "2", "3")]
    assert failure(items, list(operations)) == (1, expected, [424, expected, 424])
    assert [item["id"] for item in items.read_all_items()] == ["0"]
    assert len(items.execute_item_batch(operations, "a")) == 3


def test_a_delayed_request_waits_and_then_happens(items: Any, install: Any) -> None:
    install(kind="delay", delay_s=0.2, operation="item.read")
    started_s = time.monotonic()
    assert items.read_item("0", "a")["n"] == 0
    assert time.monotonic() - started_s >= 0.2


def test_a_fault_can_be_of_one_client(faulty: Cosmos, quick: Sdk, items: Any, install: Any) -> None:
    other = Sdk(faulty, quick.mode, user_agent="worker-7", **OFF)
    theirs = other.client.get_database_client(f"db-{quick.mode}").get_container_client(items.id)
    install(kind="refused", operation="item.*", client="worker-7", count=None)
    assert status(theirs.read_item, "0", "a") == 403
    assert items.read_item("0", "a")["n"] == 0
    other.close()


# Sessions


@pytest.fixture
def theirs(faulty: Cosmos, quick: Sdk, items: Any) -> Iterator[Any]:
    """The container as another client knows it, whose session has seen nothing."""
    other = Sdk(faulty, quick.mode, **OFF)
    yield other.client.get_database_client(f"db-{quick.mode}").get_container_client(items.id)
    other.close()


def test_another_session_reads_what_was_and_ones_own_what_is(theirs: Any, items: Any, install: Any) -> None:
    install(kind="stale-read", count=None)
    items.patch_item("0", "a", [{"op": "incr", "path": "/n", "value": 1}])
    items.create_item({"id": "1", "pk": "a", "n": 0})
    assert items.read_item("0", "a")["n"] == 1
    assert theirs.read_item("0", "a")["n"] == 0
    assert status(theirs.read_item, "1", "a") == 404
    assert query(theirs, "SELECT VALUE c.n FROM c", partition_key="a") == [0]
    assert query(items, "SELECT VALUE c.n FROM c", partition_key="a") == [1, 0]
    assert [item["n"] for item in theirs.read_all_items()] == [0]


def test_a_token_that_is_handed_over_makes_a_read_fresh(theirs: Any, items: Any, install: Any) -> None:
    install(kind="stale-read", operation="item.read", count=None)
    written = items.execute_item_batch([("patch", ("0", [{"op": "incr", "path": "/n", "value": 1}]))], "a")
    token = written.get_response_headers()["x-ms-session-token"]
    assert theirs.read_item("0", "a")["n"] == 0
    assert theirs.read_item("0", "a", session_token=token)["n"] == 1


def test_without_a_rule_every_read_is_fresh_and_nothing_is_remembered(faulty: Cosmos, theirs: Any, items: Any) -> None:
    items.patch_item("0", "a", [{"op": "incr", "path": "/n", "value": 1}])
    assert theirs.read_item("0", "a")["n"] == 1
    containers = faulty.call(lambda emulator: emulator.store.catalog.containers())
    assert all(container.history.begin_lsn is None for container in containers if container.id == items.id)


def test_a_token_ahead_of_everything_is_not_answered(items: Any) -> None:
    with pytest.raises(exceptions.CosmosHttpResponseError) as caught:
        items.read_item("0", "a", session_token=f"0:-1#{1 << 62}")
    assert (caught.value.status_code, caught.value.sub_status) == (404, 1002)
    assert status(items.read_item, "0", "a", session_token="0:-1#x") == 400


def test_what_a_delayed_request_is_about_may_be_gone(faulty: Cosmos, quick: Sdk, install: Any) -> None:
    container = quick.container("leaving")
    container.create_item({"id": "0", "pk": "a"})
    install(kind="delay", delay_s=0.3, operation="item.create", where=f"db-{quick.mode}/leaving")
    database = quick.client.get_database_client(f"db-{quick.mode}")
    other = Sdk(faulty, "sync", **OFF)
    deleting = threading.Timer(0.1, other.client.get_database_client(f"db-{quick.mode}").delete_container, ["leaving"])
    deleting.start()
    assert status(container.create_item, {"id": "1", "pk": "a"}) == 404
    deleting.join()
    assert "leaving" not in [one["id"] for one in database.list_containers()]
    other.close()


def test_a_window_keeps_a_past_for_rules_that_come_later() -> None:
    cosmos = Cosmos(history_s=60)
    sdk, other = Sdk(cosmos, "sync", **OFF), Sdk(cosmos, "sync", **OFF)
    container = sdk.container("window")
    container.create_item({"id": "0", "pk": "a", "n": 0})
    container.upsert_item({"id": "0", "pk": "a", "n": 1})
    cosmos.call(lambda emulator: emulator.faults.install(FaultRule(kind="stale-read", behind_count=1)))
    theirs = other.client.get_database_client("db-sync").get_container_client("window")
    assert [theirs.read_item("0", "a")["n"] for _ in range(2)] == [0, 1]
    for one in (sdk, other, cosmos):
        one.close()

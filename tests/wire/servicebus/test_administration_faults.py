"""The administration endpoint under keys, restarts and faults; the control endpoint beside it."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from azure.core.exceptions import (
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.management import CorrelationRuleFilter

from outbox.emulator.faults import FaultRule
from outbox.engine.engine import Engine
from tests.wire.conftest import Bus
from tests.wire.servicebus.administration import Admin

# Keys, restarts, faults


def test_what_was_made_is_there_after_a_restart(disk_path: Any) -> None:
    def engine() -> Engine:
        return Engine.open(disk_path / "log")

    bus = Bus(engine)
    admin = Admin(bus.connection_string, "sync")
    admin.create_topic("t", user_metadata="told")
    admin.create_subscription("t", "s")
    admin.create_rule("t", "s", "r", filter=CorrelationRuleFilter(label="x"))
    admin.create_queue("gone")
    admin.delete_queue("gone")
    bus.stop()
    bus.start(engine)
    assert admin.get_topic("t").user_metadata == "told"
    assert [rule.name for rule in admin.list_rules("t", "s")] == ["$Default", "r"]
    assert admin.list_queues() == []
    admin.end()
    bus.stop()
    bus.thread.stop()


KINDS: list[tuple[Any, dict[str, Any]]] = [
    ("throttled", {"retry_after_s": 1}),
    ("status", {"status": 503}),
    ("refused", {}),
    ("reset", {"count": 2}),  # asynchronous HTTP tries once more by itself where a connection broke
    ("lost-reply", {"count": 2}),
]


@pytest.mark.parametrize(("kind", "fields"), KINDS, ids=str)
def test_administration_can_be_made_to_fail(
    bus: Bus, admin: Admin, name: str, kind: Any, fields: dict[str, Any]
) -> None:
    faults, rule = bus.server.faults, FaultRule(kind=kind, operation="admin/put", where=name, **fields)
    bus.call(lambda engine: faults.install(rule))
    with pytest.raises((HttpResponseError, ServiceRequestError, ServiceResponseError)):
        admin.create_queue(name)
    assert bus.call(lambda engine: name in engine.topology.queues) is (kind == "lost-reply")
    bus.call(lambda engine: faults.clear())
    assert bus.server.faults.fired[kind] >= 1


# The control endpoint


def control(bus: Bus, method: str, path: str = "", body: Any = None, token: str | None = None, **headers: str) -> Any:
    given = {"Authorization": f"Bearer {bus.server.control_token if token is None else token}", **headers}
    url = f"http://127.0.0.1:{bus.server.port}/_outbox/faults{path}"
    return requests.request(method, url, json=body, headers=given, timeout=5)


def test_fault_rules_are_installed_listed_and_removed_over_http(bus: Bus, admin: Admin, name: str) -> None:
    rules = [
        {"kind": "refused", "operation": "admin/put", "where": name},
        {"kind": "delay", "delay_s": 9, "where": "x"},
    ]
    first, second = control(bus, "POST", body=rules).json()["ids"]
    with pytest.raises(HttpResponseError, match="fault rule"):
        admin.create_queue(name)
    listed = control(bus, "GET").json()
    assert [(rule["id"], rule["fired_count"]) for rule in listed["rules"]] == [(first, 1), (second, 0)]
    assert control(bus, "DELETE", f"?id={first}").status_code == 200
    assert control(bus, "DELETE", f"?id={first}").status_code == 404
    assert control(bus, "DELETE").json()["rules"] == []
    assert control(bus, "POST", body={"kind": "nonsense"}).status_code == 400


def test_the_control_endpoint_wants_its_token_and_a_loopback_host(bus: Bus) -> None:
    assert control(bus, "GET", token="guess").status_code == 401
    assert control(bus, "GET", Host="attacker.example").status_code == 403
    assert control(bus, "PUT").status_code == 405

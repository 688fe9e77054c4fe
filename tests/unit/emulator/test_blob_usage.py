"""What a meter of requests counts as failed, and what it adds up."""

from __future__ import annotations

from outbox.emulator.blobs.gateway import Usage
from outbox.emulator.faults import Meter


def test_requests_are_counted_by_operation_and_those_without_success_as_failed() -> None:
    meter = Meter(Usage)
    for status in (0, 1, 200, 304, 399, 400, 404, 503):
        meter.count("put", status, received_bytes=10, sent_bytes=3)
    meter.count("get", 200, received_bytes=0, sent_bytes=7)
    assert meter.usage() == {"get": Usage(1, 0, 0, 7), "put": Usage(8, 4, 80, 24)}
    assert list(meter.usage()) == ["get", "put"]
    meter.reset()
    assert meter.usage() == {}
    meter.count("put", 200, received_bytes=1, sent_bytes=2)
    assert meter.usage() == {"put": Usage(1, 0, 1, 2)}

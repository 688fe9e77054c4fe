"""Lease operations on blobs and containers over the wire; what each does is decided in `leases`."""

from __future__ import annotations

from uuid import uuid4

from msgspec.structs import replace

from outbox.emulator.blobs import leases
from outbox.emulator.blobs.answers import ACCEPTED, CREATED, OK, Answer, bad_header
from outbox.emulator.blobs.blob_operations import found, version_headers
from outbox.emulator.blobs.catalog import Lease, etag_of, http_date
from outbox.emulator.blobs.conditions import check_container, check_write, read_conditions
from outbox.emulator.blobs.requests import Call
from outbox.emulator.blobs.store import Store

_NEEDS = {
    "renew": ("x-ms-lease-id",),
    "change": ("x-ms-lease-id", "x-ms-proposed-lease-id"),
    "release": ("x-ms-lease-id",),
    "acquire": ("x-ms-lease-duration",),
    "break": (),
}


async def of_blob(store: Store, call: Call) -> Answer:
    """Lease Blob."""
    held = store.container(call.route.container)
    blob = found(held, call)
    check_write(read_conditions(call.headers, is_write=True), blob)
    lease, answer = _done(store, call, blob.lease)
    if lease != blob.lease:
        blob = store.put(held, call.route.blob, replace(blob, lease=lease))
    answer.headers |= version_headers(blob)
    return answer


async def of_container(store: Store, call: Call) -> Answer:
    """Lease Container."""
    held = store.container(call.route.container)
    now = held.definition
    check_container(call.headers, now.modified_ms)
    lease, answer = _done(store, call, now.lease)
    if lease != now.lease:
        store.replace(held, replace(now, lease=lease))
    answer.headers |= {"ETag": etag_of(now.etag), "Last-Modified": http_date(now.modified_ms)}
    return answer


def _done(store: Store, call: Call, lease: Lease | None) -> tuple[Lease | None, Answer]:
    """The lease after the operation that a call's headers name, and its answer.

    Raises:
        Rejection: 400 or 409.
    """
    action, now_ms = call.header("x-ms-lease-action").lower(), store.now_ms
    if action not in _NEEDS:
        raise bad_header("x-ms-lease-action", f"one of {', '.join(_NEEDS)}")
    for header in _NEEDS[action]:
        if not call.header(header):
            raise bad_header(header, f"{action} needs it")
    if action == "break":
        period_s = leases.read_period(call.header("x-ms-lease-break-period"))
        broken, left_s = leases.break_(lease, now_ms, period_s=period_s)
        return broken, Answer(ACCEPTED, {"x-ms-lease-time": str(left_s)})
    proposed = call.header("x-ms-proposed-lease-id")
    if action == "acquire":
        id = leases.read_id(proposed, "x-ms-proposed-lease-id") if proposed else str(uuid4())
        duration_s = leases.read_duration(call.header("x-ms-lease-duration"))
        return _answered(leases.acquire(lease, now_ms, id=id, duration_s=duration_s), CREATED)
    id = leases.read_id(call.header("x-ms-lease-id"), "x-ms-lease-id")
    if action == "renew":
        return _answered(leases.renew(lease, now_ms, id=id), OK)
    if action == "change":
        to = leases.read_id(proposed, "x-ms-proposed-lease-id")
        return _answered(leases.change(lease, now_ms, id=id, proposed=to), OK)
    leases.own(lease, id)
    return None, Answer(OK)


def _answered(lease: Lease, status: int) -> tuple[Lease, Answer]:
    return lease, Answer(status, {"x-ms-lease-id": lease.id})

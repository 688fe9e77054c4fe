"""Operations on containers and on leases, and the properties of the account and the service.

What each operation on a lease does, of a container or a blob, is decided in `leases`.
"""

from __future__ import annotations

from uuid import uuid4

from msgspec.structs import replace

from outbox.emulator.blobs import leases
from outbox.emulator.blobs.blob_operations import found, lease_id, version_headers
from outbox.emulator.blobs.catalog import Container, Lease, etag_of, http_date
from outbox.emulator.blobs.conditions import check_container, check_write, read_conditions
from outbox.emulator.blobs.requests import (
    ACCEPTED,
    CREATED,
    METADATA,
    OK,
    Answer,
    Call,
    bad_header,
    read_metadata,
    xml_answer,
)
from outbox.emulator.blobs.store import Store

_OFF = "<Version>1.0</Version><Enabled>false</Enabled><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
_SERVICE = (
    "<StorageServiceProperties><Logging><Version>1.0</Version><Delete>false</Delete><Read>false</Read><Write>false"
    "</Write><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy></Logging>"
    f"<HourMetrics>{_OFF}</HourMetrics><MinuteMetrics>{_OFF}</MinuteMetrics><Cors/>"
    "<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"
    "<StaticWebsite><Enabled>false</Enabled></StaticWebsite></StorageServiceProperties>"
)
_NEEDS = {
    "renew": ("x-ms-lease-id",),
    "change": ("x-ms-lease-id", "x-ms-proposed-lease-id"),
    "release": ("x-ms-lease-id",),
    "acquire": ("x-ms-lease-duration",),
    "break": (),
}


async def create(store: Store, call: Call) -> Answer:
    """Create Container."""
    return Answer(CREATED, _version(store.create(call.route.container, read_metadata(call.headers))))


async def read(store: Store, call: Call) -> Answer:
    """Get Container Properties, and Get Container Metadata."""
    now = store.container(call.route.container).definition
    leases.check_read(now.lease, store.now_ms, lease_id(call), "Container")
    headers = _version(now) | {METADATA + name: value for name, value in now.metadata.items()}
    shown = leases.shown(now.lease, store.now_ms)
    headers |= {f"x-ms-lease-{name.lower()}": value for name, value in shown.items()}
    headers |= {
        "x-ms-has-immutability-policy": "false",
        "x-ms-has-legal-hold": "false",
        "x-ms-immutable-storage-with-versioning-enabled": "false",
        "x-ms-default-encryption-scope": "$account-encryption-key",
        "x-ms-deny-encryption-scope-override": "false",
    }
    return Answer(OK, headers)


async def metadata(store: Store, call: Call) -> Answer:
    """Set Container Metadata: all of it anew."""
    held = store.container(call.route.container)
    now, metadata = held.definition, read_metadata(call.headers)
    check_container(call.headers, now.modified_ms)
    leases.check_read(now.lease, store.now_ms, lease_id(call), "Container")
    store.replace(held, replace(now, metadata=metadata, modified_ms=store.now_ms, etag=0))
    return Answer(OK, _version(held.definition))


async def delete(store: Store, call: Call) -> Answer:
    """Delete Container, with everything in it."""
    held = store.container(call.route.container)
    check_container(call.headers, held.definition.modified_ms)
    leases.check_write(held.definition.lease, store.now_ms, lease_id(call), "Container")
    store.delete(held)
    return Answer(ACCEPTED)


async def policy(store: Store, call: Call) -> Answer:
    """Get Container ACL: nobody has access without a signature."""
    now = store.container(call.route.container).definition
    leases.check_read(now.lease, store.now_ms, lease_id(call), "Container")
    return xml_answer("<SignedIdentifiers/>", _version(now))


async def account(store: Store, call: Call) -> Answer:
    """Get Account Information."""
    return Answer(
        OK, {"x-ms-sku-name": "Standard_LRS", "x-ms-account-kind": "StorageV2", "x-ms-is-hns-enabled": "false"}
    )


async def service(store: Store, call: Call) -> Answer:
    """Get Blob Service Properties: everything is off."""
    return xml_answer(_SERVICE)


def _version(container: Container) -> dict[str, str]:
    return {"ETag": etag_of(container.etag), "Last-Modified": http_date(container.modified_ms)}


async def lease_blob(store: Store, call: Call) -> Answer:
    """Lease Blob."""
    held = store.container(call.route.container)
    blob = found(held, call)
    check_write(read_conditions(call.headers, is_write=True), blob)
    lease, answer = _done(store, call, blob.lease)
    if lease != blob.lease:
        blob = store.put(held, call.route.blob, replace(blob, lease=lease))
    answer.headers |= version_headers(blob)
    return answer


async def lease(store: Store, call: Call) -> Answer:
    """Lease Container."""
    held = store.container(call.route.container)
    now = held.definition
    check_container(call.headers, now.modified_ms)
    lease, answer = _done(store, call, now.lease)
    if lease != now.lease:
        store.replace(held, replace(now, lease=lease))
    answer.headers |= _version(held.definition)
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

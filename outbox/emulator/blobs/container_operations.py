"""Operations on containers, and the properties of the account and the service."""

from __future__ import annotations

from msgspec.structs import replace

from outbox.emulator.blobs import leases
from outbox.emulator.blobs.answers import ACCEPTED, CREATED, OK, Answer, xml_answer
from outbox.emulator.blobs.blob_operations import lease_id
from outbox.emulator.blobs.catalog import Container, etag_of, http_date
from outbox.emulator.blobs.conditions import check_container
from outbox.emulator.blobs.names import METADATA, read_metadata
from outbox.emulator.blobs.requests import Call
from outbox.emulator.blobs.store import Store

_OFF = "<Version>1.0</Version><Enabled>false</Enabled><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
_SERVICE = (
    "<StorageServiceProperties><Logging><Version>1.0</Version><Delete>false</Delete><Read>false</Read><Write>false"
    "</Write><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy></Logging>"
    f"<HourMetrics>{_OFF}</HourMetrics><MinuteMetrics>{_OFF}</MinuteMetrics><Cors/>"
    "<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"
    "<StaticWebsite><Enabled>false</Enabled></StaticWebsite></StorageServiceProperties>"
)


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

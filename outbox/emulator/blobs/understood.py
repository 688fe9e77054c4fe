"""The query parameters and conditions that each operation understands beside its path and body.

A parameter or a condition that an operation does not know is refused by name, because ignoring one would be a wrong
answer: a list that begins elsewhere, a write over what another has written.  Of other headers those are refused that
ask for what is not here; what nothing is known of passes, because clients send much that changes no answer.
Source: learn.microsoft.com/rest/api/storageservices/specifying-conditional-headers-for-blob-service-operations and the
page of each operation.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import NamedTuple

from outbox.emulator.blobs.requests import Call, Rejection, bad_header
from outbox.emulator.dialect import conditions_among

TAGS_PREFIX = "x-ms-blob-"
"""Before the names of conditions on a blob whose tags are read or set."""
VERSION_AHEAD_YEARS = 2
"""How many years after today the date of an `x-ms-version` may be, because SDKs name versions in advance."""
_ALWAYS = frozenset(("restype", "comp", "timeout"))
_TIMES = frozenset(("if-modified-since", "if-unmodified-since"))
_OF_BLOBS = _TIMES | {"if-match", "if-none-match", "x-ms-if-tags"}
_OF_TAGS = frozenset(TAGS_PREFIX + name for name in _OF_BLOBS - {"x-ms-if-tags"}) | {"x-ms-if-tags"}
_PAGES = frozenset(("marker", "maxresults"))


class Understood(NamedTuple):
    """The parameters and conditions that an operation understands, in lower case."""

    parameters: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()


_NOTHING = Understood()
UNDERSTOOD = {
    "container.list": Understood(_PAGES | {"prefix", "include"}),
    "container.metadata": Understood(conditions=_TIMES),
    "container.delete": Understood(conditions=_TIMES),
    "container.lease": Understood(conditions=_TIMES),
    "blob.list": Understood(_PAGES | {"prefix", "delimiter", "include", "startfrom"}),
    "blob.find": Understood(_PAGES | {"where"}),
    "blob.put": Understood(conditions=_OF_BLOBS),
    "blob.read": Understood(conditions=_OF_BLOBS),
    "blob.head": Understood(conditions=_OF_BLOBS),
    "blob.delete": Understood(conditions=_OF_BLOBS),
    "blob.metadata": Understood(conditions=_OF_BLOBS),
    "blob.properties": Understood(conditions=_OF_BLOBS),
    "blob.lease": Understood(conditions=_OF_BLOBS),
    "tags.read": Understood(conditions=_OF_TAGS),
    "tags.write": Understood(conditions=_OF_TAGS),
    "block.put": Understood(frozenset(("blockid",))),
    "block.commit": Understood(conditions=_OF_BLOBS),
    "block.list": Understood(frozenset(("blocklisttype",)), _OF_BLOBS),
}
"""By operation; one that is not here understands nothing."""

_NO_PARAMETER = {
    "snapshot": "snapshots", "versionid": "versions", "sig": "shared access signatures", "copyid": "copies",
    "deletetype": "deleting for good", "prevsnapshot": "snapshots", "sv": "shared access signatures",
}  # fmt: skip
_NO_HEADER = {
    "x-ms-copy-source": "copies",
    "x-ms-encryption-key": "keys of the client's",
    "x-ms-encryption-scope": "encryption scopes",
    "x-ms-content-crc64": "CRC64 checksums",
    "x-ms-structured-body": "structured bodies",
    "x-ms-range-get-content-crc64": "CRC64 checksums",
    "x-ms-immutability-policy-until-date": "immutability policies",
    "x-ms-immutability-policy-mode": "immutability policies",
    "x-ms-expiry-option": "expiry times",
    "x-ms-expiry-time": "expiry times",
    "x-ms-legal-hold": "legal holds",
    "x-ms-blob-public-access": "public access",
    "x-ms-default-encryption-scope": "encryption scopes",
}


def check_understood(call: Call, now_ms: int) -> None:
    """Let a request pass that asks for nothing beside its operation.

    Raises:
        Rejection: 400, naming what is not here.
    """
    version = call.header("x-ms-version")
    try:
        year = date.fromisoformat(version).year if version else 0
    except ValueError:
        year = 9_999
    if year > datetime.fromtimestamp(now_ms / 1_000, UTC).year + VERSION_AHEAD_YEARS:
        raise bad_header("x-ms-version", f"the date of a version of the service, not {version[:40]!r}")
    operation = call.route.operation
    known = UNDERSTOOD.get(operation, _NOTHING)
    for name in call.query.keys() - known.parameters - _ALWAYS:
        what = _NO_PARAMETER.get(name, f"the parameter of {operation}")
        raise Rejection("UnsupportedQueryParameter", f"{name[:80]}: {what} is not supported by this emulator")
    call.count("timeout", 0, 0, 0)  # a number; whatever it is, requests take what they take
    for name, what in _NO_HEADER.items():
        if call.header(name):
            raise Rejection("UnsupportedHeader", f"{name}: {what} are not supported by this emulator")
    for name in conditions_among(call.headers) - known.conditions:
        raise Rejection("ConditionHeadersNotSupported", f"{name[:80]}: {operation} takes no such condition")
    if call.header("x-ms-access-tier") not in ("", "Hot"):
        raise Rejection("UnsupportedHeader", "x-ms-access-tier: there is the tier Hot, no other")

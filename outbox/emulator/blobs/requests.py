"""A request on its way, which operation on what its first line names, and the answer to it.

The account's name is the first part of a path, as the SDK has it for an address without a name of its own:
`/devstoreaccount1/CONTAINER/BLOB`.  What may be a name is checked by the rules that Azure documents; the codes of
rejections and their statuses are the documented ones, too (Blob service error codes, common REST API error codes).

A parameter or a condition that an operation does not know is refused by name, because ignoring one would be a wrong
answer: a list that begins elsewhere, a write over what another has written.  Of other headers those are refused that
ask for what is not here; what nothing is known of passes, because clients send much that changes no answer.
Source: learn.microsoft.com/rest/api/storageservices/specifying-conditional-headers-for-blob-service-operations and the
page of each operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from outbox.emulator.dialect import Answer as Answer
from outbox.emulator.dialect import Refusal, conditions_among
from outbox.emulator.faults import FaultRule
from outbox.emulator.xml import leaf

PARAMETER_COUNT_MAX = 20

Key = tuple[str, str, str]
"""Method, `restype` and `comp`."""

_SERVICE: dict[Key, str] = {
    ("GET", "", "list"): "container.list",
    ("GET", "", "blobs"): "blob.find",
    ("POST", "", "batch"): "blob.batch",
    ("GET", "service", "properties"): "service.read",
    ("GET", "account", "properties"): "account.read",
    ("HEAD", "account", "properties"): "account.read",
}
_CONTAINER: dict[Key, str] = {
    ("PUT", "container", ""): "container.create",
    ("GET", "container", ""): "container.read",
    ("HEAD", "container", ""): "container.read",
    ("DELETE", "container", ""): "container.delete",
    ("GET", "container", "metadata"): "container.read",
    ("HEAD", "container", "metadata"): "container.read",
    ("PUT", "container", "metadata"): "container.metadata",
    ("PUT", "container", "lease"): "container.lease",
    ("GET", "container", "acl"): "container.policy",
    ("HEAD", "container", "acl"): "container.policy",
    ("GET", "container", "list"): "blob.list",
    ("GET", "container", "blobs"): "blob.find",
    ("POST", "container", "batch"): "blob.batch",
    ("GET", "account", "properties"): "account.read",
    ("HEAD", "account", "properties"): "account.read",
}
_BLOB: dict[Key, str] = {
    ("PUT", "", ""): "blob.put",
    ("GET", "", ""): "blob.read",
    ("HEAD", "", ""): "blob.head",
    ("DELETE", "", ""): "blob.delete",
    ("PUT", "", "metadata"): "blob.metadata",
    ("GET", "", "metadata"): "blob.head",
    ("HEAD", "", "metadata"): "blob.head",
    ("PUT", "", "properties"): "blob.properties",
    ("PUT", "", "lease"): "blob.lease",
    ("GET", "", "tags"): "tags.read",
    ("PUT", "", "tags"): "tags.write",
    ("PUT", "", "block"): "block.put",
    ("PUT", "", "blocklist"): "block.commit",
    ("GET", "", "blocklist"): "block.list",
    ("GET", "account", "properties"): "account.read",
    ("HEAD", "account", "properties"): "account.read",
}
OPERATIONS = frozenset((*_SERVICE.values(), *_CONTAINER.values(), *_BLOB.values()))
OK, CREATED, ACCEPTED, NO_CONTENT, PARTIAL, NOT_MODIFIED = 200, 201, 202, 204, 206, 304
XML = "application/xml"
HEAD = '<?xml version="1.0" encoding="utf-8"?>'
CODES: dict[str, tuple[int, str]] = {
    # requests
    "InvalidUri": (400, "the path or the query cannot be read"),
    "InvalidHeaderValue": (400, "a header's value is not in the right format"),
    "InvalidQueryParameterValue": (400, "a query parameter's value is not in the right format"),
    "OutOfRangeQueryParameterValue": (400, "a query parameter's value is out of range"),
    "OutOfRangeInput": (400, "a name or a value is out of range"),
    "InvalidInput": (400, "the request is not understood"),
    "InvalidXmlDocument": (400, "the body is not the XML that the operation takes"),
    "InvalidResourceName": (400, "the name has characters that it may not have"),
    "MissingRequiredHeader": (400, "a header is missing"),
    "MissingRequiredQueryParameter": (400, "a query parameter is missing"),
    "UnsupportedHeader": (400, "a header is not supported by this emulator"),
    "UnsupportedQueryParameter": (400, "a query parameter is not supported by this emulator"),
    "UnsatisfiableCondition": (400, "a read has nothing to do with If-None-Match: *"),
    "ConditionHeadersNotSupported": (400, "the operation does not take this condition"),
    "MultipleConditionHeadersNotSupported": (400, "a write takes one condition"),
    "Md5Mismatch": (400, "the body has another MD5 than the header says"),
    "InvalidMd5": (400, "the MD5 is not 16 bytes in base64"),
    "InvalidMetadata": (400, "the name or the value of a metadata entry has characters that it may not have"),
    "MetadataTooLarge": (400, "the metadata is over 8 KiB"),
    "TagsTooLarge": (400, "a blob takes ten tags"),
    "DuplicateTagNames": (400, "a tag is there twice"),
    "EmptyTagName": (400, "a tag has no name"),
    "InvalidTag": (400, "the name or the value of a tag has characters that it may not have, or too many"),
    "InvalidBlockList": (400, "the specified block list is invalid: it names a block that is not there"),
    "InvalidBlockId": (400, "a block id is not base64 of at most 64 bytes"),
    "InvalidBlobOrBlock": (400, "the ids of a blob's blocks have one length"),
    "ExceedsMaxBatchRequestCount": (400, "a batch has 256 parts at most"),
    "BlockListTooLong": (400, "a block list has 50,000 entries at most"),
    # who asks
    "NoAuthenticationInformation": (401, "the request is not signed; sign it with the account's key"),
    "AuthenticationFailed": (403, "the signature does not fit; use the key with which the emulator was started"),
    "AuthorizationFailure": (403, "the request is not allowed"),
    "AccountIsDisabled": (403, "refused on demand"),
    # what is there
    "ResourceNotFound": (404, "there is nothing of this name"),
    "ContainerNotFound": (404, "there is no container of this name"),
    "BlobNotFound": (404, "there is no blob of this name"),
    "UnsupportedHttpVerb": (405, "the resource does not know this method"),
    "ContainerAlreadyExists": (409, "there is a container of this name already"),
    "BlobAlreadyExists": (409, "there is a blob of this name already"),
    "BlockCountExceedsLimit": (409, "a blob has 100,000 uncommitted blocks at most"),
    # leases
    "LeaseAlreadyPresent": (409, "there is a lease already"),
    "LeaseIdMismatchWithLeaseOperation": (409, "the lease has another id"),
    "LeaseNotPresentWithLeaseOperation": (409, "there is no lease"),
    "LeaseIsBrokenAndCannotBeRenewed": (409, "the lease was broken; acquire another"),
    "LeaseIsBreakingAndCannotBeAcquired": (409, "a lease is breaking; wait until it is broken"),
    "LeaseIsBreakingAndCannotBeChanged": (409, "the lease is breaking; wait until it is broken"),
    "LeaseIdMissing": (412, "there is a lease, and the request names none"),
    "LeaseIdMismatchWithBlobOperation": (412, "the blob's lease has another id"),
    "LeaseIdMismatchWithContainerOperation": (412, "the container's lease has another id"),
    "LeaseNotPresentWithBlobOperation": (412, "the blob has no such lease any more"),
    "LeaseNotPresentWithContainerOperation": (412, "the container has no such lease any more"),
    # conditions, sizes, the service itself
    "ConditionNotMet": (412, "a condition does not hold"),
    "RequestBodyTooLarge": (413, "the body is larger than the emulator takes"),
    "InvalidRange": (416, "the range begins behind the end"),
    "InternalError": (500, "the emulator failed on this request and logged why"),
    "OperationTimedOut": (500, "the operation took too long"),
    "ServerBusy": (503, "the account is busy; try again later"),
}
BY_STATUS = {
    400: "InvalidInput", 401: "NoAuthenticationInformation", 403: "AuthorizationFailure", 404: "ResourceNotFound",
    405: "UnsupportedHttpVerb", 409: "BlobAlreadyExists", 412: "ConditionNotMet", 413: "RequestBodyTooLarge",
    416: "InvalidRange", 429: "ServerBusy", 500: "InternalError", 503: "ServerBusy",
}  # fmt: skip
"""The code of a status where nothing says another."""
NAME_LENGTH_MAX = 1_024
METADATA_MAX_BYTES = 8 << 10
METADATA = "x-ms-meta-"
TAGS_PREFIX = "x-ms-blob-"
"""Before the names of conditions on a blob whose tags are read or set."""
VERSION_AHEAD_YEARS = 2
"""How many years after today the date of an `x-ms-version` may be, because SDKs name versions in advance."""
_ALWAYS = frozenset(("restype", "comp", "timeout"))
_TIMES = frozenset(("if-modified-since", "if-unmodified-since"))
_OF_BLOBS = _TIMES | {"if-match", "if-none-match", "x-ms-if-tags"}
_OF_TAGS = frozenset(TAGS_PREFIX + name for name in _OF_BLOBS - {"x-ms-if-tags"}) | {"x-ms-if-tags"}
_PAGES = frozenset(("marker", "maxresults"))


@dataclass(frozen=True, slots=True)
class Route:
    """The operation of a request, with its container and blob (empty: none)."""

    operation: str = "unknown"
    container: str = ""
    blob: str = ""


@dataclass(slots=True)
class Call:
    """A request on its way, with the facts found out about it."""

    method: str
    raw_path: str
    headers: Mapping[str, str]
    body: bytes = b""
    route: Route = Route()
    query: Mapping[str, str] = field(default_factory=dict)
    rule: FaultRule | None = None
    """The fault that the operation itself has to do: a search that is answered from the past."""

    def header(self, name: str) -> str:
        """A header's value, empty where it is not there."""
        return self.headers.get(name, "")

    def parameter(self, name: str) -> str:
        """A query parameter's value, empty where it is not there."""
        return self.query.get(name, "")

    def count(self, name: str, default: int, least: int, most: int) -> int:
        """A query parameter that is a number.

        Raises:
            Rejection: 400.
        """
        text = self.parameter(name)
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise bad_parameter(name, "a whole number")
        if not least <= int(text):
            raise Rejection("OutOfRangeQueryParameterValue", f"{name}: from {least}")
        return min(int(text), most)


def read_line(call: Call, account: str) -> None:
    """Find out which operation a request names, and set its route and query.

    Raises:
        Rejection: 400, 404 or 405, it names none.
    """
    path, _, query = call.raw_path.partition("?")
    parts = path.split("/", 3)
    if decoded(parts[1] if len(parts) > 1 else "") != account:
        raise Rejection("ResourceNotFound", f"the account is {account}; paths begin with /{account}")
    container, blob = decoded(parts[2] if len(parts) > 2 else ""), decoded(parts[3] if len(parts) > 3 else "")
    call.query = parameters = read_query(query)
    known = _BLOB if blob else _CONTAINER if container else _SERVICE
    key = (call.method, parameters.get("restype", "").lower(), parameters.get("comp", "").lower())
    operation = known.get(key)
    if operation is None:
        raise _unknown(call.method, key, known)
    call.route = Route(operation, container, blob)
    if container:
        check_container(container)
    if blob:
        check_blob(blob)


def _unknown(method: str, key: Key, known: Mapping[Key, str]) -> Rejection:
    of_others = [other for other in known if other[1:] == key[1:]]
    if of_others:
        return Rejection(
            "UnsupportedHttpVerb", f"{method[:20]} is not there; there is {', '.join(o[0] for o in of_others)}"
        )
    return Rejection(
        "InvalidQueryParameterValue",
        f"{method[:20]} with restype={key[1][:40]!r} and comp={key[2][:40]!r} is not supported by this emulator; "
        "docs/emulator-compatibility.md lists what is",
    )


def decoded(part: str) -> str:
    """A part of a path or query without its percent signs.

    Raises:
        Rejection: 400, it is no text.
    """
    try:
        return unquote_to_bytes(part.encode("utf-8", "surrogateescape")).decode()
    except UnicodeDecodeError as error:
        raise Rejection("InvalidUri") from error


def read_query(query: str) -> dict[str, str]:
    """The parameters of a query by name, in lower case.

    Raises:
        Rejection: 400, they cannot be read, or one is there twice.
    """
    pairs = [pair for pair in query.split("&") if pair]
    found = {decoded(name).lower(): decoded(value) for name, _, value in (pair.partition("=") for pair in pairs)}
    if len(found) != len(pairs) or len(pairs) > PARAMETER_COUNT_MAX:
        raise Rejection("InvalidUri", "a query parameter is there twice, or there are too many")
    return found


class Rejection(Refusal):
    """A request that is not granted; nothing was written."""

    def __init__(
        self, code: str, text: str = "", *, status: int = 0, headers: dict[str, str] | None = None, header: str = ""
    ) -> None:
        """Take a code; its status and text are those of `CODES`, unless others are given.

        `headers` are those of the answer; `header` is the one of the request that is wrong.
        """
        known_status, known_text = CODES.get(code, (400, "failed on demand"))
        self.code = code
        self.status = status or known_status
        self.text = text or known_text
        self.headers = headers or {}
        self.header = header
        super().__init__(f"{code}: {self.text}")

    def answer(self) -> Answer:
        """The rejection as the wire has it."""
        headers = {"x-ms-error-code": self.code, **self.headers}
        if self.status == NOT_MODIFIED:
            return Answer(self.status, headers)
        wrong = leaf("HeaderName", self.header) if self.header else ""
        body = f"{HEAD}<Error>{leaf('Code', self.code)}{leaf('Message', self.text)}{wrong}</Error>"
        return Answer(self.status, headers | {"Content-Type": XML}, body.encode())


def xml_answer(inner: str, headers: dict[str, str] | None = None) -> Answer:
    """An answer with a document."""
    return Answer(OK, {"Content-Type": XML, **(headers or {})}, (HEAD + inner).encode())


def bad_header(name: str, cure: str) -> Rejection:
    """A header that cannot be."""
    return Rejection("InvalidHeaderValue", f"{name}: {cure}", header=name)


def bad_parameter(name: str, cure: str) -> Rejection:
    """A query parameter that cannot be."""
    return Rejection("InvalidQueryParameterValue", f"{name}: {cure}")


_CONTAINER_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9])+|\$root|\$web|\$logs")
_METADATA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_container(name: str) -> None:
    """Let the name of a container pass.

    Raises:
        Rejection: 400.
    """
    if not 3 <= len(name) <= 63:
        raise Rejection("OutOfRangeInput", f"container {name[:80]!r}: a name has 3 to 63 characters")
    if not _CONTAINER_NAME.fullmatch(name):
        raise Rejection("InvalidResourceName", f"container {name!r}: small letters, digits and single hyphens")


def check_blob(name: str) -> None:
    """Let the name of a blob pass.

    Raises:
        Rejection: 400.
    """
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise Rejection("OutOfRangeInput", f"a blob's name has 1 to {NAME_LENGTH_MAX} characters")


def read_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The metadata among a request's headers.

    Raises:
        Rejection: 400, a name is no identifier, a value is not ASCII, or all of it is too large.
    """
    found: dict[str, str] = {}
    size_bytes = 0
    for header, value in headers.items():
        if header.lower().startswith(METADATA):
            name = header[len(METADATA) :]
            if not _METADATA_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise Rejection("InvalidMetadata", f"metadata {name[:80]!r}: an identifier, and a value in ASCII")
            size_bytes += len(name) + len(value)
            found[name] = value
    if size_bytes > METADATA_MAX_BYTES:
        raise Rejection("MetadataTooLarge")
    return found


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

"""A request on its way: which operation on what its first line names.

The account's name is the first part of a path, as the SDK has it for an address without a name of its own:
`/devstoreaccount1/CONTAINER/BLOB`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from outbox.emulator.blobs.answers import Rejection, bad_parameter
from outbox.emulator.blobs.names import check_blob, check_container
from outbox.emulator.faults import FaultRule

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

"""The routes of requests: the resource in the path, and the operation of method and headers on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from outbox.emulator.cosmos.wire import NOT_ALLOWED, Rejection, bad, unsupported

PATH_LENGTH_MAX = 8 << 10
DATABASES, CONTAINERS, ITEMS, RANGES = "dbs", "colls", "docs", "pkranges"
CONFLICTS, OFFERS, TASKS = "conflicts", "offers", "operations"

_NOT_HERE = {
    "sprocs": "a stored procedure",
    "triggers": "a trigger",
    "udfs": "a user-defined function",
    "users": "a user of the account",
    "permissions": "a permission",
    "clientencryptionkeys": "client-side encryption",
    "operations": "an operation on a whole container other than deleting by partition key",
}
_OPERATIONS = {
    ((), "GET"): "account.read",
    ((DATABASES,), "GET"): "database.list",
    ((DATABASES,), "POST"): "database.create",
    ((DATABASES, ""), "GET"): "database.read",
    ((DATABASES, ""), "DELETE"): "database.delete",
    ((DATABASES, "", CONTAINERS), "GET"): "container.list",
    ((DATABASES, "", CONTAINERS), "POST"): "container.create",
    ((DATABASES, "", CONTAINERS, ""), "GET"): "container.read",
    ((DATABASES, "", CONTAINERS, ""), "PUT"): "container.replace",
    ((DATABASES, "", CONTAINERS, ""), "DELETE"): "container.delete",
    ((DATABASES, "", CONTAINERS, "", RANGES), "GET"): "ranges.read",
    ((DATABASES, "", CONTAINERS, "", ITEMS), "GET"): "feed",
    ((DATABASES, "", CONTAINERS, "", ITEMS), "POST"): "item.create",
    ((DATABASES, "", CONTAINERS, "", ITEMS, ""), "GET"): "item.read",
    ((DATABASES, "", CONTAINERS, "", ITEMS, ""), "PUT"): "item.replace",
    ((DATABASES, "", CONTAINERS, "", ITEMS, ""), "DELETE"): "item.delete",
    ((DATABASES, "", CONTAINERS, "", ITEMS, ""), "PATCH"): "item.patch",
    ((DATABASES, "", CONTAINERS, "", CONFLICTS), "GET"): "conflict.list",
    ((DATABASES, "", CONTAINERS, "", CONFLICTS), "POST"): "conflict.list",
    ((DATABASES, "", CONTAINERS, "", CONFLICTS, ""), "GET"): "conflict.read",
    ((DATABASES, "", CONTAINERS, "", CONFLICTS, ""), "DELETE"): "conflict.delete",
    ((DATABASES, "", CONTAINERS, "", TASKS, ""), "POST"): "key.delete",
    ((OFFERS,), "GET"): "offer.list",
    ((OFFERS,), "POST"): "offer.list",
    ((OFFERS, ""), "GET"): "offer.read",
    ((OFFERS, ""), "PUT"): "offer.replace",
}
_SHAPES = {shape for shape, _ in _OPERATIONS}
_DATABASE_RID = re.compile(r"[A-Za-z0-9+-]{6}==")
"""Four bytes as base64: what clients take for the resource id of a database."""


@dataclass(frozen=True, slots=True)
class Route:
    """The operation by name, the names in its path, and the links that the client may have signed.

    A path whose database looks like a resource id has resource ids, `rids`, instead of names, unless there is a
    database of that name: the catalog decides.
    """

    operation: str
    names: tuple[str, ...]
    kind: str
    links: tuple[str, ...]
    rids: tuple[str, ...] = ()


def route_of(method: str, raw_path: str, headers: Mapping[str, str]) -> Route:
    """The operation that a request asks for.

    Raises:
        Rejection: 400 or 405, naming what there is not.
    """
    if len(raw_path) > PATH_LENGTH_MAX:
        raise bad(f"the path is longer than {PATH_LENGTH_MAX} characters")
    segments = [_decoded(segment) for segment in raw_path.partition("?")[0].split("/") if segment]
    shape = tuple("" if index % 2 else name.lower() for index, name in enumerate(segments))
    names = tuple(segments[1::2])
    if shape not in _SHAPES:
        for name in shape:
            if name in _NOT_HERE:
                raise unsupported(_NOT_HERE[name])
        raise bad(f"there is no resource at {raw_path[:80]!r}")
    operation = _OPERATIONS.get((shape, method))
    if operation is None:
        raise Rejection(NOT_ALLOWED, f"{method[:20]} is no operation on {raw_path[:80]!r}")
    if operation == "key.delete":
        if names[-1].lower() != "partitionkeydelete":
            raise unsupported(_NOT_HERE[TASKS])
        segments, shape = segments[:-2], shape[:-2]  # it is signed as an operation on the container
    is_feed = len(segments) % 2 == 1
    kind = shape[-1 if is_feed else -2] if shape else ""
    link = "/".join(segments[:-1] if is_feed else segments)
    is_by_rid = bool(names) and shape[0] == DATABASES and _DATABASE_RID.fullmatch(names[0]) is not None
    links = (link, segments[-1 - is_feed].lower()) if is_by_rid else (link,)
    if shape[:1] == (OFFERS,):  # these have no names
        links = ("".join(names).lower(),)
    return Route(_refined(operation, headers), names, kind, links, names if is_by_rid else ())


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise bad(f"the path segment {segment[:80]!r} is not UTF-8") from error


def _refined(operation: str, headers: Mapping[str, str]) -> str:
    """Posts and feeds are several operations, distinguished by headers."""
    if operation == "item.create":
        if "x-ms-cosmos-is-query-plan-request" in headers:
            raise bad(
                "query plans are not made here: there is one partition key range; for a query over all partition keys "
                "say enable_cross_partition_query=True, else give its partition_key"
            )
        if is_true(headers, "x-ms-documentdb-isquery"):
            return "query"
        if is_true(headers, "x-ms-cosmos-is-batch-request"):
            return "batch"
        return "item.upsert" if is_true(headers, "x-ms-documentdb-is-upsert") else operation
    if operation in ("database.create", "container.create") and is_true(headers, "x-ms-documentdb-isquery"):
        return operation.replace("create", "list")
    return "changes" if operation == "feed" and "a-im" in headers else operation


def is_true(headers: Mapping[str, str], name: str) -> bool:
    """Whether a header says so."""
    return headers.get(name, "").lower() == "true"

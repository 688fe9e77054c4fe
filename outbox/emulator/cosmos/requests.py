"""A request on its way: its resource and operation, and what operations read from it.

They read its container, its partition key, its freshness.  How fresh the answers are that a client has seen is in its
session token, `0:-1#LSN`: partition key range, version, and the freshness, a number that grows by one with each write
to a container.  A client sends several, joined by commas, where it has read several ranges; there is one range only.

A condition that an operation does not know, and any query parameter, is refused by name, because ignoring one would be
a wrong answer.  Of other headers those are refused that change what an operation does and are not here; what nothing is
known of passes, because clients send much that changes no answer.

Source: learn.microsoft.com/rest/api/cosmos-db/common-cosmosdb-rest-request-headers: If-Match applies to PUT and DELETE,
If-None-Match to GET.  A GET passes with both, because azure-cosmos sends the conditions on an item also with what it
reads beside that, such as the container.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from outbox.emulator.cosmos.catalog import Catalog, Container
from outbox.emulator.cosmos.wire import (
    CONTAINER_RECREATED,
    NOT_ALLOWED,
    NOT_FOUND,
    SESSION_NOT_AVAILABLE,
    Answer,
    Json,
    Rejection,
    bad,
    key_of_header,
    unsupported,
)
from outbox.emulator.dialect import conditions_among
from outbox.emulator.faults import FaultRule

KEY_HEADER = "x-ms-documentdb-partitionkey"
TOKEN_LENGTH_MAX = 16 << 10
LSN_DIGITS_MAX = 19
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
_ETAGS = frozenset(("if-match", "if-none-match"))
_REPLACED = frozenset(("if-match",))
CONDITIONS = {
    "database.read": _ETAGS,
    "database.delete": _REPLACED,
    "container.read": _ETAGS,
    "container.replace": _REPLACED,
    "container.delete": _REPLACED,
    "ranges.read": _ETAGS,
    "offer.read": _ETAGS,
    "offer.replace": _REPLACED,
    "item.create": _ETAGS,  # which looks at none, as on the service
    "item.upsert": _ETAGS,
    "item.read": _ETAGS,
    "item.replace": _ETAGS,
    "item.delete": _ETAGS,
    "item.patch": _ETAGS,
    "changes": frozenset(("if-none-match", "if-modified-since")),
}
"""By operation; one that is not here knows none."""
_LEVELS = frozenset(("", "Session", "ConsistentPrefix", "Eventual"))
_STRONGER = frozenset(("Strong", "BoundedStaleness"))
_OF_ITEMS = ("item.", "batch")


@dataclass(slots=True)
class Call:
    """A request on its way, with the facts found out about it."""

    method: str
    raw_path: str
    headers: Mapping[str, str]
    body: bytes
    route: Route = field(default_factory=lambda: Route("unknown", (), "", ()))
    container: Container | None = None
    rule: FaultRule | None = None
    """The fault that the operation itself has to do: a stale read, one within a batch."""
    lsn: int | None = None
    """How fresh the answer is, once that is known."""

    def header(self, name: str) -> str:
        """A header's value, empty where it is not there."""
        return self.headers.get(name, "")


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation that can be done now, and what faults know it by."""

    key: str
    apply: Callable[[Call], Answer | Awaitable[Answer]]


def container_of(call: Call, catalog: Catalog) -> Container:
    """The container that a call's path names.

    Raises:
        Rejection: 404; 400 with substatus 1024, the client means one that was deleted since.
    """
    container = catalog.container(call.route.names[0], call.route.names[1])
    intended = call.header("x-ms-cosmos-intended-collection-rid")
    if intended and intended != container.rid:
        raise bad("the container was deleted and made anew since the client read it", substatus=CONTAINER_RECREATED)
    call.container = container
    return container


def key_of_call(call: Call, container: Container) -> str:
    """The partition key that a call's header names.

    Raises:
        Rejection: 400.
    """
    header = call.header(KEY_HEADER)
    if not header:
        raise bad("the operation needs a partition key")
    return key_of_header(header, len(container.key_paths))


def freshness(call: Call, container: Container) -> int:
    """How fresh a read is: as fresh as can be, unless a fault answers from the past.

    Raises:
        Rejection: 400 or 404, the session token is none, or ahead of everything.
    """
    least = _least_of(call.header("x-ms-session-token"), container.lsn)
    if call.rule is None or call.rule.kind != "stale-read":
        return container.lsn
    call.lsn = container.history.past(least, container.lsn, call.rule.behind_count)
    return call.lsn


def _least_of(text: str, now_lsn: int) -> int:
    """How fresh an answer must be for the session of this token; 0 without one.

    Raises:
        Rejection: 400, it is no token; 404 with substatus 1002, nothing here is as fresh.
    """
    if not text:
        return 0
    least = lsn_of(text)
    if least > now_lsn:
        raise Rejection(
            NOT_FOUND,
            "the read session is not available for the input session token: it has seen more than there is here. "
            "It may be of an emulator that was started anew; make a new client",
            substatus=SESSION_NOT_AVAILABLE,
        )
    return least


def lsn_of(token: str) -> int:
    """The freshness that a session token names, the latest of several.

    Raises:
        Rejection: 400, it is no token.
    """
    if len(token) > TOKEN_LENGTH_MAX:
        raise bad(f"the session token is longer than {TOKEN_LENGTH_MAX} characters")
    return max(_lsn(part) for part in token.split(","))


def _lsn(part: str) -> int:
    range_id, colon, rest = part.strip().partition(":")
    fields = (rest if colon else range_id).split("#")
    digits = fields[0] if len(fields) == 1 else fields[1]
    if not digits.isascii() or not digits.isdecimal() or len(digits) > LSN_DIGITS_MAX:
        raise bad(f"the session token {part[:80]!r} is invalid; send one that an answer carried")
    return int(digits)


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


_HEADERS_NOT_HERE = {
    "x-ms-documentdb-pre-trigger-include": "a trigger before an operation (pre_trigger_include)",
    "x-ms-documentdb-post-trigger-include": "a trigger after an operation (post_trigger_include)",
}


def check_understood(call: Call) -> None:
    """Let a request pass that asks for nothing beside its operation.

    Raises:
        Rejection: 400, naming what is not here.
    """
    operation, query = call.route.operation, call.raw_path.partition("?")[2]
    if query:
        raise unsupported(f"the query parameter {query.partition('=')[0][:80]!r} of {operation}")
    for name in conditions_among(call.headers) - CONDITIONS.get(operation, frozenset()):
        raise unsupported(f"the condition {name[:80]!r} on {operation}")
    for name, what in _HEADERS_NOT_HERE.items():
        if call.header(name):
            raise unsupported(what)
    check_indexed(call.header("x-ms-indexing-directive"))
    level, atomic = call.header("x-ms-consistency-level"), call.header("x-ms-cosmos-batch-atomic")
    if level in _STRONGER:
        raise bad(f"the consistency level {level} is stronger than the account's; ask for Session or less")
    if level not in _LEVELS:
        raise bad(f"the consistency level {level[:80]!r} is none; send {', '.join(sorted(_LEVELS - {''}))}")
    if atomic.lower() not in ("", "true", "false"):
        raise bad(f"x-ms-cosmos-batch-atomic is True or False, not {atomic[:80]!r}")
    if operation.startswith(_OF_ITEMS) and (token := call.header("x-ms-session-token")):
        lsn_of(token)


def check_indexed(directive: Json) -> None:
    """Let an item pass that is to be in the index, as all are here.

    Raises:
        Rejection: 400, it is to be left out, or the directive is none.
    """
    text = "" if directive is None else str(directive).lower()
    if text in ("1", "exclude"):
        raise unsupported("leaving an item out of the index (indexing_directive)")
    if text not in ("", "0", "2", "default", "include"):
        raise bad(f"the indexing directive {text[:80]!r} is none; send Default or Include")

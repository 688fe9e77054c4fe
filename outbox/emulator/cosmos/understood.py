"""The conditions that each operation understands of a request beside its path and body.

A condition that an operation does not know, and any query parameter, is refused by name, because ignoring one would be
a wrong answer.  Of other headers those are refused that change what an operation does and are not here; what nothing is
known of passes, because clients send much that changes no answer.
Source: learn.microsoft.com/rest/api/cosmos-db/common-cosmosdb-rest-request-headers: If-Match applies to PUT and DELETE,
If-None-Match to GET.  A GET passes with both, because azure-cosmos sends the conditions on an item also with what it
reads beside that, such as the container.
"""

from __future__ import annotations

from outbox.emulator.cosmos.requests import Call, lsn_of
from outbox.emulator.cosmos.wire import Json, bad, unsupported
from outbox.emulator.dialect import conditions_among

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

_NOT_HERE = {
    "x-ms-documentdb-pre-trigger-include": "a trigger before an operation (pre_trigger_include)",
    "x-ms-documentdb-post-trigger-include": "a trigger after an operation (post_trigger_include)",
}

_LEVELS = frozenset(("", "Session", "ConsistentPrefix", "Eventual"))
_STRONGER = frozenset(("Strong", "BoundedStaleness"))
_OF_ITEMS = ("item.", "batch")


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
    for name, what in _NOT_HERE.items():
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

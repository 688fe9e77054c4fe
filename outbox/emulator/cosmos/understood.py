"""What each operation understands of a request beside its path and body: its conditions.

A condition that an operation does not know, and any query parameter, is refused by name, because ignoring one would be
a wrong answer.  Of other headers those are refused that change what an operation does and are not here; what nothing is
known of passes, because clients send much that changes no answer.
Source: learn.microsoft.com/rest/api/cosmos-db/common-cosmosdb-rest-request-headers: If-Match applies to PUT and DELETE,
If-None-Match to GET.  A GET passes with both, because azure-cosmos sends the conditions on an item also with what it
reads beside that, such as the container.
"""

from __future__ import annotations

from outbox.emulator.cosmos.answers import unsupported
from outbox.emulator.cosmos.requests import Call
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
    if call.header("x-ms-indexing-directive").lower() in ("1", "exclude"):
        raise unsupported("leaving an item out of the index (indexing_directive)")

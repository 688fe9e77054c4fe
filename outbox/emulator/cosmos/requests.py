"""What operations read from a request: its container, its partition key, and how fresh the answer must be."""

from __future__ import annotations

from outbox.emulator.cosmos import session_tokens
from outbox.emulator.cosmos.answers import CONTAINER_RECREATED, bad
from outbox.emulator.cosmos.catalog import Catalog, Container
from outbox.emulator.cosmos.gateway import Call
from outbox.emulator.cosmos.values import key_of_header

KEY_HEADER = "x-ms-documentdb-partitionkey"


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
    least = session_tokens.least_of(call.header("x-ms-session-token"), container.lsn)
    if call.rule is None or call.rule.kind != "stale-read":
        return container.lsn
    call.lsn = container.history.past(least, container.lsn, call.rule.behind_count)
    return call.lsn

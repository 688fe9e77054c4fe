"""A request on its way, and what operations read from it: its container, its partition key, its freshness.

How fresh the answers are that a client has seen is in its session token, `0:-1#LSN`: partition key range, version, and
the freshness, a number that grows by one with each write to a container.  A client sends several, joined by commas,
where it has read several ranges; there is one range only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from outbox.emulator.cosmos.catalog import Catalog, Container
from outbox.emulator.cosmos.routes import Route
from outbox.emulator.cosmos.wire import (
    CONTAINER_RECREATED,
    NOT_FOUND,
    SESSION_NOT_AVAILABLE,
    Answer,
    Rejection,
    bad,
    key_of_header,
)
from outbox.emulator.faults import FaultRule

KEY_HEADER = "x-ms-documentdb-partitionkey"
TOKEN_LENGTH_MAX = 16 << 10
LSN_DIGITS_MAX = 19


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

"""Addresses: which entity, and which of its sides, a link is for.

Clients name an entity by a whole URL or by its path alone, and a path is matched without regard to case, as Service
Bus does.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from outbox.emulator.amqp.errors import NOT_FOUND, LinkFault
from outbox.engine.engine import Engine
from outbox.engine.entities import DEAD_LETTER_SUFFIX, NAME_LENGTH_MAX

ADDRESS_LENGTH_MAX = 1024
PART_LENGTH_MAX = 50
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_ENDS = re.compile(r"[A-Za-z0-9](?:.*[A-Za-z0-9])?")
_SUBSCRIPTIONS = "Subscriptions"
_DEAD_LETTER = DEAD_LETTER_SUFFIX.strip("/")


class Kind(Enum):
    CLAIMS = "$cbs"
    MANAGEMENT = "$management"
    ENTITY = "entity"


class Node(NamedTuple):
    """A side of an entity."""

    kind: Kind
    path: str


def parse_address(address: object) -> Node:
    """Read an address.

    Raises: LinkFault.
    """
    if type(address) is not str or not address or len(address) > ADDRESS_LENGTH_MAX:
        raise LinkFault(NOT_FOUND, "the link names no address; transactions and dynamic nodes are not supported")
    if "://" in address:
        address = address.partition("://")[2].partition("/")[2]
    segments = [_canonical(segment) for segment in address.strip("/").split("/")]
    if segments == [Kind.CLAIMS.value]:
        return Node(Kind.CLAIMS, "")
    if segments[-1] == Kind.MANAGEMENT.value:
        return Node(Kind.MANAGEMENT, "/".join(segments[:-1]))
    return Node(Kind.ENTITY, "/".join(segments))


def _canonical(segment: str) -> str:
    fixed = (_SUBSCRIPTIONS, _DEAD_LETTER, Kind.MANAGEMENT.value, Kind.CLAIMS.value)
    return next((name for name in fixed if name.lower() == segment.lower()), segment)


def canonical_path(name: str) -> str:
    """A name as an address would be read: an entity whose name reads otherwise can never be reached."""
    return "/".join(_canonical(segment) for segment in name.strip("/").split("/"))


def wrong_name(name: str) -> str:
    """Why the service would not take a name of a queue or topic; empty where it would."""
    return _wrong(name, name.split("/"), NAME_LENGTH_MAX)


def wrong_part(name: str) -> str:
    """The same of a subscription or a rule."""
    return _wrong(name, [name], PART_LENGTH_MAX)


def _wrong(name: str, segments: list[str], length_max: int) -> str:
    if not 0 < len(name) <= length_max:
        return f"{name[:length_max]!r} is no name of 1 to {length_max} characters"
    if not all(map(_SEGMENT.fullmatch, segments)) or not _ENDS.fullmatch(name):
        parts = "only letters, digits, '.', '-' and '_' may be in it, and '/' in a path"
        return f"{name!r} is no name: {parts}; it must begin and end with a letter or digit"
    is_reserved = canonical_path(name) != name or not {".", ".."}.isdisjoint(segments)
    return f"{name!r} cannot be addressed; leave out reserved segments" if is_reserved else ""


def declared_path(engine: Engine, path: str) -> str:
    """A path in the case in which its entity was declared; unchanged where there is none.

    Folders of before may hold two entities that differ in case only; each is found in its own case.
    """
    name = path.removesuffix(DEAD_LETTER_SUFFIX)
    if name in engine.topology.queues or name in engine.topology.topics:
        return path
    declared = (*engine.topology.queues, *engine.topology.topics)
    return next((known for known in declared if known.lower() == name.lower()), name) + path[len(name) :]


def missing(path: str) -> str:
    """The error text for a missing entity, in the service's words, by which the SDK of JavaScript knows it."""
    return f"The messaging entity {path!r} could not be found; declare it, or check the spelling"


def can_receive(engine: Engine, path: str) -> bool:
    """Whether the path is a queue, a subscription or the dead-letter sub-queue of one."""
    return path.removesuffix(DEAD_LETTER_SUFFIX) in engine.topology.queues


def can_send(engine: Engine, path: str) -> bool:
    """Whether the path is a queue or a topic."""
    return path in engine.topology.topics or (path in engine.topology.queues and f"/{_SUBSCRIPTIONS}/" not in path)


def needs_session(engine: Engine, path: str) -> bool:
    """Whether whatever goes to, or comes from, this path must belong to a session."""
    queues = engine.topology.queues
    if path in queues:
        return queues[path].ordering == "per_key"
    prefix = f"{path}/{_SUBSCRIPTIONS}/"
    return path in engine.topology.topics and any(
        settings.ordering == "per_key" for name, settings in queues.items() if name.startswith(prefix)
    )

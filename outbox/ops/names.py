"""Ids, keys and names as an operator types them: what they mean, and what there is instead."""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from uuid import UUID

from outbox.errors import Refused
from outbox.lineage import Key
from outbox.ops.values import KeyKind

NAMES_SHOWN_MAX = 12


def full_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The id that equals a text, or the only one of a queue's dead letters with this prefix.

    Raises:
        LookupError: no id has this prefix.
        Refused: several do.
    """
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if not found:
        raise LookupError(
            f"{queue} has no dead letter {text!r}; list them to see what is there, or `outbox message show {text}` to "
            f"see where it is{near(text, ids)}"
        )
    if len(found) > 1:
        raise Refused(f"{len(found)} dead letters of {queue} begin with {text!r}: {_some(found)}; give more of it")
    return next(iter(found))


def discarded_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The id that equals a text, or the only one with this prefix of what was discarded of a queue.

    Raises:
        LookupError: no id has this prefix.
        Refused: several do.
    """
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if not found:
        raise LookupError(
            f"{queue} has no discarded dead letter {text!r}: it was never discarded, was restored, or its time is "
            f"over; `outbox dead-letters list {queue} --discarded` shows what is there{near(text, ids)}"
        )
    if len(found) > 1:
        raise Refused(f"{len(found)} discarded ones of {queue} begin with {text!r}: {_some(found)}; give more of it")
    return next(iter(found))


def the_id(text: str, ids: AbstractSet[str], queue: str = "") -> str:
    """The id that equals a text, or the only one with this prefix.

    Raises:
        LookupError: none has it.
        Refused: several have.
    """
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if not found:
        where = f"{queue} does not hold" if queue else "no queue holds"
        raise LookupError(
            f"{where} a message {text!r}, and it is no dead letter: it was handled, or never sent; look at the state "
            f"that it would have changed, or for what is left of it: outbox message trace {text}{near(text, ids)}"
        )
    if len(found) > 1:
        raise Refused(f"{len(found)} ids begin with {text!r}: {_some(found)}; give more of it")
    return next(iter(found))


def scheduled_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The id that equals a text, or the only one of a queue's scheduled messages with this prefix.

    Raises:
        LookupError: none has it.
        Refused: several have.
    """
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if not found:
        why = "it was delivered, was never sent, or is tried again after a failure"
        raise LookupError(
            f"nothing is scheduled in {queue} under {text!r}: {why}; `outbox message show` finds it{near(text, ids)}"
        )
    if len(found) > 1:
        raise Refused(
            f"{len(found)} scheduled messages of {queue} begin with {text!r}: {_some(found)}; give more of it"
        )
    return next(iter(found))


def later_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The id that equals a text, or the only one with this prefix of what a queue holds for later.

    Raises:
        LookupError: none has it.
        Refused: several have.
    """
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if not found:
        raise LookupError(
            f"{queue} holds nothing for later under {text!r}: it is due, keeps its place in an ordered queue, or was "
            f"never sent; `outbox message show` finds it{near(text, ids)}"
        )
    if len(found) > 1:
        raise Refused(
            f"{len(found)} messages that {queue} holds for later begin with {text!r}: {_some(found)}; give more of it"
        )
    return next(iter(found))


def near(text: str, ids: Collection[str]) -> str:
    """Which ids begin with a text that stands for none of them; empty without one."""
    found = {id for id in ids if id.startswith(text)}
    if not found:
        return ""
    return f"; a beginning has four characters and ends with no part of a number, and these begin so: {_some(found)}"


def begins(text: str, id: str) -> bool:
    """Whether a text may stand for an id with this prefix.

    It needs four characters, and must not end within a number: `order-1` is not `order-12`, because the dead letter of
    `order-1` may just have gone.  The digits of random ids are not numbers.
    """
    if len(text) < PREFIX_LENGTH_MIN or not id.startswith(text):
        return False
    random = _RANDOM(id)
    is_random = random is not None and len(text) <= random.end("digits")
    return is_random or not (text[-1].isdigit() and id[len(text) :][:1].isdigit())


PREFIX_LENGTH_MIN = 4
ID_SHOWN_LENGTH = 100
_RANDOM = re.compile(r"(?P<digits>[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(-\d+)?").fullmatch
"""A UUID, or the id of an output: a digest and a number."""


def parse_key(text: str, kind: KeyKind) -> Key:
    """The key that a text means.

    Raises:
        Refused: the text is not of that kind.
    """
    try:
        match kind:
            case "int":
                return int(text)
            case "uuid":
                return UUID(text)
            case _:
                text.encode()
                return text
    except ValueError as error:
        raise Refused(f"key {text[:80]!r} is not {'a UUID' if kind == 'uuid' else kind}; check it") from error


def _some(ids: Collection[str]) -> str:
    return listed([f"{id[:ID_SHOWN_LENGTH]!r}" for id in ids])


def listed(names: Collection[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return (", ".join(sorted(names)[:NAMES_SHOWN_MAX]) or "none yet") + more

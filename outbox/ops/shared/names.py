"""Ids, keys and names as an operator types them: what they mean, and what there is instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from uuid import UUID

from outbox.errors import Refused, UnknownDestination
from outbox.lineage import Key
from outbox.ops.values.requests import KeyKind

NAMES_SHOWN_MAX = 12
BEGINNING_COUNT_MAX = 1_000
"""How many ids that begin with a text are told apart; of more, one says that there are more."""
NEAR_SHOWN_MAX = 3
NAME_LENGTH_MAX = 260
"""The longest name of a queue on Service Bus."""


def full_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The id that equals a text, or the only one of a queue's dead letters with this prefix.

    Raises:
        LookupError: no id has this prefix.
        Refused: several do.
    """
    none = (
        f"{queue} has no dead letter {text!r}; list them to see what is there, or "
        f"`outbox message show {last_word(text)}` to see where it is"
    )
    return _only(text, ids, none, f"dead letters of {queue}")


def discarded_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """Return the id that a text stands for among a queue's discarded dead letters; raise as `full_id` does."""
    none = (
        f"{queue} has no discarded dead letter {text!r}: it was never discarded, was restored, or its time is over; "
        f"`outbox dead-letters list --discarded {word(queue)}` shows what is there"
    )
    return _only(text, ids, none, f"discarded ones of {queue}")


def the_id(text: str, ids: AbstractSet[str], queue: str = "") -> str:
    """The same of all messages that are held, or of those of a queue; LookupError and Refused likewise."""
    where = f"{queue} does not hold" if queue else "no queue holds"
    none = (
        f"{where} a message {text!r}, and it is no dead letter: it was handled, or never sent; look at the state that "
        f"it would have changed, or for what is left of it: `outbox message trace {last_word(text)}`"
    )
    return _only(text, ids, none, "ids")


def scheduled_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The same of a queue's scheduled messages; LookupError and Refused likewise."""
    why = "it was delivered, cancelled or never sent, or waits for its next try, which `outbox schedule now` lets begin"
    none = f"nothing is scheduled in {queue} under {text!r}: {why}; `outbox message show {last_word(text)}` finds it"
    return _only(text, ids, none, f"scheduled messages of {queue}")


def later_id(queue: str, text: str, ids: AbstractSet[str]) -> str:
    """The same of all that a queue holds for later; LookupError and Refused likewise."""
    none = (
        f"{queue} holds nothing for later under {text!r}: it is due, keeps its place in an ordered queue, was "
        f"cancelled or never sent; `outbox message show {last_word(text)}` finds it"
    )
    return _only(text, ids, none, f"messages that {queue} holds for later")


def look_on(text: str, cut: Mapping[str, int], command: str) -> str:
    """Explain that an id was not seen in queues that were read up to a number each."""
    queue, number = min(cut.items())
    queues = listed([f"{each} up to number {last}" for each, last in cut.items()])
    again = command.format(id=last_word(text), queue=word(queue), after=number)
    return (
        f"{text!r} is not among the messages that were looked through, and there are more: {queues}; look on with "
        f"`{again}`, or give the whole id if this is the beginning of one"
    )


def _only(text: str, ids: AbstractSet[str], none: str, several: str) -> str:
    """Return the one id that a text stands for; `none` and `several` are the error texts."""
    if not text:
        raise LookupError(f"{none}; an empty id stands for none, give one that a list shows")
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if not found:
        raise LookupError(f"{none}{near(text, ids)}")
    if len(found) > 1:
        count = f"{len(found)} or more" if len(found) >= BEGINNING_COUNT_MAX else len(found)
        raise Refused(f"{count} {several} begin with {text!r}: {_some(found)}; give more of it")
    return next(iter(found))


def near(text: str, ids: Collection[str]) -> str:
    """List the ids that begin with a text which stands for none of them; empty without one."""
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


def word(text: str) -> str:
    """A text as one word of a command line: an id is whatever its sender chose."""
    return shlex.quote(text)


def last_word(text: str) -> str:
    """The same of the last word: one that begins as an option does stands behind `--`."""
    return f"-- {word(text)}" if text.startswith("-") else word(text)


def spelled(name: str, known: Collection[str]) -> str:
    """The name of these that is given, in any case; empty without one.

    Raises:
        Refused: several differ from it in their case alone.
    """
    if name in known:
        return name
    same = {each for each in known if each.casefold() == name.casefold()}
    if len(same) > 1:
        raise Refused(f"{name!r} may be {' or '.join(map(repr, sorted(same)))}; give it as it is written")
    return next(iter(same), "")


def declared(name: str, known: Collection[str]) -> str:
    """The declared name that is given, in any case.

    Raises:
        UnknownDestination: there is none; the text lists those that are near.
        Refused: several differ from it in their case alone.
    """
    if found := spelled(name, known):
        return found
    raise UnknownDestination(
        f"{name[:NAME_LENGTH_MAX]!r} does not exist; there are: {listed(known)}{meant(name, known)}.  Check the "
        "spelling, or start the application that declares it"
    )


def meant(name: str, known: Collection[str]) -> str:
    """Suggest in parentheses the known names close to an unknown one; empty without any."""
    by_case = {each.casefold(): each for each in known}
    likely = [by_case[each] for each in get_close_matches(name.casefold()[:NAME_LENGTH_MAX], by_case, NEAR_SHOWN_MAX)]
    return f" (did you mean {' or '.join(map(repr, likely))}?)" if likely else ""


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

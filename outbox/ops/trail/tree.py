"""Causes and effects of a message: the facts of each, and the tree that they make.

A message that a handler sends names its cause, so a trail is found from both of its ends.  Facts come from an admin
(queues, dead letters, what is pending, records) and from a history, where one was recorded; each says by what it is
known.  Nothing is guessed: where no fact leads on, the trail ends, and a note says why it may.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec import UnsetType

from outbox.errors import Refused
from outbox.ops.shared.names import begins, last_word, listed
from outbox.ops.values.trail import Fact, FindTrail, Hop, Trace, Trail

FACT_COUNT_MAX = 2_000
"""The most facts of one trail."""
NEAR_COUNT_MAX = 20
T = TypeVar("T")


# From many messages to those of one trail


class Sighting(NamedTuple, Generic[T]):
    """A message that was seen: its id, that of its cause, and what it is."""

    id: str
    cause: str
    what: T


class Reached(NamedTuple, Generic[T]):
    """A trail as far as it was found: its sightings, all ids that they name, whether there were too many.

    `unseen` are the causes, in this trail or not, that are named and were not seen themselves; `near` are other ids
    with the requested prefix.
    """

    id: str
    sightings: list[Sighting[T]]
    ids: list[str]
    unseen: set[str]
    is_cut: bool
    near: list[str]


def reach(asked: FindTrail, sightings: Iterable[Sighting[T]]) -> Reached[T]:
    """Collect from all sightings the causes and effects of the requested message and of its known ids.

    Raises:
        Refused: several ids have this prefix.
    """
    by_id: dict[str, list[Sighting[T]]] = {}
    by_cause: dict[str, list[Sighting[T]]] = {}
    for each in sightings:
        by_id.setdefault(each.id, []).append(each)
        if each.cause:
            by_cause.setdefault(each.cause, []).append(each)
    id = full_id(asked.id, {*by_id, *by_cause, *asked.known})
    ids = dict.fromkeys((id, *asked.known))
    for start in tuple(ids):
        above = start
        for _ in range(asked.depth):
            above = next((each.cause for each in by_id.get(above, ()) if each.cause), "")
            if not above or above in ids:
                break
            ids[above] = None
    level, is_cut = [id, *asked.known], False
    for _ in range(asked.depth):
        below = dict.fromkeys(each.id for one in level for each in by_cause.get(one, ()) if each.id not in ids)
        level = list(below)[: max(0, FACT_COUNT_MAX - len(ids))]
        is_cut |= len(level) < len(below)
        ids.update(dict.fromkeys(level))
    found = [each for one in ids for each in by_id.get(one, ())]
    unseen = by_cause.keys() - by_id.keys()
    near = sorted({each for each in (*by_id, *by_cause) if each.startswith(asked.id)} - {id})[:NEAR_COUNT_MAX]
    return Reached(id, found[:FACT_COUNT_MAX], list(ids), unseen, is_cut or len(found) > FACT_COUNT_MAX, near)


def full_id(text: str, ids: set[str]) -> str:
    """The id that equals a text, or the only one with this prefix; the text itself where there is none.

    Raises:
        Refused: several have this prefix.
    """
    found = {text} & ids or {id for id in ids if begins(text, id)}
    if len(found) > 1:
        raise Refused(
            f"{len(found)} ids begin with {text!r}: {listed([repr(i[:100]) for i in found])}; give more of it"
        )
    return next(iter(found), text)


_OUTPUT = re.compile(r"([0-9a-f]{64})-(\d{1,9})").fullmatch


def inbox_of_cause(id: str) -> bytes | None:
    """The inbox key in the id of an output: that of the handling which sent it; None for another id."""
    found = _OUTPUT(id)
    return None if found is None else bytes.fromhex(found[1])


# The tree


def tree(trail: Trail, *, depth_max: int, width_max: int) -> Trace:
    """Causes first, then the message, then its effects, each behind its cause."""
    facts: dict[str, list[Fact]] = {}
    effects: dict[str, dict[str, None]] = {}
    for fact in dict.fromkeys(trail.facts):
        facts.setdefault(fact.id, []).append(fact)
        if fact.cause:
            effects.setdefault(fact.cause, {})[fact.id] = None
    above, seen = list[str](), {trail.id}
    while len(above) < depth_max and (cause := _cause(facts, above[-1] if above else trail.id)) not in (*seen, ""):
        above.append(cause)
        seen.add(cause)
    hops = [Hop(id=id, depth=at - len(above), facts=_ordered(facts, id)) for at, id in enumerate(reversed(above))]
    waiting = [(trail.id, 0)]
    while waiting:
        id, depth = waiting.pop()
        below = [each for each in sorted(effects.get(id, ()), key=_place_of) if each not in seen]
        shown = below[:width_max] if depth < depth_max else []
        seen.update(shown)
        hops.append(Hop(id=id, depth=depth, facts=_ordered(facts, id), more=len(below) - len(shown)))
        waiting += [(each, depth + 1) for each in reversed(shown)]
    return Trace(trail.id, hops, [*dict.fromkeys(trail.notes), *_ends(hops, facts, is_cut=bool(trail.cut))])


def facts_of(trail: Trail) -> list[Fact]:
    """Return the facts of the requested message, in the order of the tree."""
    return _ordered({trail.id: [fact for fact in dict.fromkeys(trail.facts) if fact.id == trail.id]}, trail.id)


def _place_of(id: str) -> tuple[str, int]:
    """By which effects are sorted: the outputs of one handling as they were sent."""
    found = _OUTPUT(id)
    return (id, 0) if found is None else (found[1], int(found[2]))


def _cause(facts: dict[str, list[Fact]], id: str) -> str:
    return next((fact.cause for fact in facts.get(id, ()) if fact.cause), "")


def _ordered(facts: dict[str, list[Fact]], id: str) -> list[Fact]:
    """Order a message's facts by time, undated ones last, at equal times `sent` first; drop less precise ones."""
    found = facts.get(id, [])
    if any(fact.place == "applied" and fact.known_by != "its output" for fact in found):
        found = [fact for fact in found if fact.known_by != "its output"]
    if any(fact.known_by == "its output" and fact.handler for fact in found):
        found = [fact for fact in found if fact.known_by != "its output" or fact.handler]

    def when(fact: Fact) -> tuple[float, bool]:
        return (math.inf if isinstance(fact.at, UnsetType) else fact.at), fact.place != "sent"

    return sorted(found, key=when)


def _ends(hops: Sequence[Hop], facts: dict[str, list[Fact]], *, is_cut: bool) -> list[str]:
    """Where the trail ends for another reason than that nothing caused or followed a message."""
    notes = []
    first = hops[0]
    if not first.facts and is_cut:
        notes.append(
            f"{first.id}: in no dead letter and not among the messages that were looked through, and no record of it "
            "was found"
        )
    elif not first.facts:
        notes.append(
            f"{first.id}: in no queue and no dead letter, and no record of it was found: it was handled and its record "
            "is gone or needs --key, or another program sent it"
        )
    elif cause := _cause(facts, first.id):
        notes.append(f"{first.id}: its cause is {cause}; --depth shows more")
    begun = {fact.correlation_id for hop in hops for fact in hop.facts} - {"", *(hop.id for hop in hops)}
    notes += [
        f"the first message of the chain was {id}: `outbox message trace {last_word(id)}`" for id in sorted(begun)[:1]
    ]
    cut = [hop for hop in hops if hop.more]
    if cut:
        count = sum(hop.more for hop in cut)
        notes.append(f"{count} effect{'s' if count > 1 else ''} more than is shown, the first of {cut[0].id}; raise "
                     "--depth or --width, or trace one of the last")  # fmt: skip
    return notes

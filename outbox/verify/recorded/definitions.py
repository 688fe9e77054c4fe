"""The FlameStream paper's definitions over a finite word of inputs and outputs, decided by what a system could do.

A system takes items from channels, in order within a channel and in any order across them, and answers each with
outputs and a new state.  Its recovery is invisible when the word, failures left out, is one that it could have shown
without them.  So the word is followed with the set of all configurations the system can be in:

    in        the item joins its channel in each of them
    out       those remain that have this output to give, now or after taking items; none left: the first bad event
    quiesce   those remain that have nothing to take and nothing to give; none left: something was lost

    consistent, exactly-once (definitions 5, 6)   as above; the first names the output, the second is all of them
    at-most-once (7)                              items may also be lost; nothing has to come out
    at-least-once (8)                             items may also be taken again, and what that gives need not come out

Exact for finite words and systems whose every step ends, and exponential in what is on its way at once: for tests and
for histories split by key, not for a day of production; that is what `linear` is for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import msgspec

from outbox.errors import TooLarge
from outbox.verify.history import read_history
from outbox.verify.recorded.events import Event, In, Left, Life, Quiesce, Result
from outbox.verify.recorded.verdict import AT_LEAST_ONCE, AT_MOST_ONCE, CONSISTENT, EXACTLY_ONCE, Finding

CONFIGURATION_COUNT_MAX = 200_000

Step = Callable[[Hashable, str, Hashable], Iterable[tuple[Hashable, Sequence[Hashable]]]]
"""State, channel and item to every possible (new state, outputs); it must not depend on anything else."""


@dataclass(frozen=True, slots=True)
class System:
    """A non-deterministic system: its first state and what taking an item may lead to."""

    state: Hashable
    step: Step


@dataclass(frozen=True, slots=True)
class Symbol:
    """One event of a word: an input, an output, a failure of the system, or quiescence."""

    kind: Literal["in", "out", "fail", "quiesce"]
    channel: str = ""
    item: Hashable = None
    key: Hashable = None


def came(item: Hashable, *, channel: str = "", key: Hashable = None) -> Symbol:
    """An input; by default each item is on a channel of its own, so that any may be taken first."""
    return Symbol("in", channel or f"{item}", item, key)


def went(item: Hashable, *, key: Hashable = None) -> Symbol:
    """An output went out."""
    return Symbol("out", item=item, key=key)


FAIL = Symbol("fail")
QUIESCE = Symbol("quiesce")

Channels = tuple[tuple[str, tuple[Hashable, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Configuration:
    """The items in each channel, the system's state, the items it has to give, those of repeats, what may repeat."""

    channels: Channels
    state: Hashable
    to_give: tuple[Hashable, ...] = ()
    may_give: tuple[Hashable, ...] = ()
    again: tuple[tuple[str, Hashable], ...] = ()

    def gives(self, item: Hashable) -> _Configuration | None:
        """The configuration after this output; None if there is no such output to give."""
        for name in ("to_give", "may_give"):
            left = list(getattr(self, name))
            if item in left:
                left.remove(item)
                return replace(self, **{name: tuple(left)})
        return None

    def is_quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not self.to_give and not any(items for _, items in self.channels)


@dataclass(slots=True)
class _Follower:
    """Follows a word for one key with the set of configurations."""

    system: System
    may_lose: bool
    may_repeat: bool
    found: set[_Configuration] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.found = {_Configuration((), self.system.state)}

    def take(self, symbol: Symbol) -> bool:
        """Follow one symbol; False if no configuration can."""
        if symbol.kind == "in":
            self.found = {_with_item(configuration, symbol) for configuration in self.found}
        elif symbol.kind == "out":
            self.found = {after for c in self._closure() if (after := c.gives(symbol.item)) is not None}
        elif symbol.kind == "quiesce" and not self.may_lose:
            self.found = {configuration for configuration in self._closure() if configuration.is_quiet()}
        return bool(self.found)

    def _closure(self) -> set[_Configuration]:
        """Every configuration that taking, losing or repeating items can lead to."""
        seen, todo = set(self.found), list(self.found)
        while todo:
            for fresh in self._next(todo.pop()):
                if fresh not in seen:
                    if len(seen) >= CONFIGURATION_COUNT_MAX:
                        raise TooLarge(
                            f"over {CONFIGURATION_COUNT_MAX:,} configurations; split the word by key, or let it quiesce"
                        )
                    seen.add(fresh)
                    todo.append(fresh)
        return seen

    def _next(self, now: _Configuration) -> Iterator[_Configuration]:
        for position, (channel, items) in enumerate(now.channels):
            if not items:
                continue
            rest = (*now.channels[:position], (channel, items[1:]), *now.channels[position + 1 :])
            again = _sorted((*now.again, (channel, items[0]))) if self.may_repeat else ()
            for state, outputs in self.system.step(now.state, channel, items[0]):
                yield _Configuration(rest, state, _sorted((*now.to_give, *outputs)), now.may_give, again)
            if self.may_lose:
                yield replace(now, channels=rest)
        for position, (channel, item) in enumerate(now.again):
            again = (*now.again[:position], *now.again[position + 1 :])
            for state, outputs in self.system.step(now.state, channel, item):
                yield replace(now, state=state, may_give=_sorted((*now.may_give, *outputs)), again=again)


def _with_item(configuration: _Configuration, symbol: Symbol) -> _Configuration:
    channels = dict(configuration.channels)
    channels[symbol.channel] = (*channels.get(symbol.channel, ()), symbol.item)
    return replace(configuration, channels=tuple(sorted(channels.items())))


Item = TypeVar("Item")


def _sorted(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=repr))


def decide(system: System, word: Sequence[Symbol], guarantee: str) -> Finding | None:
    """Decide a guarantee over a word, key by key: the first symbol (from 1) that breaks it, or None.

    For `at-least-once` an item may be taken once more.

    Raises:
        ValueError: the guarantee is none of those of definitions 5 to 8.
        TooLarge: too much is on its way at once.
    """
    if guarantee not in (CONSISTENT, EXACTLY_ONCE, AT_MOST_ONCE, AT_LEAST_ONCE):
        raise ValueError(f"guarantee={guarantee!r}: a word is judged for consistent, exactly-, at-most-, at-least-once")
    followers: dict[Hashable, _Follower] = {}
    for line, symbol in enumerate(word, 1):
        if symbol.kind == "fail" or (symbol.kind == "quiesce" and guarantee == CONSISTENT):
            continue  # recovery is to be invisible; and consistency says nothing of what did not come out
        if symbol.kind != "quiesce" and symbol.key not in followers:
            followers[symbol.key] = _Follower(system, guarantee == AT_MOST_ONCE, guarantee == AT_LEAST_ONCE)
        concerned = list(followers.values()) if symbol.kind == "quiesce" else [followers[symbol.key]]
        if not all(each.take(symbol) for each in concerned):
            return Finding(
                line, symbol.kind, _broken(symbol), (guarantee,), () if symbol.item is None else (f"{symbol.item}",)
            )
    return None


def _broken(symbol: Symbol) -> str:
    if symbol.kind == "quiesce":
        return "nothing is on its way any more, and something that had to come out never did"
    return f"output {symbol.item!r} cannot be of any run that this guarantee allows"


Pairs = Callable[[Any], Iterable[tuple[Hashable, Hashable]]]
"""A value, as JSON has it, to the keys and items that it is to a system."""


def as_text(value: Any) -> Iterable[tuple[Hashable, Hashable]]:
    """A value as one item without a key: its JSON text."""
    return [(None, msgspec.json.encode(value).decode())]


def words_of(
    history: str | os.PathLike[str] | Iterable[Event], *, sink: str, takes: Pairs = as_text, gives: Pairs = as_text
) -> list[Symbol]:
    """The word of a recorded pipeline and one of its sinks, a log by name, to `decide` key by key.

    Inputs are the entries of its source, in their order, and outputs those of the bundles.  `takes` and `gives` say
    which items they are and whose: of an index `takes` gives the words of a page.  The history has bodies.

    Raises:
        ValueError: nothing went to this sink, or the history has no bodies.
    """
    events = list(read_history(history) if isinstance(history, str | os.PathLike) else history)
    row = f"log/{sink}/0.0"
    sources = {each.parents[0].rpartition("/")[0] for each in events if isinstance(each, Result) and each.sink == row}
    if not sources:
        raise ValueError(f"no recorded pipeline has made anything for log {sink}; give the name of a sink's log")
    word: list[Symbol] = []
    told: set[tuple[str, int]] = set()
    for event in events:
        if isinstance(event, Life) and word:
            word.append(FAIL)
        elif isinstance(event, Quiesce):
            word.append(QUIESCE)
        elif isinstance(event, In | Left) and event.index >= 0:
            log = event.queue if isinstance(event, In) else event.sink
            if log not in (*sources, row) or (log, event.index) in told:
                continue
            told.add((log, event.index))
            if not event.values:
                raise ValueError(f"cell {event.index} of {log} has no bodies; record with History(bodies=True)")
            for value in map(msgspec.json.decode, event.values):
                if isinstance(event, In):
                    word += [came(item, channel=log, key=key) for key, item in takes(value)]
                else:
                    word += [went(item, key=key) for key, item in gives(value)]
    return word

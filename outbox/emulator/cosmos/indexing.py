"""The orders and terms of a container's indexing policy, so that no query runs here that the service refuses.

A query with `ORDER BY` is served from an index: by one property from the index of its path, by several from a composite
index of just those paths in that sequence, each in the direction asked for or each in the opposite one.  How fast a
query is, and which index a WHERE would use, is not modelled.
Source: learn.microsoft.com/azure/cosmos-db/index-policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import msgspec

from outbox.emulator.cosmos.query.nodes import Literal, Member, Name, Node, Query
from outbox.emulator.cosmos.wire import Json, Rejection, bad

COMPOSITE_COUNT_MAX = 100
TERM_COUNT_MAX = 10_000
"""The number of an item's values that are read for its terms."""
KNOWN_COUNT_MAX = 10_000
"""How many paths are remembered with whether they are indexed."""
Path = tuple[str, ...]

_NAMES = re.compile(r'/(?:"([^"]*)"|([^/"]+))')
_ALWAYS = frozenset((("id",), ("_ts",)))
"""Paths that no policy excludes unless it has no index at all."""


_MODES = ("consistent", "lazy", "none")


class _Path(msgspec.Struct):
    path: str
    order: str = "ascending"
    """Of a path in a composite index."""


class _Policy(msgspec.Struct):
    """The known part of a policy; the rest is kept as it came."""

    mode: str = msgspec.field(name="indexingMode", default="consistent")
    automatic: bool | None = None
    included: list[_Path] | None = msgspec.field(name="includedPaths", default=None)
    excluded: list[_Path] | None = msgspec.field(name="excludedPaths", default=None)
    composites: list[list[_Path]] | None = msgspec.field(name="compositeIndexes", default=None)


class Indexing:
    """The indexing policy of a container."""

    def __init__(self, definition: Json) -> None:
        """Take `indexingPolicy` of a container's definition; None is the default policy, which indexes every path.

        Raises:
            Rejection: 400, it cannot be one.
        """
        try:
            policy = msgspec.convert({} if definition is None else definition, _Policy)
        except msgspec.ValidationError as error:
            raise bad(f"indexingPolicy is none: {error}") from error
        if policy.mode.lower() not in _MODES:
            raise bad(f"indexingMode {policy.mode[:40]!r}: one of {', '.join(_MODES)}")
        self._is_none = policy.mode.lower() == "none"
        self._included = [names_of(one.path) for one in policy.included or ()]
        self._excluded = [names_of(one.path) for one in policy.excluded or ()]
        self._composites = [_composite(one) for one in policy.composites or ()]
        self._knows = lru_cache(KNOWN_COUNT_MAX)(self._is_indexed)
        if len(self._composites) > COMPOSITE_COUNT_MAX:
            raise bad(f"more than {COMPOSITE_COUNT_MAX} composite indexes")

    @staticmethod
    def of_stored(definition: Json) -> Indexing:
        """The same of a definition from disk, where one may be that was never checked: then the default."""
        try:
            return Indexing(definition)
        except Rejection:
            return Indexing(None)

    def check_order(self, query: Query) -> None:
        """Let an order pass that an index can serve.

        Raises:
            Rejection: 400, saying which index it would need.
        """
        paths = [_path_of(query, order.key) for order in query.order]
        directions = [order.descending for order in query.order]
        if any(path is None for path in paths):
            raise bad(
                "ORDER BY takes properties of the item, such as c.at.city, not other expressions or elements of IN"
            )
        known = [path for path in paths if path is not None]
        if len(known) == 1 and not self._is_indexed(known[0]):
            raise bad(
                f"ORDER BY {_written(known[0])}: the indexing policy of the container excludes this path; include it"
            )
        wanted = (known, directions), (known, [not descending for descending in directions])
        if len(known) > 1 and not any(composite in wanted for composite in self._composites):
            raise bad(
                "ORDER BY of several properties has no corresponding composite index that it can be served from; add "
                f"{_cure(known, directions)} to compositeIndexes in the container's indexing policy"
            )

    def terms(self, item: Json) -> frozenset[tuple[Path, str]]:
        """The index terms of an item, by which its writes are charged: each value whose path is indexed.

        What the service has in every item, its id among it, is part of the price of an item.
        """
        found = set[tuple[Path, str]]()
        for path, value in islice(_leaves(item, ()), TERM_COUNT_MAX):
            if self._knows(path) and path not in _ALWAYS and not path[0].startswith("_"):
                found.add((path, repr(value)))
        return frozenset(found)

    def _is_indexed(self, path: Path) -> bool:
        """Whether the closest of the paths that fit is an included one; none fits: it is."""
        if self._is_none:
            return False
        included, excluded = (
            max(_closeness(one, path) for one in (*paths, ())) for paths in (self._included, self._excluded)
        )
        return path in _ALWAYS or included >= excluded


def _leaves(value: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    """Each simple value and its path, that of an array's elements as a policy writes it."""
    if isinstance(value, dict):
        for name, within in value.items():
            yield from _leaves(within, (*path, name))
    elif isinstance(value, list):
        for within in value:
            yield from _leaves(within, (*path, "[]"))
    else:
        yield path, value


def names_of(path: str) -> Path:
    """The names in a path such as `/at/city/?`, `/at/*` or `/"a b"`; of its end only `*` and `?` stay.

    Raises:
        Rejection: 400, it is none.
    """
    found = tuple(quoted or plain for quoted, plain in _NAMES.findall(path))
    if not path.startswith("/"):
        raise bad(f"the path {path[:80]!r} of the indexing policy must begin with /")
    return found or ("*",)


def _composite(paths: list[_Path]) -> tuple[list[Path], list[bool]]:
    if any(one.order not in ("ascending", "descending") for one in paths):
        raise bad("the order of a path in compositeIndexes is ascending or descending")
    names = [names_of(one.path) for one in paths]
    return [path[:-1] if path[-1] == "?" else path for path in names], [one.order == "descending" for one in paths]


def _closeness(pattern: Path, path: Path) -> int:
    """How exactly a path of the policy means a path; -1 where it does not.  `?` is closer than `*` there."""
    if not pattern:
        return -1
    stem, end = pattern[:-1], pattern[-1]
    if end == "*":
        return 2 * len(stem) if path[: len(stem)] == stem else -1
    return 2 * len(path) + 1 if (stem if end == "?" else pattern) == path else -1


def _path_of(query: Query, key: Node) -> Path | None:
    """The item's path that a key of ORDER BY means, or None where it means no property."""
    first = query.sources[0] if query.sources else None
    if first is None or first.each:
        return None
    begin = () if first.value is None else _members(first.value, query.root)  # of FROM c.at
    end = _members(key, first.alias)
    return None if begin is None or end is None else begin + end or None


def _members(node: Node, alias: str) -> Path | None:
    """The names of members that lead from what an alias stands for to an expression."""
    names: list[str] = []
    while isinstance(node, Member) and isinstance(node.key, Literal) and isinstance(node.key.value, str):
        names.append(node.key.value)
        node = node.target
    return tuple(reversed(names)) if node == Name(alias) else None


def _written(path: Path) -> str:
    return "/" + "/".join(path)[:80]


def _cure(paths: list[Path], directions: list[bool]) -> str:
    found = [
        {"path": _written(path), "order": "descending" if descending else "ascending"}
        for path, descending in zip(paths, directions, strict=True)
    ]
    return msgspec.json.encode(found).decode()

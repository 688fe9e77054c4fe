"""Pages of items: feeds and queries, and where the next page goes on.

Nothing is kept between pages: a continuation says where the last one ended.  A plain scan and an ordered query go on
behind the last row, whatever was written meanwhile; DISTINCT and aggregates are computed again and go on by count.
While many items are looked at others get their turn.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from outbox.emulator.cosmos.answers import bad
from outbox.emulator.cosmos.query_expressions import Row
from outbox.emulator.cosmos.query_plan import Plan
from outbox.emulator.cosmos.query_values import SortKey, compare_keys
from outbox.emulator.cosmos.values import UNDEFINED, encode, number_of, parse_stored, rid_at, wire_form

PAGE_COUNT = 100
PAGE_COUNT_MAX = 1_000
PAGE_SIZE_MAX_BYTES = 4 << 20
ROW_COUNT_MAX = 100_000
RESULT_SIZE_MAX_BYTES = 64 << 20
CONTINUATION_LENGTH_MAX = 16 << 10
TURN_COUNT = 200
"""After so many items others get their turn."""

Position = tuple[str, int, int]


class Candidate:
    """An item that a feed may hold: its partition key, its place among those of that key, and its JSON."""

    __slots__ = ("_number", "_stored", "_version", "key")

    def __init__(self, key: str, stored: bytes, version: int, number: int | None = None) -> None:
        self.key = key
        self._stored = stored
        self._version = version
        self._number = number

    @property
    def number(self) -> int:
        """Its place: later ones are greater."""
        if self._number is None:
            self._number = number_of(rid_at(self._stored))
        return self._number

    def wire(self) -> bytes:
        """Its JSON as clients read it."""
        return wire_form(self._stored, self._version) if self._version else self._stored


class Continuation(msgspec.Struct, array_like=True):
    """Where a page ended: of which query (a checksum), behind which row, how many are still to be skipped or given.

    `count` is how many results were given, where they are computed again; `keys` are the sort keys of the last row.
    """

    query: int
    position: Position | None = None
    keys: list[tuple[int, Any]] | None = None
    skip: int = 0
    left: int | None = None
    count: int = 0

    def sort_keys(self) -> tuple[SortKey, ...]:
        """The keys, if they are such as `sort_key` makes.

        Raises:
            Rejection: 400, they are not.
        """
        found = []
        for rank, value in self.keys or ():
            if not isinstance(value, _KEY_TYPES.get(rank, ())) or (rank == 3 and isinstance(value, bool)):
                raise bad("the continuation is none that an answer carried")
            found.append((rank, value))
        return tuple(found)


_KEY_TYPES: dict[int, tuple[type, ...]] = {
    0: (int,),
    1: (int,),
    2: (bool,),
    3: (int, float),
    4: (str,),
    5: (str,),
    6: (str,),
}


@dataclass(slots=True)
class Page:
    """Results as JSON, and where the next page goes on, if there is one."""

    results: list[bytes]
    continuation: str = ""
    examined_count: int = 0

    @property
    def size_bytes(self) -> int:
        """Of all results."""
        return sum(len(result) for result in self.results)


class _Found(NamedTuple):
    keys: tuple[SortKey, ...]
    position: Position
    result: bytes


class Feed:
    """One query (None: everything) over candidates in the order of keys, and in each of their making."""

    def __init__(self, plan: Plan | None, name: bytes, *, page_count: int, continuation: str) -> None:
        """`name` are bytes that tell this query from others.

        Raises:
            Rejection: 400, the continuation is none of this query.
        """
        self._plan = plan
        self._name = crc32(name)
        self._page_count = page_count
        query = None if plan is None else plan.query
        left: int | None = None
        if query is not None:
            bounds = [bound for bound in (query.top, query.limit) if bound is not None]
            left = min(bounds) if bounds else None
        self._from = Continuation(self._name, skip=0 if query is None else query.offset, left=left)
        if continuation:
            self._from = _read(continuation, self._name)

    async def page(self, candidates: Iterable[Candidate]) -> Page:
        """The next page.

        Raises:
            Rejection: 400, it takes more than there is room for.
        """
        plan = self._plan
        try:
            if plan is not None and (plan.is_gathered or plan.query.distinct):
                return await self._computed(plan, candidates)
            if plan is not None and plan.query.order:
                return await self._ordered(plan, candidates)
            return await self._scanned(candidates)
        except RecursionError as error:
            raise bad("the query is nested too deep") from error

    # A scan

    async def _scanned(self, candidates: Iterable[Candidate]) -> Page:
        since, skip, left = self._from.position, self._from.skip, self._from.left
        page, size_bytes, last = Page([]), 0, since
        for candidate in candidates:
            if since is not None and candidate.key < since[0]:
                continue
            if since is not None and candidate.key == since[0] and candidate.number < since[1]:
                continue
            page.examined_count += 1
            if page.examined_count % TURN_COUNT == 0:
                await asyncio.sleep(0)
            for index, result in self._results(candidate):
                if since is not None and (candidate.key, candidate.number, index) <= since:
                    continue
                if skip:
                    skip -= 1
                    continue
                if left == 0:
                    return page
                if _is_full(page, size_bytes + len(result), self._page_count):
                    page.continuation = _written(Continuation(self._name, last, None, skip, left))
                    return page
                page.results.append(result)
                size_bytes += len(result)
                last = (candidate.key, candidate.number, index)
                left = None if left is None else left - 1
        return page

    def _results(self, candidate: Candidate) -> Iterator[tuple[int, bytes]]:
        plan, data = self._plan, candidate.wire()
        if plan is None:
            yield 0, data
            return
        for index, row in enumerate(plan.rows(parse_stored(data))):
            if (result := _result(plan, row, data)) is not None:
                yield index, result

    # In order

    async def _ordered(self, plan: Plan, candidates: Iterable[Candidate]) -> Page:
        skip, left = self._from.skip, self._from.left
        room = skip + (self._page_count if left is None else min(left, self._page_count)) + 1
        order = cmp_to_key(self._before(plan))
        behind = (
            None if self._from.position is None else order(_Found(self._from.sort_keys(), self._from.position, b""))
        )
        page, found, size_bytes = Page([]), list[_Found](), 0
        for candidate in candidates:
            page.examined_count += 1
            if page.examined_count % TURN_COUNT == 0:
                await asyncio.sleep(0)
            data = candidate.wire()
            for index, row in enumerate(plan.rows(parse_stored(data))):
                one = _Found(plan.sort_keys(row), (candidate.key, candidate.number, index), b"")
                if behind is not None and not behind < order(one):
                    continue
                if (result := _result(plan, row, data)) is None:
                    continue
                found.append(one._replace(result=result))
                size_bytes += len(result)
                if len(found) > min(2 * room + TURN_COUNT, ROW_COUNT_MAX) or size_bytes > RESULT_SIZE_MAX_BYTES:
                    found, size_bytes = _nearest(found, order, room)
        found.sort(key=order)
        return self._cut(page, found[skip:], left)

    def _cut(self, page: Page, found: list[_Found], left: int | None) -> Page:
        size_bytes = 0
        for index, one in enumerate(found):
            if left == 0:
                return page
            size_bytes += len(one.result)
            if _is_full(page, size_bytes, self._page_count):
                last = found[index - 1]
                page.continuation = _written(Continuation(self._name, last.position, list(last.keys), 0, left))
                return page
            page.results.append(one.result)
            left = None if left is None else left - 1
        return page

    def _before(self, plan: Plan) -> Any:
        def compare(one: _Found, other: _Found) -> int:
            for mine, yours, descending in zip(one.keys, other.keys, plan.descending, strict=False):
                if order := compare_keys(mine, yours):
                    return -order if descending else order
            return (one.position > other.position) - (one.position < other.position)

        return compare

    # Computed whole

    async def _computed(self, plan: Plan, candidates: Iterable[Candidate]) -> Page:
        page, seen, size_bytes = Page([]), dict[bytes, tuple[SortKey, ...]](), 0
        gathering = plan.gather() if plan.is_gathered else None
        for candidate in candidates:
            page.examined_count += 1
            if page.examined_count % TURN_COUNT == 0:
                await asyncio.sleep(0)
            data = candidate.wire()
            for row in plan.rows(parse_stored(data)):
                if gathering is not None:
                    gathering.add(row, len(data))
                elif (result := _result(plan, row, data)) is not None and result not in seen:
                    seen[result] = plan.sort_keys(row)
                    size_bytes += len(result)
                    if size_bytes > RESULT_SIZE_MAX_BYTES or len(seen) > ROW_COUNT_MAX:
                        raise bad("the query has too many distinct results; narrow it")
        if gathering is None:
            found = [_Found(keys, ("", index, 0), result) for index, (result, keys) in enumerate(seen.items())]
            results = [one.result for one in sorted(found, key=cmp_to_key(self._before(plan)))]
        else:
            results = list(dict.fromkeys(map(encode, gathering.results())))
        return self._counted(page, results, plan)

    def _counted(self, page: Page, results: list[bytes], plan: Plan) -> Page:
        bounds = [bound for bound in (plan.query.top, plan.query.limit) if bound is not None]
        results = results[plan.query.offset :][: min(bounds) if bounds else None]
        at = self._from.count
        page.results = results[at : at + self._page_count]
        if at + len(page.results) < len(results):
            page.continuation = _written(Continuation(self._name, count=at + len(page.results)))
        return page


def _nearest(found: list[_Found], order: Any, count: int) -> tuple[list[_Found], int]:
    """The first so many of what was found, and their size.

    Raises:
        Rejection: 400, even they take too much.
    """
    found = sorted(found, key=order)[:count]
    size_bytes = sum(len(one.result) for one in found)
    if len(found) >= ROW_COUNT_MAX or size_bytes > RESULT_SIZE_MAX_BYTES // 2:
        raise bad("an ordered page of the query takes too much memory; ask for fewer items at a time")
    return found, size_bytes


def _result(plan: Plan, row: Row, data: bytes) -> bytes | None:
    if plan.is_plain and not plan.query.distinct:
        return data
    if plan.copy_count * len(data) > RESULT_SIZE_MAX_BYTES:
        raise bad("a result of the query takes too much memory; select less of the item, or less often")
    value = plan.result(row)
    return None if value is UNDEFINED else encode(value)


def _is_full(page: Page, size_bytes: int, count_max: int) -> bool:
    """Whether one more result is for the next page; `size_bytes` is with it."""
    return len(page.results) >= count_max or (size_bytes > PAGE_SIZE_MAX_BYTES and bool(page.results))


def page_count_of(text: str) -> int:
    """How many items a page may have, from the request's header.

    Raises:
        Rejection: 400, it is no number.
    """
    if not text:
        return PAGE_COUNT
    try:
        count = int(text) if len(text) <= 10 else 0
    except ValueError:
        count = 0
    if count < -1 or not count:
        raise bad(f"x-ms-max-item-count {text[:40]!r}: give -1 or a number from 1")
    return PAGE_COUNT_MAX if count == -1 else min(count, PAGE_COUNT_MAX)


def _written(continuation: Continuation) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(continuation)).decode()


_continuations = msgspec.json.Decoder(Continuation)


def _read(text: str, name: int) -> Continuation:
    if len(text) > CONTINUATION_LENGTH_MAX:
        raise bad(f"the continuation is longer than {CONTINUATION_LENGTH_MAX} characters")
    try:
        found = _continuations.decode(base64.urlsafe_b64decode(text.encode("ascii")))
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise bad("the continuation is none that an answer carried") from error
    if found.query != name:
        raise bad(
            "the continuation is of another query; send it with the query and the partition key that it came from"
        )
    if min(found.skip, found.count, 0 if found.left is None else found.left) < 0 or found.skip > ROW_COUNT_MAX:
        raise bad("the continuation is none that an answer carried")
    return found

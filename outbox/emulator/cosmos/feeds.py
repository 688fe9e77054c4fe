"""Pages of items: feeds and queries, and where the next page goes on.

A continuation says where the last page ended, and nothing else is needed to go on.  A plain scan and an ordered query
go on behind the last row, whatever was written meanwhile; DISTINCT and aggregates go on by count.  So that a later page
of these does not look at every item again, what was put in order is kept until something is written (`snapshots`).
While many items are looked at others get their turn.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cmp_to_key
from hashlib import sha256
from zlib import crc32

import msgspec

from outbox.emulator.cosmos.history import (
    SNAPSHOT_MAX_BYTES,
    SNAPSHOT_ROW_COUNT_MAX,
    FoundRow,
    Position,
    Snapshots,
    put_in_order,
)
from outbox.emulator.cosmos.query.budget import TEXT_STEP_LENGTH, Budget
from outbox.emulator.cosmos.query.expressions import Row
from outbox.emulator.cosmos.query.plan import Gathering, QueryPlan
from outbox.emulator.cosmos.query.values import SortKey, identity
from outbox.emulator.cosmos.wire import UNDEFINED, Json, bad, encode, number_of, parse_stored, rid_at, wire_form

PAGE_COUNT = 100
PAGE_COUNT_MAX = 1_000
PAGE_SIZE_MAX_BYTES = 4 << 20
ROW_COUNT_MAX = 100_000
RESULT_SIZE_MAX_BYTES = 64 << 20
CONTINUATION_LENGTH_MAX = 16 << 10
_UNBOUNDED = 1 << 62
ITEM_STEP_COUNT = 50
"""The cost of reading an item, in steps of a query."""
ITEM_STEP_BYTES = 32


class Candidate:
    """An item that a feed may hold: its partition key, its place among those of that key, and its JSON."""

    __slots__ = ("_number", "_stored", "key", "version")

    def __init__(self, key: str, stored: bytes, version: int, number: int | None = None) -> None:
        self.key = key
        self._stored = stored
        self.version = version
        self._number = number

    @property
    def number(self) -> int:
        """Its place: later ones are greater."""
        if self._number is None:
            self._number = number_of(rid_at(self._stored))
        return self._number

    def wire(self) -> bytes:
        """Its JSON as clients read it."""
        return wire_form(self._stored, self.version) if self.version else self._stored


class Continuation(msgspec.Struct, array_like=True):
    """The end of a page: its last row, the results still to skip or to give.

    `count` is how many results were given, where they are computed again; `keys` are the sort keys of the last row.
    """

    position: Position | None = None
    keys: tuple[SortKey, ...] = ()
    skip: int = 0
    left: int | None = None
    count: int = 0


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


@dataclass(frozen=True, slots=True)
class Items:
    """The items of a feed, each time from the beginning, and the place for its rows in order.

    `version` is that of the last write among them; `snapshots` is None where nothing may be kept: of the past, and of
    items that may go without being written.
    """

    candidates: Callable[[], Iterable[Candidate]]
    version: int = 0
    snapshots: Snapshots | None = None


_Match = tuple[Position, Row, bytes]
"""A row, its place and the item's JSON."""


class Feed:
    """One query (None: everything) over candidates in the order of keys, and in each of their making."""

    def __init__(
        self, plan: QueryPlan | None, name: bytes, *, page_count: int, continuation: str, is_wide: bool = False
    ) -> None:
        """`name` are bytes that only this query has; `is_wide` says that it is over all partition keys.

        Over all partition keys the SDK makes null of an aggregate over nothing, as it would of the answers of several
        ranges; under one key there is no result.

        Raises:
            Rejection: 400, the continuation is none of this query.
        """
        self._plan = plan
        self._name = crc32(name)
        self._identity = sha256(name).digest()
        self._budget = Budget(_UNBOUNDED) if plan is None else plan.budget
        self._page_count = page_count
        self._is_wide = is_wide
        query = None if plan is None else plan.query
        left: int | None = None
        if query is not None:
            bounds = [bound for bound in (query.top, query.limit) if bound is not None]
            left = min(bounds) if bounds else None
        skip = 0 if query is None else query.offset
        self._from = _read(continuation, self._name) if continuation else Continuation(skip=skip, left=left)

    async def page(self, items: Items) -> Page:
        """The next page.

        Raises:
            Rejection: 400, it takes more than there is room or time for.
        """
        plan = self._plan
        try:
            if plan is not None and (plan.is_gathered or plan.query.distinct):
                return await self._computed(plan, items)
            if plan is not None and plan.query.order:
                return await self._ordered(plan, items)
            return await self._scanned(items.candidates())
        except RecursionError as error:
            raise bad("the query is nested too deep") from error

    async def _matching(
        self, candidates: Iterable[Candidate], page: Page, since: Position | None = None
    ) -> AsyncGenerator[_Match, None]:
        """The rows that the condition holds for, from the item of a position on."""
        plan, budget = self._plan, self._budget
        for candidate in candidates:
            if budget.is_turn_due:
                await budget.turn()
            if since is not None and candidate.key <= since[0]:
                budget.note(1)
                if candidate.key < since[0] or candidate.number < since[1]:
                    continue
            data, index = candidate.wire(), 0
            page.examined_count += 1
            budget.note(ITEM_STEP_COUNT + len(data) // ITEM_STEP_BYTES)
            for row in ({},) if plan is None else plan.rows(parse_stored(data)):
                if row is not None:
                    yield (candidate.key, candidate.number, index), row, data
                    index += 1
                if budget.is_turn_due:
                    await budget.turn()

    # A scan

    async def _scanned(self, candidates: Iterable[Candidate]) -> Page:
        since, skip, left = self._from.position, self._from.skip, self._from.left
        page, size_bytes, last = Page([]), 0, since
        async with aclosing(self._matching(candidates, page, since)) as matches:
            async for position, row, data in matches:
                if since is not None and position <= since:
                    continue
                if (result := self._result(row, data)) is None:
                    continue
                if skip:
                    skip -= 1
                    continue
                if left == 0:
                    return page
                if _is_full(page, size_bytes + len(result), self._page_count):
                    page.continuation = _written(Continuation(last, (), skip, left), self._name)
                    return page
                page.results.append(result)
                size_bytes += len(result)
                last = position
                left = None if left is None else left - 1
        return page

    def _result(self, row: Row, data: bytes) -> bytes | None:
        plan = self._plan
        if plan is None or plan.is_plain:
            return data
        value = self._value(plan, row, data)
        return None if value is UNDEFINED else encode(value)

    def _value(self, plan: QueryPlan, row: Row, data: bytes) -> Json:
        """The selected value of a row of an item with these bytes.

        Raises:
            Rejection: 400, it takes too much.
        """
        if plan.copy_count * len(data) > RESULT_SIZE_MAX_BYTES:
            raise bad("a result of the query takes too much memory; select less of the item, or less often")
        plan.budget.spend(plan.copy_count * len(data) // TEXT_STEP_LENGTH)
        return plan.result(row)

    # In order

    async def _ordered(self, plan: QueryPlan, items: Items) -> Page:
        page, begin, order = Page([]), self._from, cmp_to_key(_before(plan))
        behind: FoundRow | None = None
        if begin.position is not None:
            behind = FoundRow(begin.keys, begin.position, b"")
        rows, is_to_keep = self._kept(items), False
        if rows is None:
            rows, is_to_keep = await self._found(plan, items.candidates(), page, behind)
        at = begin.skip + (0 if behind is None else bisect_right(rows, order(behind), key=order))
        page = self._cut(page, rows[at : at + self._page_count + 1], begin.left)
        if is_to_keep:
            self._keep(items, rows)
        return page

    def _kept(self, items: Items) -> list[FoundRow] | None:
        """All rows of the query, kept for a page that is not the first."""
        is_first = self._from.position is None and not self._from.count
        return None if is_first or items.snapshots is None else items.snapshots.get(self._identity, items.version)

    def _keep(self, items: Items, rows: list[FoundRow]) -> None:
        if items.snapshots is not None and len(rows) > self._page_count:
            items.snapshots.keep(self._identity, items.version, rows)

    async def _found(
        self, plan: QueryPlan, candidates: Iterable[Candidate], page: Page, behind: FoundRow | None
    ) -> tuple[list[FoundRow], bool]:
        """The first rows in order, at least a page, and whether they are all that the query has."""
        order = cmp_to_key(_before(plan))
        begin, end = None if behind is None else order(behind), None
        room = self._from.skip + self._page_count + 1
        if room > ROW_COUNT_MAX:
            raise bad(f"an ordered page of the query takes more than {ROW_COUNT_MAX} rows; skip less")
        rows, size_bytes, is_whole, bound_bytes = list[FoundRow](), 0, behind is None, 2 * SNAPSHOT_MAX_BYTES
        async with aclosing(self._matching(candidates, page)) as matches:
            async for position, row, data in matches:
                one = FoundRow(plan.sort_keys(row), position, b"")
                if begin is not None and not begin < order(one):
                    continue
                if end is not None and end < order(one):
                    continue  # others before it were left out
                if (result := self._result(row, data)) is None:
                    continue
                rows.append(one._replace(result=result))
                size_bytes += rows[-1].size_bytes
                if size_bytes > bound_bytes or len(rows) > 2 * max(room, SNAPSHOT_ROW_COUNT_MAX):
                    size_bytes, is_whole = _keep_first(rows, plan.descending, room), False
                    bound_bytes, end = 2 * max(size_bytes, SNAPSHOT_MAX_BYTES), order(rows[-1])
        put_in_order(rows, plan.descending)
        return rows, is_whole

    def _cut(self, page: Page, found: list[FoundRow], left: int | None) -> Page:
        size_bytes = 0
        for index, one in enumerate(found):
            if left == 0:
                return page
            size_bytes += len(one.result)
            if _is_full(page, size_bytes, self._page_count):
                last = found[index - 1]
                page.continuation = _written(Continuation(last.position, last.keys, 0, left), self._name)
                return page
            page.results.append(one.result)
            left = None if left is None else left - 1
        return page

    # Computed whole

    async def _computed(self, plan: QueryPlan, items: Items) -> Page:
        page, rows = Page([]), self._kept(items)
        if rows is None:
            gather = self._gathered if plan.is_gathered else self._distinct
            results = await gather(plan, items, page)
            bounds = [bound for bound in (plan.query.top, plan.query.limit) if bound is not None]
            results = results[plan.query.offset :][: min(bounds) if bounds else None]
            rows = [FoundRow((), ("", index, 0), result) for index, result in enumerate(results)]
            self._keep(items, rows)
        end_count = self._from.count + self._page_count
        page.results = [row.result for row in rows[self._from.count : end_count]]
        if end_count < len(rows):
            page.continuation = _written(Continuation(count=end_count), self._name)
        return page

    async def _gathered(self, plan: QueryPlan, items: Items, page: Page) -> list[bytes]:
        gathering = Gathering(plan)
        async with aclosing(self._matching(items.candidates(), page)) as matches:
            async for _, row, data in matches:
                gathering.add(row, len(data))
        found, seen = list[bytes](), set[bytes]()
        for value in gathering.results():
            if value is UNDEFINED and self._is_wide and plan.is_one_aggregate:
                value = None
            if self._budget.is_turn_due:
                await self._budget.turn()
            if value is UNDEFINED:
                continue
            if plan.query.distinct:
                if (name := identity(value)) in seen:
                    continue
                seen.add(name)
            found.append(encode(value))
        return found

    async def _distinct(self, plan: QueryPlan, items: Items, page: Page) -> list[bytes]:
        seen, rows, size_bytes = set[bytes](), list[FoundRow](), 0
        async with aclosing(self._matching(items.candidates(), page)) as matches:
            async for _, row, data in matches:
                value = self._value(plan, row, data)
                if value is UNDEFINED or (name := sha256(identity(value)).digest()) in seen:
                    continue
                seen.add(name)
                rows.append(FoundRow(plan.sort_keys(row), ("", len(rows), 0), encode(value)))
                size_bytes += len(rows[-1].result)
                if size_bytes > RESULT_SIZE_MAX_BYTES or len(rows) > ROW_COUNT_MAX:
                    raise bad("the query has too many distinct results; narrow it")
        put_in_order(rows, plan.descending)
        return [row.result for row in rows]


def _before(plan: QueryPlan) -> Callable[[FoundRow, FoundRow], int]:
    def compare(one: FoundRow, other: FoundRow) -> int:
        for mine, yours, descending in zip(one.keys, other.keys, plan.descending, strict=True):
            if mine != yours:
                return 1 if (mine > yours) != descending else -1
        return (one.position > other.position) - (one.position < other.position)

    return compare


def _keep_first(rows: list[FoundRow], descending: tuple[bool, ...], room: int) -> int:
    """Keep the first rows, at least `room` and more while they are small, and return their size.

    Raises:
        Rejection: 400, even so many take too much.
    """
    put_in_order(rows, descending)
    count = size_bytes = 0
    for row in rows:
        if count >= room and (count >= SNAPSHOT_ROW_COUNT_MAX or size_bytes + row.size_bytes > SNAPSHOT_MAX_BYTES):
            break
        count += 1
        size_bytes += row.size_bytes
    del rows[count:]
    if size_bytes > RESULT_SIZE_MAX_BYTES // 2:
        raise bad("an ordered page of the query takes too much memory; ask for fewer items at a time")
    return size_bytes


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


def _written(continuation: Continuation, name: int) -> str:
    """A continuation for clients, behind a checksum of it and the query's name."""
    data = msgspec.json.encode(continuation)
    return base64.urlsafe_b64encode(crc32(data, name).to_bytes(4, "big") + data).decode()


_continuations = msgspec.json.Decoder(Continuation)


def _read(text: str, name: int) -> Continuation:
    if len(text) > CONTINUATION_LENGTH_MAX:
        raise bad(f"the continuation is longer than {CONTINUATION_LENGTH_MAX} characters")
    try:
        written = base64.urlsafe_b64decode(text.encode("ascii"))
        checksum, data = int.from_bytes(written[:4], "big"), written[4:]
        found = _continuations.decode(data)
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise bad("the continuation is none that an answer carried") from error
    if checksum != crc32(data, name):
        raise bad(
            "the continuation is of another query; send it with the query and the partition key that it came from"
        )
    return found

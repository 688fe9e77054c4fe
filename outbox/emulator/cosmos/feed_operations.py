"""Queries and feeds, of items and of definitions, and the change feed.

The change feed has the latest version of every item, in the order in which they were written.  Where a reader stands is
the version that it has seen, as an ETag.  What one batch wrote has one version and comes on one page.  Deleted items
are left out, as are versions that were overwritten, as in the service's `LatestVersion` mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from email.utils import parsedate_to_datetime

import msgspec

from outbox.emulator.cosmos.catalog import Container
from outbox.emulator.cosmos.charges import METADATA_RU, query_ru
from outbox.emulator.cosmos.feeds import PAGE_SIZE_MAX_BYTES, Candidate, Feed, Items, Page, page_count_of
from outbox.emulator.cosmos.hashing import hash_of, range_of
from outbox.emulator.cosmos.history import StoredItem
from outbox.emulator.cosmos.query.plan import QueryPlan, compile_query
from outbox.emulator.cosmos.requests import KEY_HEADER, LSN_DIGITS_MAX, Call, Prepared, container_of, freshness, is_true
from outbox.emulator.cosmos.store import Do, Store
from outbox.emulator.cosmos.wire import (
    CROSS_PARTITION,
    NOT_MODIFIED,
    OK,
    THROTTLED,
    Answer,
    Json,
    Rejection,
    bad,
    encode,
    key_of_header,
    parse_object,
    times_of,
    unsupported,
)

PAGE_WAIT_S = 10.0
"""How long a request may wait for its turn to have one made; then it is throttled."""

FEED = "incremental feed"
_RANGE_ID = "x-ms-documentdb-partitionkeyrangeid"


def _query(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    plan = _plan(store, call)
    container.indexing.check_order(plan.query)
    if not plan.names_one_key(container.key_paths):
        _check_width(call)
    return _items(store, call, container, plan)


def _feed(store: Store, call: Call) -> Prepared:
    return _items(store, call, container_of(call, store.catalog), None)


def _changes(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    keys = _keys(store, call, container)
    after = _start_of(call.header("a-im"), call.header("if-none-match"), container)
    since_s = _since_of(call.header("if-modified-since"))
    page_count = page_count_of(call.header("x-ms-max-item-count"))

    def apply(call: Call) -> Answer:
        if container.version <= after:
            return _nothing_new(after)
        found = ((key, item) for key in keys(container.lsn) for item in store.items(container, key).values())
        page, last = _changed(found, after, since_s, page_count)
        if not page.results:
            return _nothing_new(container.version)
        charge_ru = query_ru(page.examined_count, page.size_bytes)
        answer = _listed(page.results, "", container.rid, "Documents", charge_ru)
        answer.headers["etag"] = f'"{last}"'
        return answer

    return Prepared("", apply)


def _keys(store: Store, call: Call, container: Container) -> Callable[[int], list[str]]:
    """The partition keys that a request is about, given how fresh it reads.

    Raises:
        Rejection: 400, its key or range is none.
    """
    header = call.header(KEY_HEADER)
    if header:
        key = key_of_header(header, len(container.key_paths))
        return lambda lsn: [key]
    wanted = range_of(call.header("x-ms-start-epk"), call.header("x-ms-end-epk"), container)
    if wanted is None:
        return lambda lsn: store.keys(container, lsn)
    start, end = wanted
    hashed = hash_of(container)
    return lambda lsn: [key for key in store.keys(container, lsn) if start <= hashed(key) < end]


def _plan(store: Store, call: Call) -> QueryPlan:
    body = parse_object(call.body, "the query")
    text, parameters = body.get("query"), body.get("parameters")
    if not isinstance(text, str) or not isinstance(parameters, list | None):
        raise bad("a query's body needs query, a text, and may have parameters, an array")
    values: dict[str, Json] = {}
    for parameter in parameters or ():
        if not isinstance(parameter, dict) or not isinstance(parameter.get("name"), str) or "value" not in parameter:
            raise bad('a parameter of a query must look like {"name": "@id", "value": 1}')
        values[parameter["name"]] = parameter["value"]
    return compile_query(text, values, store.engine.now_ms())


def _items(store: Store, call: Call, container: Container, plan: QueryPlan | None) -> Prepared:
    keys = _keys(store, call, container)
    header, bounds = call.header(KEY_HEADER), call.header("x-ms-start-epk") + call.header("x-ms-end-epk")
    feed = _feed_of(call, plan, f"{container.rid}{header}{bounds}")

    async def apply(call: Call) -> Answer:
        await _take_place(store)
        time_s = asyncio.get_running_loop().time
        begin_s = time_s()
        try:
            lsn = freshness(call, container)
            ids = None if plan is None else plan.ids
            page = await feed.page(
                Items(
                    lambda: _candidates(store, container, keys(lsn), lsn, ids),
                    container.version,
                    store.snapshots if lsn == container.lsn and container.ttl_s is None else None,
                )
            )
        finally:
            store.pages.release()
        charge_ru = query_ru(max(page.examined_count, len(page.results)), page.size_bytes)
        answer = _listed(page.results, page.continuation, container.rid, "Documents", charge_ru)
        if is_true(call.headers, "x-ms-documentdb-populatequerymetrics"):
            answer.headers["x-ms-documentdb-query-metrics"] = (
                f"totalExecutionTimeInMs={(time_s() - begin_s) * 1_000:.2f};"
                f"retrievedDocumentCount={page.examined_count};"
                f"outputDocumentCount={len(page.results)};outputDocumentSize={page.size_bytes}"
            )
        return answer

    return Prepared(f"{header}/" if header else "", apply)


async def _take_place(store: Store) -> None:
    """Wait until few enough pages are being made.

    Raises:
        Rejection: 429, it takes too long.
    """
    try:
        async with asyncio.timeout(PAGE_WAIT_S):
            await store.pages.acquire()
    except TimeoutError as error:
        raise Rejection(THROTTLED, "too many queries are under way; try again", retry_after_s=1.0) from error


def _candidates(
    store: Store, container: Container, keys: list[str], lsn: int, ids: tuple[str, ...] | None
) -> Iterator[Candidate]:
    """The items of some keys; those of some ids only, where it is known that no others can fit."""
    past = lsn < container.lsn
    for key in keys:
        if past:
            items = [item for _, item in store.items_past(container, key, lsn)]
        elif ids is None:
            items = list(store.items(container, key).values())
        else:
            items = [item for id in ids if (item := store.read(container, key, id)) is not None]
        found = [Candidate(key, item.value, item.version) for item in items]
        yield from found if not past and ids is None else sorted(found, key=lambda candidate: candidate.number)


def _databases(store: Store, call: Call) -> Prepared:
    definitions = [database.definition for database in store.catalog.databases.values()]
    return _definitions(store, call, definitions, "", "Databases")


def _containers(store: Store, call: Call) -> Prepared:
    database = store.catalog.database(call.route.names[0])
    definitions = [container.definition for container in database.containers.values()]
    return _definitions(store, call, definitions, database.rid, "DocumentCollections")


def _conflicts(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    if call.method == "POST":
        _check_width(call, substatus=0)  # with the other a client asks for a plan, and finds no path to ask at
    return _definitions(store, call, [], container.rid, "Conflicts")


def _offers(store: Store, call: Call) -> Prepared:
    return _definitions(store, call, store.catalog.offers(), "", "Offers")


def _definitions(store: Store, call: Call, definitions: list[dict[str, Json]], rid: str, name: str) -> Prepared:
    feed = _feed_of(call, _plan(store, call) if call.method == "POST" else None, name)
    found = [Candidate("", encode(one), 0, number) for number, one in enumerate(definitions)]

    async def apply(call: Call) -> Answer:
        page = await feed.page(Items(lambda: found))
        return _listed(page.results, page.continuation, rid, name, METADATA_RU)

    return Prepared("", apply)


OPERATIONS: dict[str, Do] = {
    "query": _query,
    "feed": _feed,
    "changes": _changes,
    "database.list": _databases,
    "container.list": _containers,
    "conflict.list": _conflicts,
    "offer.list": _offers,
}


def _check_width(call: Call, *, substatus: int = CROSS_PARTITION) -> None:
    """Let a query pass that names a partition key, or says that it is over all of them.

    Raises:
        Rejection: 400.
    """
    is_wide = is_true(call.headers, "x-ms-documentdb-query-enablecrosspartition") or call.header(_RANGE_ID)
    if not call.header(KEY_HEADER) and not is_wide:
        raise bad(
            "a query over all partition keys needs enable_cross_partition_query=True; or give its partition_key",
            substatus=substatus,
        )


def _feed_of(call: Call, plan: QueryPlan | None, name: str) -> Feed:
    count, continuation = page_count_of(call.header("x-ms-max-item-count")), call.header("x-ms-continuation")
    body = call.body if plan is not None else b""
    is_wide = not (call.header(KEY_HEADER) or call.header("x-ms-start-epk") or call.header("x-ms-end-epk"))
    return Feed(plan, name.encode() + body, page_count=count, continuation=continuation, is_wide=is_wide)


def _listed(results: list[bytes], continuation: str, rid: str, name: str, charge_ru: float) -> Answer:
    body = b'{"_rid":%b,"%b":[%b],"_count":%d}' % (
        msgspec.json.encode(rid),
        name.encode(),
        b",".join(results),
        len(results),
    )
    headers = {"x-ms-item-count": str(len(results))}
    if continuation:
        headers["x-ms-continuation"] = continuation
    return Answer(OK, headers, body, charge_ru)


# Changes


def _start_of(mode: str, etag: str, container: Container) -> int:
    """The version behind which to read.

    Raises:
        Rejection: 400, the mode or the ETag is none that is known.
    """
    if mode.strip().lower() != FEED:
        raise unsupported(f"the change feed mode {mode[:40]!r}")
    if etag == "*":
        return container.version
    digits = etag.strip('"')
    if not digits.isascii() or not (digits.isdecimal() or not digits) or len(digits) > LSN_DIGITS_MAX:
        raise bad(f"the change feed cannot go on at {etag[:80]!r}; send the ETag of an answer")
    return int(digits or "0")


def _since_of(date: str) -> int:
    """The second from which changes are wanted; 0 for all.

    Raises:
        Rejection: 400, it is no date.
    """
    if not date:
        return 0
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, TypeError, OverflowError) as error:
        raise bad(f"If-Modified-Since {date[:80]!r} is no date") from error


def _changed(items: Iterable[tuple[str, StoredItem]], after: int, since_s: int, page_count: int) -> tuple[Page, int]:
    """A page of the items written after a version, by key and item, and the version that it ends with.

    It ends where it has as many items or bytes as a page may, but not within what was written together.
    """
    page, size_bytes = Page([]), 0
    changed = sorted((item.version, key, item.value) for key, item in items if item.version > after)
    page.examined_count = len(changed)
    last = after
    for version, key, value in changed:
        if (len(page.results) >= page_count or size_bytes > PAGE_SIZE_MAX_BYTES) and version != last:
            break
        last = version
        if not since_s or times_of(value).written_s >= since_s:
            page.results.append(Candidate(key, value, version).wire())
            size_bytes += len(page.results[-1])
    return page, last


def _nothing_new(after: int) -> Answer:
    """The answer where nothing was written after a version."""
    return Answer(NOT_MODIFIED, {"etag": f'"{after}"'}, charge_ru=query_ru(0, 0))

"""Cosmos DB as a state store: one container, a partition for each state, conditional writes, transactional batches.

*Theory of operation.*  One operation is a point write, several are a transactional batch.  Both carry their conditions
to the service and nothing is decided here.  The SDK is kept from re-sending (see `connecting`): a write that is sent
again after its answer was lost meets itself and looks lost.  Only throttling is waited out, a bounded number of times,
because it is the one failure that says that nothing was done; a batch is then built anew, since the SDK takes the
conditions out of the operations that it is given.  Every call has a timeout, after which its outcome is unknown.

The answer to a batch has a session token that the SDK does not remember, so the token is handed on: of what lost, too.
A request that is given none carries those of the answers so far.

*Session tokens.*  The SDK would find one as well, by hashing the partition key in Python, which takes a tenth of a
request's CPU and more; and what it finds knows nothing of batches, whose tokens it does not keep (SDK 4.17).  A token
is that of a range of hashed keys, `RANGE:VERSION#LSN...`.  A request may carry those of several ranges; the service
looks at that of its own.  One that is missing or older only makes a read less fresh.  Answers overtake each other, so
the greatest of a range counts and not the last.

*Ranges.*  Cosmos DB places a partition by the hash of its key (its effective partition key), 32 hexadecimal digits of
which the first is 0 to 3, and compares these as text.  A container names the ranges by which its hashes lie apart; a
part of such a range is a range as well, so one that lies in one place can still be read by several.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

from azure.core import MatchConditions
from azure.cosmos.aio import ContainerProxy

from outbox.azure.cosmos.items import (
    BODY_BYTES_MAX,
    ITEM_BYTES_MAX,
    PARTITION,
    check_partition,
    encode_id,
    foreign,
    from_item,
)
from outbox.azure.cosmos.items import to_item as item_of
from outbox.azure.cosmos.outcomes import (
    BAD_REQUEST,
    FAILURES,
    NOT_YET_READABLE,
    SESSION_HEADER,
    as_error,
    as_lost,
    headers_of,
    status_of,
)
from outbox.azure.usage import Usage, charge_of, reason_of
from outbox.errors import CorruptRecord, OutcomeUnknown, Throttled, TooLarge
from outbox.ports import (
    Create,
    Delete,
    Document,
    DocumentKey,
    Lost,
    Replace,
    Session,
    StateStore,
    StoreCapabilities,
    Won,
    Write,
)

T = TypeVar("T")

BATCH_COUNT_MAX = 100
PARTITION_BYTES_MAX = 20 << 30
TIMEOUT_S = 10.0
THROTTLED_COUNT_MAX = 5
"""How often one call is sent again after it was throttled, before that is the runtime's affair."""
THROTTLED_WAIT_S_MAX = 2.0
PAGE_COUNT = 100

_UNFINISHED = "SELECT * FROM c WHERE c.pending = true"
_UNSENT = "SELECT * FROM c WHERE c.entry >= @first AND c.entry < @before"
_SCAN = "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)"
_PARTITIONS = "SELECT c.pk FROM c WHERE c.id = @id AND STARTSWITH(c.pk, @prefix)"
_HOLDERS = "SELECT c.pk FROM c WHERE STARTSWITH(c.id, @prefix)"
_AMONG = "SELECT * FROM c WHERE c.id = @id AND ARRAY_CONTAINS(@partitions, c.pk)"
DIGITS = 32
END = "FF"
"""Behind every hash."""
_BEHIND = 0x40 << 120
"""The least number that is no hash."""
_TOKEN = re.compile(r"([^:,]{1,40}):(-?[0-9]{1,18})#([0-9]{1,18})(?:#[^,]{0,400})?").fullmatch
RANGE_COUNT_MAX = 8
"""The number of ranges above which no token is sent, because each takes 30 bytes of the request's headers."""


class CosmosStateStore:
    """The documents of one container."""

    def __init__(
        self,
        container: Callable[[], Awaitable[ContainerProxy]],
        *,
        scope: Literal["partition", "item"] = "partition",
        dispatch_ledger: bool = False,
        timeout_s: float = TIMEOUT_S,
        usage: Usage | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Take what opens the container when it is first needed, on the loop that uses it.

        `scope="item"` promises less than the container can do: one document at a time.
        """
        if scope not in ("partition", "item"):
            raise ValueError(f'scope={scope!r}: "partition" or "item"')
        self.capabilities = StoreCapabilities(
            atomic_scope=scope,
            batch_count_max=BATCH_COUNT_MAX if scope == "partition" else 1,
            item_bytes_max=BODY_BYTES_MAX,
            tells_current=False,
            ambiguous_replies=True,
            partition_bytes_max=PARTITION_BYTES_MAX,
            dispatch_ledger=dispatch_ledger,
        )
        self.usage = Usage() if usage is None else usage
        self._container = container
        self._sessions = SessionTokens()
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._chance = chance

    # Reading

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        id, partition = encode_id(key.id), check_partition(key.partition)
        what = f"read of {key.partition}/{key.id}"
        answer = Answer()

        def send(items: ContainerProxy) -> Awaitable[Mapping[str, Any]]:
            return items.read_item(id, partition, response_hook=answer.keep, **self._in_session(session))

        try:
            item = await self._call("read", what, send)
        except FAILURES as error:
            if as_lost(error) is not None:
                return None
            raise as_error(error, what) from error
        self.usage.note("read", charge_of(answer.headers))
        return from_item(item, self._session_of(answer.headers))

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        """The documents of a partition whose ids begin with `prefix`, by id: all of them are held for that."""
        check_partition(partition)
        parameters = [{"name": "@prefix", "value": encode_id(prefix) if prefix else ""}]
        pages = self._pages(_SCAN, partition_key=partition, parameters=parameters)
        found = [from_item(item) async for item in pages]
        for document in sorted(found, key=lambda document: document.key.id):
            yield document

    async def partitions(self, prefix: str, *, holding: str) -> AsyncIterator[str]:
        """The partitions that begin with `prefix` and hold a document of the id `holding`; ids have an index."""
        parameters = [{"name": "@id", "value": encode_id(holding)}, {"name": "@prefix", "value": prefix}]
        async for item in self._pages(_PARTITIONS, parameters=parameters):
            yield str(item[PARTITION])

    async def holders(self, prefix: str) -> AsyncIterator[str]:
        """The partition of each document of the container whose id begins with `prefix`; ids have an index."""
        async for item in self._pages(_HOLDERS, parameters=[{"name": "@prefix", "value": encode_id(prefix)}]):
            yield str(item[PARTITION])

    async def among(self, partitions: Sequence[str], id: str) -> AsyncIterator[Document]:
        """The documents of this id in some partitions, in one query in place of a read for each."""
        parameters = [{"name": "@id", "value": encode_id(id)}, {"name": "@partitions", "value": list(partitions)}]
        async for item in self._pages(_AMONG, parameters=parameters):
            yield from_item(item)

    async def key_ranges(self) -> list[KeyRange]:
        """By which ranges of hashed partition keys the container lies apart.

        Raises:
            Refused, OutcomeUnknown: it cannot be asked.
        """

        async def ask(items: ContainerProxy) -> list[KeyRange]:
            return [KeyRange.of(found) async for found in items.read_feed_ranges(force_refresh=True)]

        try:
            return await self._call("ranges", "key ranges", ask)
        except FAILURES as error:
            raise as_error(error, "key ranges") from error

    async def unfinished(self, within: KeyRange | None = None) -> AsyncIterator[Document]:
        """The unfinished documents, or those within a range; each page is read when it is asked for."""
        options: dict[str, Any] = {} if within is None else {"feed_range": within.feed_range}
        async for item in self._pages(_UNFINISHED, **options):
            try:
                document = from_item(item)
            except CorruptRecord:
                document = foreign(item)  # the sweeper logs it, and goes on with the others
            yield document

    async def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        parameters = [{"name": "@first", "value": first}, {"name": "@before", "value": before}]
        async for item in self._pages(_UNSENT, parameters=parameters):
            yield from_item(item)

    async def _pages(self, query: str, **options: Any) -> AsyncIterator[Mapping[str, Any]]:
        """The items that a query returns, whose pages are read as they are asked for."""

        def count(headers: Mapping[str, str], *_: object) -> None:
            self.usage.note("query", charge_of(headers))

        pages: Any = None

        async def turn(items: ContainerProxy) -> list[Mapping[str, Any]] | None:
            nonlocal pages
            if pages is None:
                pages = items.query_items(query, max_item_count=PAGE_COUNT, response_hook=count, **options).by_page()
            return await _next_page(pages)

        while True:
            try:
                page = await self._call("query", "query", turn)
            except FAILURES as error:
                raise as_error(error, "query") from error
            if page is None:
                return
            for item in page:
                yield item

    # Writing

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        what = self._checked(operations)
        try:
            if len(operations) == 1:
                return await self._write_one(operations[0], what)
            return await self._write_batch(operations, what)
        except FAILURES as error:
            if (lost := as_lost(error)) is None:
                raise as_error(error, what) from error
            self._sessions.learn(lost.session)
            return lost

    def _checked(self, operations: Sequence[Write]) -> str:
        """Check a batch, and return a text that names it.

        Raises:
            TooLarge: no batch of this store.
        """
        known, first = self.capabilities, operations[0].key
        body_bytes = sum([len(op.body) for op in operations if not isinstance(op, Delete)])
        if body_bytes > known.item_bytes_max:
            raise TooLarge(f"bodies of {body_bytes} bytes, over {known.item_bytes_max}; move large values to a blob")
        if len(operations) > 1:
            if len(operations) > known.batch_count_max:
                raise TooLarge(
                    f"{len(operations)} operations; this store writes {known.batch_count_max} together at most"
                )
            if len({op.key.id for op in operations if op.key.partition == first.partition}) < len(operations):
                raise TooLarge("a batch stays in one partition and names each document once")
        return f"write of {len(operations)} from {first.partition}/{first.id}"

    async def _write_one(self, operation: Write, what: str) -> Won:
        answer = Answer()

        def send(items: ContainerProxy) -> Awaitable[Any]:
            if isinstance(operation, Create):
                return items.create_item(item_of(operation)[0], no_response=True, response_hook=answer.keep)
            held: dict[str, Any] = {"etag": operation.if_match, "match_condition": MatchConditions.IfNotModified}
            if isinstance(operation, Replace):
                item = item_of(operation)[0]
                return items.replace_item(item["id"], item, no_response=True, response_hook=answer.keep, **held)
            return items.delete_item(
                encode_id(operation.key.id), operation.key.partition, response_hook=answer.keep, **held
            )

        kind = type(operation).__name__.lower()
        await self._call(kind, what, send)
        headers = answer.headers
        self.usage.note(kind, charge_of(headers))
        version = "" if isinstance(operation, Delete) else headers.get("etag", "")
        if not version and not isinstance(operation, Delete):
            raise OutcomeUnknown(f"{what}: answered without a version; read it")
        return Won((version,), self._session_of(headers))

    async def _write_batch(self, operations: Sequence[Write], what: str) -> Won:
        size_bytes, items = 0, list[dict[str, Any] | None]()
        for operation in operations:
            item, item_bytes = (None, 0) if isinstance(operation, Delete) else item_of(operation)
            size_bytes += item_bytes
            items.append(item)
        if size_bytes > ITEM_BYTES_MAX:
            raise TooLarge(f"{what}: {size_bytes} bytes as items, over {ITEM_BYTES_MAX}; move large values to a blob")
        partition = operations[0].key.partition

        def send(container: ContainerProxy) -> Awaitable[Any]:
            fresh = [_batched(operation, item) for operation, item in zip(operations, items, strict=True)]
            return container.execute_item_batch(fresh, partition, **self._in_session(""))

        answer = await self._call("batch", what, send)
        headers = answer.get_response_headers()
        self.usage.note("batch", charge_of(headers))
        answered = zip(items, answer, strict=False)
        versions = tuple(["" if item is None else result.get("eTag", "") for item, result in answered])
        if len(versions) - versions.count("") < len(items) - items.count(None):
            raise OutcomeUnknown(f"{what}: answered without all versions; read it")
        return Won(versions, self._session_of(headers))

    # Calls

    def _in_session(self, session: Session) -> dict[str, Any]:
        """The option of a request that is to be answered in a session, or as freshly as others were."""
        token = session or self._sessions.latest
        return {"session_token": token} if token else {}

    def _session_of(self, headers: Mapping[str, str]) -> Session:
        return self._sessions.learn(headers.get(SESSION_HEADER, ""))

    async def _call(self, kind: str, what: str, send: Callable[[ContainerProxy], Awaitable[T]]) -> T:
        """Send a request, again while it is throttled and there is time; other failures come as the SDK raises them.

        Raises:
            Throttled: it stayed so; nothing was done.
        """
        waited_s = 0.0
        for count in range(1, THROTTLED_COUNT_MAX + 1):
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await send(await self._container())
            except asyncio.CancelledError:
                self.usage.note(kind, failed=True, reason="cancelled")
                raise
            except FAILURES as error:
                meant, is_lost = as_error(error, what), as_lost(error) is not None
                status, substatus = status_of(error)
                if status == BAD_REQUEST or substatus == NOT_YET_READABLE:  # one that it gave may be why
                    self._sessions.forget()
                is_missing = is_lost and kind == "read"
                why = "conflict" if is_lost else reason_of(meant, error, status=status)
                self.usage.note(
                    kind, charge_of(headers_of(error)), failed=not is_missing, reason="" if is_missing else why
                )
                if is_lost or not isinstance(meant, Throttled):
                    raise
                pause_s = meant.retry_after_s * (1 + self._chance())  # those throttled together come back apart
                waited_s += pause_s
                if count == THROTTLED_COUNT_MAX or waited_s > THROTTLED_WAIT_S_MAX:
                    raise meant from error
            await self._sleep(pause_s)
        raise AssertionError("the last try returns or raises")


class Answer:
    """The headers of an answer, as the SDK has them; afterwards it gives a copy only, which costs more."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: Mapping[str, str] = {}

    def keep(self, headers: Mapping[str, str], *_: object) -> None:
        """Remember them; the SDK calls this."""
        self.headers = headers


async def _next_page(pages: Any) -> list[Mapping[str, Any]] | None:
    """The next page of a query; None behind the last."""
    page = await anext(pages, None)
    return None if page is None else [item async for item in page]


def _batched(operation: Write, item: dict[str, Any] | None) -> tuple[Any, ...]:
    """An operation of a batch as the SDK takes it; the SDK empties the options."""
    if isinstance(operation, Create):
        return ("create", (item,))
    condition = {"if_match_etag": operation.if_match}
    if isinstance(operation, Replace):
        assert item is not None
        return ("replace", (item["id"], item), condition)
    return ("delete", (encode_id(operation.key.id),), condition)


_conforms: type[StateStore] = CosmosStateStore


class KeyRange(NamedTuple):
    """The hashes from `start` up to `end`, which is not one of them."""

    start: str = ""
    end: str = END

    @classmethod
    def of(cls, feed_range: Mapping[str, Any]) -> KeyRange:
        """The range that the SDK calls a feed range."""
        found = feed_range["Range"]
        return cls(str(found["min"]), str(found["max"]))

    @property
    def feed_range(self) -> dict[str, Any]:
        """The same as the SDK takes it."""
        return {"Range": {"min": self.start, "max": self.end, "isMinInclusive": True, "isMaxInclusive": False}}

    def split(self, count: int) -> list[KeyRange]:
        """Split this range into `count` ranges; fewer where it is too small."""
        first, behind = _number(self.start), min(_number(self.end), _BEHIND)
        width = behind - first
        inner = [first + width * part // count for part in range(1, count)]
        bounds = [self.start, *(f"{bound:0{DIGITS}X}" for bound in dict.fromkeys(inner) if bound > first), self.end]
        return [KeyRange(start, end) for start, end in pairwise(bounds)]


def _number(digits: str) -> int:
    return int(digits[:DIGITS].ljust(DIGITS, "0"), 16)


class SessionTokens:
    """The latest token of each range."""

    def __init__(self) -> None:
        self._by_range: dict[str, tuple[int, int, str]] = {}
        """Version, log sequence number, and the token."""
        self.latest: Session = ""
        """For a request that is given no token of its own; empty where none can be given."""

    def learn(self, token: Session) -> Session:
        """Note the token of an answer, and give it."""
        if (read := _TOKEN(token)) is not None:
            found = int(read[2]), int(read[3]), token
            known = self._by_range.get(read[1])
            if known is None or known[:2] < found[:2]:
                self._by_range[read[1]] = found
                tokens = [each for _, _, each in self._by_range.values()]
                self.latest = ",".join(tokens) if len(tokens) <= RANGE_COUNT_MAX else ""
        return token

    def forget(self) -> None:
        """Forget them all: one was refused, or the container is another of the same name and behind them for good."""
        self._by_range.clear()
        self.latest = ""

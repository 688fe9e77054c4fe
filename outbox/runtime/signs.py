"""Signs of life: once a minute, a process that works over a store and a bus reports on itself.

A document of the process's own, which expires some minutes after its last sign.  It costs a write a minute, off the
path of every message, and nothing waits for it: a sign that fails is left out.  Whoever asks what is wrong reads all of
them at once (`signs_in`); on an engine the host answers instead.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

import msgspec

from outbox.ports import Create, DocumentKey, Replace, StateStore, StorePorts, Tag, Version, Won
from outbox.runtime.commit.state_cache import StateCache
from outbox.runtime.counts import Counts
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_scope import StoreScope

SIGN_AFTER_S = 5.0
"""How long after its start a worker gives its first sign."""
SIGN_EVERY_S = 60.0
SPARE_S = 1.0
"""By how much a worker waits longer, so that a sign is due when it looks."""
SIGN_TTL_S = 300.0
ALIVE_S = 180.0
"""Whose last sign is older than this is not taken to be alive."""
SIGNS_MAX = 1_000
PLACE = "workers"
"""The partition of all signs."""
LARGE_STATE_BYTES = 64 << 10
LARGE_COUNT_MAX = 10

log = logging.getLogger("outbox.worker")


class Sign(msgspec.Struct, frozen=True):
    """A sign of life, as stored: whose it is, what it takes from, and what it has seen.

    `newer_ms` says of each queue when a message was last put back because a newer build wrote its schema or its
    state's; `large` are states over LARGE_STATE_BYTES that the process has in its cache.
    """

    app: str
    process: str
    started_ms: int
    at_ms: int
    queues: tuple[str, ...]
    newer_ms: Mapping[str, int] = {}
    large: Mapping[str, int] = {}


Large = Callable[[int, int], Mapping[str, int]]
"""A lookup of the largest cached states: over the first number of bytes, at most the second in number."""


class SignsOfLife:
    """The signs of one process."""

    def __init__(
        self,
        app: str,
        queues: Sequence[str],
        store: StateStore,
        *,
        now_ms: Callable[[], int],
        counts: Counts,
        large: Large,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._app = app
        self._queues = tuple(queues)
        self._store = store
        self._now_ms = now_ms
        self._counts = counts
        self._large = large
        self._new_id = new_id
        self._started_ms = now_ms()
        self._process = f"{socket.gethostname()}/{new_id()[:8]}"
        self._last_ms = self._started_ms - round((SIGN_EVERY_S - SIGN_AFTER_S + SPARE_S) * 1_000)
        self._key: DocumentKey | None = None
        self._version: Version = ""

    @property
    def is_due(self) -> bool:
        """Whether the last sign is old enough for another one."""
        return self._now_ms() - self._last_ms >= SIGN_EVERY_S * 1_000

    async def give(self) -> None:
        """Give a sign, if one is due, by one request at most."""
        if not self.is_due:
            return
        self._last_ms = self._now_ms()
        key, self._key = self._key, None  # of whatever comes of this write, only a success is gone on from
        body = msgspec.json.encode(self._sign())
        try:
            if key is None:
                key = DocumentKey(PLACE, f"alive:{self._new_id()}")
                write: Create | Replace = Create(key, body, ttl_s=SIGN_TTL_S, tag=Tag("sign"))
            else:
                write = Replace(key, body, self._version, ttl_s=SIGN_TTL_S, tag=Tag("sign"))
            answer = await self._store.write([write])
        except Exception as error:  # whatever a store or its SDK raises: messages go on
            log.debug("a sign of life was not written", extra={"error": str(error)})
            return
        if isinstance(answer, Won):
            self._key, self._version = key, answer.versions[0]

    async def give_for_ever(self) -> None:
        """Give a sign a minute, the first when a start that fails has failed."""
        await asyncio.sleep(SIGN_AFTER_S)
        while True:
            await self.give()
            await asyncio.sleep(SIGN_EVERY_S + SPARE_S)

    def _sign(self) -> Sign:
        newer = {path: found.newer_ms for path, found in self._counts.sources.items() if found.newer_ms}
        large = self._large(LARGE_STATE_BYTES, LARGE_COUNT_MAX)
        return Sign(self._app, self._process, self._started_ms, self._last_ms, self._queues, newer, large)


def signs_over(app: str, queues: Sequence[str], ports: StorePorts, scope: StoreScope, counts: Counts) -> SignsOfLife:
    """The signs of a process that handles messages of these queues."""
    store, protocol = ports.infrastructure or ports.store, scope.protocol
    cache = protocol.cache if isinstance(protocol, PartitionScope | ItemScope) else StateCache()
    return SignsOfLife(app, queues, store, now_ms=operations_over(ports).now_ms, counts=counts, large=cache.largest)


async def signs_in(store: StateStore) -> list[Sign]:
    """The newest sign of each process that has given one lately, at most SIGNS_MAX documents of them."""
    found: dict[str, Sign] = {}
    count = 0
    async for document in store.scan(PLACE, prefix="alive:"):
        try:
            sign = msgspec.json.decode(document.body, type=Sign)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # of a newer build, or foreign: a sign says nothing that anybody relies on
        if (known := found.get(sign.process)) is None or known.at_ms < sign.at_ms:
            found[sign.process] = sign
        count += 1
        if count >= SIGNS_MAX:
            break
    return list(found.values())

"""Where logs and registers live: a store and its blobs, the time, and waiting until something there changes.

A log is given a backend (`Engine`, `azure.connect(...)`, `azure.blob_states(...)`) or a `StateStore` as it is.  A store
that can say when its documents change wakes its readers; another is looked at after 20 ms, and then ever later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable
from uuid import uuid4

from outbox.errors import NotRegistrable
from outbox.ports import BlobStore, DocumentKey, NoBlobs, StateStore, StorePorts, Version

T = TypeVar("T")

POLL_S_FIRST = 0.02
POLL_S_MAX = 1.0

Seen = tuple[DocumentKey, Version]
"""A document and the version in which it was read; empty: there was none."""


@runtime_checkable
class WatchedStore(Protocol):
    """A store that says when its documents change."""

    async def changed(self, seen: Sequence[Seen], *, wait_s: float) -> None:
        """Wait until one of these documents has another version, or `wait_s` have passed."""


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and the blobs for values too large for it."""

    store: StateStore
    blobs: BlobStore
    now_ms: Callable[[], int] = wall_ms
    new_id: Callable[[], str] = lambda: uuid4().hex


def place_of(given: Any) -> Place:
    """The place of a backend, of a store, or of an object that holds a store.

    Raises:
        NotRegistrable: it is neither.
    """
    if isinstance(given, Place):
        return given
    if hasattr(given, "capabilities"):
        return Place(given, NoBlobs())
    if not hasattr(given, "ports") and hasattr(getattr(given, "store", None), "capabilities"):
        return Place(given.store, getattr(given, "blobs", NoBlobs()))
    if not hasattr(given, "ports"):
        raise NotRegistrable(
            f"{type(given).__name__} has no documents; give an Engine, azure.connect(...), azure.blob_states(...) or a "
            "StateStore"
        )
    ports = given.ports()
    if isinstance(ports, StorePorts):
        return Place(ports.infrastructure or ports.store, ports.blobs)
    return Place(given.store(), ports.blobs, given.now_ms)


class ChangeWait:
    """Waits for changes in some stores, each time for longer where it has to look by itself.

    It returns at least every `poll_s_max`, so a change that a store does not report is found as well.
    """

    def __init__(
        self, poll_s_max: float = POLL_S_MAX, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._poll_s_max = poll_s_max
        self._sleep = sleep
        self._idle_count = 0

    def reset(self) -> None:
        """Something was found: look again soon."""
        self._idle_count = 0

    async def wait(self, seen: Mapping[StateStore, Sequence[Seen]], *, at_most_s: float | None = None) -> None:
        """Wait until a document may have changed, or `at_most_s` have passed."""
        look_s = min(self._poll_s_max, POLL_S_FIRST * 2**self._idle_count, at_most_s or self._poll_s_max)
        self._idle_count = min(self._idle_count + 1, 16)
        all_s = min(self._poll_s_max, at_most_s or self._poll_s_max)
        watched = [(store, keys) for store, keys in seen.items() if isinstance(store, WatchedStore)]
        if len(watched) == 1 == len(seen):
            await watched[0][0].changed(watched[0][1], wait_s=all_s)
            return
        tasks = [asyncio.ensure_future(store.changed(keys, wait_s=all_s)) for store, keys in watched]
        if len(watched) < len(seen):
            tasks.append(asyncio.ensure_future(self._sleep(look_s)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()


async def settled(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Await all calls concurrently, and return each one's result or error."""
    if len(calls) > 1:
        return await asyncio.gather(*calls, return_exceptions=True)
    results: list[T | BaseException] = []
    for call in calls:
        try:
            results.append(await call)
        except Exception as error:
            results.append(error)
    return results


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, made at once; the first error once all have ended."""
    if len(calls) < 2:
        return [await call for call in calls]
    results = await settled(calls)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)  # type: ignore[arg-type]  # none is an error

"""Entries, clocks and stores that the tests of streams share."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox.ports import Create, Document, DocumentKey, Lost, Session, StateStore, Version, Won, Write
from outbox.streams import Entry, Inputs, OrderedLog, Step
from outbox.streams.log import LogReader
from tests.unit.messages import Number
from tests.unit.messages import Total as Sum

ANY_AGE = timedelta(0)
"""An age that every entry has: a trim by it needs no reader."""


@dataclass
class Alarm:
    text: str


@dataclass
class Total:
    n: int = 0


def add(state: Total, inputs: Inputs, step: Step) -> None:
    """The running total, once for each entry."""
    for entry in inputs:
        state.n += entry.value
        step.emit("out", state.n)


def sum_up(total: Sum, inputs: Inputs, step: Step) -> None:
    """The running total of numbers, once for each."""
    for entry in inputs:
        total.sum += entry.value.n
        step.emit("sums", Number(total.sum))


def made(name: str, place: Any, kind: Any, **options: Any) -> OrderedLog[Any]:
    """A log as a process of its own sees it."""
    return OrderedLog(name, place, type=kind, **options)


async def entries(log: OrderedLog[Any] | LogReader[Any], *given: Any, **options: Any) -> list[Entry[Any]]:
    """All entries of a log, to its end."""
    return [entry async for entry in log.read(*given, **options)]


async def values(log: OrderedLog[Any] | LogReader[Any], *given: Any, **options: Any) -> list[Any]:
    """All values of a log, to its end."""
    return [entry.value for entry in await entries(log, *given, **options)]


async def fill(log: OrderedLog[Any], *given: Any) -> None:
    """Append values, each under an id of its own."""
    for n, value in enumerate(given):
        await log.append(value, id=f"{log.name}-{n}")


class Counting:
    """A store that counts what it is asked for: reads, and writes by the tag of their last operation, by outcome."""

    def __init__(self, store: StateStore) -> None:
        self._store: Any = store
        self.capabilities = store.capabilities
        self.reads: Counter[DocumentKey] = Counter()
        self.writes: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def reset(self) -> None:
        """Count from zero."""
        self.reads, self.writes, self.lost = Counter(), Counter(), Counter()

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        self.reads[key] += 1
        found: Document | None = await self._store.read(key, session=session)
        return found

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        last = operations[-1]
        what = getattr(last, "tag", None)
        name = f"{type(last).__name__} {what.what if what else ''}"
        self.writes[name] += 1
        answer: Won | Lost = await self._store.write(operations)
        self.lost[name] += isinstance(answer, Lost)
        return answer

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        found: AsyncIterator[Document] = self._store.scan(partition, prefix=prefix)
        return found

    def unfinished(self) -> AsyncIterator[Document]:
        found: AsyncIterator[Document] = self._store.unfinished()
        return found

    async def changed(self, seen: Sequence[tuple[DocumentKey, Version]], *, wait_s: float) -> None:
        await self._store.changed(seen, wait_s=wait_s)


async def put_raw(store: StateStore, partition: str, id: str, body: bytes) -> None:
    """Write bytes where a log has its documents, as something else would."""
    assert isinstance(await store.write([Create(DocumentKey(partition, id), body)]), Won)

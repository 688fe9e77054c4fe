"""A store that hands every call on, from which faulty stores are derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outbox.ports import Document, DocumentKey, Lost, Session, StateStore, Won, Write


@dataclass(eq=False)
class Lying:
    """A store that hands everything on; liars change one thing."""

    store: StateStore

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        return await self.store.read(key, session=session)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        return await self.store.write(operations)

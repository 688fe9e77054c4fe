"""What partition scope and item scope have in common, for whoever has messages committed over a store and a bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outbox.ports import Document
from outbox.runtime.delivery.waiting import Waits
from outbox.runtime.work import Attempt, Outcome


class StoreProtocol(Protocol):
    """One commit protocol over a store and a bus."""

    @property
    def group_count_max(self) -> int:
        """How many messages can share a commit."""

    async def together(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Commit messages of one partition together and push what they emitted; what became of each.

        It may stop after a message that its successors have to wait for; the rest has no outcome then.

        Raises:
            Again: nothing is known to have been committed; handle each on its own.
        """

    async def once(self, attempt: Attempt) -> Outcome:
        """One attempt at one message: follow its record, or run it, commit and push.

        Raises:
            Again: nothing is known to have been committed, or it could not be pushed now.
        """

    async def hold(self, attempt: Attempt) -> Outcome | Waits:
        """Put on record that a message waits behind a blocked key; what became of it, where that is on record.

        Raises:
            Again: it is not known to be on record.
        """

    async def redo(self, document: Document) -> bool:
        """Finish a document that a crash has left pending; whether it is finished."""

    @property
    def unmarked_count(self) -> int:
        """How many writes `finish` would make."""

    async def finish(self, *, only_full: bool = False) -> None:
        """Do what may come after a settlement: mark what has left, or only where that is much."""

"""The interface of partition scope and item scope."""

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
        """How many messages may share a commit."""

    async def together(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Commit messages of one partition together and push their outputs; the outcome of each.

        It may stop after a message that keeps its successors back; the rest has no outcome then.

        Raises:
            NothingCommitted: nothing is known to have been committed; handle each on its own.
        """

    async def once(self, attempt: Attempt) -> Outcome:
        """One attempt at one message: follow its record, or run it, commit and push.

        Raises:
            NothingCommitted: nothing is known to have been committed, or the push failed.
        """

    async def hold(self, attempt: Attempt) -> Outcome | Waits:
        """Create a waiting record for a message behind a blocked key; its outcome, where that is on record.

        Raises:
            NothingCommitted: the record is not known to exist.
        """

    async def redo(self, document: Document) -> bool:
        """Finish a pending document after a crash; whether it is finished."""

    @property
    def unmarked_count(self) -> int:
        """How many writes `finish` would make."""

    async def finish(self, *, only_full: bool = False) -> None:
        """Mark pushed records, or only in partitions with many; it may come after the settlement."""

"""The interface of partition scope and item scope, and the parts that both are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outbox.ports import Document, StateStore, StorePorts
from outbox.runtime.commit.marks import Marking
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.delivery.waiting import Waits
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Attempt, Outcome

Checkpoint = Callable[..., None]
"""A function called at a step with its name and all values used after it, but the attempt and `remembered`."""


def no_checkpoint(step: str, *known: Any) -> None:
    """Do nothing: only explorations, which follow equal attempts once, look at checkpoints."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of a store protocol: the application, the ports, the clock and the ids of its process."""

    plan: CompiledApp
    ports: StorePorts
    settlement: Settlement
    now_ms: Callable[[], int]
    new_tx: Callable[[], str]
    is_stopping: Callable[[], bool]

    @property
    def records(self) -> StateStore:
        """The store of the protocol's own documents; that of the states, where they are not apart."""
        return self.ports.infrastructure or self.ports.store


class StoreProtocol(Marking, Protocol):
    """One commit protocol over a store and a bus."""

    checkpoint: Checkpoint

    def remembered(self) -> tuple[Any, ...]:
        """All that it has learned, as plain data that compares equal however it was learned."""

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

    async def redo(self, document: Document) -> bool | None:
        """Finish a pending document after a crash; whether it is finished; None: there was nothing to do."""

    async def finish(self) -> None:
        """Mark all pushed records, or save the ledger; it may come after the settlement."""

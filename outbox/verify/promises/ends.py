"""How messages end, in every scope alike: handled or dead-lettered, none lost, none left, the invariant in between."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from outbox.message import Message
from outbox.verify.explorer.models.queues import OVER_DELIVERED, Dead, Queues, QueueState
from outbox.verify.explorer.ops import Finding
from outbox.verify.explorer.trace_text import short
from outbox.verify.promises.ledger import Book, Ledger, has_ended
from outbox.verify.promises.view import Invariant, View

CODES = frozenset(
    (
        "undecodable",
        "unknown-type",
        "missing-key",
        "no-identity",
        "payload-differs",
        "edit-without-record",
        "too-old",
        "oversize",
    )
)
"""Reasons that are not a handler's."""
UNPROVEN = frozenset(("too-old", "edit-without-record"))
"""The reasons that leave open whether the message took effect before."""

Documents = Mapping[str, tuple[bytes, int]]
"""The states in a world by id: value and schema."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Judges a world by its queues and states."""

    book: Book
    queues: Queues
    invariant: Invariant | None = None
    allows_dead_letters: bool = False
    at_end: Invariant | None = None

    def check(self, ghost: Ledger, state: QueueState, documents: Callable[[], Documents]) -> Finding | None:
        """A dead letter that nothing allows, where one for its age is no handler's doing; or the broken invariant."""
        for dead in () if self.allows_dead_letters else state.dead:
            if dead.reason != "too-old":
                return Finding("NoDeadLetter", f"{short(self._identity(dead))} is dead-lettered: {dead.reason}")
        return None if self.invariant is None else View(self.book, ghost, documents()).judged(self.invariant)

    def outcome(self, ghost: Ledger, state: QueueState, documents: Documents) -> Hashable:
        """A world as outsiders see it: states, outputs, verdicts and dead letters."""
        verdicts = ghost.applied, ghost.refused, ghost.fenced
        dead = {(self._identity(dead), dead.reason) for dead in state.dead}
        return tuple(sorted(documents.items())), ghost.emitted, verdicts, tuple(sorted(dead))

    def missing(self, ghost: Ledger, state: QueueState, documents: Documents) -> list[Finding]:
        """The findings when nothing more can happen: in messages, and by the invariant for the end."""
        found = [
            finding
            for destination, message in self.book.logical(ghost)
            for path in self.book.routes.get(destination, ())
            if (finding := self._unfinished(ghost, state, path, message)) is not None
        ]
        broken = None if self.at_end is None else View(self.book, ghost, documents).judged(self.at_end, at_end=True)
        return found if broken is None else [*found, broken]

    def _unfinished(self, ghost: Ledger, state: QueueState, path: str, message: Message) -> Finding | None:
        name, number = short(message.identity), self.queues.numbers[path]
        is_there = self.queues.is_there(state, path, message.identity)
        if not self.queues.specs[number].is_read:
            return None if is_there else Finding("NoLost", f"{name} is not in {path}")
        is_blocked = is_there and self.book.is_blocked(ghost, path, message)
        if is_blocked or self.queues.is_left_out(state, path, message.identity):
            return None
        if is_there:
            return Finding("EveryMessageEnds", f"{name} is still in {path}, and no worker handles it any more")
        handlings = self.book.handlings(path, message)
        dead = [dead for dead in state.dead if dead.queue == number and self._identity(dead) == message.identity]
        if any(each.reason == OVER_DELIVERED for each in dead):
            return None  # the broker has taken it away, whatever was committed of it; its outputs leave all the same
        is_dead = bool(dead)
        if any(not has_ended(ghost, h.inbox) for h in handlings) or (not handlings and not is_dead):
            return Finding("NoLost", f"{name} is gone from {path} and was neither applied nor refused")
        if any(h.inbox in ghost.refused for h in handlings) and not is_dead:
            return Finding("NoLost", f"{name} was refused, and is no dead letter of {path}")
        return self.book.unasked(ghost, handlings)

    def _identity(self, dead: Dead) -> str:
        return self.queues.messages[dead.message].identity

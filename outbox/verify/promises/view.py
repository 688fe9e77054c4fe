"""A world as an application sees it: states, and messages whose emission is committed and whose handling is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from outbox.lineage import Key
from outbox.name_checks import kept_states, known_state, known_state_id
from outbox.verify.explorer.ops import Finding

if TYPE_CHECKING:
    from outbox.verify.promises.ledger import Book, Ledger

T = TypeVar("T")


class View:
    """The view of an invariant."""

    def __init__(self, book: Book, ledger: Ledger, documents: Mapping[str, tuple[bytes, int]]) -> None:
        self._app = book.reference.plan.app
        self._book = book
        self._ledger = ledger
        self._documents = documents
        self.asked: set[type[Any]] = set()
        self.seen: set[type[Any]] = set()
        """The types that `in_flight` was asked for, and those of which there was a message."""

    def states(self, kind: type[T]) -> list[T]:
        """All states of a type; UnknownType where no handler has such a state, of which anything would be true."""
        codec = known_state(self._app, kind, kept_states(self._app))
        kept = sorted(self._documents.items())
        return [codec.decode(*stored) for id, stored in kept if id.rpartition(":")[0] == codec.name]

    def state(self, kind: type[T], key: Key) -> T | None:
        """The state of a key; None where there is none.

        Raises:
            UnknownType: no handler has such a state.
            TypeError: its handlers have keys of another kind.
        """
        known = kept_states(self._app)
        codec = known_state(self._app, kind, known)
        found = self._documents.get(known_state_id(self._app, kind, key, known))
        return None if found is None else cast(T, codec.decode(*found))

    def in_flight(self, kind: type[T]) -> list[T]:
        """The messages of a type that are committed and not handled, each once however many copies there are."""
        codec = self._app.codec(kind)
        found: list[T] = []
        self.asked.add(kind)
        for destination, message in self._book.logical(self._ledger):
            if message.type != codec.name:
                continue
            self.seen.add(kind)
            if self._book.open(self._ledger, destination, message):
                found.append(codec.decode(self._book.reference.whole(message).body))
        return found

    def judged(self, invariant: Invariant, *, at_end: bool = False) -> Finding | None:
        """The finding by an invariant, which may return False or raise an `AssertionError`; one of the end alone."""
        try:
            if invariant(self):
                return None
            reason = ""
        except AssertionError as error:
            reason = f": {error}" if str(error) else ""
        shown = ", ".join(f"{id} {value.decode()}" for id, (value, _) in sorted(self._documents.items()))
        promise, what = ("AtEnd", "at_end does not hold") if at_end else ("Invariant", "the invariant does not hold")
        return Finding(promise, f"{what}{reason} at {shown or 'no states'}")


Invariant = Callable[[View], Any]
"""A function that must be true of every world."""

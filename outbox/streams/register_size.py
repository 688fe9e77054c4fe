"""What a register holds: its state, a step's outputs until they are in their logs, or the messages of one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outbox.errors import TooLarge
from outbox.ports import NoBlobs, StateStore
from outbox.runtime.work import Work
from outbox.streams.log_places import Place
from outbox.streams.register import Out, Register
from outbox.streams.row import Row
from outbox.streams.values import ENVELOPE_BYTES, check_fits, inline_bytes_max


class StateFull(TooLarge):
    """A processor's state has outgrown its register."""


def register_bytes_max(store: StateStore) -> int:
    """The most bytes of state and outputs that a register of a store holds."""
    return store.capabilities.item_bytes_max - ENVELOPE_BYTES


def check_size(rows: Mapping[str, Row[Any]], store: StateStore, state_bytes: int, outs: Sequence[Out]) -> None:
    """Check that a register holds what a step made, and that the rows of its outputs take it.

    Raises:
        TooLarge: it does not; fewer entries at once may.
    """
    sizes = {out.to: sum(len(bytes(raw)) + 1 for raw in out.v) for out in outs}
    for key, row in rows.items():
        check_fits(sizes.get(key, 0), row.place.store, row.place.blobs, row.name)
    size_bytes = state_bytes + sum(sizes.values())
    size_bytes += sum(len(text.encode()) + 3 for out in outs for text in (*out.keys, *out.types))
    limit_bytes = register_bytes_max(store)
    if size_bytes > limit_bytes:
        raise TooLarge(
            f"the state and what the step emits are {size_bytes} bytes, the register holds {limit_bytes}; keep a "
            "smaller state, or handle fewer entries at once: batch_max="
        )


def check_state(processor: str, store: StateStore, before: Register, state_bytes: int, entry_count: int) -> None:
    """Check that a state that was large before has room for what one more entry adds.

    Raises:
        StateFull: it has none, which is not that entry's fault.
    """
    limit_bytes = register_bytes_max(store)
    if entry_count <= 1 and state_bytes > limit_bytes and 2 * len(bytes(before.state)) > limit_bytes:
        raise StateFull(
            f"processor {processor}: its state is {state_bytes} bytes, the register holds {limit_bytes}; keep less in "
            "it, with what grows in a log or in a database, and start again"
        )


def entry_bytes_max(store: StateStore, place: Place) -> int:
    """The most bytes that one commit may bring: what a register holds and, without blobs, a cell of the log."""
    limit_bytes = register_bytes_max(store)
    return min(limit_bytes, inline_bytes_max(place.store)) if isinstance(place.blobs, NoBlobs) else limit_bytes


def groups_of(works: Sequence[Work], bytes_max: int) -> list[list[Work]]:
    """Groups in which no message is there twice, and which one commit holds.

    A copy goes into another group, and finds the record; a message that is larger by itself is alone.
    """
    groups: list[list[Work]] = []
    sizes: list[int] = []
    for work in works:
        size_bytes = len(work.delivery.message.body)
        for at, group in enumerate(groups):
            fits = sizes[at] + size_bytes <= bytes_max
            if fits and (not work.inbox or all(other.inbox != work.inbox for other in group)):
                group.append(work)
                sizes[at] += size_bytes
                break
        else:
            groups.append([work])
            sizes.append(size_bytes)
    return groups

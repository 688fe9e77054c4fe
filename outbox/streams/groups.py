"""The groups that an ingest commits messages in: what one register, and a cell of its log, hold."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.ports import NoBlobs, StateStore
from outbox.runtime.work import Work
from outbox.streams.log_places import Place
from outbox.streams.values import ENVELOPE_BYTES, inline_bytes_max


def entry_bytes_max(store: StateStore, place: Place) -> int:
    """The most bytes that one commit may bring: what a register holds and, without blobs, a cell of the log."""
    register_bytes_max = store.capabilities.item_bytes_max - ENVELOPE_BYTES
    return (
        min(register_bytes_max, inline_bytes_max(place.store))
        if isinstance(place.blobs, NoBlobs)
        else register_bytes_max
    )


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

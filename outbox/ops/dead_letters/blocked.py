"""Keys that a dead letter blocks (`on_dead_letter="stop_key"`): which, by what, and how to let them go on.

A key goes on when the dead letter that blocks it is discarded, or resubmitted and applied.  Which of the two is for the
operator to say: nothing else unblocks a key here, so that no successor runs by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from outbox.errors import Refused
from outbox.ops.shared.names import begins, listed
from outbox.ops.values.dead_letters import BlockedKey, BlockedPage, Discard, ListBlocked, Moved, Resubmit
from outbox.ops.values.requests import Admin

By = Literal["discard", "resubmit"]


class Unblocked(msgspec.Struct, frozen=True):
    """A key, the dead letter that blocked it, what was done with that, and how many messages waited behind it."""

    queue: str
    key: str
    id: str
    by: By
    waiting: int


async def unblock(admin: Admin, queue: str, text: str, by: By) -> Unblocked:
    """Discard or resubmit the dead letter that blocks a key, or the one blocked key with this prefix.

    Raises:
        LookupError: no such key is blocked in this queue.
        Refused: several have this prefix; or what blocks it is not there to be moved.
    """
    keys = await every_blocked(admin, queue)
    names = {each.key for each in keys}
    found = {text} & names or {key for key in names if begins(text, key)}
    if not found:
        raise LookupError(f"no key {text!r} of {queue} is blocked; blocked are: {listed(names)}")
    if len(found) > 1:
        raise Refused(f"{len(found)} blocked keys of {queue} begin with {text!r}: {listed(found)}; give more of it")
    key = next(each for each in keys if each.key in found)
    if not key.is_there:
        raise Refused(f"{queue}, key {key.key!r}: {key.why}")
    move = Discard if by == "discard" else Resubmit
    moved: Moved = await admin.ask(move(queue, key.id, sequence=key.sequence))  # another key may have one of its id
    assert moved.count, "a dead letter is moved, or that raises"
    return Unblocked(queue, key.key, key.id, by, key.waiting)


async def every_blocked(admin: Admin, queue: str = "") -> list[BlockedKey]:
    """All blocked keys of a queue, or of all, page by page."""
    found: list[BlockedKey] = []
    asked = ListBlocked(queue)
    while True:
        page = await admin.ask(asked)
        found += page.keys
        if not page.more:
            return found
        asked = ListBlocked(queue, page.more)


def page_of(keys: Sequence[BlockedKey], asked: ListBlocked) -> BlockedPage:
    """A page in the order of queues and keys; `after` is where the last one ended."""
    ordered = sorted(keys, key=place_of)
    rest = [each for each in ordered if not asked.after or place_of(each) > asked.after]
    shown = rest[: asked.count]
    return BlockedPage(shown, place_of(shown[-1]) if len(rest) > len(shown) else "")


def place_of(key: BlockedKey) -> str:
    """Where a key stands in the list."""
    return f"{key.queue}\0{key.key}"

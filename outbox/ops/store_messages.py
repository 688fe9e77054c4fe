"""The messages that a bus holds, as an operator asks for them by id: find, cancel, make due.

A bus is looked through from its first message on, and no further than a limit.  What lies behind it is not said to be
absent: the answer names the number up to which each queue was looked through, and the command that looks on from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from outbox.errors import Refused
from outbox.ops.dead_letter_views import name_of, with_body
from outbox.ops.held_messages import found_with_body, identity_of, state_of, view_of, waits_for
from outbox.ops.names import later_id, look_on, scheduled_id, the_id
from outbox.ops.store_dead_letters import StoreDeadLetters
from outbox.ops.values import BATCH_COUNT_MAX, FindQuery, FoundMessage, Moved
from outbox.ports import BlobStore, DeadLetterEntry, HeldMessage, Output
from outbox.runtime.gather import side_by_side
from outbox.runtime.store_operations import StoreOperations

SCAN_COUNT_MAX = 20_000
"""How many messages one command looks through for an id, all queues together: two hundred of them are a request."""
SCAN_COUNT_MIN = 2_000
"""How many of each queue at least, however many queues there are."""


class Peek(Protocol):
    """Look into a queue or subscription of the bus: messages, and the number to look on after (0: that is all)."""

    async def __call__(
        self,
        queue: str,
        *,
        after: int,
        count: int,
        session: str,
        is_wanted: Callable[[HeldMessage], bool],
        look_count_max: int = SCAN_COUNT_MIN,
    ) -> tuple[list[HeldMessage], int]: ...


Cancel = Callable[[str, Sequence[int]], Awaitable[None]]
"""Cancel scheduled messages of a queue or topic, by their numbers."""

Ask = Callable[[str], Awaitable[bool]]
"""Ask the bus about a queue: whether nothing can be received from it, or whether it is ordered by key."""


def scan_count(queue_count: int) -> int:
    """How many messages of each of so many queues are looked through."""
    return max(SCAN_COUNT_MIN, SCAN_COUNT_MAX // max(1, queue_count))


class StoreMessages:
    """The messages of a bus beside a store."""

    def __init__(
        self,
        peek: Peek,
        cancel: Cancel,
        is_paused: Ask,
        *,
        operations: StoreOperations,
        dead_letters: StoreDeadLetters,
        blobs: BlobStore,
    ) -> None:
        self._peek = peek
        self._cancel = cancel
        self._is_paused = is_paused
        self._operations = operations
        self._dead_letters = dead_letters
        self._blobs = blobs

    async def find(self, asked: FindQuery, queues: Sequence[str]) -> list[FoundMessage]:
        """Every place of a message in these queues, among the messages that are looked through, and dead letters.

        Raises:
            LookupError: it is in none of them.
            Refused: several ids have this prefix; or it was not seen, and not all messages were looked through.
        """
        now_ms = self._operations.now_ms()

        async def look(queue: str) -> tuple[list[HeldMessage], int, list[DeadLetterEntry]]:
            shown, more = await self._named(queue, asked.id, asked.after, queue_count=len(queues))
            return shown, more, await self._operations.dead_letters(queue)

        looks = list(zip(queues, await side_by_side(queues, look), strict=True))
        held = [(queue, each) for queue, (shown, _, _) in looks for each in shown]
        dead = [(queue, each) for queue, (_, _, letters) in looks for each in letters]
        dead = [(queue, letter) for queue, letter in dead if name_of(letter).startswith(asked.id)]
        cut = {queue: more for queue, (_, more, _) in looks if more}
        ids = {identity_of(queue, each) for queue, each in held} | {name_of(letter) for _, letter in dead}
        try:
            id = the_id(asked.id, ids, asked.queue)
        except LookupError:
            if not cut:
                raise
            show = "outbox message show --queue {queue} --after {after} {id}"
            raise Refused(look_on(asked.id, cut, show)) from None
        found = []
        for queue, each in held:
            if identity_of(queue, each) == id:
                taker = waits_for(queue, paused=await self._is_paused(queue))
                view = view_of(queue, each, now_ms, taker)
                found.append(await found_with_body(view, each.message, self._blobs))
        its_dead = [(queue, letter) for queue, letter in dead if name_of(letter) == id]
        for queue, letter in its_dead:
            only = (await self._dead_letters.types(queue)).only
            is_only = sum(each == queue for each, _ in its_dead) == 1
            found.append(FoundMessage(None, await with_body(id, letter, only, self._blobs, is_only=is_only)))
        return found

    async def cancel(self, queue: str, id: str, *, after: int) -> Moved:
        """Cancel what is scheduled under an id.

        Raises:
            LookupError, Refused: as for `find`.
        """
        now_ms = self._operations.now_ms()
        found, more = await self._named(queue, id, after, is_meant=lambda held: state_of(held, now_ms) == "scheduled")
        full = self._full(queue, id, found, more, scheduled_id, "cancel")
        sequences = [held.sequence for held in found if identity_of(queue, held) == full]
        await self._cancel(queue, sequences)
        return _moved(len(sequences), full, more)

    async def make_due(self, queue: str, id: str, *, after: int) -> Moved:
        """Send what a queue holds for later once more, to be taken now, and then cancel that.

        If this is broken off in between, both are there: the second of them is a duplicate.

        Raises:
            LookupError, Refused: as for `find`.
        """
        found, more = await self._named(queue, id, after, is_meant=lambda held: held.status == "scheduled")
        full = self._full(queue, id, found, more, later_id, "now")
        later = [held for held in found if identity_of(queue, held) == full]
        for held in later:
            own = f"{full}~now-{held.sequence}"  # the bus has seen the other, and may drop duplicates
            message = msgspec.structs.replace(held.message, outbox_id=full, message_id=own)
            await self._operations.send([Output(queue, 0, message)])
            await self._cancel(queue, [held.sequence])
        return _moved(len(later), full, more)

    @staticmethod
    def _full(
        queue: str,
        id: str,
        found: Sequence[HeldMessage],
        more: int,
        meant: Callable[[str, str, set[str]], str],
        verb: str,
    ) -> str:
        """The id that is meant; where not all was looked through, none that only begins so.

        Raises:
            LookupError, Refused: it is not there, or may be among what was not looked through.
        """
        ids = {identity_of(queue, held) for held in found}
        if more and id not in ids:
            raise Refused(look_on(id, {queue: more}, f"outbox schedule {verb} --after {{after}} {{queue}} {{id}}"))
        return meant(queue, id, ids)

    async def _named(
        self,
        queue: str,
        id: str,
        after: int,
        *,
        is_meant: Callable[[HeldMessage], bool] = lambda _: True,
        queue_count: int = 1,
    ) -> tuple[list[HeldMessage], int]:
        """The messages with an id, and some with ids that begin so; and the number to look on after."""
        beginning, count = 0, scan_count(queue_count)

        def is_wanted(held: HeldMessage) -> bool:
            nonlocal beginning
            own = identity_of(queue, held)
            if not own.startswith(id) or not is_meant(held):
                return False
            beginning += own != id
            return own == id or beginning <= BATCH_COUNT_MAX

        return await self._peek(queue, after=after, count=count, session="", is_wanted=is_wanted, look_count_max=count)


def _moved(count: int, id: str, more: int) -> Moved:
    return Moved(count, id=id, more=more) if more else Moved(count, id=id)

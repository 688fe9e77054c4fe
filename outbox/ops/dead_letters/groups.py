"""Dead letters by the hundred: found across queues, grouped by what went wrong, resubmitted or discarded at a pace.

An action on many fixes first which they are.  Resubmitting stops at the first that comes back as a dead letter, because
the others would too: what was wrong is not mended.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import UnsetType

from outbox.errors import OutboxError, Refused
from outbox.ops.dead_letters.views import exception_of
from outbox.ops.values.dead_letters import (
    DeadAttempt,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterView,
    DiscardSome,
    FindDead,
    ListDeadLetters,
    Resubmit,
)
from outbox.ops.values.requests import BATCH_COUNT_MAX, Admin
from outbox.ops.values.status import ReadStatus

GROUPED_LENGTH_MAX = 200
LOOK_EVERY_S = 0.5
"""How often those resubmitted are looked for among the dead letters."""
RELAPSE_WITHIN_S = 2.0
"""How long the last of them are waited for: a handler that fails at once has done so by then."""

_RAISED_AT = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in ', re.MULTILINE)


class MovedGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many of a group were moved, how many were left, and `why` the first of those was.

    `relapsed` is the id of the one at which resubmitting stopped, `number` that of the dead letter; an error
    of the backend stops too, and `is_broken_off` says so.
    """

    count: int
    left: int
    relapsed: str = ""
    number: int = 0
    why: str = ""
    is_broken_off: bool = False


async def found_in(
    admin: Admin, queues: Sequence[str], where: DeadLetterFilter, count_max: int | None = None
) -> list[DeadLetterView]:
    """List dead letters of queues that a filter selects, queue by queue, oldest first, at most `count_max`."""
    found: list[DeadLetterView] = []
    for queue in queues:
        after = 0
        while count_max is None or len(found) < count_max:
            wanted = BATCH_COUNT_MAX if count_max is None else min(BATCH_COUNT_MAX, count_max - len(found))
            page = await admin.ask(ListDeadLetters(queue, after=after, count_max=wanted, where=where))
            found += page
            if len(page) < wanted:
                break
            after = page[-1].sequence
    return found


async def queues_with_dead_letters(admin: Admin) -> list[str]:
    """The queues that have any."""
    return [name for name, queue in (await admin.ask(ReadStatus())).queues.items() if queue.dead_letters]


def grouped(letters: Sequence[DeadLetterView]) -> list[DeadLetterGroup]:
    """Dead letters that went wrong alike as one, the largest group first."""
    groups: dict[tuple[str, str, str, str], list[DeadLetterView]] = {}
    for letter in letters:
        groups.setdefault((letter.queue, letter.reason, error_of(letter), raised_at(letter)), []).append(letter)
    rows = [
        DeadLetterGroup(
            *kind, len(alike), min(one.created for one in alike), max(one.created for one in alike), alike[-1].id
        )
        for kind, alike in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.count)


def error_of(letter: DeadLetterView) -> str:
    """Return the error by which dead letters are grouped: the class of an exception, or a refusal's text."""
    text = letter.description.splitlines()[0] if letter.description else ""
    return (exception_of(letter.reason, text) or text)[:GROUPED_LENGTH_MAX]


def raised_at(letter: DeadLetterView) -> str:
    """The line that raised the exception of a dead letter; empty without a stack."""
    frames = list(_RAISED_AT.finditer(letter.traceback.partition("\ncaused by ")[0]))
    return f"{frames[-1]['file']}:{frames[-1]['line']}"[-GROUPED_LENGTH_MAX:] if frames else ""


async def resubmit_all(admin: Admin, letters: Sequence[DeadLetterView], *, a_second: float | None) -> MovedGroup:
    """Resubmit dead letters, `a_second` per second, until one comes back."""
    relapses, run = _Relapses(admin), set[tuple[str, str]]()
    await relapses.know(letters)

    began_s, count, left, why, number = time.monotonic(), 0, 0, "", 0
    try:
        for number, letter in enumerate(letters):
            await _pace(began_s, number, a_second)
            if relapsed := await relapses.first():
                return MovedGroup(count, left + len(letters) - number, *relapsed, why)
            its = letter.queue, letter.id
            try:
                moved = await admin.ask(Resubmit(*its, sequence=letter.sequence))
            except (LookupError, Refused) as error:
                if isinstance(error, Refused) or its not in run:  # else a copy, which went along
                    left, why = left + 1, why or str(error)
            else:
                run.add(its)
                relapses.watch(*its)
                count += moved.count
        number = len(letters)
        return MovedGroup(count, left, *(await relapses.first(within_s=RELAPSE_WITHIN_S) or ("", 0)), why)
    except OutboxError as error:  # its outcome may be unknown, and the next would fare no better
        return MovedGroup(count, left + len(letters) - number, why=str(error), is_broken_off=True)


async def discard_all(
    admin: Admin, letters: Sequence[DeadLetterView], *, a_second: float | None, for_good: bool = False
) -> MovedGroup:
    """Discard dead letters, `a_second` per second, for a time or for good.

    Dead letters of one queue are discarded together, with a pace as many as fit a second: on a bus each look at dead
    letters locks all of them.
    """
    together = BATCH_COUNT_MAX if a_second is None else min(BATCH_COUNT_MAX, max(1, int(a_second)))
    began_s, count, left, why = time.monotonic(), 0, 0, ""
    for number, some in _together(letters, together):
        await _pace(began_s, number, a_second)
        queue, numbers = some[0].queue, [letter.sequence for letter in some]
        try:
            moved = await admin.ask(DiscardSome(queue, numbers, for_good=for_good))
        except (LookupError, Refused) as error:
            left, why = left + len(some), why or str(error)
        except OutboxError as error:  # its outcome may be unknown, and the next would fare no better
            count += await _gone_of(admin, some)
            return MovedGroup(count, len(letters) - count, why=str(error), is_broken_off=True)
        else:
            count += moved.count
            done = set() if isinstance(moved.numbers, UnsetType) else set(moved.numbers)
            missed = [letter for letter in some if letter.sequence not in done]
            left += len(missed)
            if missed and not why:
                why = f"{queue} has no dead letter {missed[0].id!r} of number {missed[0].sequence} that is free"
    return MovedGroup(count, left, why=why)


def _together(letters: Sequence[DeadLetterView], count_max: int) -> Iterator[tuple[int, Sequence[DeadLetterView]]]:
    """Split dead letters into runs of one queue, at most `count_max` each, with the index of its first."""
    at = 0
    while at < len(letters):
        end = at + 1
        while end < min(len(letters), at + count_max) and letters[end].queue == letters[at].queue:
            end += 1
        yield at, letters[at:end]
        at = end


async def _gone_of(admin: Admin, letters: Sequence[DeadLetterView]) -> int:
    """How many of a queue's dead letters are gone, as far as that can be seen after an error."""
    with suppress(OutboxError, LookupError):
        there = await admin.ask(FindDead(letters[0].queue, list(dict.fromkeys(letter.id for letter in letters))))
        numbers = {each.sequence for dead in there.values() for each in dead}
        return sum(letter.sequence not in numbers for letter in letters)
    return 0


async def _pace(began_s: float, number: int, a_second: float | None) -> None:
    """Wait until the pace allows an item with `number` others before it."""
    if a_second is not None:
        await asyncio.sleep(max(0.0, began_s + number / a_second - time.monotonic()))


class _Relapses:
    """Looks for the last resubmitted messages among the dead letters.

    An id may have dead letters of its own that are not resubmitted: a relapse is one that was not there before, by its
    number and its attempt.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._watched: deque[tuple[str, str]] = deque(maxlen=BATCH_COUNT_MAX)
        self._known: dict[tuple[str, str], set[DeadAttempt]] = {}
        self._looked_s = time.monotonic()

    async def know(self, letters: Sequence[DeadLetterView]) -> None:
        """Know all dead letters that these ids have before anything is resubmitted."""
        by_queue: dict[str, dict[str, None]] = {}
        for letter in letters:
            by_queue.setdefault(letter.queue, {})[letter.id] = None
        for queue, found in by_queue.items():
            ids = list(found)
            for start in range(0, len(ids), BATCH_COUNT_MAX):
                there = await self._admin.ask(FindDead(queue, ids[start : start + BATCH_COUNT_MAX]))
                self._known.update({(queue, id): set(dead) for id, dead in there.items()})

    def watch(self, queue: str, id: str) -> None:
        """Look for this one from now on."""
        self._watched.append((queue, id))

    async def first(self, *, within_s: float = 0) -> tuple[str, int] | None:
        """Return id and number of a relapse within `within_s`; None: there is none, or the last look was just now."""
        until_s = time.monotonic() + within_s
        while self._watched and (within_s or time.monotonic() - self._looked_s >= LOOK_EVERY_S):
            self._looked_s = time.monotonic()
            for queue in {queue for queue, _ in self._watched}:
                watched = list(dict.fromkeys(id for of, id in self._watched if of == queue))
                for id, dead in sorted((await self._admin.ask(FindDead(queue, watched))).items()):
                    if fresh := set(dead) - self._known.get((queue, id), set()):
                        return id, max(fresh).sequence
            if time.monotonic() >= until_s:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        return None

"""Retention: how long messages are deduplicated, and the effect of a change on earlier records.

A record lives as long as the retention at its commit.  So after a raise, messages created before it are too old at the
earlier retention's age, because their records may be gone; after a lowering, records still get the longer life for a
while, because a worker with the higher retention may still run.  After a raise of the margin an attempt may take no
longer than before, while records of the earlier margin matter.  An era is an earlier retention; it ends one margin
after another was first registered, and the workers of the earlier code must have stopped by then.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable

import msgspec

from outbox.app import RETENTION
from outbox.errors import NotRegistrable, PoisonMessage
from outbox.ports import Document, Operations
from outbox.runtime.start.notes import unreadable, write_note

log = logging.getLogger("outbox.retention")

NOTE_PREFIX = "retention:"
"""The prefix of the notes of it."""
ERA_COUNT_MAX = 16
UNLIMITED_MS = 1 << 62
WRITE_COUNT_MAX = 10
"""How often a worker tries to register while others register too."""


class PastRetention(msgspec.Struct, frozen=True, order=True):
    """An earlier retention and margin, and when its last worker stopped at the latest, in milliseconds."""

    until_ms: int
    retention_ms: int
    margin_ms: int

    @property
    def record_life_ms(self) -> int:
        return self.retention_ms + self.margin_ms


class RegisteredRetention(msgspec.Struct, frozen=True):
    """The registered retention and margin, and the eras that still matter."""

    retention_ms: int
    margin_ms: int
    eras: tuple[PastRetention, ...] = ()


def duration(ms: int) -> str:
    """Format a duration, rounded down, in the largest unit of which it has two."""
    units = (("days", 86_400_000), ("hours", 3_600_000), ("min", 60_000), ("s", 1_000))
    return next((f"{ms // size_ms} {unit}" for unit, size_ms in units if ms >= 2 * size_ms), f"{ms} ms")


class RetentionWindow:
    """The retention of one worker: fixed after it has heeded the registered eras at its start."""

    __slots__ = ("attempt_ms_max", "eras", "record_life_ms", "retention_ms")

    def __init__(self, retention_ms: int, record_life_ms: int) -> None:
        self.retention_ms = retention_ms
        self.record_life_ms = record_life_ms
        self.eras: tuple[PastRetention, ...] = ()
        self.attempt_ms_max = UNLIMITED_MS
        """How long an attempt may take, given the records of earlier eras."""

    def oldest_ms(self, now_ms: int) -> int:
        """The newest creation time that is too old to run: a record of that age may be gone."""
        oldest_ms = now_ms - self.retention_ms
        for era in self.eras:
            oldest_ms = max(oldest_ms, min(era.until_ms, now_ms - era.retention_ms))
        return oldest_ms

    def too_old(self, created_ms: int, now_ms: int) -> str:
        return f"created {duration(now_ms - created_ms)} ago, retention is {duration(self._known_ms(created_ms))}"

    def _known_ms(self, created_ms: int) -> int:
        """The retention that holds for a message created at `created_ms`."""
        return min([self.retention_ms, *(era.retention_ms for era in self.eras if created_ms <= era.until_ms)])

    def refusal(self, created_ms: int, now_ms: int) -> PoisonMessage:
        """Make the age fence's refusal, in words that hold for later messages of the id too."""
        age, known_ms = duration(now_ms - created_ms), self._known_ms(created_ms)
        return PoisonMessage(
            "too-old",
            f"a message of this id came {age} after it was created, and retention is {duration(known_ms)}; all of this "
            "id is refused since: what is to be done anew needs a new id",
        )

    def heed(self, eras: tuple[PastRetention, ...], now_ms: int) -> None:
        self.eras = eras
        spare_ms = [era.record_life_ms - min(era.retention_ms, self.retention_ms) for era in eras]
        self.attempt_ms_max = min([UNLIMITED_MS, *(ms // 2 for ms in spare_ms)])
        lives = [era.record_life_ms for era in eras if era.until_ms > now_ms]
        self.record_life_ms = max([self.record_life_ms, *lives])


async def longest_retention_ms(notes: AsyncIterable[Document]) -> int:
    """The longest retention of the registered applications, from the notes; that of an `App` by default without one."""
    found = [_decoded(note).retention_ms async for note in notes]
    return max(found, default=round(RETENTION.total_seconds() * 1_000))


async def register_retention(app_name: str, window: RetentionWindow, operations: Operations) -> None:
    """Register an application's retention, and heed the eras registered before.

    Raises:
        NotRegistrable: it has changed too often.
    """
    name, margin_ms = NOTE_PREFIX + app_name, window.record_life_ms - window.retention_ms
    own = RegisteredRetention(window.retention_ms, margin_ms)
    for _ in range(WRITE_COUNT_MAX):
        note, now_ms = await operations.note(name), operations.now_ms()
        known = own if note is None else _decoded(note)
        wanted = msgspec.structs.replace(own, eras=_eras(app_name, known, own, now_ms))
        is_same = note is not None and (known.retention_ms, known.margin_ms) == (own.retention_ms, own.margin_ms)
        if is_same or await write_note(operations, name, msgspec.json.encode(wanted), note):
            window.heed(wanted.eras, now_ms)
            if not is_same:
                _log_change(app_name, known, own)
            return
    raise NotRegistrable(
        f"the retention of {app_name!r} is being registered by other workers all the time; start again"
    )


def _eras(
    app_name: str, known: RegisteredRetention, own: RegisteredRetention, now_ms: int
) -> tuple[PastRetention, ...]:
    """The eras that still matter, each once, until its latest end."""
    eras = list(known.eras)
    if (known.retention_ms, known.margin_ms) != (own.retention_ms, own.margin_ms):
        overlap_ms = max(known.margin_ms, own.margin_ms)
        eras.append(PastRetention(now_ms + overlap_ms, known.retention_ms, known.margin_ms))
    lasting = [era for era in sorted(eras) if era.until_ms > now_ms - own.retention_ms]
    latest = {(era.retention_ms, era.margin_ms): era for era in lasting}
    latest.pop((own.retention_ms, own.margin_ms), None)
    if len(latest) > ERA_COUNT_MAX:
        raise NotRegistrable(
            f"the retention of {app_name!r} has had {len(latest)} values that still matter; go back to one of them, "
            f"or wait until the oldest is {own.retention_ms} ms past"
        )
    return tuple(latest.values())


def _decoded(note: Document) -> RegisteredRetention:
    try:
        return msgspec.json.decode(note.body, type=RegisteredRetention)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(note, error) from error


def _log_change(app_name: str, known: RegisteredRetention, own: RegisteredRetention) -> None:
    fields = {"app": app_name, "before_ms": known.retention_ms, "now_ms": own.retention_ms}
    if own.retention_ms > known.retention_ms:
        log.warning("retention raised; what was created before is too old at the age of the earlier one", extra=fields)
    elif own.retention_ms < known.retention_ms:
        log.warning("retention lowered; end the workers with the earlier one before a margin has passed", extra=fields)
    elif own.margin_ms > known.margin_ms:
        fields |= {"margin_before_ms": known.margin_ms, "margin_now_ms": own.margin_ms}
        log.warning("margin raised; until a retention has passed handlers may take half the earlier one", extra=fields)

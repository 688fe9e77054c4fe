"""Notes of the framework in a backend: the handlers that are registered, and the retention.

Several workers may write them at their start.

*Handlers.*  Their names, states and keys are part of message identity: under another name or key, handled messages
would be handled again.  So the backend keeps the names and keys of each source's handlers, and a worker with others may
not start until the source is drained or the handler is declared under its registered name.  The message types of a
source are registered as well, for senders without the application's code.

*Retention.*  A record lives as long as the retention at its commit.  So after a raise, messages created before it are
too old at the earlier retention's age, because their records may be gone; after a lowering, records still get the
longer life for a while, because a worker with the higher retention may still run.  After a raise of the margin an
attempt may take no longer than before, while records of the earlier margin matter.  An era is an earlier retention; it
ends one margin after another was first registered, and the workers of the earlier code must have stopped by then.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator
from typing import TypeVar

import msgspec

from outbox import stored
from outbox.app import NO_KEY, RETENTION, App, Handler
from outbox.errors import NotRegistrable, OutcomeUnknown, PoisonMessage, UnknownDestination
from outbox.ports import Document, Operations

T = TypeVar("T")
REGISTER_COUNT_MAX = 10
"""How often a worker tries to register while others register too."""
NOTES, HANDLER_PREFIX = "notes", "handlers:"
"""The partition of the framework's own notes, and the prefix of those of handlers."""
log = logging.getLogger("outbox.retention")
ERA_COUNT_MAX = 16
UNLIMITED_MS = 1 << 62


async def write_note(operations: Operations, name: str, body: bytes, seen: Document | None) -> bool:
    """Write a note unchanged since `seen`; False: it has changed or the outcome is unknown, so read it again."""
    try:
        return await operations.write_note(name, body, "" if seen is None else seen.version)
    except OutcomeUnknown:
        return False


def _decoded(note: Document, kind: type[T]) -> T:
    """Decode a note.

    Raises:
        CorruptRecord: it cannot be decoded.
    """
    cure = "who else writes here? Delete it when the queues of its application are drained, and start again"
    return stored.decode(note, kind, "note of this framework", cure=cure)


class TypeName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A message type of a handler: its wire name and the newest registered schema version."""

    name: str
    version: int = 1


class HandlerName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A registered handler: source, name, name of its state, and its key (empty: unknown)."""

    source: str
    name: str
    state: str
    key_name: str = ""
    key_kind: str = ""
    types: tuple[TypeName, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """The part of its messages' inbox keys beside the key itself."""
        return self.source, self.name, self.state

    def has_key_of(self, other: HandlerName) -> bool:
        """Whether both give a message the same key, as far as names and types tell."""
        if not self.key_name or not other.key_name:
            return True
        return self.key_name == other.key_name and self.has_kind_of(other)

    def has_kind_of(self, other: HandlerName) -> bool:
        """Whether the keys of both can be equal: `1` and `"1"` differ."""
        return not (self.key_kind and other.key_kind) or self.key_kind == other.key_kind


async def register_handlers(app: App, operations: Operations) -> None:
    """Register an application's handlers.

    Raises:
        NotRegistrable: a registered handler is missing, or has another key, and its source still holds messages.
    """
    own = {found.identity: found for found in (_registered(app, handler) for handler in app.handlers)}
    if not own:
        return
    sources = {source for source, _, _ in own}
    for _ in range(REGISTER_COUNT_MAX):
        note = await operations.note(HANDLER_PREFIX + app.name)
        known = {found.identity: found for found in ([] if note is None else _decoded(note, list[HandlerName]))}
        for old in sorted(known.values()):
            await _check(operations, old, own, known)
        current = [_with_newest_types(found, known.get(identity)) for identity, found in own.items()]
        wanted = sorted([*current, *(other for other in known.values() if other.source not in sources)])
        is_noted = wanted == sorted(known.values())
        if is_noted or await write_note(operations, HANDLER_PREFIX + app.name, msgspec.json.encode(wanted), note):
            return
    raise NotRegistrable(
        f"the handlers of {app.name!r} are being registered by other workers all the time; start again"
    )


async def types_of(queue: str, notes: AsyncIterable[Document]) -> dict[str, int]:
    """The message types of a queue's or topic's handlers and their newest schema versions, from the notes."""
    found: dict[str, int] = {}
    async for note in notes:
        for handler in _decoded(note, list[HandlerName]):
            if handler.source == queue or handler.source.startswith(f"{queue}/Subscriptions/"):
                for kind in handler.types:
                    found[kind.name] = max(kind.version, found.get(kind.name, 1))
    return found


async def handlers_in(notes: AsyncIterable[Document]) -> AsyncIterator[tuple[str, HandlerName]]:
    """All registered handlers, each with the name of its application, from the notes."""
    async for note in notes:
        for handler in _decoded(note, list[HandlerName]):
            yield note.key.id.removeprefix(HANDLER_PREFIX), handler


async def states_of(notes: AsyncIterable[Document]) -> set[str]:
    """The state names of all registered handlers, from the notes."""
    return {handler.state async for note in notes for handler in _decoded(note, list[HandlerName]) if handler.state}


def _registered(app: App, handler: Handler) -> HandlerName:
    return HandlerName(
        handler.source,
        handler.name,
        handler.state.name if handler.state is not None else "",
        handler.key_name,
        handler.key_kind,
        tuple(sorted(TypeName(codec.name, codec.version) for codec in map(app.codec, handler.binding.messages))),
    )


def _with_newest_types(own: HandlerName, old: HandlerName | None) -> HandlerName:
    """A handler with the newest registered version of each type; an older worker must not lower it."""
    versions = {} if old is None else {kind.name: kind.version for kind in old.types}
    types = [TypeName(kind.name, max(kind.version, versions.get(kind.name, 1))) for kind in own.types]
    return msgspec.structs.replace(own, types=tuple(types))


Names = dict[tuple[str, str, str], HandlerName]


async def _check(operations: Operations, old: HandlerName, own: Names, known: Names) -> None:
    """Refuse to start without a registered handler, or with another key, until its source is drained."""
    now = own.get(old.identity)
    if now is not None and now.has_key_of(old):
        return
    if old.source not in {source for source, _, _ in own} or await _is_drained(operations, old.source):
        return
    if now is not None:
        raise NotRegistrable(_cure_of_key(old, now))
    raise NotRegistrable(_cure(old, sorted(other for identity, other in own.items() if identity not in known)))


async def _is_drained(operations: Operations, source: str) -> bool:
    try:
        return await operations.is_drained([source])
    except UnknownDestination:
        return True


HELD = "messages (waiting, scheduled, rescheduled, dead-lettered, or committed and not sent yet)"


def _cure(gone: HandlerName, fresh: list[HandlerName]) -> str:
    """The error text for a missing handler."""
    renamed = [f"{other.name!r}" for other in fresh if other.source == gone.source]
    now = f"; if it is {' or '.join(renamed)} now, write name={gone.name!r} there" if renamed else ""
    state = f" of state {gone.state!r}" if gone.state else ""
    return (
        f"handler {gone.name!r}{state} read {gone.source!r}, which still holds {HELD}, and is missing now: "
        f"messages it has handled would be handled again{now}; or drain {gone.source!r} with the old code first"
    )


def _cure_of_key(old: HandlerName, now: HandlerName) -> str:
    """The error text for a handler with another key."""
    alias = ""
    if now.has_kind_of(old) and NO_KEY not in (now.key_name, old.key_name):
        alias = f"; if it gives the same keys as before, write key_name={old.key_name!r} there"
    return (
        f"handler {now.name!r} takes its key from {_shown(now)}, and took it from {_shown(old)} for what "
        f"{now.source!r} still holds: messages it has handled would be handled again under other keys{alias}; or drain "
        f"{now.source!r} with the old code first"
    )


def _shown(handler: HandlerName) -> str:
    if handler.key_name == NO_KEY:
        return "nothing"
    return handler.key_name + (f" ({handler.key_kind})" if handler.key_kind else "")


RETENTION_PREFIX = "retention:"
"""The prefix of the notes of retention."""


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
    found = [_decoded(note, RegisteredRetention).retention_ms async for note in notes]
    return max(found, default=round(RETENTION.total_seconds() * 1_000))


async def register_retention(app_name: str, window: RetentionWindow, operations: Operations) -> None:
    """Register an application's retention, and heed the eras registered before.

    Raises:
        NotRegistrable: it has changed too often.
    """
    name, margin_ms = RETENTION_PREFIX + app_name, window.record_life_ms - window.retention_ms
    own = RegisteredRetention(window.retention_ms, margin_ms)
    for _ in range(REGISTER_COUNT_MAX):
        note, now_ms = await operations.note(name), operations.now_ms()
        known = own if note is None else _decoded(note, RegisteredRetention)
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


def _log_change(app_name: str, known: RegisteredRetention, own: RegisteredRetention) -> None:
    fields = {"app": app_name, "before_ms": known.retention_ms, "now_ms": own.retention_ms}
    if own.retention_ms > known.retention_ms:
        log.warning("retention raised; what was created before is too old at the age of the earlier one", extra=fields)
    elif own.retention_ms < known.retention_ms:
        log.warning("retention lowered; end the workers with the earlier one before a margin has passed", extra=fields)
    elif own.margin_ms > known.margin_ms:
        fields |= {"margin_before_ms": known.margin_ms, "margin_now_ms": own.margin_ms}
        log.warning("margin raised; until a retention has passed handlers may take half the earlier one", extra=fields)

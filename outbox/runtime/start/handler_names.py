"""Register handlers in the backend: their names, states and keys are part of message identity.

Under another name or key, handled messages would be handled again.  So the backend keeps the names and keys of each
source's handlers, and a worker with others may not start until the source is drained or the handler is declared under
its registered name.  The message types of a source are registered as well, for senders without the application's code.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

import msgspec

from outbox.app import NO_KEY, App, Handler
from outbox.errors import NotRegistrable, UnknownDestination
from outbox.ports import Document, Operations
from outbox.runtime.start.notes import unreadable, write_note

REGISTER_COUNT_MAX = 10
"""How often a worker tries to register while others register too."""

NOTES, NOTE_PREFIX = "notes", "handlers:"
"""The partition of the framework's own notes, and the prefix of these."""


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
        note = await operations.note(NOTE_PREFIX + app.name)
        known = {found.identity: found for found in ([] if note is None else _decoded(note))}
        for old in sorted(known.values()):
            await _check(operations, old, own, known)
        current = [_with_newest_types(found, known.get(identity)) for identity, found in own.items()]
        wanted = sorted([*current, *(other for other in known.values() if other.source not in sources)])
        is_noted = wanted == sorted(known.values())
        if is_noted or await write_note(operations, NOTE_PREFIX + app.name, msgspec.json.encode(wanted), note):
            return
    raise NotRegistrable(
        f"the handlers of {app.name!r} are being registered by other workers all the time; start again"
    )


async def types_of(queue: str, notes: AsyncIterable[Document]) -> dict[str, int]:
    """The message types of a queue's or topic's handlers and their newest schema versions, from the notes."""
    found: dict[str, int] = {}
    async for note in notes:
        for handler in _decoded(note):
            if handler.source == queue or handler.source.startswith(f"{queue}/Subscriptions/"):
                for kind in handler.types:
                    found[kind.name] = max(kind.version, found.get(kind.name, 1))
    return found


async def handlers_in(notes: AsyncIterable[Document]) -> AsyncIterator[tuple[str, HandlerName]]:
    """All registered handlers, each with the name of its application, from the notes."""
    async for note in notes:
        for handler in _decoded(note):
            yield note.key.id.removeprefix(NOTE_PREFIX), handler


async def states_of(notes: AsyncIterable[Document]) -> set[str]:
    """The state names of all registered handlers, from the notes."""
    return {handler.state async for note in notes for handler in _decoded(note) if handler.state}


def _decoded(note: Document) -> list[HandlerName]:
    try:
        return msgspec.json.decode(note.body, type=list[HandlerName])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(note, error) from error


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

"""What of a handler is part of its messages' identity, registered where the messages are.

Under another name or by another key a message that was handled before would be handled again.  So a backend keeps the
names and keys that read each source, and a worker whose application has others is refused at its start, until the
source is drained or the handler is declared under what it was registered as.  The message types that a source takes
are kept beside them, for those who send without the application's code.
"""

from __future__ import annotations

from collections.abc import AsyncIterable

import msgspec

from outbox.app import NO_KEY, App, Handler
from outbox.errors import NotRegistrable, UnknownDestination
from outbox.ports import Document, Operations
from outbox.runtime.start.notes import unreadable, write_note

REGISTER_COUNT_MAX = 10
"""How often a worker tries to register beside others that do."""

NOTES, NOTE_PREFIX = "notes", "handlers:"
"""The partition of the framework's own notes, and how the names of these begin."""


class TypeName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A message type that a handler takes: its wire name and the newest schema version that is known."""

    name: str
    version: int = 1


class HandlerName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A registered handler: its source, its name, the name of its state, and what its key is (empty: not known)."""

    source: str
    name: str
    state: str
    key_name: str = ""
    key_kind: str = ""
    types: tuple[TypeName, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """What its messages' inbox keys are made of, beside the key itself."""
        return self.source, self.name, self.state

    def has_key_of(self, other: HandlerName) -> bool:
        """Whether both give a message the same key, as far as anything says."""
        if not self.key_name or not other.key_name:
            return True
        return self.key_name == other.key_name and self.has_kind_of(other)

    def has_kind_of(self, other: HandlerName) -> bool:
        """Whether the keys of both can be the same: `1` and `"1"` are two."""
        return not (self.key_kind and other.key_kind) or self.key_kind == other.key_kind


async def register_handlers(app: App, operations: Operations) -> None:
    """Register an application's handlers, if nothing that is still to be handled rests on other names or keys.

    Raises:
        NotRegistrable: a handler is gone, or has another name or key, and its source still holds messages.
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
        if wanted == sorted(known.values()):
            return
        if await write_note(operations, NOTE_PREFIX + app.name, msgspec.json.encode(wanted), note):
            return
    raise NotRegistrable(f"the handlers of {app.name!r} are being registered by others all the time; start again")


async def types_of(queue: str, notes: AsyncIterable[Document]) -> dict[str, int]:
    """The message types that handlers of a queue or topic take, with their newest schema versions, out of the notes."""
    found: dict[str, int] = {}
    async for note in notes:
        for handler in _decoded(note):
            if handler.source == queue or handler.source.startswith(f"{queue}/Subscriptions/"):
                for kind in handler.types:
                    found[kind.name] = max(kind.version, found.get(kind.name, 1))
    return found


async def states_of(notes: AsyncIterable[Document]) -> set[str]:
    """The names of the states that registered handlers have, out of the notes."""
    return {handler.state async for note in notes for handler in _decoded(note) if handler.state}


def _decoded(note: Document) -> list[HandlerName]:
    try:
        return msgspec.json.decode(note.body, type=list[HandlerName])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(note, error) from error


def _registered(app: App, handler: Handler) -> HandlerName:
    codecs = [app.codec(kind) for kind in handler.binding.messages]
    return HandlerName(
        handler.source,
        handler.name,
        handler.state.name if handler.state is not None else "",
        handler.key_name,
        handler.key_kind,
        tuple(sorted(TypeName(codec.name, codec.version) for codec in codecs)),
    )


def _with_newest_types(own: HandlerName, old: HandlerName | None) -> HandlerName:
    """A handler whose types have the newest version that anybody has registered; older workers may start as well."""
    versions = {} if old is None else {kind.name: kind.version for kind in old.types}
    types = [TypeName(kind.name, max(kind.version, versions.get(kind.name, 1))) for kind in own.types]
    return msgspec.structs.replace(own, types=tuple(types))


Names = dict[tuple[str, str, str], HandlerName]


async def _check(operations: Operations, old: HandlerName, own: Names, known: Names) -> None:
    """Refuse a start without a handler that is registered, or with another key for it, while its source is in use."""
    now = own.get(old.identity)
    if now is not None and now.has_key_of(old):
        return
    if old.source not in {source for source, _, _ in own} or await _is_drained(operations, old.source):
        return
    if now is not None:
        raise NotRegistrable(_cure_of_key(old, now))
    fresh = [other for identity, other in own.items() if identity not in known]
    raise NotRegistrable(_cure(old, sorted(fresh)))


async def _is_drained(operations: Operations, source: str) -> bool:
    try:
        return await operations.is_drained([source])
    except UnknownDestination:
        return True


HELD = "messages (waiting, scheduled, put off, dead-lettered, or committed and not sent yet)"


def _cure(gone: HandlerName, fresh: list[HandlerName]) -> str:
    """What to do about a handler that is missing."""
    renamed = [f"{other.name!r}" for other in fresh if other.source == gone.source]
    now = f"; if it is {' or '.join(renamed)} now, write name={gone.name!r} there" if renamed else ""
    state = f" of state {gone.state!r}" if gone.state else ""
    return (
        f"handler {gone.name!r}{state} read {gone.source!r}, which still holds {HELD}, and is not there any "
        f"more: what it has handled would be handled again{now}; or drain {gone.source!r} with the old code first"
    )


def _cure_of_key(old: HandlerName, now: HandlerName) -> str:
    """What to do about a handler whose key is another."""
    alias = ""
    if now.has_kind_of(old) and NO_KEY not in (now.key_name, old.key_name):
        alias = f"; if it gives the same keys as before, write key_name={old.key_name!r} there"
    return (
        f"handler {now.name!r} takes its key from {_shown(now)}, and took it from {_shown(old)} when {now.source!r} "
        f"got what it still holds: what it has handled would be handled again under other keys{alias}; or drain "
        f"{now.source!r} with the old code first"
    )


def _shown(handler: HandlerName) -> str:
    if handler.key_name == NO_KEY:
        return "nothing"
    return handler.key_name + (f" ({handler.key_kind})" if handler.key_kind else "")

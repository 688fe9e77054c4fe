"""Handler names, registered where the messages are: a name is part of the identity of what it has handled.

Under a new name a message that was handled before would be handled again.  So a backend keeps the names that read each
source, and a worker whose application lacks one of them is refused at its start, until the source is drained or the
handler has its old name back.
"""

from __future__ import annotations

import msgspec

from outbox.app import App
from outbox.errors import NotRegistrable, UnknownDestination
from outbox.ports import Operations

REGISTER_COUNT_MAX = 10
"""How often a worker tries to register beside others that do."""


class HandlerName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What of a handler is part of its messages' identity: its source, its name, and the name of its state."""

    source: str
    name: str
    state: str


async def register_handlers(app: App, operations: Operations) -> None:
    """Register an application's handlers, if nothing that is still to be handled rests on other names.

    Raises:
        NotRegistrable: a handler is gone or has another name, and its source still holds messages.
    """
    own = {HandlerName(h.source, h.name, h.state.name if h.state is not None else "") for h in app.handlers}
    if not own:
        return
    sources = {handler.source for handler in own}
    for _ in range(REGISTER_COUNT_MAX):
        note = await operations.note(f"handlers:{app.name}")
        known = set() if note is None else set(msgspec.json.decode(note.body, type=list[HandlerName]))
        for gone in sorted(known - own):
            if gone.source in sources and not await _is_drained(operations, gone.source):
                raise NotRegistrable(_cure(gone, sorted(own - known)))
        wanted = own | {other for other in known if other.source not in sources}
        if wanted == known:
            return
        body = msgspec.json.encode(sorted(wanted))
        if await operations.write_note(f"handlers:{app.name}", body, "" if note is None else note.version):
            return
    raise NotRegistrable(f"the handlers of {app.name!r} are being registered by others all the time; start again")


async def _is_drained(operations: Operations, source: str) -> bool:
    try:
        return await operations.is_idle([source])
    except UnknownDestination:
        return True


def _cure(gone: HandlerName, fresh: list[HandlerName]) -> str:
    """What to do about a handler that is missing."""
    renamed = [f"{other.name!r}" for other in fresh if other.source == gone.source]
    now = f"; if it is {' or '.join(renamed)} now, write name={gone.name!r} there" if renamed else ""
    state = f" of state {gone.state!r}" if gone.state else ""
    return (
        f"handler {gone.name!r}{state} read {gone.source!r}, which still holds messages, and is not there any more: "
        f"what it has handled would be handled again{now}; or drain {gone.source!r} with the old code first"
    )

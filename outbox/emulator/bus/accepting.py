"""Session receivers: a link that asks for a session is answered when it has one.

A named session is granted or refused at once; "the next one with messages" waits as long as the client asked for, and
the attach is answered only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from outbox.emulator.amqp import performatives, types
from outbox.emulator.amqp.errors import INVALID_FIELD, NOT_FOUND, SESSION_CANNOT_BE_LOCKED, TIMEOUT, LinkFault
from outbox.emulator.amqp.link import Link
from outbox.emulator.amqp.states import LinkState
from outbox.emulator.amqp.types import Described
from outbox.emulator.bus.receivers import Receiver
from outbox.emulator.bus.transport import Transport
from outbox.engine.entities import SessionLock
from outbox.errors import UnknownDestination

Receive = Callable[[Link, str, SessionLock], Receiver]
"""Makes the receiver of a session that was locked, and has its connection know it."""
SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
OPERATION_TIMEOUT = "com.microsoft:timeout"
WAIT_DEFAULT_S = 65.0
WAIT_MAX_S = 3_600.0
_FILTER_FIELD = 7
_DOTNET_EPOCH_TICKS = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


class Wanted(NamedTuple):
    """The session that a link asks for; `session_id` None means the next one that has messages."""

    session_id: str | None


def wanted_session(source: list[object] | None) -> Wanted | None:
    """The session filter of a source; None where there is none.

    Raises: LinkFault for a filter that is neither a session id nor null.
    """
    filters = source[_FILTER_FIELD] if source else None
    if not isinstance(filters, dict) or SESSION_FILTER not in filters:
        return None
    value = filters[SESSION_FILTER]
    if isinstance(value, Described):
        value = value.value
    if value is not None and not isinstance(value, str):
        raise LinkFault(INVALID_FIELD, "the session filter must be a session id, or null for the next session")
    return Wanted(value)


def accept_session(transport: Transport, link: Link, path: str, wanted: Wanted, receive: Receive) -> None:
    """Answer an attach that asks for a session, now or when there is one."""
    lock = transport.engine.sessions.accept(path, wanted.session_id)
    if lock is not None:
        _grant(receive(link, path, lock), lock)
    elif wanted.session_id is not None:
        text = f"session {wanted.session_id!r} of {path} is held by another receiver; try again or take another"
        link.refuse(SESSION_CANNOT_BE_LOCKED, text)
    else:
        transport.spawn(_wait_for_session(transport, link, path, receive))


async def _wait_for_session(transport: Transport, link: Link, path: str, receive: Receive) -> None:
    loop = asyncio.get_running_loop()
    wait_s = _wait_s(link)
    deadline_s = loop.time() + wait_s
    while link.state is LinkState.PENDING:
        left_s = deadline_s - loop.time()
        try:
            is_there = left_s > 0 and await transport.engine.broker.wait_available(path, left_s)
        except UnknownDestination as error:
            link.refuse(NOT_FOUND, str(error))
            break
        if not is_there:
            link.refuse(TIMEOUT, f"no session of {path} had a message within {wait_s:g} s")
            break
        lock = transport.engine.sessions.accept(path, None) if link.state is LinkState.PENDING else None
        if lock is not None:
            _grant(receive(link, path, lock), lock)
            break
        await asyncio.sleep(0.01)  # another receiver was faster
    transport.flush_soon()


def _wait_s(link: Link) -> float:
    asked_ms = link.attach.properties.get(OPERATION_TIMEOUT)
    if isinstance(asked_ms, int) and not isinstance(asked_ms, bool) and asked_ms > 0:
        return min(asked_ms / 1_000, WAIT_MAX_S)
    return WAIT_DEFAULT_S


def _grant(receiver: Receiver, lock: SessionLock) -> None:
    ticks, link = lock.locked_until_ms * _TICKS_PER_MS + _DOTNET_EPOCH_TICKS, receiver.link
    link.accept(
        source=_source_with(link.attach.source_bytes, lock.session_id),
        properties=types.map_([types.symbol(LOCKED_UNTIL), types.long_(ticks)]),
    )
    receiver.pump()  # credit may have come with the attach


def _source_with(source: bytes, session_id: str) -> bytes:
    """The peer's source with the granted session in its filter."""
    at = source.index(bytes((performatives.SOURCE,))) + 1
    fields = types.field_spans(source, at)
    fields[_FILTER_FIELD] = types.map_([types.symbol(SESSION_FILTER), types.string(session_id)])
    return types.described(performatives.SOURCE, types.list_(fields))

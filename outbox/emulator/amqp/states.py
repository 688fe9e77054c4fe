"""The states of a connection, a session and a link: three tables, state x event -> state.

A cell is the next state, or that the event is passed over, or the fault that closes the connection.  Nothing is decided
about states elsewhere: `Connection`, `Channel` and `Link` ask `after` for the next state and do what the event stands
for; where it is passed over they do nothing.  Sources: AMQP 1.0, part 2 (transport), and what Service Bus clients send.

A link that this side has detached stays `DETACHED` until the peer's detach is there: what the peer sent before it had
heard of that is passed over, and its handle is not free.  Clients send a detach after their end, so that frames of a
session that is over are passed over as well.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeVar

from outbox.emulator.amqp.errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    NOT_ALLOWED,
    UNATTACHED_HANDLE,
    ConnectionFault,
)


class State(IntEnum):
    """States of a connection.  A client without SASL starts with the AMQP header."""

    SASL_HEADER = 0
    SASL = 1
    AMQP_HEADER = 2
    OPENING = 3
    OPEN = 4
    OVER = 5


class Heard(IntEnum):
    """The frames and headers of a peer on a connection; `FRAME` is any frame of a session."""

    SASL_HEADER = 0
    AMQP_HEADER = 1
    OTHER_HEADER = 2
    SASL_INIT = 3
    OPEN = 4
    FRAME = 5
    CLOSE = 6


class SessionState(IntEnum):
    UNMAPPED = 0
    MAPPED = 1


class OnSession(IntEnum):
    """The frames of a peer on a channel; `FRAME` is any frame between begin and end."""

    BEGIN = 0
    FRAME = 1
    END = 2


class LinkState(IntEnum):
    """States of a link's handle.  A link is `PENDING` until the application accepts or refuses it."""

    FREE = 0
    PENDING = 1
    ATTACHED = 2
    DETACHED = 3


class OnLink(IntEnum):
    """The peer's frames for a link, then this side's actions on it; `END` is the end of its session."""

    ATTACH = 0
    FLOW = 1
    TRANSFER = 2
    DETACH = 3
    ACCEPT = 4
    REFUSE = 5
    CLOSE = 6
    END = 7


class Fault(NamedTuple):
    """Why the connection closes; the text follows what the caller names."""

    condition: str
    text: str


S = TypeVar("S", State, SessionState, LinkState)
Table = tuple[tuple[S | Fault | None, ...], ...]
"""A row for each state, in it a cell for each event; None: passed over."""

_ALIEN = Fault(FRAMING_ERROR, "the peer does not speak AMQP 1.0")
_EARLY = Fault(NOT_ALLOWED, "the connection is not open")
_TWICE = Fault(NOT_ALLOWED, "the connection is open already")
_NOT_INIT = Fault(FRAMING_ERROR, "sasl-init was expected")
_LATE_SASL = Fault(FRAMING_ERROR, "a SASL frame after the AMQP header")
_SASL, _HEADER, _OPENING, _OPEN, _OVER = State.SASL, State.AMQP_HEADER, State.OPENING, State.OPEN, State.OVER

CONNECTION: Table[State] = (
    # SASL_HEADER  AMQP_HEADER  OTHER_HEADER  SASL_INIT   OPEN       FRAME      CLOSE
    (_SASL,        _OPENING,    _ALIEN,       None,       None,      None,      None),       # SASL_HEADER
    (None,         None,        None,         _HEADER,    _NOT_INIT, _NOT_INIT, _NOT_INIT),  # SASL
    (_ALIEN,       _OPENING,    _ALIEN,       None,       None,      None,      None),       # AMQP_HEADER
    (None,         None,        None,         _LATE_SASL, _OPEN,     _EARLY,    _OVER),      # OPENING
    (None,         None,        None,         _LATE_SASL, _TWICE,    _OPEN,     _OVER),      # OPEN
    (None,         None,        None,         None,       None,      None,      None),       # OVER
)  # fmt: skip

_HAS_ONE = Fault(NOT_ALLOWED, "has a session already")
_UNMAPPED, _MAPPED = SessionState.UNMAPPED, SessionState.MAPPED

SESSION: Table[SessionState] = (
    # BEGIN    FRAME    END
    (_MAPPED,  None,    None),       # UNMAPPED
    (_HAS_ONE, _MAPPED, _UNMAPPED),  # MAPPED
)  # fmt: skip

_IN_USE = Fault(HANDLE_IN_USE, "is in use")
_UNKNOWN = Fault(UNATTACHED_HANDLE, "is not attached")
_TOO_EARLY = Fault(NOT_ALLOWED, "had a transfer before it was attached")
_FREE, _PENDING, _ATTACHED, _DETACHED = LinkState

LINK: Table[LinkState] = (
    # ATTACH   FLOW       TRANSFER    DETACH    ACCEPT     REFUSE     CLOSE      END
    (_PENDING, _UNKNOWN,  _UNKNOWN,   _UNKNOWN, None,      None,      None,      None),   # FREE
    (_IN_USE,  _PENDING,  _TOO_EARLY, _FREE,    _ATTACHED, _DETACHED, _DETACHED, _FREE),  # PENDING
    (_IN_USE,  _ATTACHED, _ATTACHED,  _FREE,    None,      None,      _DETACHED, _FREE),  # ATTACHED
    (_IN_USE,  None,      None,       _FREE,    None,      None,      None,      _FREE),  # DETACHED
)  # fmt: skip


def after(table: Table[S], state: S, event: IntEnum, *what: object) -> S | None:
    """The state after an event; None where it is passed over.  `what` names the thing, for the text of a fault.

    Raises:
        ConnectionFault: the event breaks the protocol.
    """
    found = table[state][event]
    if isinstance(found, Fault):
        raise ConnectionFault(found.condition, " ".join([*map(str, what), found.text]))
    return found

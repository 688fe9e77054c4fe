"""What an event does in each state of a connection, a session and a link: a case for every cell of the three tables."""

from __future__ import annotations

from itertools import product

import pytest

from outbox.emulator.amqp import performatives
from outbox.emulator.amqp.connection import Connection
from outbox.emulator.amqp.events import Attached, Closed
from outbox.emulator.amqp.frames import HEADER_AMQP, HEADER_SASL, TYPE_SASL, frame
from outbox.emulator.amqp.limits import Limits
from outbox.emulator.amqp.link import Link
from outbox.emulator.amqp.states import (
    CONNECTION,
    LINK,
    SESSION,
    Heard,
    LinkState,
    OnLink,
    OnSession,
    SessionState,
    State,
)
from outbox.emulator.amqp.types import NULL, string, symbol
from tests.unit.amqp import amqp_client as client

SASL_INIT = frame(
    performatives.performative(performatives.SASL_INIT, symbol("ANONYMOUS"), NULL, NULL), frame_type=TYPE_SASL
)
OPEN = frame(performatives.performative(performatives.OPEN, string("test")))
FRAME = client.detach(9)
SENT = {
    Heard.SASL_HEADER: HEADER_SASL,
    Heard.AMQP_HEADER: HEADER_AMQP,
    Heard.OTHER_HEADER: b"GET / HTTP/1.1\r\n\r\n",
    Heard.SASL_INIT: SASL_INIT,
    Heard.OPEN: OPEN,
    Heard.FRAME: FRAME,
    Heard.CLOSE: client.CLOSE,
}
BEFORE = {
    State.SASL_HEADER: b"",
    State.SASL: HEADER_SASL,
    State.AMQP_HEADER: HEADER_SASL + SASL_INIT,
    State.OPENING: HEADER_AMQP,
    State.OPEN: HEADER_AMQP + OPEN,
    State.OVER: HEADER_AMQP + OPEN + client.CLOSE,
}
HEADERS, FRAMES = tuple(Heard)[:3], tuple(Heard)[3:]
FRAMING, EARLY = "amqp:connection:framing-error", "amqp:not-allowed"

ON_CONNECTION: dict[tuple[State, Heard], State | str] = {
    (State.SASL_HEADER, Heard.SASL_HEADER): State.SASL,
    (State.SASL_HEADER, Heard.AMQP_HEADER): State.OPENING,
    (State.SASL_HEADER, Heard.OTHER_HEADER): FRAMING,
    (State.SASL, Heard.SASL_INIT): State.AMQP_HEADER,
    (State.SASL, Heard.OPEN): FRAMING,
    (State.SASL, Heard.FRAME): FRAMING,
    (State.SASL, Heard.CLOSE): FRAMING,
    (State.AMQP_HEADER, Heard.SASL_HEADER): FRAMING,
    (State.AMQP_HEADER, Heard.AMQP_HEADER): State.OPENING,
    (State.AMQP_HEADER, Heard.OTHER_HEADER): FRAMING,
    (State.OPENING, Heard.SASL_INIT): FRAMING,
    (State.OPENING, Heard.OPEN): State.OPEN,
    (State.OPENING, Heard.FRAME): EARLY,
    (State.OPENING, Heard.CLOSE): State.OVER,
    (State.OPEN, Heard.SASL_INIT): FRAMING,
    (State.OPEN, Heard.OPEN): EARLY,
    (State.OPEN, Heard.FRAME): State.OPEN,
    (State.OPEN, Heard.CLOSE): State.OVER,
    **{(State.OVER, heard): State.OVER for heard in Heard},
}


def made(data: bytes) -> Connection:
    """A connection that has heard this much."""
    connection = Connection(container_id="server", limits=Limits())
    connection.receive(data)
    connection.take_output()
    return connection


def closed_for(connection: Connection, data: bytes) -> str:
    """The condition for which these bytes close a connection; empty where they do not."""
    found = [event for event in connection.receive(data) if isinstance(event, Closed)]
    return found[0].condition if found else ""


@pytest.mark.parametrize(("state", "heard"), ON_CONNECTION)
def test_what_is_heard_on_a_connection(state: State, heard: Heard) -> None:
    connection, wanted = made(BEFORE[state]), ON_CONNECTION[state, heard]
    assert connection.state is state
    condition = closed_for(connection, SENT[heard])
    assert (connection.state, condition) == ((State.OVER, wanted) if isinstance(wanted, str) else (wanted, ""))


def test_what_has_no_case_cannot_be_read_in_that_state() -> None:
    """Where a header is due, frames are read as one; where frames are due, a header is one that cannot be read."""
    left = set(product(State, Heard)) - ON_CONNECTION.keys()
    waiting = {State.SASL_HEADER, State.AMQP_HEADER}
    assert left == {*product(waiting, FRAMES), *product(set(State) - waiting - {State.OVER}, HEADERS)}
    assert {CONNECTION[state][heard] for state, heard in left} == {None}


ON_SESSION: dict[tuple[SessionState, OnSession], SessionState | str] = {
    (SessionState.UNMAPPED, OnSession.BEGIN): SessionState.MAPPED,
    (SessionState.UNMAPPED, OnSession.FRAME): SessionState.UNMAPPED,
    (SessionState.UNMAPPED, OnSession.END): SessionState.UNMAPPED,
    (SessionState.MAPPED, OnSession.BEGIN): "amqp:not-allowed",
    (SessionState.MAPPED, OnSession.FRAME): SessionState.MAPPED,
    (SessionState.MAPPED, OnSession.END): SessionState.UNMAPPED,
}


@pytest.mark.parametrize(("state", "event"), ON_SESSION)
def test_what_is_heard_on_a_channel(state: SessionState, event: OnSession) -> None:
    connection = made(HEADER_AMQP + OPEN + (client.BEGIN if state is SessionState.MAPPED else b""))
    attach = client.attach("q", 0, receiver=False)
    condition = closed_for(connection, (client.BEGIN, attach, client.END)[event])
    wanted = ON_SESSION[state, event]
    assert condition == (wanted if isinstance(wanted, str) else "")
    if not condition:
        assert SessionState(0 in connection.channels) is wanted
        assert bool(connection.take_output()) == (SESSION[state][event] is not None and event is not OnSession.FRAME)


def test_every_cell_of_a_session_has_a_case() -> None:
    assert ON_SESSION.keys() == set(product(SessionState, OnSession))


UNKNOWN, IN_USE = "amqp:session:unattached-handle", "amqp:session:handle-in-use"
ON_LINK: dict[tuple[LinkState, OnLink], LinkState | str] = {
    (LinkState.FREE, OnLink.ATTACH): LinkState.PENDING,
    (LinkState.FREE, OnLink.FLOW): UNKNOWN,
    (LinkState.FREE, OnLink.TRANSFER): UNKNOWN,
    (LinkState.FREE, OnLink.DETACH): UNKNOWN,
    (LinkState.PENDING, OnLink.ATTACH): IN_USE,
    (LinkState.PENDING, OnLink.FLOW): LinkState.PENDING,
    (LinkState.PENDING, OnLink.TRANSFER): "amqp:not-allowed",
    (LinkState.PENDING, OnLink.DETACH): LinkState.FREE,
    (LinkState.PENDING, OnLink.ACCEPT): LinkState.ATTACHED,
    (LinkState.PENDING, OnLink.REFUSE): LinkState.DETACHED,
    (LinkState.PENDING, OnLink.CLOSE): LinkState.DETACHED,
    (LinkState.PENDING, OnLink.END): LinkState.FREE,
    (LinkState.ATTACHED, OnLink.ATTACH): IN_USE,
    (LinkState.ATTACHED, OnLink.FLOW): LinkState.ATTACHED,
    (LinkState.ATTACHED, OnLink.TRANSFER): LinkState.ATTACHED,
    (LinkState.ATTACHED, OnLink.DETACH): LinkState.FREE,
    (LinkState.ATTACHED, OnLink.ACCEPT): LinkState.ATTACHED,
    (LinkState.ATTACHED, OnLink.REFUSE): LinkState.ATTACHED,
    (LinkState.ATTACHED, OnLink.CLOSE): LinkState.DETACHED,
    (LinkState.ATTACHED, OnLink.END): LinkState.FREE,
    (LinkState.DETACHED, OnLink.ATTACH): IN_USE,
    (LinkState.DETACHED, OnLink.FLOW): LinkState.DETACHED,
    (LinkState.DETACHED, OnLink.TRANSFER): LinkState.DETACHED,
    (LinkState.DETACHED, OnLink.DETACH): LinkState.FREE,
    (LinkState.DETACHED, OnLink.ACCEPT): LinkState.DETACHED,
    (LinkState.DETACHED, OnLink.REFUSE): LinkState.DETACHED,
    (LinkState.DETACHED, OnLink.CLOSE): LinkState.DETACHED,
    (LinkState.DETACHED, OnLink.END): LinkState.FREE,
}
FROM_PEER = {
    OnLink.ATTACH: client.attach("q", 0, receiver=False),
    OnLink.FLOW: client.flow(0, 10, echo=True),
    OnLink.TRANSFER: client.transfer(0, 0, client.BODY),
    OnLink.DETACH: client.detach(0),
    OnLink.END: client.END,
}


def link_in(connection: Connection, state: LinkState) -> Link | None:
    """A link on which the peer sends, in this state; None for a handle that is free."""
    if state is LinkState.FREE:
        return None
    [event] = connection.receive(FROM_PEER[OnLink.ATTACH])
    assert isinstance(event, Attached)
    link = event.link
    if state is not LinkState.PENDING:
        link.accept()
    if state is LinkState.DETACHED:
        link.detach()
    connection.take_output()
    return link


def done(link: Link | None, event: OnLink) -> None:
    """What this side does with a link."""
    assert link is not None
    if event is OnLink.ACCEPT:
        link.accept()
    elif event is OnLink.REFUSE:
        link.refuse("amqp:not-found", "no")
    else:
        link.detach()


@pytest.mark.parametrize(("state", "event"), ON_LINK)
def test_what_happens_to_a_link(state: LinkState, event: OnLink) -> None:
    connection, wanted = made(client.opening()), ON_LINK[state, event]
    link, condition = link_in(connection, state), ""
    if event in FROM_PEER:
        condition = closed_for(connection, FROM_PEER[event])
    else:
        done(link, event)
    assert condition == (wanted if isinstance(wanted, str) else "")
    if not condition:
        found = connection.channels[0].links.get(0) if 0 in connection.channels else None
        assert (LinkState.FREE if found is None else found.state) is wanted
        if link is not None:
            assert link.state is wanted
        if LINK[state][event] is None:
            assert connection.take_output() == b"", "what is passed over is not answered"


def test_what_has_no_case_cannot_happen_to_a_free_handle() -> None:
    own = (OnLink.ACCEPT, OnLink.REFUSE, OnLink.CLOSE, OnLink.END)
    assert set(product(LinkState, OnLink)) - ON_LINK.keys() == set(product([LinkState.FREE], own))

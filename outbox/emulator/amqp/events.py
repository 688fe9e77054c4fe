"""Events that the protocol engine hands to the application.

Events are what is left of the frames that a peer sent once the protocol itself has answered what it can.  They name
the link or the session that the application answers on.
"""

from __future__ import annotations

from typing import NamedTuple

from outbox.emulator.amqp.link import Delivery, Link
from outbox.emulator.amqp.performatives import Outcome
from outbox.emulator.amqp.session import Session


class Opened(NamedTuple):
    """The peer opened the connection."""

    container_id: str
    idle_timeout_ms: int


class Attached(NamedTuple):
    """The peer asks for a link: answer with `link.accept` or `link.refuse`."""

    link: Link


class Credit(NamedTuple):
    """The peer changed a sending link's credit: send what fits, then call `link.finish_flow`.

    It may come before the link was accepted; then there is nothing to do until it is.
    """

    link: Link
    drain: bool
    echo: bool


class Window(NamedTuple):
    """The peer opened the session's window again."""

    session: Session


class Sent(NamedTuple):
    """One delivery of ours that the peer settles."""

    delivery_id: int
    link: Link
    tag: bytes


class Settled(NamedTuple):
    """The peer ends deliveries of ours; unless `settled`, each wants an answer.

    `unknown` are the ids in the same disposition that this session does not track, from and to: what is answered to
    them takes no more than what the peer sent.
    """

    session: Session
    deliveries: list[Sent]
    unknown: list[tuple[int, int]]
    outcome: Outcome
    settled: bool


class Detached(NamedTuple):
    """The peer detached a link that was attached or pending."""

    link: Link


class Closed(NamedTuple):
    """The connection is over; `orderly` if the peer closed it.  `links` are those that were still there."""

    links: list[Link]
    orderly: bool
    condition: str
    description: str


Event = Opened | Attached | Delivery | Credit | Window | Settled | Detached | Closed

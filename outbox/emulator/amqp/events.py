"""What the protocol engine tells the application, and the limits that it is given.

Events are what is left of the frames that a peer sent once the protocol itself has answered what it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from outbox.emulator.amqp.performatives import Outcome

if TYPE_CHECKING:
    from outbox.emulator.amqp.link import Link
    from outbox.emulator.amqp.session import Session

MESSAGE_SIZE_MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection.  `message_size_max_bytes` is Service Bus Standard's by default.

    `held_max_bytes` is what unfinished messages, links and replies that wait may take, at least two messages.  Until a
    peer has put a valid token, it may have `unclaimed_max_bytes` of that, and frames of `unclaimed_max_bytes`.
    """

    frame_size_max_bytes: int = 1 << 20
    message_size_max_bytes: int = MESSAGE_SIZE_MAX_BYTES
    session_count_max: int = 16
    link_count_max: int = 64
    unsettled_count_max: int = 20_000
    held_max_bytes: int = 4 << 20
    unclaimed_max_bytes: int = 64 << 10


class Attach(NamedTuple):
    """The peer's attach; `source_bytes` and `target_bytes` are what it sent, to be echoed."""

    name: str
    handle: int
    is_receiver: bool
    snd_settle_mode: int
    rcv_settle_mode: int
    source: list[object] | None
    target: list[object] | None
    source_bytes: bytes
    target_bytes: bytes
    initial_delivery_count: int
    properties: dict[object, object]


class Opened(NamedTuple):
    """The peer opened the connection."""

    container_id: str
    idle_timeout_ms: int


class Attached(NamedTuple):
    """The peer asks for a link: answer with `link.accept` or `link.refuse`."""

    link: Link


class Delivery(NamedTuple):
    """A whole message arrived; unless `settled`, answer with `session.accept` or `session.reject`."""

    link: Link
    delivery_id: int
    settled: bool
    message_format: int
    payload: bytes


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

    `unknown` are ids in the same disposition that this session no longer tracks.
    """

    session: Session
    deliveries: list[Sent]
    unknown: list[int]
    outcome: Outcome
    settled: bool


class Detached(NamedTuple):
    """The peer detached a link that was attached or pending."""

    link: Link
    closed: bool


class Closed(NamedTuple):
    """The connection is over; `orderly` if the peer closed it.  `links` are those that were still there."""

    links: list[Link]
    orderly: bool
    condition: str
    description: str


Event = Opened | Attached | Delivery | Credit | Window | Settled | Detached | Closed

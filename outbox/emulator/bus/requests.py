"""Requests and replies: the pairs of links that `$cbs` and `$management` are used through.

A request arrives on one link of a session; its reply leaves on the link of the same session that receives from the
same address.  Replies wait, up to a limit, until that link has credit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Self

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import DECODE_ERROR, NOT_ALLOWED, RESOURCE_LIMIT, OperationFault
from outbox.emulator.amqp.link import TAG_BYTES, Link
from outbox.emulator.amqp.sections import APPLICATION_PROPERTIES, PROPERTIES, VALUE, sections
from outbox.emulator.amqp.states import LinkState
from outbox.emulator.amqp.types import DecodeError
from outbox.emulator.bus.addresses import Node

PENDING_COUNT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Request:
    """A request: its id as the peer encoded it, where the reply goes, and what it asks."""

    message_id: bytes
    reply_to: str
    properties: dict[object, object]
    value: object

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Read a request.

        Raises: OperationFault.
        """
        fields: list[bytes] = []
        properties: dict[object, object] = {}
        body: object = None
        try:
            for code, start, end in sections(payload):
                if code == PROPERTIES:
                    types.decode_fields(payload, start, end)
                    fields = types.field_spans(payload, start)
                elif code in (APPLICATION_PROPERTIES, VALUE):
                    value, _ = types.decode(payload, start)
                    if code == VALUE:
                        body = value
                    elif isinstance(value, dict):
                        properties = value
            reply_to = types.decode(fields[4])[0] if len(fields) > 4 else None
        except DecodeError as error:
            raise OperationFault(DECODE_ERROR, f"the request cannot be read: {error}") from error
        text = reply_to if isinstance(reply_to, str) else ""
        return cls(fields[0] if fields else types.NULL, text, properties, body)


class Replies:
    """The links of one connection that replies go out on."""

    def __init__(self) -> None:
        self._links: list[tuple[Node, Link]] = []
        self._pending: dict[Link, deque[bytes]] = {}
        self._tags = 0

    def add(self, node: Node, link: Link) -> None:
        """A link of the peer that receives from a node."""
        self._links.append((node, link))
        self._pending[link] = deque()

    def remove(self, link: Link) -> None:
        self._links = [pair for pair in self._links if pair[1] is not link]
        for payload in self._pending.pop(link, ()):
            link.session.quota.give_back(len(payload))

    def send(self, request_link: Link, request: Request, payload: bytes) -> None:
        """Send the reply to a request that came on `request_link`.

        Raises: OperationFault.
        """
        node = request_link.app
        found = [
            link
            for known, link in self._links
            if known == node and link.session is request_link.session and link.state is LinkState.ATTACHED
        ]
        named = [link for link in found if link.attach.target and link.attach.target[0] == request.reply_to]
        if not found:
            raise OperationFault(NOT_ALLOWED, "there is no link to reply on; attach a receiver to the same address")
        link = (named or found)[0]
        pending, quota = self._pending[link], link.session.quota
        if len(pending) >= PENDING_COUNT_MAX:
            raise OperationFault(RESOURCE_LIMIT, f"{PENDING_COUNT_MAX} replies wait for credit already")
        if link.credit <= 0:
            if not quota.has_room(len(payload)):
                raise OperationFault(RESOURCE_LIMIT, "replies that wait for credit take too much memory; give credit")
            quota.take(len(payload))
            pending.append(payload)
            return
        self._send(link, payload)

    def on_credit(self, link: Link) -> None:
        """Send what waited for credit."""
        pending = self._pending.get(link)
        while pending and link.credit > 0:
            payload = pending.popleft()
            link.session.quota.give_back(len(payload))
            self._send(link, payload)

    def clear(self) -> None:
        """The connection is over."""
        for _, link in list(self._links):
            self.remove(link)

    def _send(self, link: Link, payload: bytes) -> None:
        self._tags += 1
        link.send(self._tags.to_bytes(TAG_BYTES, "big"), payload, settled=True)

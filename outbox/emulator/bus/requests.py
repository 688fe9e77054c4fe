"""Requests and replies: the pairs of links that `$cbs` and `$management` are used through, and the claims on `$cbs`.

A request arrives on one link of a session; its reply leaves on the link of the same session that receives from the
same address.  Replies wait, up to a limit, until that link has credit.

*Claims-based security.*  A client puts a token on the `$cbs` node before it opens anything else.  Without a configured
key every token is taken, as the emulator of the vendor does.  With one, the shared access signature is checked: `sig` =
HMAC-SHA256(key, sr + "\\n" + se), compared in constant time, `skn` is the key's name, and `se` must not be over.  A
token opens what `sr` names and what is below it: a whole namespace, or one entity.  Tokens and keys never appear in a
text or a log.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Self
from urllib.parse import unquote_plus

from outbox.emulator.amqp import types
from outbox.emulator.amqp.deliveries import encode_reply
from outbox.emulator.amqp.errors import DECODE_ERROR, NOT_ALLOWED, RESOURCE_LIMIT, OperationFault
from outbox.emulator.amqp.link import TAG_BYTES, Link
from outbox.emulator.amqp.sections import APPLICATION_PROPERTIES, PROPERTIES, VALUE, sections
from outbox.emulator.amqp.states import LinkState
from outbox.emulator.amqp.types import DecodeError
from outbox.emulator.bus.addresses import Node

PENDING_COUNT_MAX = 1_000
ACCEPTED, UNAUTHORIZED, BAD_REQUEST, BUSY = 202, 401, 400, 503
TOKEN_LENGTH_MAX = 16_384
SCOPE_COUNT_MAX = 5_000
"""Clients put a token for each link."""
KEY_NAME = "outbox"
"""The one key that there is."""


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


class Claims:
    """The `$cbs` node of one connection."""

    def __init__(self, key: str | None, now_ms: Callable[[], int]) -> None:
        self._key = key
        self._now_ms = now_ms
        self._scopes: dict[str, int] = {}
        """When the token for a scope ends."""

    @property
    def authorised(self) -> bool:
        """Whether links may be opened: a valid token was put, or none is needed."""
        return self._key is None or any(self._now_ms() < ends_ms for ends_ms in self._scopes.values())

    def covers(self, path: str) -> bool:
        """Whether a token that was put, and is not over, opens an entity."""
        now_ms = self._now_ms()
        return self._key is None or any(
            now_ms < ends_ms and is_within(path, scope) for scope, ends_ms in self._scopes.items()
        )

    def on_request(self, link: Link, payload: bytes, replies: Replies) -> None:
        """Take a put-token and answer it.

        Raises: OperationFault.
        """
        request = Request.decode(payload)
        status, text = self._put_token(request)
        properties = [
            types.string("status-code"),
            types.int_(status),
            types.string("status-description"),
            types.string(text),
        ]
        replies.send(link, request, encode_reply(request.message_id, properties, types.NULL))

    def _put_token(self, request: Request) -> tuple[int, str]:
        if request.properties.get("operation") != "put-token":
            return BAD_REQUEST, "the operation must be put-token"
        if self._key is None:
            return ACCEPTED, "Accepted"
        expires_ms = check_signature(request.value, self._key)
        if expires_ms <= self._now_ms():
            return UNAUTHORIZED, "the token is not valid; check the key and its expiry"
        scope = scope_of(str(request.value))
        if scope not in self._scopes and len(self._scopes) >= SCOPE_COUNT_MAX:
            now_ms = self._now_ms()
            self._scopes = {scope: ends_ms for scope, ends_ms in self._scopes.items() if now_ms < ends_ms}
            if len(self._scopes) >= SCOPE_COUNT_MAX:
                return BUSY, f"tokens for {SCOPE_COUNT_MAX} entities were put; put one for the namespace"
        self._scopes[scope] = expires_ms
        return ACCEPTED, "Accepted"


def check_signature(token: object, key: str) -> int:
    """When a shared access signature ends, in milliseconds since 1970.

    0 if it is not signed with `key` in its name, or names no place.
    """
    if not isinstance(token, str) or len(token) > TOKEN_LENGTH_MAX:
        return 0
    scheme, fields = _fields(token)
    expiry = fields.get("se", "")
    is_ours = scheme == "SharedAccessSignature" and unquote_plus(fields.get("skn", "")) == KEY_NAME
    if not (is_ours and expiry.isascii() and expiry.isdigit() and len(expiry) < 16 and _place(fields)):
        return 0
    digest = hmac.new(key.encode(), f"{fields.get('sr', '')}\n{expiry}".encode(errors="replace"), sha256).digest()
    given = unquote_plus(fields.get("sig", "")).encode(errors="replace")
    return int(expiry) * 1_000 if hmac.compare_digest(b64encode(digest), given) else 0


def scope_of(token: str) -> str:
    """The path of what a valid token opens, in lower case; empty: the namespace.  Its host does not matter."""
    path = _place(_fields(token)[1]).partition("/")[2].strip("/").lower()
    return path.removesuffix("$management").strip("/")


def is_within(path: str, scope: str) -> bool:
    """Whether a path is that of a scope or below it."""
    return not scope or f"{path.strip('/').lower()}/".startswith(f"{scope}/")


def _place(fields: dict[str, str]) -> str:
    """The host and path that `sr` names; empty where it names no host, or is more than one address."""
    first, mark, rest = unquote_plus(fields.get("sr", "")).partition("://")
    place = rest if mark else first
    return place if place.partition("/")[0].strip() and "://" not in place else ""


def _fields(token: str) -> tuple[str, dict[str, str]]:
    scheme, _, rest = token.partition(" ")
    return scheme, dict(part.partition("=")[::2] for part in rest.split("&"))

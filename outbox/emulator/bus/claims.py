"""Claims-based security: the token that a client puts on the `$cbs` node before it opens anything else.

Without a configured key every token is taken, as the emulator of the vendor does.  With one, the shared access
signature is checked: `sig` = HMAC-SHA256(key, sr + "\\n" + se), compared in constant time, `skn` is the key's name, and
`se` must not be over.  A token opens what `sr` names and what is below it: a whole namespace, or one entity.
Tokens and keys never appear in a text or a log.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from urllib.parse import unquote_plus

from outbox.emulator.amqp import types
from outbox.emulator.amqp.deliveries import encode_reply
from outbox.emulator.amqp.link import Link
from outbox.emulator.bus.requests import Replies, Request

ACCEPTED, UNAUTHORIZED, BAD_REQUEST, BUSY = 202, 401, 400, 503
TOKEN_LENGTH_MAX = 16_384
SCOPE_COUNT_MAX = 5_000
"""Clients put a token for each link."""
KEY_NAME = "outbox"
"""The one key that there is."""


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

"""Claims-based security: the token that a client puts on the `$cbs` node before it opens anything else.

Without a configured key every token is taken, as the emulator of the vendor does.  With one, the shared access
signature is checked: `sig` = HMAC-SHA256(key, sr + "\\n" + se), compared in constant time, and `se` must not be over.
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

ACCEPTED, UNAUTHORIZED, BAD_REQUEST = 202, 401, 400
TOKEN_LENGTH_MAX = 16_384


class Claims:
    """The `$cbs` node of one connection."""

    def __init__(self, key: str | None, now_ms: Callable[[], int]) -> None:
        self._key = key
        self._now_ms = now_ms
        self._expires_ms = 0

    @property
    def authorised(self) -> bool:
        """Whether links may be opened: a valid token was put, or none is needed."""
        return self._key is None or self._now_ms() < self._expires_ms

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
        self._expires_ms = expires_ms
        return ACCEPTED, "Accepted"


def check_signature(token: object, key: str) -> int:
    """When a shared access signature ends, in milliseconds since 1970; 0 if it is not signed with `key`."""
    if not isinstance(token, str) or len(token) > TOKEN_LENGTH_MAX:
        return 0
    scheme, _, rest = token.partition(" ")
    fields = dict(part.partition("=")[::2] for part in rest.split("&"))
    expiry = fields.get("se", "")
    if scheme != "SharedAccessSignature" or not (expiry.isascii() and expiry.isdigit() and len(expiry) < 16):
        return 0
    digest = hmac.new(key.encode(), f"{fields.get('sr', '')}\n{expiry}".encode(errors="replace"), sha256).digest()
    given = unquote_plus(fields.get("sig", "")).encode(errors="replace")
    return int(expiry) * 1_000 if hmac.compare_digest(b64encode(digest), given) else 0

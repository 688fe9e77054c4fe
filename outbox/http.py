"""HTTP requests, responses, and the reply that a commit stores.

No server here: a server or a Functions host makes a `Request` and sends the `Response`.  Errors are problem details
(RFC 9457), and say what a client may conclude.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import msgspec

BODY_BYTES_MAX = 1 << 20
"""The default limit of a request's body."""

REPLY_BYTES_MAX = 256 << 10
"""The limit of a reply's body: it is stored in the message's record."""

REPLY_HEADER_COUNT_MAX = 32
REPLY_HEADER_BYTES_MAX = 8 << 10
KEY_LENGTH_MAX = 255
QUERY_COUNT_MAX = 100

JSON = "application/json"
PROBLEM = "application/problem+json"
KEY_HEADER = "idempotency-key"

_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_NOT_OURS = frozenset(("connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade"))
"""Headers of the connection, which a stored reply outlives."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; names of headers are in lower case, `query` is without its question mark."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # they hold credentials
    body: bytes = field(default=b"", repr=False)
    query: str = field(default="", repr=False)

    def parameters(self) -> dict[str, str]:
        """The parameters of the query; of a repeated one the last.

        Raises:
            ValueError: they are too many, or not text.
        """
        return dict(parse_qsl(self.query, keep_blank_values=True, max_num_fields=QUERY_COUNT_MAX, errors="strict"))


@dataclass(frozen=True, slots=True)
class Response:
    """A response.  A handler may return one with a status, and headers such as Location.

    A handler's body is any value, None for none; an entry's response has bytes.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = field(default=b"", repr=False)

    def json(self) -> Any:
        """The body as plain data."""
        return msgspec.json.decode(self.body)


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a response: the same for every request under the same key."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def response(self) -> Response:
        return Response(self.status, dict(self.headers), self.body)


def reply_of(returned: Any, encode: Any) -> Reply:
    """The reply of a handler's return value; `encode` makes JSON of a value.

    Raises:
        ValueError: it is too large, or its status or a header is invalid.
    """
    if isinstance(returned, Response):
        status, given, value = returned.status, returned.headers, returned.body
        value = None if value == b"" else value
    else:
        status, given, value = (204 if returned is None else 200), {}, returned
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise ValueError(f"status {status!r}: answer with a number from 200 to 599")
    headers = {name.lower(): _checked_header(name, text) for name, text in given.items()}
    if value is None:
        body = b""
    elif isinstance(value, bytes):
        body = value
        headers.setdefault("content-type", "application/octet-stream")
    else:
        body = encode(value)
        headers.setdefault("content-type", JSON)
    if len(body) > REPLY_BYTES_MAX:
        raise ValueError(f"the reply takes {len(body)} bytes, over {REPLY_BYTES_MAX}; write a blob and return its name")
    size_bytes = sum(len(name) + len(text) for name, text in headers.items())
    if len(headers) > REPLY_HEADER_COUNT_MAX or size_bytes > REPLY_HEADER_BYTES_MAX:
        limits = f"{REPLY_HEADER_COUNT_MAX} headers, {REPLY_HEADER_BYTES_MAX} bytes of them"
        raise ValueError(f"the reply has {len(headers)} headers of {size_bytes} bytes; its limits are {limits}")
    if body and status in (204, 304):
        raise ValueError(f"a response with status {status} has no body; return body=None")
    return Reply(int(status), headers, body)


def _checked_header(name: str, text: str) -> str:
    is_plain = isinstance(text, str) and text.isascii() and (text.isprintable() or not text)
    if not name or not _TOKEN.issuperset(name) or name.lower() in _NOT_OURS or not is_plain:
        raise ValueError(f"header {name!r} cannot be kept; use printable ASCII, and none of the connection's own")
    return text


def problem(status: int, code: str, detail: str, *, retry_after_s: int = 0, allow: str = "") -> Response:
    """A problem of RFC 9457: `code` is for programs, `detail` says what to do."""
    body = {"title": HTTPStatus(status).phrase, "status": status, "code": code, "detail": detail}
    headers = {"content-type": PROBLEM}
    if retry_after_s:
        headers["retry-after"] = str(retry_after_s)
    if allow:
        headers["allow"] = allow
    return Response(status, headers, msgspec.json.encode(body))


class Unfit(Exception):
    """A request that cannot become a message; `response` says why."""

    def __init__(self, status: int, code: str, detail: str, *, retry_after_s: int = 0) -> None:
        super().__init__(detail)
        self.response = problem(status, code, detail, retry_after_s=retry_after_s)


def idempotency_key(headers: Mapping[str, str]) -> str:
    """The idempotency key of a request: a plain text, or a quoted string as in the IETF draft.

    Raises:
        Unfit: it is missing or invalid.
    """
    text = headers.get(KEY_HEADER, "").strip()
    if not text:
        raise Unfit(
            400,
            "idempotency-key-missing",
            "send an Idempotency-Key header, a fresh one for every new request and the same for its repetitions",
        )
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not text or len(text) > KEY_LENGTH_MAX or not (text.isascii() and text.isprintable()):
        text = f"the Idempotency-Key must be 1 to {KEY_LENGTH_MAX} printable ASCII characters"
        raise Unfit(400, "idempotency-key-unfit", text)
    return text

"""The control endpoint of an HTTP emulator, on the emulator's port: faults to install, and use to read.

    GET, POST, DELETE  /_outbox/faults          the rules and what fired; one rule or an array; all, or ?id=N
    GET, DELETE        /_outbox/usage           requests by operation, and what they came to; count from zero

No SDK uses such a path.  Every request names the token, compared in constant time; the server checks the Host header.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from outbox.emulator.dialect import Answer, Refusal
from outbox.emulator.faults import Faults
from outbox.errors import Refused

U = TypeVar("U")

PREFIX = "/_outbox/"
TOKEN_LENGTH_MAX = 1_024
_METHODS = {"faults": ("GET", "POST", "DELETE"), "usage": ("GET", "DELETE")}


def key_bytes(key: str) -> bytes:
    """An account's key, base64, as bytes.

    Raises:
        Refused: it is not base64, or empty.
    """
    try:
        found = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise Refused("the account key is not base64; give one such as WELL_KNOWN_KEY") from error
    if not found:
        raise Refused("the account key is empty; give one such as WELL_KNOWN_KEY")
    return found


class Meter(Generic[U]):
    """Counts requests by operation, and what they came to."""

    def __init__(self, usage: type[U]) -> None:
        """`usage` is made of `count`, `failed_count` and the amounts that are counted."""
        self._usage = usage
        self._by_operation: dict[str, dict[str, float]] = {}

    def count(self, operation: str, status: int, **amounts: float) -> None:
        """Add one request; status 0 for one that got no answer."""
        used = self._by_operation.setdefault(operation, {"count": 0, "failed_count": 0})
        used["count"] += 1
        used["failed_count"] += not 0 < status < 400
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount

    def usage(self) -> dict[str, U]:
        """The use by operation, since the start or the last reset."""
        return {
            operation: self._usage(**{name: round(amount, 2) for name, amount in used.items()})
            for operation, used in sorted(self._by_operation.items())
        }

    def reset(self) -> None:
        """Count from zero."""
        self._by_operation.clear()


class Control:
    """The control of a running emulator, for an operator or a test."""

    def __init__(
        self, refusal: Callable[[int, str], Refusal], faults: Faults, meter: Meter[Any] | None, token: str
    ) -> None:
        """Raise what `refusal` makes of a status and a text; without a `meter` no use is counted."""
        self._refusal = refusal
        self._faults = faults
        self._meter = meter
        self._token = token.encode()

    def check(self, headers: Mapping[str, str]) -> None:
        """Let a request pass that names the token.

        Raises:
            Refusal: 401.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        known = len(token) <= TOKEN_LENGTH_MAX and hmac.compare_digest(token.encode("utf-8", "replace"), self._token)
        if scheme.lower() != "bearer" or not known:
            raise self._refusal(401, "the token is missing or wrong; it is the emulator's control_token")

    async def answer(self, method: str, raw_path: str, body: bytes) -> Answer:
        """JSON for a request under the prefix, whose token was checked.

        Raises:
            Refusal: 400, 404 or 405.
        """
        path, _, query = raw_path[len(PREFIX) :].partition("?")
        if method not in _METHODS.get(path, ()):
            status = 405 if path in _METHODS else 404
            raise self._refusal(status, f"{method[:20]} {raw_path[:80]!r} is not there")
        if path == "faults":
            try:
                return _json(*self._faults.control(method, query, body))
            except ValueError as error:
                raise self._refusal(400, str(error)) from error
            except LookupError as error:
                raise self._refusal(404, str(error)) from error
        if self._meter is None:
            raise self._refusal(404, "no use is counted here")
        if method == "GET":
            return _json(200, msgspec.json.encode(self._meter.usage()))
        self._meter.reset()
        return _json(200, b"{}")


def _json(status: int, body: bytes) -> Answer:
    return Answer(status, {"Content-Type": "application/json"}, body)

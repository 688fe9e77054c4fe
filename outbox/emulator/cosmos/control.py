"""The control endpoint of the emulator, on its own port: faults to install, requests and request units to read.

    GET, POST, DELETE  /_outbox/faults          the rules and what fired; one rule or an array; all, or ?id=N
    GET, DELETE        /_outbox/usage           requests and request units by operation; count from zero

No SDK uses such a path.  Every request names the token, compared in constant time; the server checks the Host header.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

import msgspec

from outbox.emulator.cosmos.answers import NOT_ALLOWED, NOT_FOUND, UNAUTHORIZED, Answer, Rejection, bad
from outbox.emulator.cosmos.charges import Meter
from outbox.emulator.faults import Faults

PREFIX = "/_outbox/"
TOKEN_LENGTH_MAX = 1_024
_METHODS = {"faults": ("GET", "POST", "DELETE"), "usage": ("GET", "DELETE")}


class Control:
    """What an operator or a test asks of a running emulator."""

    def __init__(self, faults: Faults, meter: Meter, token: str) -> None:
        self._faults = faults
        self._meter = meter
        self._token = token.encode()

    def check(self, headers: Mapping[str, str]) -> None:
        """Let a request pass that names the token.

        Raises:
            Rejection: 401.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        known = len(token) <= TOKEN_LENGTH_MAX and hmac.compare_digest(token.encode("utf-8", "replace"), self._token)
        if scheme.lower() != "bearer" or not known:
            raise Rejection(UNAUTHORIZED, "the token is missing or wrong; it is the emulator's control_token")

    def answer(self, method: str, raw_path: str, body: bytes) -> Answer:
        """The answer to a request under the prefix, whose token was checked.

        Raises:
            Rejection: 400, 404 or 405.
        """
        path, _, query = raw_path[len(PREFIX) :].partition("?")
        if method not in _METHODS.get(path, ()):
            status = NOT_ALLOWED if path in _METHODS else NOT_FOUND
            raise Rejection(status, f"{method[:20]} {raw_path[:80]!r} is not there")
        if path == "faults":
            try:
                return Answer(*self._faults.control(method, query, body))
            except ValueError as error:
                raise bad(str(error)) from error
            except LookupError as error:
                raise Rejection(NOT_FOUND, str(error)) from error
        if method == "GET":
            return Answer(body=msgspec.json.encode(self._meter.usage()))
        self._meter.reset()
        return Answer(body=b"{}")

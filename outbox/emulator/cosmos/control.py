"""The control endpoint of the emulator, on its own port: faults to install, requests and request units to read.

    GET, POST, DELETE  /_outbox/faults          the rules and what fired; one rule or an array; all, or ?id=N
    GET, DELETE        /_outbox/usage           requests and request units by operation; count from zero

No SDK uses such a path.  Every request names the token, compared in constant time; the server checks the Host header.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

import msgspec

from outbox.emulator.cosmos.answers import CREATED, NOT_ALLOWED, NOT_FOUND, UNAUTHORIZED, Answer, Rejection, bad
from outbox.emulator.cosmos.charges import Meter
from outbox.emulator.faults import Faults, rules_from_json

PREFIX = "/_outbox/"
TOKEN_LENGTH_MAX = 1_024


class Control:
    """What an operator or a test asks of a running emulator."""

    def __init__(self, faults: Faults, meter: Meter, token: str) -> None:
        self._faults = faults
        self._meter = meter
        self._token = token.encode()
        self._routes: dict[tuple[str, str], Callable[[str, bytes], Answer]] = {
            ("GET", "faults"): self._list,
            ("POST", "faults"): self._install,
            ("DELETE", "faults"): self._remove,
            ("GET", "usage"): self._usage,
            ("DELETE", "usage"): self._reset,
        }

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
        route = self._routes.get((method, path))
        if route is None:
            known = any(path == name for _, name in self._routes)
            raise Rejection(NOT_ALLOWED if known else NOT_FOUND, f"{method[:20]} {raw_path[:80]!r} is not there")
        return route(query, body)

    def _list(self, query: str, body: bytes) -> Answer:
        return Answer(body=self._faults.as_json())

    def _install(self, query: str, body: bytes) -> Answer:
        try:
            rules = rules_from_json(body)
            ids = [self._faults.install(rule) for rule in rules]
        except ValueError as error:
            raise bad(str(error)) from error
        return Answer(CREATED, msgspec.json.encode({"ids": ids}))

    def _remove(self, query: str, body: bytes) -> Answer:
        name, _, text = query.partition("=")
        if not query:
            self._faults.clear()
        elif name != "id" or not text.isascii() or not text.isdecimal() or len(text) > 15:
            raise bad(f"{query[:80]!r}: say ?id=NUMBER, or nothing to remove all rules")
        elif not self._faults.remove(int(text)):
            raise Rejection(NOT_FOUND, f"there is no fault rule {text}")
        return Answer(body=self._faults.as_json())

    def _usage(self, query: str, body: bytes) -> Answer:
        return Answer(body=msgspec.json.encode(self._meter.usage()))

    def _reset(self, query: str, body: bytes) -> Answer:
        self._meter.reset()
        return Answer(body=b"{}")

"""The dialect of an HTTP service: its refusals, the headers of its answers, the requests it admits.

`http` does what all of them have in common, and asks here for the rest.  Nothing of HTTP's library is imported.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

FORBIDDEN, BAD_REQUEST, TOO_LARGE, BUSY, ERROR, UNAVAILABLE = 403, 400, 413, 429, 500, 503
"""The statuses with which `http` refuses by itself; a dialect may say each in its own way."""


_CONDITION = re.compile(r"if-|x-ms-(?!meta-)(?:.*-)?(?:if|condition)-", re.IGNORECASE)


def conditions_among(headers: Mapping[str, str]) -> frozenset[str]:
    """The names, in lower case, of the headers under whose condition a request is to be done."""
    return frozenset(name.lower() for name, value in headers.items() if value and _CONDITION.match(name))


@dataclass(slots=True)
class Answer:
    """A status, what goes into the headers besides what every answer has, and a body, whole or in pieces."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | tuple[bytes, ...] = b""


class Refusal(Exception):
    """A request that is not granted."""

    def answer(self) -> Answer:
        """The refusal as the wire has it."""
        raise NotImplementedError


class Dropped(Exception):
    """The connection is to break without an answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was admitted by its head: what answers it, given its body, and whether it changes nothing."""

    respond: Callable[[bytes], Awaitable[Answer]]
    is_read: bool = False


class Dialect(Protocol):
    """One service on HTTP."""

    body_max_bytes: int
    """Of one request."""
    bodies_max_bytes: int
    """Of all requests that are being read or answered; more are throttled."""

    def admit(self, method: str, raw_path: str, headers: Mapping[str, str]) -> Asked:
        """Let a request pass by its head.

        Raises:
            Refusal: its sender may not ask that.
        """

    def refusal(self, status: int, text: str) -> Refusal:
        """How the service refuses with one of the statuses above."""

    def stamp(self, answer: Answer, number: int, headers: Mapping[str, str]) -> None:
        """Add the headers that every answer has; `number` counts answers, `headers` are the request's."""

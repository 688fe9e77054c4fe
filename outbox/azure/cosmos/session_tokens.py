"""How fresh the answers of a container have been: a session token for requests that are given none.

The SDK would find one as well, by hashing the partition key in Python, which takes a tenth of a request's CPU and more;
and what it finds knows nothing of batches, whose tokens it does not keep (SDK 4.17).

A token is that of a range of hashed keys, `RANGE:VERSION#LSN...`.  A request may carry those of several ranges; the
service looks at that of its own.  One that is missing or older only makes a read less fresh.  Answers overtake each
other, so the greatest of a range counts and not the last.
"""

from __future__ import annotations

import re

from outbox.ports import Session

_TOKEN = re.compile(r"([^:,]{1,40}):(-?[0-9]{1,18})#([0-9]{1,18})(?:#[^,]{0,400})?").fullmatch

RANGE_COUNT_MAX = 8
"""The number of ranges above which no token is sent, because each takes 30 bytes of the request's headers."""


class SessionTokens:
    """The latest token of each range."""

    def __init__(self) -> None:
        self._by_range: dict[str, tuple[int, int, str]] = {}
        """Version, log sequence number, and the token."""
        self.latest: Session = ""
        """For a request that is given no token of its own; empty where none can be given."""

    def learn(self, token: Session) -> Session:
        """Note the token of an answer, and give it."""
        if (read := _TOKEN(token)) is not None:
            found = int(read[2]), int(read[3]), token
            known = self._by_range.get(read[1])
            if known is None or known[:2] < found[:2]:
                self._by_range[read[1]] = found
                tokens = [each for _, _, each in self._by_range.values()]
                self.latest = ",".join(tokens) if len(tokens) <= RANGE_COUNT_MAX else ""
        return token

    def forget(self) -> None:
        """Forget them all: one was refused, or the container is another of the same name and behind them for good."""
        self._by_range.clear()
        self.latest = ""

"""How fresh the answers of a container have been: a session token for requests that are given none.

The SDK would find one as well, by hashing the partition key in Python, which takes a tenth of a request's CPU and more;
and what it finds knows nothing of batches, whose tokens it does not keep (SDK 4.17).

A token is that of a range of hashed keys, `RANGE:VERSION#LSN...`.  A request may carry those of several ranges; the
service looks at that of its own.  One that is missing or older only makes a read less fresh.
"""

from __future__ import annotations

from outbox.ports import Session

RANGE_COUNT_MAX = 8
"""Of more ranges none is given, and the SDK finds that of the request's own: each takes 30 bytes of its headers."""


class SessionTokens:
    """The latest token of each range."""

    def __init__(self) -> None:
        self._by_range: dict[str, str] = {}
        self.latest: Session = ""
        """For a request that is given no token of its own; empty where none can be given."""

    def learn(self, token: Session) -> Session:
        """Note the token of an answer, and give it."""
        range_id, colon, _ = token.partition(":")
        if colon and "," not in token and self._by_range.get(range_id) != token:
            self._by_range[range_id] = token
            self.latest = ",".join(self._by_range.values()) if len(self._by_range) <= RANGE_COUNT_MAX else ""
        return token

    def forget(self) -> None:
        """Forget them all: the container may be another of the same name, which is behind them for good."""
        self._by_range.clear()
        self.latest = ""

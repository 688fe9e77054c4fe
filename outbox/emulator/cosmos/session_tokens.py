"""Session tokens: how fresh the answers are that a client has seen.

A token is `0:-1#LSN`: partition key range, version, and the freshness, a number that grows by
one with each write to a container.
A client sends several, joined by commas, where it has read several ranges; there is one range only.
"""

from __future__ import annotations

from outbox.emulator.cosmos.answers import NOT_FOUND, SESSION_NOT_AVAILABLE, Rejection, bad

TOKEN_LENGTH_MAX = 16 << 10
LSN_DIGITS_MAX = 19


def token_of(lsn: int) -> str:
    """The token of an answer of that freshness."""
    return f"0:-1#{lsn}"


def least_of(text: str, now_lsn: int) -> int:
    """How fresh an answer must be for the session of this token; 0 without one.

    Raises:
        Rejection: 400, it is no token; 404 with substatus 1002, nothing here is as fresh.
    """
    if not text:
        return 0
    if len(text) > TOKEN_LENGTH_MAX:
        raise bad(f"the session token is longer than {TOKEN_LENGTH_MAX} characters")
    least = max(_lsn(part) for part in text.split(","))
    if least > now_lsn:
        raise Rejection(
            NOT_FOUND,
            "the read session is not available for the input session token: it has seen more than there is here. "
            "It may be of an emulator that was started anew; make a new client",
            substatus=SESSION_NOT_AVAILABLE,
        )
    return least


def _lsn(part: str) -> int:
    range_id, colon, rest = part.strip().partition(":")
    fields = (rest if colon else range_id).split("#")
    digits = fields[0] if len(fields) == 1 else fields[1]
    if not digits.isascii() or not digits.isdecimal() or len(digits) > LSN_DIGITS_MAX:
        raise bad(f"the session token {part[:80]!r} is invalid; send one that an answer carried")
    return int(digits)

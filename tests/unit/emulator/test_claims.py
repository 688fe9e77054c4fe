"""Tokens on the bus: who is let in, for how long, and what is answered."""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import quote_plus

import pytest

from outbox.emulator.amqp import types
from outbox.emulator.bus.requests import SCOPE_COUNT_MAX, TOKEN_LENGTH_MAX, Claims, Request, check_signature, scope_of

KEY = "key"


def token(expiry: str = "100", key: str = KEY, scope: str = "sb://host", scheme: str = "SharedAccessSignature") -> str:
    digest = hmac.new(key.encode(), f"{scope}\n{expiry}".encode(), sha256).digest()
    return f"{scheme} sr={scope}&sig={quote_plus(b64encode(digest))}&se={expiry}&skn=outbox"


NOWHERE = ("", "%20", "/", "/q", "sb://", "sb:///q", "sb://h/q://", "sb%3a%2f%2fh%2fq%3a%2f%2fx")


@pytest.mark.parametrize(
    ("given", "ends_ms"),
    [
        (token(), 100_000), (token("9" * 15), 999_999_999_999_999_000), (token("9" * 16), 0), (token(""), 0),
        (token("-1"), 0), (token("1.5"), 0), (token(key="other"), 0), (token(scheme="Bearer"), 0),
        (token().replace("sr=sb", "sr=sc"), 0), (token().replace("se=100", "se=101"), 0), ("", 0), (None, 0),
        (token().replace("skn=outbox", "skn=other"), 0), (token().replace("&skn=outbox", ""), 0),
        *((token(scope=scope), 0) for scope in NOWHERE),
        (token() + "&x=" + "x" * (TOKEN_LENGTH_MAX - len(token()) - 3), 100_000),
        (token() + "&x=" + "x" * (TOKEN_LENGTH_MAX - len(token()) - 2), 0),
    ],
)  # fmt: skip
def test_a_token_is_good_for_what_it_signs(given: object, ends_ms: int) -> None:
    assert check_signature(given, KEY) == ends_ms


def test_a_token_lets_in_until_it_ends_and_a_bad_one_changes_nothing() -> None:
    now_ms = [99_999]
    claims = Claims(KEY, lambda: now_ms[0])

    def put(value: Any, operation: str = "put-token") -> int:
        return claims._put_token(Request(types.NULL, "", {"operation": operation}, value))[0]

    steps = [(put(token(), "delete-token"), claims.authorised), (put("bad"), claims.authorised)]
    steps += [(put(token()), claims.authorised), (put("bad"), claims.authorised)]
    now_ms[0] = 100_000
    steps += [(put(token()), claims.authorised), (put(token("101")), claims.authorised)]
    assert steps == [(400, False), (401, False), (202, True), (401, True), (401, False), (202, True)]
    anyone = Claims(None, lambda: 0)
    assert anyone.authorised and anyone._put_token(Request(types.NULL, "", {"operation": "put-token"}, "x"))[0] == 202


@pytest.mark.parametrize(
    ("scope", "opened", "closed"),
    [
        ("sb://host", ["q", "t/Subscriptions/s"], []),
        ("sb%3a%2f%2fhost%2f", ["q"], []),
        ("sb://host:5672/Q", ["q", "q/$DeadLetterQueue", "Q"], ["q2", "other", "t/q"]),
        ("amqp%3A%2F%2Fhost%2Ft%2FSubscriptions%2Fs", ["t/Subscriptions/s"], ["t", "t/Subscriptions/s2"]),
        ("sb://host/q/$management", ["q"], ["r"]),
        ("host/q", ["q"], ["r"]),
    ],
)
def test_a_token_opens_what_it_names_and_what_is_below(scope: str, opened: list[str], closed: list[str]) -> None:
    claims = Claims(KEY, lambda: 0)
    claims._put_token(Request(types.NULL, "", {"operation": "put-token"}, token(scope=scope)))
    assert [claims.covers(path) for path in (*opened, *closed)] == [True] * len(opened) + [False] * len(closed)


def test_tokens_for_entities_are_side_by_side_and_have_a_limit() -> None:
    now_ms = [0]
    claims = Claims(KEY, lambda: now_ms[0])

    def put(scope: str, expiry: str = "100") -> int:
        return claims._put_token(Request(types.NULL, "", {"operation": "put-token"}, token(expiry, scope=scope)))[0]

    assert (put("sb://h/a", "50"), put("sb://h/b")) == (202, 202)
    assert claims.covers("a") and claims.covers("b")
    now_ms[0] = 50_000
    assert claims.authorised and claims.covers("b") and not claims.covers("a")
    claims._scopes |= {f"q{number}": 60_000 for number in range(SCOPE_COUNT_MAX)}
    assert put("sb://h/c") == 503 and put("sb://h/b") == 202
    now_ms[0] = 60_000
    assert put("sb://h/c") == 202 and len(claims._scopes) == 2 and scope_of(token(scope="sb://h/c")) == "c"

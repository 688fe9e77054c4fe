"""Tokens on the bus: who is let in, for how long, and what is answered."""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import quote_plus

import pytest

from outbox.emulator.amqp import types
from outbox.emulator.bus.claims import TOKEN_LENGTH_MAX, Claims, check_signature
from outbox.emulator.bus.requests import Request

KEY = "key"


def token(expiry: str = "100", key: str = KEY, scope: str = "sb://host", scheme: str = "SharedAccessSignature") -> str:
    digest = hmac.new(key.encode(), f"{scope}\n{expiry}".encode(), sha256).digest()
    return f"{scheme} sr={scope}&sig={quote_plus(b64encode(digest))}&se={expiry}&skn=name"


@pytest.mark.parametrize(
    ("given", "ends_ms"),
    [
        (token(), 100_000), (token("9" * 15), 999_999_999_999_999_000), (token("9" * 16), 0), (token(""), 0),
        (token("-1"), 0), (token("1.5"), 0), (token(key="other"), 0), (token(scheme="Bearer"), 0),
        (token().replace("sr=sb", "sr=sc"), 0), (token().replace("se=100", "se=101"), 0), ("", 0), (None, 0),
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

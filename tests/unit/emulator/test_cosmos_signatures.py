"""Which requests are let in: those whose signature fits, of every part that is signed."""

from __future__ import annotations

import base64
import hmac
from typing import Any
from urllib.parse import quote

import pytest

from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY, check_signature
from outbox.emulator.cosmos.wire import Rejection
from outbox.emulator.faults import TOKEN_LENGTH_MAX, key_bytes
from outbox.errors import Refused

DATE = "Mon, 01 Jan 2026 00:00:00 GMT"
KEY = key_bytes(WELL_KNOWN_KEY)
REQUEST: dict[str, Any] = {"verb": "GET", "kind": "docs", "links": ("dbs/d/colls/c",), "date": DATE}


def token_of(text: str, key: str = WELL_KNOWN_KEY, extra: str = "") -> str:
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), "sha256")).decode()
    return f"type=master&ver=1.0&sig={signature}{extra}"


SIGNED = f"get\ndocs\ndbs/d/colls/c\n{DATE.lower()}\n\n"


@pytest.mark.parametrize("is_quoted", [False, True])
@pytest.mark.parametrize("links", [("dbs/d/colls/c",), ("dbs/d/colls/c", "rid"), ("rid", "dbs/d/colls/c")])
def test_a_signature_fits_one_of_the_links(is_quoted: bool, links: tuple[str, ...]) -> None:
    token = token_of(SIGNED)
    check_signature(KEY, quote(token) if is_quoted else token, **REQUEST | {"links": links})


@pytest.mark.parametrize(
    "other",
    [{"verb": "PUT"}, {"kind": "colls"}, {"links": ("rid",)}, {"links": ()}, {"date": "later"}, {"http_date": DATE}],
    ids=str,
)
def test_a_signature_of_another_request_fits_nothing(other: dict[str, Any]) -> None:
    with pytest.raises(Rejection, match="does not fit"):
        check_signature(KEY, token_of(SIGNED), **REQUEST | other)


def test_a_date_is_signed_in_either_header_and_one_of_them_is_needed() -> None:
    token = token_of(f"get\ndocs\ndbs/d/colls/c\n\n{DATE.lower()}\n")
    check_signature(KEY, token, **REQUEST | {"date": "", "http_date": DATE})
    with pytest.raises(Rejection, match="needs x-ms-date or Date"):
        check_signature(KEY, token, **REQUEST | {"date": ""})


@pytest.mark.parametrize("length", [TOKEN_LENGTH_MAX, TOKEN_LENGTH_MAX + 1])
def test_a_token_is_read_up_to_its_limit(length: int) -> None:
    token = token_of(SIGNED, extra="&x=")
    token += "x" * (length - len(token))
    if length <= TOKEN_LENGTH_MAX:
        check_signature(KEY, token, **REQUEST)
    else:
        with pytest.raises(Rejection, match="type=master"):
            check_signature(KEY, token, **REQUEST)


@pytest.mark.parametrize("change", [("type=master", "type=resource"), ("ver=1.0", "ver=2.0"), ("type=master&", "")])
def test_a_token_of_another_kind_is_named(change: tuple[str, str]) -> None:
    with pytest.raises(Rejection, match="must be type=master"):
        check_signature(KEY, token_of(SIGNED).replace(*change), **REQUEST)


@pytest.mark.parametrize(("key", "told"), [("no base64!", "not base64"), ("schlüssel", "not base64"), ("", "is empty")])
def test_a_key_that_signs_nothing_is_refused(key: str, told: str) -> None:
    with pytest.raises(Refused, match=told):
        key_bytes(key)

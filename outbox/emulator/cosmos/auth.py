"""Whether a request is signed with the account's key.

A request carries `type=master&ver=1.0&sig=...`, an HMAC-SHA256 over verb, resource type, resource link and date.
The link is the path by names as it stands, or, in a path by resource ids, the last of them in lower case.
The date is signed and not compared with a clock: an engine under test has a clock of its own.
Source: learn.microsoft.com/rest/api/cosmos-db/access-control-on-cosmosdb-resources.
"""

from __future__ import annotations

import base64
import hmac
from urllib.parse import unquote

from outbox.emulator.cosmos.wire import UNAUTHORIZED, Rejection
from outbox.emulator.faults import TOKEN_LENGTH_MAX

WELL_KNOWN_KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
"""The public key of Microsoft's emulator, so that its settings work here: it protects nothing."""


def check_signature(
    key: bytes, token: str, verb: str, kind: str, links: tuple[str, ...], date: str, http_date: str = ""
) -> None:
    """Let a request pass whose signature fits one of the links by which its path may be signed.

    Raises:
        Rejection: 401, saying what is wrong with it.
    """
    plain = unquote(token) if "%" in token else token
    fields = {} if len(token) > TOKEN_LENGTH_MAX else dict(part.partition("=")[::2] for part in plain.split("&"))
    if fields.get("type") != "master" or fields.get("ver") != "1.0":
        raise Rejection(UNAUTHORIZED, "the authorization header must be type=master&ver=1.0&sig=...")
    if not date and not http_date:
        raise Rejection(UNAUTHORIZED, "a signed request needs x-ms-date or Date")
    signature = fields.get("sig", "").encode("utf-8", "replace")
    for link in links:
        text = f"{verb.lower()}\n{kind}\n{link}\n{date.lower()}\n{http_date.lower()}\n"
        expected = base64.b64encode(hmac.digest(key, text.encode("utf-8", "replace"), "sha256"))
        if hmac.compare_digest(signature, expected):
            return
    raise Rejection(
        UNAUTHORIZED,
        "the signature does not fit; use the key with which the emulator was started",
    )

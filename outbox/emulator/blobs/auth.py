"""Whether a request is signed with the account's key (Shared Key).

A request carries `SharedKey ACCOUNT:SIGNATURE`, an HMAC-SHA256 over its method, some headers, all headers that begin
with `x-ms-`, its path as it stands and its query.  The date is signed and not compared with a clock: an engine under
test has a clock of its own.  Source: learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import unquote

from outbox.emulator.blobs.requests import Rejection
from outbox.emulator.faults import TOKEN_LENGTH_MAX, key_bytes

ACCOUNT = "devstoreaccount1"
WELL_KNOWN_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public account and key of Microsoft's emulators, so that their settings work here: they protect nothing."""

_SIGNED = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


class Signatures:
    """Checks signatures made with one account's key."""

    def __init__(self, account: str, key: str) -> None:
        """Take the account's name and its key, base64.

        Raises:
            Refused: the key is not base64, or empty.
        """
        self.account = account
        self._key = key_bytes(key)

    def check(self, method: str, raw_path: str, headers: Mapping[str, str]) -> None:
        """Let a request pass whose signature fits.

        Raises:
            Rejection: 401, there is none; 403, it does not fit.
        """
        token = headers.get("authorization", "")
        if not token:
            raise Rejection("NoAuthenticationInformation")
        scheme, _, given = token.partition(" ")
        account, _, signature = given.strip().partition(":")
        if scheme.lower() != "sharedkey" or len(token) > TOKEN_LENGTH_MAX:
            raise Rejection("AuthenticationFailed", "sign with SharedKey ACCOUNT:SIGNATURE; nothing else is known here")
        if account != self.account:
            raise Rejection("AuthenticationFailed", f"the account is {self.account}; sign with its name and key")
        if not headers.get("x-ms-date") and not headers.get("date"):
            raise Rejection("AuthenticationFailed", "a signed request needs x-ms-date or Date")
        for order in (_service_order, str):
            text = string_to_sign(method, raw_path, headers, account, order)
            digest = hmac.digest(self._key, text.encode("utf-8", "surrogateescape"), "sha256")
            if hmac.compare_digest(signature.encode("utf-8", "replace"), base64.b64encode(digest)):
                return
        raise Rejection("AuthenticationFailed")


def string_to_sign(
    method: str, raw_path: str, headers: Mapping[str, str], account: str, order: Callable[[str], str] = str
) -> str:
    """The text that a client signs; `order` makes the key by which headers are sorted."""
    plain = {name: headers.get(name, "") for name in _SIGNED}
    if plain["content-length"] == "0":
        plain["content-length"] = ""
    if headers.get("x-ms-date"):
        plain["date"] = ""
    ours = {name.lower(): value.strip() for name, value in headers.items() if name.lower().startswith("x-ms-")}
    lines = [method, *plain.values(), *(f"{name}:{ours[name]}" for name in sorted(ours, key=order))]
    path, _, query = raw_path.partition("?")
    return "\n".join((*lines, f"/{account}{path}", *_query_lines(query.split("&") if query else ())))


def _service_order(name: str) -> str:
    """The service sorts by words: hyphens count last, and an underscore comes before digits and letters."""
    return name.replace("-", "").replace("_", "\x01")


def _query_lines(pairs: Iterable[str]) -> list[str]:
    values: dict[str, list[str]] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        values.setdefault(unquote(name).lower(), []).append(unquote(value))
    return [f"{name}:{','.join(sorted(values[name]))}" for name in sorted(values)]

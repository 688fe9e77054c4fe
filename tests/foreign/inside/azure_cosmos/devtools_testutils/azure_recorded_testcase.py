"""Credentials for tests against Azure.  Here there are none, and a token that the SDK does not send without TLS."""

from __future__ import annotations

from typing import Any

from azure.core.credentials import AccessToken

NEVER_S = 4_102_444_800
"""The year 2100, in seconds since 1970."""


class Credential:
    """Signs in with a token that nobody issued."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Give the token."""
        return AccessToken("a.b.c", NEVER_S)


class AsyncCredential:
    """The same for asynchronous clients."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Give the token."""
        return AccessToken("a.b.c", NEVER_S)


def get_credential(*, is_async: bool = False) -> Credential | AsyncCredential:
    """What tests sign in with that do not take the account's key."""
    return AsyncCredential() if is_async else Credential()

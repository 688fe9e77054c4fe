"""Addresses and connection strings of Azure's services, and who asks where they bring no key.

What is given as an address is asked for with an identity, what is given as a connection string brings its key along.
No text here repeats what was given.
"""

from __future__ import annotations

from typing import Any

from azure.identity.aio import DefaultAzureCredential

from outbox.azure.blobs import BlobAccount


class Identity:
    """The credential where no key was given: made when it is first needed, closed if it was made here."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._made: DefaultAzureCredential | None = None

    def credential(self) -> Any:
        if self._given is not None:
            return self._given
        if self._made is None:
            self._made = DefaultAzureCredential()
        return self._made

    async def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            await made.close()


def blob_account(
    address: str, container: str, identity: Identity, api_version: str | None, *, create: bool = False
) -> BlobAccount:
    """A container of a storage account; `create` makes it at its first use.

    Raises:
        ValueError: it is neither an address nor a connection string.
    """
    parts = parts_of(address)
    if parts.keys() & {"AccountName", "BlobEndpoint", "UseDevelopmentStorage"}:
        return BlobAccount(address, container, api_version=api_version, create=create)
    if parts or not address.startswith(("https://", "http://")):
        raise ValueError("blobs= is neither an address (https://...) nor a storage connection string")
    return BlobAccount(address, container, identity.credential(), api_version=api_version, create=create)


def parts_of(address: str) -> dict[str, str]:
    """The parts of a connection string; none where it is an address."""
    if address.startswith(("https://", "http://")) or "=" not in address:
        return {}
    return dict(part.partition("=")[::2] for part in address.strip().split(";") if part)

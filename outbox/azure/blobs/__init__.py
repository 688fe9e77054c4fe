"""Blob Storage as a blob store, and as a state store of item scope."""

from outbox.azure.blobs.account import BlobAccount
from outbox.azure.blobs.state_store import BlobStateStore
from outbox.azure.blobs.store import AzureBlobStore

__all__ = ["AzureBlobStore", "BlobAccount", "BlobStateStore"]

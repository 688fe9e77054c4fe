"""The runtime's ports on Azure: Cosmos DB for documents, Service Bus for messages, Blob Storage for large bodies.

    backend = azure.connect(cosmos=..., database=..., servicebus=...)

Nothing is imported from an SDK before it is needed: they take seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.azure.connecting import AzureBackend, connect
    from outbox.azure.usage import Usage

__all__ = ["AzureBackend", "Usage", "connect"]

_LAZY = {
    "AzureBackend": "outbox.azure.connecting",
    "Usage": "outbox.azure.usage",
    "connect": "outbox.azure.connecting",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'outbox.azure' has no attribute {name!r}")
    return getattr(import_module(module), name)

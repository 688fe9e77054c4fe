"""The runtime's ports on Azure: Cosmos DB for documents, Service Bus for messages, Blob Storage for large bodies.

    backend = azure.connect(cosmos=..., database=..., servicebus=...)
    states = azure.blob_states(..., container=...)      a place for ordered logs alone

Nothing is imported from an SDK before it is needed: they take seconds.  Whether they are there is looked up at once,
because what an interpreter says without them ("No module named 'azure'") leads to a package of that name, and no cure.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.azure.blob_place import BlobStates, blob_states
    from outbox.azure.connecting import AzureBackend, connect
    from outbox.azure.usage import Usage

_SDKS = {
    "azure-core": "azure.core",
    "azure-cosmos": "azure.cosmos",
    "azure-identity": "azure.identity",
    "azure-servicebus": "azure.servicebus",
}
"""The SDKs that this package needs, distribution and module; a Spark pool has these and no more."""

if _missing := [name for name, module in _SDKS.items() if find_spec("azure") is None or find_spec(module) is None]:
    raise ImportError(f"outbox.azure needs {', '.join(_missing)}; run: pip install 'outbox-azure[azure]'")

__all__ = ["AzureBackend", "BlobStates", "Usage", "blob_states", "connect"]

_LAZY = {
    "AzureBackend": "outbox.azure.connecting",
    "BlobStates": "outbox.azure.blob_place",
    "Usage": "outbox.azure.usage",
    "blob_states": "outbox.azure.blob_place",
    "connect": "outbox.azure.connecting",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'outbox.azure' has no attribute {name!r}")
    return getattr(import_module(module), name)

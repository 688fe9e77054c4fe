"""Message handlers that act exactly once.

    from outbox import App, Context, Engine, Reject, Worker

What is exported here is the API; everything else may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outbox.app import App
from outbox.context import BlobRef, Context
from outbox.errors import OutboxError, UnknownDestination
from outbox.http import Request, Response
from outbox.retries import Reject, Retries, Retry

if TYPE_CHECKING:
    from outbox.client import Client, DeadLetter
    from outbox.engine.engine import Engine
    from outbox.http_entry import HttpEntry
    from outbox.worker import Worker

__all__ = [
    "App",
    "BlobRef",
    "Client",
    "Context",
    "DeadLetter",
    "Engine",
    "HttpEntry",
    "OutboxError",
    "Reject",
    "Request",
    "Response",
    "Retries",
    "Retry",
    "UnknownDestination",
    "Worker",
]

_LAZY = {
    "Client": "outbox.client",
    "DeadLetter": "outbox.client",
    "Engine": "outbox.engine.engine",
    "HttpEntry": "outbox.http_entry",
    "Worker": "outbox.worker",
}


def __getattr__(name: str) -> Any:
    """Import the heavier names when they are first used."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    return getattr(import_module(module), name)

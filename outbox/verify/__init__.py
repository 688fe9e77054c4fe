"""What checks the promises: contract suites for adapters, and ports that fail on purpose."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.verify.faults import Faults

__all__ = ["Faults"]

_LAZY = {"Faults": "outbox.verify.faults"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that a judge of histories can be shipped without the rest."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'outbox.verify' has no attribute {name!r}")
    return getattr(import_module(module), name)

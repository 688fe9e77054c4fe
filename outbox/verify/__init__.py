"""Checks of the promises: exploration of handlers, contract suites for adapters, ports that fail on purpose.

explorer/  every world of a small scope: what runs in it, what may happen next, and the searches that walk it
promises/  what must hold of each world
findings/  what `explore(app)` finds, and how its report says it
recorded/  histories of real runs: recording them, and judging them
suites/    what every adapter of a port must do
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.verify.faults import Faults
    from outbox.verify.findings.exploration import explore
    from outbox.verify.findings.operators import check_operator
    from outbox.verify.findings.report import Report
    from outbox.verify.findings.streams import explore_pipeline, explore_processor
    from outbox.verify.promises.view import View

__all__ = ["check_operator", "explore", "explore_pipeline", "explore_processor", "Faults", "Report", "View"]

_LAZY = {
    "check_operator": "outbox.verify.findings.operators",
    "explore": "outbox.verify.findings.exploration",
    "explore_pipeline": "outbox.verify.findings.streams",
    "explore_processor": "outbox.verify.findings.streams",
    "Faults": "outbox.verify.faults",
    "Report": "outbox.verify.findings.report",
    "View": "outbox.verify.promises.view",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that a judge of histories can be shipped without the rest."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'outbox.verify' has no attribute {name!r}")
    return getattr(import_module(module), name)

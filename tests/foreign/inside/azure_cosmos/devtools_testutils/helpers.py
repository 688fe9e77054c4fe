"""Whether tests run against Azure and not against recordings."""

from __future__ import annotations


def is_live() -> bool:
    """There are no recordings here.  The tests' configuration sets an attribute of this, so it is a function."""
    return True

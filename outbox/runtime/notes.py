"""What the framework itself keeps in a backend under names of its own, written at a start by several workers."""

from __future__ import annotations

from outbox.errors import OutcomeUnknown
from outbox.ports import Document, Operations


async def write_note(operations: Operations, name: str, body: bytes, seen: Document | None) -> bool:
    """Write a note that is still as it was seen; False where it is not, or nobody can tell: read it again."""
    try:
        return await operations.write_note(name, body, "" if seen is None else seen.version)
    except OutcomeUnknown:
        return False

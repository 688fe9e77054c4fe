"""What the framework itself keeps in a backend under names of its own, written at a start by several workers."""

from __future__ import annotations

from outbox.errors import CorruptRecord, OutcomeUnknown
from outbox.ports import Document, Operations


async def write_note(operations: Operations, name: str, body: bytes, seen: Document | None) -> bool:
    """Write a note that is still as it was seen; False where it is not, or nobody can tell: read it again."""
    try:
        return await operations.write_note(name, body, "" if seen is None else seen.version)
    except OutcomeUnknown:
        return False


def unreadable(note: Document, error: Exception) -> CorruptRecord:
    """What is raised for a note that is not what it must be."""
    where = f"{note.key.partition}/{note.key.id}"
    return CorruptRecord(
        f"document {where} is not a note of this framework: {error}; who else writes here? Delete it when the queues "
        "of its application are drained, and start again"
    )

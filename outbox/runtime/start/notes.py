"""The framework's own notes in a backend, which several workers may write at their start."""

from __future__ import annotations

from outbox.errors import CorruptRecord, OutcomeUnknown
from outbox.ports import Document, Operations


async def write_note(operations: Operations, name: str, body: bytes, seen: Document | None) -> bool:
    """Write a note unchanged since `seen`; False: it has changed or the outcome is unknown, so read it again."""
    try:
        return await operations.write_note(name, body, "" if seen is None else seen.version)
    except OutcomeUnknown:
        return False


def unreadable(note: Document, error: Exception) -> CorruptRecord:
    """The error for a note that cannot be decoded."""
    return CorruptRecord(
        f"document {note.key.partition}/{note.key.id} is not a note of this framework: {error}; who else writes here? "
        "Delete it when the queues of its application are drained, and start again"
    )

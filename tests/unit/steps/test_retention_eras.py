"""The eras of retention that a worker registers: each once, until its latest end."""

from __future__ import annotations

from typing import Any

import msgspec

from outbox.ports import Document, DocumentKey
from outbox.runtime.start.notes import PastRetention, RegisteredRetention, RetentionWindow, register_retention

NOW_MS = 1_000_000


class Notes:
    """Operations with one note."""

    def __init__(self, note: RegisteredRetention) -> None:
        self.body = msgspec.json.encode(note)

    def now_ms(self) -> int:
        return NOW_MS

    async def note(self, name: str) -> Document:
        return Document(DocumentKey("notes", name), self.body, "1")

    async def write_note(self, name: str, body: bytes, version: str) -> bool:
        self.body = body
        return True


async def registered(known: RegisteredRetention, window: RetentionWindow) -> RegisteredRetention:
    notes: Any = Notes(known)
    await register_retention("a", window, notes)
    found = msgspec.json.decode(notes.body, type=RegisteredRetention)
    assert found.eras == window.eras
    return found


async def test_an_era_that_came_twice_ends_with_its_later_end() -> None:
    """Its first end was later: the margin of those times was longer."""
    earlier = PastRetention(NOW_MS + 500, 7_000, 3)
    found = await registered(RegisteredRetention(7_000, 3, (earlier,)), RetentionWindow(9_000, 9_003))
    assert found == RegisteredRetention(9_000, 3, (earlier,))


async def test_a_retention_that_comes_back_is_no_earlier_one() -> None:
    earlier = PastRetention(NOW_MS + 500, 7_000, 3)
    found = await registered(RegisteredRetention(9_000, 3, (earlier,)), RetentionWindow(7_000, 7_003))
    assert found == RegisteredRetention(7_000, 3, (PastRetention(NOW_MS + 3, 9_000, 3),))

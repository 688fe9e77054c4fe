"""Markers of handled messages, and for how long each is remembered.

Whether a marker may be written is for the journal to say, before the record exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from outbox.engine.state.tasks import reply_bytes_of
from outbox.ports import Marker, Refusal


class Markers:
    """Markers by inbox key, and their ages."""

    def __init__(self) -> None:
        self.known: dict[bytes, Marker] = {}
        self.ages: list[tuple[int, list[bytes]]] = []
        """When markers are to be forgotten, soonest first, and which; a heap."""
        self.renewed: dict[bytes, int] = {}
        """The last age of each marker that has several, or may come to: a refusal can be replaced."""
        self.reply_bytes = 0
        """The bytes of the replies of HTTP requests."""

    def add(self, applied: Mapping[bytes, bytes], refused: Mapping[bytes, Refusal], expire_ms: int) -> None:
        """Remember what a commit applied and refused until a time; 0: until something becomes of the messages."""
        markers, renewed = self.known, self.renewed
        if not expire_ms:  # they have no age until something becomes of their messages
            markers.update(refused)
            return
        if not markers.keys().isdisjoint(applied):  # few messages come twice
            for key in applied:
                if key in markers:
                    renewed[key] = max(renewed.get(key, 0), expire_ms)
        for key in refused:
            renewed[key] = max(renewed.get(key, 0), expire_ms)
        markers.update(applied)
        markers.update(refused)
        self.reply_bytes += reply_bytes_of(applied.values())
        heappush(self.ages, (expire_ms, [*applied, *refused]))

    def restore(
        self,
        applied: Mapping[bytes, bytes],
        refused: Mapping[bytes, Refusal],
        ages: list[tuple[int, list[bytes]]],
        renewed: Mapping[bytes, int],
    ) -> None:
        """Remember what a slice of a snapshot holds as well."""
        self.known.update(applied)
        self.reply_bytes += reply_bytes_of(applied.values())
        self.known.update(refused)
        ages = sorted(ages)  # an older build wrote them as they came
        is_behind = not (self.ages and ages) or self.ages[-1] <= ages[0]
        self.ages += ages
        if not is_behind:
            self.ages.sort()
        self.renewed.update(renewed)

    def forget(self, now_ms: int) -> None:
        """Drop the markers whose time is over."""
        ages = self.ages
        while ages and ages[0][0] <= now_ms:
            for key in heappop(ages)[1]:
                if self.renewed.get(key, 0) <= now_ms:
                    self.reply_bytes -= reply_bytes_of([self.known.pop(key, b"")])
                    self.renewed.pop(key, None)

"""The trail of a message in a recorded history: its sender, the commit that applied or refused it, its outputs.

A history is read twice, line by line: first for ids and their causes, which are kept, then for the outcomes of the
trail's messages.  A commit without a recorded outcome is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outbox.errors import Refused
from outbox.ops.shared.recorded import ended
from outbox.ops.trail.tree import FACT_COUNT_MAX, Sighting, reach
from outbox.ops.values.trail import KNOWN_COUNT_MAX, Fact, FindTrail, Place
from outbox.verify.history import read_history
from outbox.verify.recorded.events import AnyEvent, Commit, Emitted, In, Push, Settled

EDGE_COUNT_MAX = 2_000_000
"""The most messages of a history that are read for their causes."""


class HistoryTrail:
    """A trail in a history."""

    def __init__(self, path: Path, asked: FindTrail) -> None:
        """Read who caused whom.

        Raises:
            Refused: there is no such file, or several ids have this prefix.
            CorruptRecord: it is no history.
        """
        if not path.is_file():
            raise Refused(f"{path} is not there; record one by `outbox run APP --data FOLDER --history {path}`")
        self._path = path
        self._asked = asked
        reached = reach(asked, self._edges())
        self.id = reached.id
        self.ids = reached.ids[:KNOWN_COUNT_MAX]
        """The ids of the trail, the one that was asked for first."""

    def _edges(self) -> Iterator[Sighting[None]]:
        count = 0
        for event in read_history(self._path):
            for id, cause in _named(event):
                count += 1
                if count > EDGE_COUNT_MAX:
                    return
                yield Sighting(id, cause, None)

    def facts(self, ids: set[str]) -> list[Fact]:
        """Return the history's facts about these messages."""
        found: list[Fact] = []
        for event, outcome in ended(read_history(self._path)):
            found += [fact for fact in _facts(event, outcome, ids) if fact.id in ids]
            if len(found) >= FACT_COUNT_MAX:
                break
        return found[:FACT_COUNT_MAX]


def _named(event: AnyEvent) -> Iterator[tuple[str, str]]:
    """The messages in an event, each with its cause."""
    match event:
        case In():
            yield from ((id, "") for id, _ in event.messages)
        case Commit():
            yield from ((each.id, "") for each in event.ended)
            yield from ((each.id, "") for each in event.buried)
            yield from ((each.id, each.cause) for each in event.outputs)
        case Push():
            yield from ((each.id, each.cause) for each in event.outputs)


def _facts(event: AnyEvent, outcome: str, ids: set[str]) -> Iterator[Fact]:
    at_s: dict[str, Any] = {"at": event.at_ms / 1_000} if event.at_ms else {}
    unsure = {} if outcome == "ok" else {"why": "whether this took effect is not in the history"}

    def made(place: Place, id: str, **more: Any) -> Fact:
        kept = {"id": id, "known_by": "history", "place": place if outcome == "ok" else "unknown"}
        return Fact(**{**kept, **at_s, **more, **unsure})

    def sent(output: Emitted) -> Fact:
        return made("sent", output.id, queue=output.destination, cause=output.cause)

    match event:
        case In():
            yield from (made("sent", id, queue=event.queue, why="accepted from outside") for id, _ in event.messages)
        case Commit():
            yield from (made("applied", each.id, queue=each.queue, tx=event.tx) for each in event.ended)
            yield from (
                made("refused", each.id, queue=each.queue, tx=event.tx, why=each.reason) for each in event.buried
            )
            yield from map(sent, event.outputs)
        case Push():
            yield from map(sent, event.outputs)
        case Settled(how="dead-letter"):
            yield made("refused", event.id, queue=event.queue, why=event.reason)

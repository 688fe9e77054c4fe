"""How each event of a recorded history ended."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.verify.recorded.events import AnyEvent, Commit, Fail, In, Ok, Push, Put, Settled


def ended(events: Iterator[AnyEvent]) -> Iterator[tuple[AnyEvent, str]]:
    """Yield events that take effect, operations with their outcome: `ok`, or `unknown` where none is recorded."""
    open_: dict[int, Commit | Push | Settled] = {}
    for event in events:
        match event:
            case Commit() | Push() | Settled():
                if event.op in open_:  # the numbers begin anew with each process
                    yield open_.pop(event.op), "unknown"
                open_[event.op] = event
            case Ok() if event.op in open_:
                yield open_.pop(event.op), "ok"
            case Fail():
                open_.pop(event.op, None)
            case In() | Put():
                yield event, "ok"
    for left in open_.values():
        yield left, "unknown"

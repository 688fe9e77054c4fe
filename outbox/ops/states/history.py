"""The versions of one state as a recorded history has them, each with the message that made it.

A commit names the states that it changes and the messages that it ends, of a batch all together.  With the application
each message of a batch is told by its inbox key, which follows from handler, key and id; without it, a batch's messages
are all named.  A history holds digests and no values, so it says when and by what a state changed, and not how.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from outbox.app import App
from outbox.errors import Refused
from outbox.lineage import Key, inbox_key, state_id
from outbox.ops.shared.recorded import ended
from outbox.ops.values.states import MadeBy, StateHistory, StateVersion
from outbox.verify.history import read_history
from outbox.verify.recorded.events import AnyEvent, Change, Commit, Put

VERSION_COUNT_MAX = 1_000
"""How many versions are shown, the newest."""
UNSURE = "whether this took effect is not in the history"


def state_history(path: Path, type: str, key: Key, app: App | None = None) -> StateHistory:
    """The versions of a state in a history.

    Raises:
        Refused: there is no such file, or the application has no state of this type.
        CorruptRecord: it is no history.
    """
    if not path.is_file():
        raise Refused(f"{path} is not there; record one by `outbox run APP --data FOLDER --history {path}`")
    id, prefixes = state_id(type, key), None if app is None else _prefixes(app, type)
    found = deque(_versions(ended(read_history(path)), id, key, prefixes), maxlen=VERSION_COUNT_MAX + 1)
    newest = list(found)[-VERSION_COUNT_MAX:]
    in_order = sorted(newest, key=lambda version: version.at)  # that one has no answer is known at the end only
    return StateHistory(id, in_order, len(found) > len(newest))


def _prefixes(app: App, type: str) -> list[bytes]:
    """The prefixes of the inbox keys of an application's handlers that have a state of this type."""
    handlers = [*app.handlers, *(route.handler for route in app.routes)]
    found = [each.prefix for each in handlers if each.state is not None and each.state.name == type]
    if not found:
        names = sorted({each.state.name for each in handlers if each.state is not None})
        raise Refused(f"{app.name} has no state of type {type!r}; it has {', '.join(names) or 'none'}")
    return found


def _versions(
    events: Iterable[tuple[AnyEvent, str]], id: str, key: Key, prefixes: list[bytes] | None
) -> Iterator[StateVersion]:
    for event, outcome in events:
        match event:
            case Commit():
                for change in event.changes:
                    if change.state == id:
                        yield _of_commit(event, change, key, prefixes, is_known=outcome == "ok")
            case Put(state=state) if state == id:
                yield StateVersion(event.version, "written", event.at_ms / 1_000)


def _of_commit(
    commit: Commit, change: Change, key: Key, prefixes: list[bytes] | None, *, is_known: bool
) -> StateVersion:
    applied = set(commit.applied)
    messages = [MadeBy(each.id, each.queue) for each in commit.ended]
    if prefixes is not None and applied:
        messages = [
            each for each in messages if any(inbox_key(prefix, key, each.id).hex() in applied for prefix in prefixes)
        ]
    return StateVersion(
        change.version,
        "handled" if change.digest else "deleted",
        commit.at_ms / 1_000,
        change.before,
        messages,
        is_sure=prefixes is not None or len(messages) < 2,
        tx=commit.tx,
        why="" if is_known else UNSURE,
    )

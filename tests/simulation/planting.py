"""What a planted fault is, and the files that faults are planted in.  Nothing of the package is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PARTITION = "outbox/runtime/partition_scope.py"
ITEM = "outbox/runtime/item_scope.py"
BATCH = "outbox/runtime/batch.py"
ENDINGS = "outbox/runtime/endings.py"
LANES = "outbox/runtime/lanes.py"
MARKS = "outbox/runtime/marks.py"
PLAN = "outbox/runtime/plan.py"
GROUP = "outbox/runtime/group.py"
PLAIN = "outbox/runtime/plain.py"
ENGINE = "outbox/runtime/engine_scope.py"
ENTRY = "outbox/entry.py"
OVERFLOW = "outbox/runtime/overflow.py"
STOPS = "outbox/runtime/stops.py"
WAITING = "outbox/runtime/waiting.py"
VERDICT = "outbox/runtime/verdict.py"
LEFT = "outbox/runtime/left.py"
HTTP_SCOPES = "outbox/runtime/http_scopes.py"
HTTP_CLAIMS = "outbox/runtime/http_claims.py"

JOURNAL = "outbox/engine/backend/journal.py"
STATE = "outbox/engine/state/state.py"
MARKERS = "outbox/engine/state/markers.py"
ENGINE_STORE = "outbox/engine/backend/store.py"
ENGINE_BUS = "outbox/engine/backend/bus.py"
ENGINE_OPERATIONS = "outbox/engine/backend/operations.py"


@dataclass(frozen=True)
class Mutant:
    """A planted fault: the edits of one file, and the exploration that must find it as one of these promises.

    In place of a scope, `journal`, `store` or `bus` names a port of the engine: drawn operations on it and on the model
    that explorations run on must then differ.  In a `Table` the promises are tests, of which one must fail, and the
    scope says only what the fault is about.
    """

    name: str
    scope: str
    promises: tuple[str, ...]
    file: str
    edits: tuple[tuple[str, str], ...]
    app: str = "counting"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Faults that tests must find: their names in `promises` are below `folder`.

    `heavy` is what is imported before any fault is planted: nothing that one is planted in, nor what imports that.
    """

    mutants: tuple[Mutant, ...]
    folder: str
    heavy: tuple[str, ...] = ()


def mutant(
    name: str, scope: str, promise: str, file: str, *edits: tuple[str, str], app: str = "counting", **options: Any
) -> Mutant:
    return Mutant(name, scope, tuple(promise.split("|")), file, edits, app, options)

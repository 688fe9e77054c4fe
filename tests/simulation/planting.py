"""What a planted fault is, and the files that faults are planted in.  Nothing of the package is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PARTITION = "outbox/runtime/partition_scope.py"
ITEM = "outbox/runtime/item_scope.py"
BATCH = "outbox/runtime/commit/store_transaction.py"
ENDINGS = "outbox/runtime/delivery/settlement.py"
LANES = "outbox/runtime/store_scope.py"
MARKS = "outbox/runtime/commit/marks.py"
PLAN = "outbox/runtime/start/plan.py"
GROUP = "outbox/runtime/commit/engine_transaction.py"
RUN = "outbox/runtime/commit/run_handler.py"
PLAIN = "outbox/runtime/commit/fast_path.py"
ENGINE = "outbox/runtime/engine_scope.py"
ENTRY = "outbox/http_entry.py"
OVERFLOW = "outbox/runtime/commit/overflow.py"
STOPS = "outbox/runtime/delivery/blocked_sessions.py"
WAITING = "outbox/runtime/delivery/waiting.py"
VERDICT = "outbox/runtime/verdict.py"
LEFT = "outbox/runtime/commit/recovery.py"
HTTP_SCOPES = "outbox/runtime/http/attempts.py"
HTTP_CLAIMS = "outbox/runtime/http/attempts.py"

JOURNAL = "outbox/engine/backend/journal.py"
STATE = "outbox/engine/state/state.py"
MARKERS = "outbox/engine/state/markers.py"
ENGINE_STORE = "outbox/engine/backend/apart.py"
ENGINE_BUS = "outbox/engine/backend/apart.py"
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
    """Faults that tests must find: their names in `promises` are below `folder`."""

    mutants: tuple[Mutant, ...]
    folder: str


def mutant(
    name: str, scope: str, promise: str, file: str, *edits: tuple[str, str], app: str = "counting", **options: Any
) -> Mutant:
    return Mutant(name, scope, tuple(promise.split("|")), file, edits, app, options)

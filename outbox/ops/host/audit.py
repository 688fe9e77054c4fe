"""Record a host's history beside its data, with the engine's own counts at the start and the end.

At the start the history gets the engine's tallies: how many messages each queue ever received, and how many have left
it.  They are independent evidence: if a log lost an acknowledged commit, they are smaller than the sums of the earlier
history.  At the end, with idle queues, they are compared again.  The machine's boot id tells the judge whether lines
can be missing: a killed process leaves all it had written, a machine that lost power may not.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.documents import STATES
from outbox.errors import Refused
from outbox.ops.shared.names import word
from outbox.ports import Backend
from outbox.runtime.start.plan import compile_app
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.events import Put, Tally
from outbox.verify.recorded.recording import recorded
from outbox.verify.recorded.verdict import Verdict

BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
"""Linux has an id for each boot; elsewhere every start may follow a power loss."""

DEAD_COUNT_MAX = 1_000_000


class Audit:
    """The recording of one host's life."""

    def __init__(self, engine: Engine, app: App, path: Path) -> None:
        self._engine = engine
        self._queues = compile_app(app).paths
        self.history = History(path, now_ms=engine.now_ms)
        self.backend: Backend = recorded(engine, self.history)
        """The engine for the workers of this host."""
        is_empty = not engine.state.sequence and not engine.state.documents.spaces.get(STATES)
        self.history.life(
            name=app.name, boot=_boot(), sequence=engine.state.sequence, is_empty=is_empty, tallies=tallies(engine)
        )

    def state_written(self, id: str, serial: int) -> None:
        """Record that an operator wrote a state."""
        self.history.append(Put(at_ms=self._engine.now_ms(), state=id, version=serial))

    def end(self) -> None:
        """Record the final tallies if the queues are idle, and close; call it after the workers."""
        engine = self._engine
        if engine.stopped is None and engine.broker.is_idle(self._queues):
            self.history.quiesce(self._queues, tallies=tallies(engine), dead=dead(engine, self._queues))
        self.history.close()


def tallies(engine: Engine) -> dict[str, Tally]:
    """The engine's counts for each queue, without queues that drop expired or duplicate messages."""
    return {
        queue.path: Tally(queue.received_count, queue.received_count - len(queue.tasks))
        for queue in engine.state.queues
        if queue.is_primary and not queue.settings.time_to_live_s and not queue.settings.duplicate_window_s
    }


def dead(engine: Engine, queues: list[str]) -> dict[str, list[int]]:
    """The dead letters of queues by sequence."""
    return {path: [*engine.broker.queue(dead_letter_path(path)).tasks][:DEAD_COUNT_MAX] for path in queues}


def judge(path: Path, *, alone: bool = False) -> Verdict:
    """Judge a host's history.

    Raises:
        Refused: there is no such file, or it is no history.
    """
    record = f"record one by `outbox run APP --data FOLDER --history {word(str(path))}`"
    if not path.exists():
        raise Refused(f"{path} is not there; {record}")
    if path.is_dir():
        raise Refused(f"{path} is a folder, and a history is a file; name that, or {record}")
    verdict = check(path, alone=alone)
    if verdict.counts.lines == verdict.counts.torn:
        raise Refused(f"{path} is no history: no line of it is an event; name the file of --history, or {record}")
    return verdict


def as_json(verdict: Verdict) -> bytes:
    """A verdict as JSON: whether each promise holds, or it is too early to tell, the findings and the counts."""
    holds = {name: verdict.first(name) is None for name in verdict.guarantees}
    found = {
        "ok": verdict.ok,
        "undecided": verdict.is_open,
        "guarantees": holds,
        "findings": verdict.findings,
        "counts": verdict.counts,
    }
    return msgspec.json.encode(found)


def _boot() -> str:
    try:
        return BOOT_FILE.read_text().strip()
    except OSError:
        return ""

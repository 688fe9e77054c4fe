"""Judge a recorded history: which of the promises hold over it, and where the others break first.

    at-most-once    no message is applied twice, nothing is sent twice for one
    at-least-once   every message that was accepted ends applied, refused or dead-lettered, and what it sends arrives
    exactly-once    both, and consistent
    consistent      every output is of a change that stands, the same each time; versions follow one another
    recoverable     nothing leaves while what it depends on could still be lost (Theorem 1)
    deterministic   attempts at the same messages from the same versions do the same; asked for by name
    serializable    handlers run again in the order of versions give the same states and outputs; with `rerun`

The first three are definitions 6 to 8 of the FlameStream paper (*Delivery, consistency, and determinism: rethinking
guarantees in distributed stream processing*), consistent is its definition 5, deterministic its definition 10.  The
paper defines them by what a run without failures could put out; over versions and identities that becomes a matter of
one pass.  Its definitions as they stand, over a plain word of inputs and outputs, are in
`recorded.definitions`.

The paper's exactly-once is about safety only: a system that stays silent keeps it.  Here `quiesce` says when all is
over, and without one neither at-least-once nor exactly-once holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from outbox.verify.history import History, read_history
from outbox.verify.recorded.events import Event
from outbox.verify.recorded.linear import LinearCheck, Rerun
from outbox.verify.recorded.verdict import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    CONSISTENT,
    DETERMINISTIC,
    EXACTLY_ONCE,
    KNOWN,
    RECOVERABLE,
    SERIALIZABLE,
    USUAL,
    Counts,
    Finding,
    Findings,
    Verdict,
)

__all__ = [
    "check",
    "Verdict",
    "Finding",
    "Counts",
    "USUAL",
    "AT_MOST_ONCE",
    "AT_LEAST_ONCE",
    "EXACTLY_ONCE",
    "CONSISTENT",
    "DETERMINISTIC",
    "RECOVERABLE",
    "SERIALIZABLE",
]


def check(
    history: str | os.PathLike[str] | History | Iterable[Event],
    *,
    guarantees: Sequence[str] = USUAL,
    alone: bool = False,
    rerun: Rerun | None = None,
) -> Verdict:
    """Decide which promises hold over a history: a file, one in memory, or its events.

    `alone` says that only the recorded workers take messages from their queues and none expires, so that one
    that left unseen is lost.  `rerun` (of an application: `outbox.verify.recorded.rerun.rerun(app)`) handles
    everything again, to decide `serializable`.

    Raises:
        ValueError: a name is no promise, or serializable is asked for without `rerun`.
        CorruptRecord: the file is damaged.
    """
    unknown = [name for name in guarantees if name not in KNOWN]
    if unknown:
        raise ValueError(f"guarantees={unknown}: there are {', '.join(KNOWN)}")
    if SERIALIZABLE in guarantees and rerun is None:
        raise ValueError("serializable needs rerun=, such as outbox.verify.recorded.rerun.rerun(app)")
    if rerun is not None and SERIALIZABLE not in guarantees:
        guarantees = (*guarantees, SERIALIZABLE)
    findings = Findings(guarantees)
    linear = LinearCheck(findings, alone=alone, attempts=DETERMINISTIC in guarantees, rerun=rerun)
    for event in _events(history):
        linear.feed(event)
    return findings.verdict(linear.finish())


def _events(history: str | os.PathLike[str] | History | Iterable[Event]) -> Iterable[Event]:
    if isinstance(history, History):
        return history.events()
    return read_history(history) if isinstance(history, str | os.PathLike) else history

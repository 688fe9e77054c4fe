"""Whether attempts at the same messages, from the same versions, did the same: determinism as far as a run shows it.

Definition 10 of the FlameStream paper wants one output for one input, whatever happens.  A run shows what its attempts
did: two commits that end the same deliveries in the same order and start from the same versions are two attempts at
one thing.  If their states or outputs differ, the handler looked at a clock, at chance or at the outside.  That is
allowed as long as only one of them takes effect, so this promise is asked for by name.
"""

from __future__ import annotations

from outbox.verify.recorded.events import Commit
from outbox.verify.recorded.verdict import DETERMINISTIC, Findings

Did = tuple[int, int]


class Attempts:
    """What each attempt did, by what it started from."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen: dict[int, Did] = {}

    def note(self, commit: Commit, line: int) -> None:
        """Compare an attempt with an earlier one at the same."""
        if not commit.ended:
            return
        start = hash(
            (
                tuple([(ended.queue, ended.sequence) for ended in commit.ended]),
                tuple(
                    sorted(
                        [(change.state, change.before) for change in commit.changes]
                        + [(seen.state, seen.version) for seen in commit.seen]
                    )
                ),
            )
        )
        did = hash(
            (
                tuple([(change.state, change.version, change.digest) for change in commit.changes]),
                tuple([(output.id, output.destination, output.digest) for output in commit.outputs]),
                tuple(commit.refused),
            )
        )
        earlier = self._seen.setdefault(start, (did, line))
        if earlier[0] != did:
            ids = tuple([ended.id for ended in commit.ended[:4]])
            text = f"an attempt at {', '.join(ids)} did something else than the one of line {earlier[1]}"
            self._findings.add(line, "attempts differ", text, (DETERMINISTIC,), *ids, against=earlier[1])

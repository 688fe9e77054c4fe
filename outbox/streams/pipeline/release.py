"""When an output may leave a pipeline.

in_order       at the watermark, waiting for no checkpoint; exactly once
by_epoch       when the checkpoint that contains it stands; exactly once
at_least_once  at the watermark, whatever lies in the sink; repeated by a process that begins again
at_most_once   when a checkpoint of its frame stands; lost where a process ends between the two
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outbox.errors import NotRegistrable

BUFFERED, SPECULATIVE = "buffered", "speculative"


class ReleaseRefused(NotRegistrable):
    """A release does not fit a pipeline; the text names the way to a sink, and releases that would do."""


@dataclass(frozen=True, slots=True)
class Release:
    """When outputs leave: `waits`, for a checkpoint; `chained`, as bundles of a chain, in which none lies twice."""

    name: str
    waits: bool = False
    chained: bool = True
    grouping: str = BUFFERED

    @property
    def holds(self) -> bool:
        """Whether a checkpoint has the outputs that wait for it."""
        return self.waits and self.chained

    @property
    def claims(self) -> bool:
        """Whether outputs leave only from the process whose checkpoint has passed them."""
        return self.waits and not self.chained

    @property
    def kind(self) -> str:
        """Its name in a register; releases of one kind go on from one another's checkpoints."""
        return "" if self.chained else self.name


def in_order(grouping: str = BUFFERED) -> Release:
    """Release at the watermark.

    With workers, a record that another process may still send an earlier one before is held ("buffered"), or applied
    at once and taken back if need be ("speculative"), which takes more CPU; outputs are the same.

    Raises:
        NotRegistrable: there is no such grouping.

    Source: FlameStream, "Optimistic exactly-once", with its bundles kept in the sink's log.
    """
    if grouping not in (BUFFERED, SPECULATIVE):
        raise NotRegistrable(f"grouping={grouping!r}: {BUFFERED!r} or {SPECULATIVE!r}")
    return Release("in_order", grouping=grouping)


def by_epoch() -> Release:
    """Release what a checkpoint contains when it stands, so an output is late by up to `checkpoint_s`.

    Source: the epochs of Flink's transactional sinks and of micro-batches.
    """
    return Release("by_epoch", waits=True)


def at_least_once() -> Release:
    """Release at the watermark, beside whatever else lies in the sink, and compare nothing.

    A process that begins again repeats what has left since the last checkpoint, and each replica writes for itself:
    outputs come twice, and then in no order between the copies.  Nothing is lost.
    """
    return Release("at_least_once", chained=False)


def at_most_once() -> Release:
    """Release what a checkpoint of its own, behind each frame, has passed before, and never make it again.

    A process that ends between the checkpoint and the append loses the outputs of that frame, in the sink and for ever;
    the states keep its entries.  Nothing is repeated.  It costs a checkpoint a frame, where `in_order` waits for none.
    """
    return Release("at_most_once", waits=True, chained=False)


def fitting(exactly_once: Collection[str]) -> list[str]:
    """The names of the releases that would do for a pipeline that has sinks declared exactly once."""
    return [release.name for release in RELEASES if release.chained or not exactly_once]


RELEASES = (in_order(), by_epoch(), at_least_once(), at_most_once())
EPOCH_S_MIN, EPOCH_S_MAX = 0.005, 3_600.0
"""The intervals of `by_epoch`: a shorter one is below the flushes of a checkpoint, a longer one hides a standstill."""

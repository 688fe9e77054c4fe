"""Sweeps: what can never be finished is told, and keeps nobody from the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from outbox import Worker
from outbox.errors import OutcomeUnknown
from outbox.ports import Output
from outbox.runtime.commit.sweeper import SWEEP_FOR_S
from outbox.testing import VirtualClock
from tests.unit.stores.store_site import Add, Site, adding, site, swept
from tests.unit.waiting import until


async def leave_pending(at: Site, count: int) -> None:
    """Commit messages of so many keys, when nothing of them can be pushed."""
    at.bus.is_mute = True
    async with Worker(adding(), at, drain_s=0.1) as worker:
        for number in range(count):
            await worker.send("adds", Add(f"k{number}"), id=f"m{number}")
        await until(lambda: at.store.calls["commit"] >= count)
    at.clock.seconds += 61


class Picky:
    """Sends to nobody what is of these keys, named by their messages' correlation."""

    def __init__(self, at: Site, refused: set[str], clock: VirtualClock | None = None) -> None:
        self._send, self._refused, self._clock = at.bus._bus.send, refused, clock
        at.bus.is_mute = False
        at.bus.send = self.send  # type: ignore[method-assign]  # in its place

    async def send(self, outputs: Sequence[Output]) -> None:
        if self._clock is not None:
            self._clock.seconds += SWEEP_FOR_S / 2
        if {output.message.correlation_id for output in outputs} & self._refused:
            raise OutcomeUnknown("nothing comes back")
        await self._send(outputs)


async def test_what_can_never_be_sent_keeps_no_sweep_from_what_is_behind_it(at: Site) -> None:
    await leave_pending(at, 6)
    Picky(at, {"m0", "m1"})
    start, counts = 0, []
    for _ in range(4):
        found = await swept(at, adding(), count_max=2, start=start)
        start = found.next_start
        counts.append(found.finished_count)
    assert sum(counts) == 4 and counts[0] == 0
    assert at.engine.broker.queue("told").counts()["active"] == 4


async def test_each_sweep_begins_behind_what_all_before_it_could_not_finish(at: Site) -> None:
    await leave_pending(at, 6)
    Picky(at, {"m0", "m1", "m2", "m3"})
    start, starts, finished = 0, list[int](), 0
    for _ in range(3):
        found = await swept(at, adding(), count_max=2, start=start)
        start, finished = found.next_start, finished + found.finished_count
        starts.append(start)
    assert starts[:2] == [2, 4] and finished == 2


async def test_a_sweep_that_takes_long_is_gone_on_with_by_the_next(at: Site) -> None:
    await leave_pending(at, 6)
    Picky(at, set(), at.clock)
    first = await swept(at, adding())
    assert 0 < first.finished_count < 6
    while first.next_start or first.finished_count:
        first = await swept(at, adding(), start=first.next_start)
    assert at.engine.broker.queue("told").counts()["active"] == 6


async def test_outputs_that_cannot_be_sent_are_reported_with_their_ids(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="outbox.worker"):
        async with site() as at:
            worker = Worker(adding(), at, drain_s=0.1)
            async with worker:
                at.bus.is_mute = True
                for number in range(8):
                    await worker.send("adds", Add(f"k{number}"), id=f"m{number}")
                await until(lambda: worker.figures.unsent_count >= 8)
    (record,) = [found for found in caplog.records if found.message == "outputs cannot be sent"]
    fields = vars(record)
    assert fields["destination"] == "told" and fields["count"] >= 8 and len(fields["ids"]) == 5
    assert "nothing comes back" in fields["error"]

"""A pipeline's checkpoint, with its bundles, from another place: such as the folder in which a job has caught up.

Bundles come first, then the parts, and the register last, by a swap.  So a hand-over that is killed is made again, and
one that comes too late changes nothing.  Bundles are cells of a chain, each of which says where it goes on: copied to
the same indexes they are the same chain.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outbox.errors import CorruptRecord, OtherLog, Refused, Trimmed
from outbox.streams.cells import Cell, Position
from outbox.streams.log_places import Place
from outbox.streams.pipeline.checkpoint import PIPELINE, PipelineRegister
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.replica import BEGIN_COUNT_MAX, PART_BYTES_MAX
from outbox.streams.register import RegisterCell
from outbox.streams.row import Row


async def hand_over(plan: PipelinePlan, there: Place, here: Place) -> Position | None:
    """Take what another place has of a pipeline, where its checkpoint is further on; where that is, else None.

    Raises:
        Refused: there is no such pipeline, or here it has gone on by itself with other bundles.
        Superseded, GraphChanged, ReleaseRefused: this pipeline cannot go on from there.
        OtherLog: the source here is not the one that was read there.
        Trimmed: the source here does not reach back to the checkpoint, or the bundles there.
    """
    found = await _register(plan, there).read()
    if found is None:
        raise Refused(f"there is nothing of pipeline {plan.name} to go on from; give the place where it has caught up")
    register, cell = found.register, _register(plan, here)
    plan.check_goes_on(register)
    for _ in range(BEGIN_COUNT_MAX):
        known = await cell.read()
        if known is not None:
            plan.check_goes_on(known.register)
            if known.register.stands.c >= register.stands.c:
                return None
        await _check_source(plan, register, here)
        theirs, ours = plan.on(lambda log: there).sink_rows(), plan.on(lambda log: here).sink_rows()
        for name, chain in register.oldest.sinks.items():
            await _copied(plan.name, theirs[name], ours[name], chain.next)
        for blob in sorted(register.blobs()):
            data = await there.blobs.read(blob, bytes_max=PART_BYTES_MAX)
            if data is None:
                raise CorruptRecord(f"part {blob} of pipeline {plan.name} is missing there; restore it from a backup")
            await here.blobs.write(blob, data)
        if await cell.swap(known, register) is not None:
            return register.stands.c
    raise Refused(f"the register of pipeline {plan.name} is changed by others all the time; try again later")


def _register(plan: PipelinePlan, place: Place) -> RegisterCell[PipelineRegister]:
    return RegisterCell(place.store, f"{PIPELINE}{plan.name}", PipelineRegister, new_id=place.new_id)


async def _check_source(plan: PipelinePlan, register: PipelineRegister, here: Place) -> None:
    """Check that the source here is the one that was read, and has what lies behind the checkpoint."""
    row, c = plan.on(lambda log: here).source_row(), register.stands.c
    if register.source != row.name:
        raise OtherLog(f"pipeline {plan.name} has read {register.source} there, and reads {row.name} here")
    floor, end = await row.opened(), await row.end()
    if end <= c.before:
        raise OtherLog(
            f"pipeline {plan.name}: {row.name} ends at {end}.0 here, before the checkpoint at {c}; go on in the place "
            "whose log was exported"
        )
    if floor.index > c.index:
        raise Trimmed(
            f"pipeline {plan.name}: {row.name} is trimmed here to {floor.index}.0, beyond {c} of the checkpoint"
        )


async def _copied(pipeline: str, theirs: Row[Any], ours: Row[Any], first: int) -> None:
    """Create a sink's cells at the same indexes here; from `first` on, cells that are here already are compared."""
    begin, floor, end = await ours.end(), await theirs.first(), await theirs.end()
    if begin < floor:
        raise Trimmed(
            f"{theirs.name} is trimmed there to {floor}.0, and ends at {begin}.0 here; nothing was taken over"
        )

    def stop(index: int, cell: Cell | None) -> None:
        raise Refused(
            f"pipeline {pipeline}: bundle {index} of {ours.name} is another one here, where it has run by itself, or "
            "with other operators; run it as it is, or let the job go on from a copy of this place"
        )

    for index in range(min(begin, max(first, floor)), end):
        cell = await theirs.read(index)
        if cell is None:
            return
        if index < begin:
            there = await ours.cells.read(index)
            if there is None or there.id != cell.id:
                stop(index, there)
        else:
            made = await ours.fitted(msgspec.structs.replace(cell, blob="", digest=""), owner=cell.id)
            if await ours.place_cell(made, index, until_ms=ours.until_ms, passed=stop) is None:
                raise Refused(f"{ours.name}: bundle {index} took too long and was taken back; run it again")

"""How far a pipeline is, as its checkpoint and its logs show it, whoever runs it and wherever."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.runtime.counts import PipelineFigures
from outbox.streams.cells import Cells, Position
from outbox.streams.log_places import together
from outbox.streams.pipeline.checkpoint import Checkpoint

CELLS_COUNTED_MAX = 256
"""The cells of the source whose entries are counted; of those behind them each counts as one."""
AT_ONCE_MAX = 16


async def figures_of(stands: Checkpoint, source: Cells, sinks: Mapping[str, Cells]) -> PipelineFigures:
    """Read the last bundle of each sink, and the cells of the source behind the checkpoint.

    What lies below the least `until` of the last bundles has left, and what lies below the checkpoint.
    """
    c, bundles, untils = stands.c, dict[str, int](), list[Position]()
    for name, cells in sinks.items():
        end = await cells.find_end(stands.sinks[name].next)
        last = await cells.read(end - 1) if end else None
        if last is not None and last.until is not None:
            bundles[name] = last.count
        untils.append(c if last is None or last.until is None else last.until)
    released, end = max(c, min(untils)), await source.find_end(c.index)
    counts, since_ms, upto = list[int](), 0, min(end, c.index + CELLS_COUNTED_MAX)
    for index in range(c.index, upto, AT_ONCE_MAX):
        for cell in await together([source.read(each) for each in range(index, min(upto, index + AT_ONCE_MAX))]):
            counts.append(0 if cell is None else cell.count)
            if cell is not None and not since_ms and cell.count > (0 if len(counts) > 1 else c.offset):
                since_ms = cell.at

    def behind(at: Position) -> int:
        counted = sum(counts[at.index - c.index :]) + end - max(upto, at.index)
        return counted - min(at.offset, counted)

    return PipelineFigures(behind(c), behind(released), since_ms, str(released), stands.made, bundles)

"""When an output may leave a pipeline.

in_order   at the watermark, waiting for no checkpoint
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InOrder:
    """Outputs leave as soon as no earlier one can come, in the order of their causes."""


def in_order() -> InOrder:
    """Release at the watermark.

    Source: FlameStream, "Optimistic exactly-once", with its bundles kept in the sink's log.
    """
    return InOrder()

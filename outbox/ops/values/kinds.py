"""The kinds of values that requests have in common, with their limits."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

BATCH_COUNT_MAX = 1_000
"""Messages in one send, and dead letters or messages in one page."""

KeyKind = Literal["text", "int", "uuid"]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]


Id = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
"""An id, or the beginning of one."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""The sequence number of a message in its queue; 0: of none."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
"""The name of a queue or log."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]

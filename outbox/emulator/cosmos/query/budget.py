"""The budget of a request's query: steps, counted for all of its rows together and for each row.

A step is about the evaluation of one operator; what grows with a value counts for its size.  A row is evaluated in one
go, so it has a bound of its own; between rows, and within a JOIN, others get their turn.
"""

from __future__ import annotations

import asyncio

from outbox.emulator.cosmos.wire import Json, bad

STEP_COUNT_MAX = 20_000_000
ROW_STEP_COUNT_MAX = 1_000_000
TURN_STEP_COUNT = 20_000
"""The steps after which others get their turn."""
TEXT_STEP_LENGTH = 256
"""The characters read, or bytes written, in one step."""


class Budget:
    """Counts the steps of one request."""

    __slots__ = ("_bound", "_turned", "step_count", "step_count_max")

    def __init__(self, step_count_max: int = STEP_COUNT_MAX) -> None:
        self.step_count = 0
        self.step_count_max = step_count_max
        self._turned = 0
        self._bound = min(step_count_max, ROW_STEP_COUNT_MAX)

    def begin_row(self, count: int) -> None:
        """Count what every row takes, and let this one take its share.

        Raises:
            Rejection: 400, as `spend`.
        """
        self._bound = min(self.step_count_max, self.step_count + ROW_STEP_COUNT_MAX)
        self.spend(count)

    def spend(self, count: int) -> None:
        """Count steps.

        Raises:
            Rejection: 400, there were too many.
        """
        self.step_count += count
        if self.step_count <= self._bound:
            return
        if self.step_count > self.step_count_max:
            raise bad(
                f"the query takes more than {self.step_count_max} steps; give a partition key, "
                "narrow WHERE, or join less"
            )
        raise bad(
            f"the query takes more than {ROW_STEP_COUNT_MAX} steps on one row; shorten its expressions, "
            "or have them look at smaller values"
        )

    def note(self, count: int) -> None:
        """Count work that is not the query's doing, such as an item's read: it only brings turns nearer."""
        self._turned -= count

    def weigh(self, value: Json) -> None:
        """Count a value that is about to be walked through.

        Raises:
            Rejection: 400, as `spend`.
        """
        if isinstance(value, str):
            self.spend(len(value) // TEXT_STEP_LENGTH)
        elif isinstance(value, list | dict):
            self.spend(len(value))
            for element in value.values() if isinstance(value, dict) else value:
                if isinstance(element, list | dict | str):
                    self.weigh(element)

    @property
    def is_turn_due(self) -> bool:
        """Whether others should get their turn."""
        return self.step_count - self._turned >= TURN_STEP_COUNT

    async def turn(self) -> None:
        """Give others their turn."""
        self._turned = self.step_count
        await asyncio.sleep(0)

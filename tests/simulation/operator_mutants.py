"""Faults in what serves an operator: a folder that two need.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

CONNECTED = "unit/ops/test_connect_operator.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ops", (test,), file, edits)


OPERATOR_MUTANTS = (
    fault("a log is let go in the midst of an answer", "outbox/ops/admins/giving_way.py",
        f"{CONNECTED}::test_an_answer_that_is_under_way_is_ended_first",
        ("                async with self._answering:\n                    self._admin = None\n", "                if True:\n                    self._admin = None\n"),
    ),
)  # fmt: skip

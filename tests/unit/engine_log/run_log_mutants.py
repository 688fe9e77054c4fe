"""Run the tests that must find a fault of the engine or its log with that fault planted; a line of JSON for each.

python -m tests.unit.engine_log.run_log_mutants [NAME ...]
"""

from __future__ import annotations

import sys

from tests.simulation.planted_tests import run_all
from tests.unit.engine_log.log_mutants import LOG_MUTANTS

HEAVY = ("asyncio", "hypothesis", "msgspec", "pytest_asyncio")

if __name__ == "__main__":
    run_all(LOG_MUTANTS, sys.argv[1:], folder="tests/unit/", heavy=HEAVY, untouched="outbox.engine")

"""Run the tests that must find a fault of an adapter with that fault planted; a line of JSON for each.

python -m tests.wire.on_azure.run_adapter_mutants [NAME ...]
"""

from __future__ import annotations

import sys

from tests.simulation.planted_tests import run_all
from tests.wire.on_azure.adapter_mutants import ADAPTER_MUTANTS

HEAVY = (
    "aiohttp.web", "azure.cosmos.aio", "azure.identity.aio", "azure.servicebus.aio", "azure.servicebus.aio.management",
    "azure.storage.blob.aio", "hypothesis", "pytest_asyncio", "outbox", "outbox.emulator.cosmos.server",
    "outbox.emulator.servicebus", "outbox.testing", "outbox.verify.contracts", "outbox.verify.explorer.differential",
)  # fmt: skip

if __name__ == "__main__":
    run_all(ADAPTER_MUTANTS, sys.argv[1:], folder="tests/wire/on_azure/", heavy=HEAVY, untouched="outbox.azure")

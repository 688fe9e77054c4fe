"""Faults that no exploration shows, each planted alone: what the text of one module is changed to, and the tests that fail.

An exploration is short, and its messages are young and few; what depends on ages, settings and long chains has tests of
its own.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import ENDINGS, Mutant

CONTEXT = "outbox/context.py"
DELIVERIES = "outbox/deliveries.py"
CHAINS = "tests/unit/app/test_chains.py"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` is a file and the names of tests in it that must fail, `file::one|another`."""
    path, _, names = found_by.partition("::")
    return Mutant(name, "tested", tuple(f"{path}::{test}" for test in names.split("|")), file, edits)


TESTED_MUTANTS = (
    # Chains
    mutant(
        "a delayed output keeps counting", CONTEXT,
        f"{CHAINS}::test_a_nightly_clock_goes_on_for_ever|"
        "test_a_pause_of_a_second_begins_a_chain_anew_one_of_a_millisecond_less_does_not",
        ("        if due_ms - self.now_ms >= CHAIN_GAP_MS:\n            return 0\n", ""),
    ),
    mutant(
        "any delay begins a chain anew", CONTEXT,
        f"{CHAINS}::test_a_pause_of_a_second_begins_a_chain_anew_one_of_a_millisecond_less_does_not",
        ("        if due_ms - self.now_ms >= CHAIN_GAP_MS:\n", "        if due_ms > self.now_ms:\n"),
    ),
    mutant(
        "a resubmission keeps counting", DELIVERIES,
        f"{CHAINS}::test_a_resubmission_begins_a_chain_anew",
        ("failures=0, hops=0)", "failures=0)"),
    ),
    mutant(
        "Retry begins a chain anew", ENDINGS,
        f"{CHAINS}::test_a_retry_does_not_begin_a_chain_anew|test_a_failure_does_not_begin_a_chain_anew",
        ("            failures=failures,\n        )\n        # It may", "            failures=failures,\n            hops=0,\n        )\n        # It may"),
    ),
    mutant(
        "too many outputs look like a cycle", CONTEXT,
        f"{CHAINS}::test_too_many_outputs_have_words_of_their_own",
        ("        if len(self.outputs) >= OUTPUT_COUNT_MAX:\n", "        if len(self.outputs) >= OUTPUT_COUNT_MAX << 8:\n"),
        ("        if cause.hops >= hops_max:\n", "        if cause.hops >= hops_max or self.outputs:\n"),
    ),
)  # fmt: skip

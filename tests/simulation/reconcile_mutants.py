"""Faults in what `reconcile` judges, each planted alone, and the tests that must fail of it.

Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

LETTERS, TABLES = "spark_jobs/comparing/dead_letters.py", "spark_jobs/draining/tables.py"
OF_INPUTS, OF_LETTERS = "spark/test_reconcile_inputs.py", "spark/test_dead_letters.py"


def misjudged(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test below `tests/`."""
    return Mutant(f"reconcile: {name}", "jobs", (found_by,), file, edits)


RECONCILE_MUTANTS = (
    misjudged(
        "the look at dead letters stops behind the first page", LETTERS,
        f"{OF_LETTERS}::test_an_outage_is_sat_out_and_no_dead_letter_is_missed",
        ("if page is not None and not page:", "if page is not None and (seen or not page):"),
    ),
    misjudged(
        "a dead letter is known by its own id", LETTERS,
        f"{OF_LETTERS}::test_the_dead_letters_of_a_queue_are_all_looked_at_and_stay",
        ("found.add(cause_of(message, properties_of(message)))", "found.add(message.message_id or \"\")"),
    ),
    misjudged(
        "a version that is not there yet is taken", TABLES,
        f"{OF_INPUTS}::test_a_version_that_cannot_be_compared_since_is_refused",
        ("        if not 0 <= version < newest.version:\n", "        if not 0 <= version:\n"),
    ),
)  # fmt: skip

"""Faults in what `reconcile` judges, each planted alone, and the tests that must fail of it.

Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

SCREENS, EXPECTATIONS, LETTERS, OLDER, GIVEN = (
    f"spark_jobs/comparing/{name}.py" for name in ("screens", "expectations", "dead_letters", "older", "given")
)
JOB, TABLES = "spark_jobs/reconcile.py", "spark_jobs/draining/tables.py"
OF_INPUTS, OF_LETTERS = "spark/test_reconcile_inputs.py", "spark/test_dead_letters.py"
APPLIED = f"{OF_INPUTS}::test_a_dead_letter_excuses_an_input_and_one_that_was_applied_after_all_is_applied"
OTHERS = f"{OF_INPUTS}::test_what_other_inputs_caused_is_counted_and_not_judged"
OLD = f"{OF_INPUTS}::test_of_older_files_only_causes_are_read_and_the_rows_of_those_that_are_hit"
SEVERAL = f"{OF_INPUTS}::test_an_id_of_several_inputs_is_one_and_set_aside_by_all_or_sent"


def misjudged(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test below `tests/`."""
    return Mutant(f"reconcile: {name}", "jobs", (found_by,), file, edits)


RECONCILE_MUTANTS = (
    misjudged(
        "a dead letter that was corrected and applied is a phantom", EXPECTATIONS, APPLIED,
        ("return self.expected if self.excused is None else self.expected.unionByName(self.excused)",
         "return self.expected"),
    ),
    misjudged(
        "half of an input with a dead letter is whole", SCREENS, APPLIED,
        ("        (fn.col(\"expected\") | fn.col(\"excused\")) & (fn.col(\"rows\") > 0) & ~fits,",
         "        fn.col(\"expected\") & (fn.col(\"rows\") > 0) & ~fits,"),
    ),
    misjudged(
        "a dead letter hides what is doubled", SCREENS, APPLIED,
        ("    return Screen(fn.col(\"alike\"))", "    return Screen(fn.col(\"alike\") & ~fn.col(\"excused\"))"),
    ),
    misjudged(
        "rows of other inputs are phantoms", SCREENS, OTHERS,
        ("(fn.lit(True) if everything else is_given).alias(\"asked\")", "fn.lit(True).alias(\"asked\")"),
    ),
    misjudged(
        "a repeated message of another input is judged", JOB, OTHERS,
        ("    if not sides.everything:\n        causes", "    if False:\n        causes"),
    ),
    misjudged(
        "an older effect is not looked up", JOB, OLD,
        ("ledger=sides.ledger.unionByName(found)), older", "ledger=sides.ledger), older"),
    ),
    misjudged(
        "of older files the first that is hit is read", OLDER, OLD,
        ("for number in sorted(row[\"file\"] for row in met)]", "for number in sorted(row[\"file\"] for row in met)[:1]]"),
    ),
    misjudged(
        "what one input set aside whole is set aside in another", GIVEN, SEVERAL,
        ("    count = fn.least(fn.coalesce(\"count\", fn.lit(WHOLE_ID)), \"rows\")",
         "    count = fn.coalesce(\"count\", fn.lit(WHOLE_ID))"),
    ),
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

"""Faults in the ledger of `consume` as a Delta table, each planted alone, and the tests that must fail of it.

Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

TABLES = "spark_jobs/draining/tables.py"
MERGING = "spark_jobs/draining/merging.py"
JUDGED = "spark_jobs/draining/judged.py"
LEFTOVERS = "spark_jobs/draining/leftovers.py"
TAKING_OVER = "spark_jobs/draining/taking_over.py"
OF_TABLES = "spark/test_ledger_tables.py"
OF_MERGING = "spark/test_merging.py"
OF_KEYS = "spark/test_ledger_keys.py"
OF_LEFTOVERS = "spark/test_ledger_leftovers.py"
OF_TAKE_OVER = "spark/test_take_over.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "jobs", (test,), file, edits)


DELTA_MUTANTS = (
    # The fence, and what a failed commit means
    fault("delta: a commit that lost its version takes the next", TABLES,
        f"{OF_LEFTOVERS}::test_a_merge_that_began_before_a_vacuum_is_lost_to_it",
        ("        max_commit_retries=0,\n", ""),
    ),
    fault("delta: a version that is there is ours", TABLES,
        f"{OF_MERGING}::test_who_lost_a_version_deletes_no_file_and_decides_anew",
        ("            return entry.progress is not None and entry.progress.token == progress.token\n", "            return True\n"),
    ),
    fault("delta: a commit without an answer is a lost one", TABLES,
        f"{OF_TABLES}::test_a_commit_without_an_answer_or_a_version_is_unknown_and_comes_true_later",
        ("                raise unknown(self.place, base.version + 1, error) from error\n", "                return False\n"),
    ),
    fault("delta: what a lost commit wrote is deleted", MERGING,
        f"{OF_MERGING}::test_who_lost_a_version_deletes_no_file_and_decides_anew",
        ("        if not self.table.commit(base, added, progress):\n",
         "        if not self.table.commit(base, added, progress):\n            [self.place.delete(file.name) for file in added]\n"),
    ),
    # Torn logs, and what must be on disk
    fault("delta: conflicts are committed behind the version that consumed them", MERGING,
        f"{OF_MERGING}::test_a_merger_that_dies_anywhere_leaves_no_row_out_and_none_twice",
        ("        if judged.conflicts:\n            self._keep_conflicts(chosen(landed, judged.conflicts))\n", ""),
        ("        self.crash_point(\"committed\")\n",
         "        self.crash_point(\"committed\")\n        if judged.conflicts:\n            self._keep_conflicts(chosen(landed, judged.conflicts))\n"),
    ),
    # What the ledger holds
    fault("delta: two texts are told apart by their letters alone", JUDGED,
        f"{OF_KEYS}::test_a_pair_of_texts_is_not_another_pair_of_the_same_letters",
        ('b"%d:%b" % (len(part), part)', "part"),
    ),
    # Limits, vacuum and sweep
    fault("delta: what is not read of what landed counts as consumed", MERGING,
        f"{OF_MERGING}::test_one_version_takes_so_many_files_and_bytes_of_what_waits",
        ("taken, landed = waiting[: len(parts)], pa.concat_tables(parts)", "taken, landed = waiting, pa.concat_tables(parts)"),
    ),
    fault("delta: what a receiver writes is swept", LEFTOVERS,
        f"{OF_LEFTOVERS}::test_what_no_version_names_goes_and_everything_else_stays",
        ("place.sweep_parts(age_s)", "place.sweep_parts(0)"),
    ),
    # Take-over
    fault("take-over: the old log stays open", TAKING_OVER,
        f"{OF_TAKE_OVER}::test_a_commit_that_overtakes_the_take_over_is_in_it",
        ("        if log.close(state):\n", "        if log.close(state) or True:\n"),
    ),
    fault("take-over: what was consumed is merged again", TAKING_OVER,
        f"{OF_TAKE_OVER}::test_rows_conflicts_and_what_waits_are_taken_over",
        ("[name for name in state.consumed if name in landed])", "[])"),
    ),
)  # fmt: skip

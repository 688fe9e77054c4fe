"""Faults in the export of a log to files and tables, each planted alone, and the tests that must fail of it.

Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

FILES = "spark_jobs/exporting/files.py"
DELTA = "spark_jobs/exporting/delta.py"
VERB = "outbox/ops/streams/export.py"
OF_EXPORT = "spark/test_export.py"
OF_TABLES = "spark/test_export_tables.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(f"export: {name}", "ops" if "/ops/" in file else "jobs", (test,), file, edits)


EXPORT_MUTANTS = (
    fault(
        "who loses a file goes on as if it had written it", FILES,
        f"{OF_EXPORT}::test_who_loses_a_file_goes_on_behind_what_the_winner_wrote",
        ("        return self.reached() or begin\n", "        return None\n"),
    ),
    fault(
        "two first exports begin where each has found the floor", FILES,
        f"{OF_EXPORT}::test_two_first_exports_that_found_two_floors_write_one_chain",
        ("            if (at := self.reached()) != begin:\n                return at\n", ""),
    ),
    fault(
        "a file that is missing is no hole", FILES,
        f"{OF_EXPORT}::test_a_file_that_is_missing_is_a_hole",
        ("        if before.end != file.begin:\n", "        if before.end > file.begin:\n"),
    ),
    fault(
        "a name that a killed writer left may go", FILES,
        f"{OF_EXPORT}::test_names_that_a_killed_writer_left_are_on_disk_before_an_export_says_that_it_has_them",
        ("                sync_path(self.place.path)\n", "                pass\n"),
    ),
    fault(
        "what was trimmed before it was exported is left out", VERB,
        f"{OF_EXPORT}::test_a_log_that_is_trimmed_beyond_the_export_is_refused",
        ("    if at < floor:\n        raise hole(log, view.row, at, floor)\n", "    at = max(at, floor)\n"),
    ),
    fault(
        "an entry that is not there is passed over", VERB,
        f"{OF_EXPORT}::test_an_entry_that_is_missing_where_it_belongs_is_refused",
        ("            if entry.position != since and not (", "            if entry.position < since and not ("),
    ),
    fault(
        "a store that shows less is at its end", VERB,
        f"{OF_EXPORT}::test_a_store_that_shows_less_than_it_listed_is_no_end",
        ("        yield held, end if last.index == end.index - 1 else last.after()\n", "        yield held, end\n"),
    ),
    fault(
        "a log that is written to is read on", VERB,
        f"{OF_EXPORT}::test_an_export_ends_where_the_row_ended_when_it_was_listed",
        ("            if entry.position >= end:\n                return\n", ""),
    ),
    fault(
        "a table whose version another has is appended to from where it was", DELTA,
        f"{OF_EXPORT}::test_who_loses_a_file_goes_on_behind_what_the_winner_wrote",
        ("            if (self._end_of(base) or begin) != begin:\n                return self._end_of(base)\n", ""),
    ),
    fault(
        "a table that does not say how far it is is filled again", DELTA,
        f"{OF_TABLES}::test_a_table_that_says_nothing_of_its_rows_is_not_appended_to",
        ("        if base.files and not base.number:\n", "        if False:\n"),
    ),
    fault(
        "the log of a table is not on disk", DELTA,
        f"{OF_TABLES}::test_the_log_of_a_table_is_on_disk_before_an_export_says_that_it_has_it",
        ("            Durable(self.place).sync()\n", "            pass\n"),
    ),
)  # fmt: skip

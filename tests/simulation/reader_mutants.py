"""Faults in what reads the files of Spark jobs: each lets a row through that does not stand so in its file, or loses one.

Each is planted alone, and the test that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

LEXER, OPENED, FILES = (f"spark_jobs/reading/{name}.py" for name in ("lexer", "opened", "files"))
GROUPING, APP, SHARES = (f"spark_jobs/feeding/{name}.py" for name in ("grouping", "app_check", "shares"))
INPUTS, REFUSED, OF_SHARES = "spark/test_inputs.py", "spark/test_refused_inputs.py", "spark/test_shares.py"
IN_QUOTES = f"{INPUTS}::test_what_stands_in_quotes_is_text_to_its_last_sign"


def misread(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test below `tests/`."""
    return Mutant(f"reader: {name}", "jobs", (found_by,), file, edits)


READER_MUTANTS = (
    misread("a line feed inside quotes ends a row", LEXER, IN_QUOTES,
        ("        if not self.quote or self.quote not in data:\n            used", "        if True:\n            used"),
    ),
    misread("a row that spans begin in is read by each of them", LEXER,
        f"{REFUSED}::test_a_span_that_lies_within_a_long_row_has_no_row",
        ("    open_state: int | None = None if begin.is_record else begin.state\n", "    open_state: int | None = None\n"),
    ),
    misread(
        "a file that changed is as it was", OPENED, f"{REFUSED}::test_an_input_that_changes_while_it_is_read_is_refused",
        ("        if before.get(name) != now.get(name):\n", "        if name not in before or name not in now:\n"),
    ),
    misread(
        "files of other headers are one input", OPENED, f"{REFUSED}::test_files_of_other_headers_are_refused_together",
        ("        if names != headers[0]:\n", "        if sorted(names) != sorted(headers[0]):\n"),
    ),
    misread("a file is read as it is by now", FILES, f"{REFUSED}::test_a_file_that_became_shorter_is_told_as_such",
        ("start, size, file.version)", "start, size)"),
    ),
    misread("an archive may end anywhere", FILES, f"{REFUSED}::test_a_file_that_is_no_input_is_refused_by_name",
        ("                while chunk := unpacked.read(size):\n", "                while chunk := _some(unpacked, size):\n"),
        ("@dataclass(frozen=True, slots=True)\nclass Files:\n", "def _some(unpacked: gzip.GzipFile, size: int) -> bytes:\n    try:\n        return unpacked.read1(size)\n    except EOFError:\n        return b\"\"\n\n\n@dataclass(frozen=True, slots=True)\nclass Files:\n"),
    ),
    misread("rows of an id go to buckets by where they were read", GROUPING,
        "spark/test_grouping.py::test_a_row_is_in_the_bucket_of_its_identity_wherever_it_comes_from",
        ("crc32(text or b\"\") % buckets for batch in batches for text in buffers_of(batch.column(by))]",
         "at % buckets for batch in batches for at in range(batch.num_rows)]"),
    ),
    misread("a session has messages in several buckets", GROUPING,
        "spark/test_grouping.py::test_the_messages_of_a_session_come_together_from_all_buckets_of_identities",
        ("packed(buckets, rows.to_batches(), BY_SESSION)", "packed(buckets, rows.to_batches())"),
    ),
    misread("of a file that two senders share one sends all", SHARES, f"{OF_SHARES}::test_each_row_is_in_one_share",
        ("first, last = max(begin, before), min(end, before + file.rows)", "first, last = before, before + file.rows"),
    ),
    misread(
        "a stretch of a file begins at its first row", SHARES, f"{OF_SHARES}::test_a_stretch_is_read_over_several_batches",
        ("            part = batch.slice(skipped, left)\n", "            part = batch.slice(0, left)\n"),
    ),
    misread(
        "a row without a key is sent", APP, "spark/test_app_check.py::test_a_row_whose_key_cannot_be_taken_is_set_aside",
        ("        for name, key in keys:\n", "        for name, key in keys[:0]:\n"),
    ),
)  # fmt: skip

"""Faults in what reads the files of Spark jobs: each lets a row through that does not stand so in its file, or loses one.

Each is planted alone, and the test that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

LEXER, CSV, JSON, KINDS, JUDGING, OPENED, FILES, SPANS = (
    f"spark_jobs/reading/{name}.py"
    for name in ("lexer", "csv_rows", "json_rows", "kinds", "judging", "opened", "files", "spans")
)
GROUPING, PLAN, APP = (f"spark_jobs/feeding/{name}.py" for name in ("grouping", "plan", "app_check"))
INPUTS, REFUSED, CASTS = "spark/test_inputs.py", "spark/test_refused_inputs.py", "spark/test_kinds.py"
IN_QUOTES = f"{INPUTS}::test_what_stands_in_quotes_is_text_to_its_last_sign"


def misread(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test below `tests/`."""
    return Mutant(f"reader: {name}", "jobs", (found_by,), file, edits)


READER_MUTANTS = (
    misread(
        "a line feed inside quotes ends a row", LEXER, IN_QUOTES,
        ("        if not self.quote or self.quote not in data:\n            used", "        if True:\n            used"),
    ),
    misread(
        "a line feed inside quotes is taken though nobody said so", CSV, IN_QUOTES,
        ("if feeds and not self._dialect.multiline:", "if False:"),
    ),
    misread(
        "every range begins outside of quotes", SPANS, f"{REFUSED}::test_a_span_that_lies_within_a_long_row_has_no_row",
        ("        state = edge.ends[begin.state]\n", "        state = START\n"),
    ),
    misread(
        "a row that spans begin in is read by each of them", LEXER,
        f"{REFUSED}::test_a_span_that_lies_within_a_long_row_has_no_row",
        ("    open_state: int | None = None if begin.is_record else begin.state\n", "    open_state: int | None = None\n"),
    ),
    misread(
        "a row of any length is held", LEXER, f"{REFUSED}::test_a_row_beyond_the_limit_is_set_aside_and_the_next_is_read",
        ("        if len(pending) > limit:\n", "        if False:\n"),
    ),
    misread(
        "of two equal keys the last counts", JSON, "spark/test_json_rows.py::test_a_key_that_comes_twice_is_found",
        ("    if line.count(b'\"') != quotes + 2 * len(decoded):\n", "    if False:\n"),
    ),
    misread(
        "bytes that are no UTF-8 are text", JSON, "spark/test_json_rows.py::test_bytes_that_are_no_text_are_no_row",
        ("            if not is_text:\n                raw.decode()\n", ""),
    ),
    misread(
        "a number beyond a double is sent", JSON, f"{INPUTS}::test_numbers_of_json_are_sent_as_they_are_written",
        (" and isinf(float(raw)):\n", " and False:\n"),
    ),
    misread(
        "digits beyond the scale are cut", KINDS, f"{CASTS}::test_a_text_is_its_value_or_none",
        (" or (shift < 0 and whole[shift:].strip(\"0\")):\n", ":\n"),
    ),
    misread(
        "a double of more digits than it holds is rounded", KINDS, f"{CASTS}::test_a_text_is_its_value_or_none",
        (" or not is_told(text, value, DOUBLE_DIGITS):\n", ":\n"),
    ),
    misread(
        "seconds count as milliseconds", JUDGING, f"{INPUTS}::test_a_creation_time_is_a_time_of_any_type",
        ("        if time_ms < YEAR_2001_MS:\n", "        if False:\n"),
    ),
    misread(
        "a file that changed is as it was", OPENED, f"{REFUSED}::test_an_input_that_changes_while_it_is_read_is_refused",
        ("        if before.get(name) != now.get(name):\n", "        if name not in before or name not in now:\n"),
    ),
    misread(
        "files of other headers are one input", OPENED, f"{REFUSED}::test_files_of_other_headers_are_refused_together",
        ("        if names != headers[0]:\n", "        if sorted(names) != sorted(headers[0]):\n"),
    ),
    misread(
        "a file is read as it is by now", FILES, f"{REFUSED}::test_a_file_that_became_shorter_is_told_as_such",
        ("start, size, file.version)", "start, size)"),
    ),
    misread(
        "an archive may end anywhere", FILES, f"{REFUSED}::test_a_file_that_is_no_input_is_refused_by_name",
        ("                while chunk := unpacked.read(size):\n", "                while chunk := _some(unpacked, size):\n"),
        ("@dataclass(frozen=True, slots=True)\nclass Files:\n", "def _some(unpacked: gzip.GzipFile, size: int) -> bytes:\n    try:\n        return unpacked.read1(size)\n    except EOFError:\n        return b\"\"\n\n\n@dataclass(frozen=True, slots=True)\nclass Files:\n"),
    ),
    misread(
        "of unequal rows of an id the first is sent", GROUPING,
        "spark/test_grouping.py::test_a_message_stands_where_its_first_row_stood_and_counts_its_rows",
        ("            if known != body:\n", "            if False:\n"),
    ),
    misread(
        "an identity whose rows differ is in a chunk", GROUPING,
        "spark/test_grouping.py::test_a_bucket_belongs_to_one_chunk_and_its_conflicts_to_none",
        ("            yield from self._of_chunk(differing, CONFLICTS)\n", "            yield from self._of_chunk(differing, str(0))\n"),
    ),
    misread(
        "rows of an id go to buckets by where they were read", GROUPING,
        "spark/test_grouping.py::test_a_row_is_in_the_bucket_of_its_identity_wherever_it_comes_from",
        ("crc32(id) % buckets for id in ids]", "at % buckets for at, _ in enumerate(ids)]"),
    ),
    misread(
        "what changed while it was read is planned", PLAN,
        "spark/test_feed_chunks.py::test_of_an_input_that_changed_while_it_was_judged_there_is_no_plan",
        ("        rows.check_unchanged()\n        crash_point(\"staged\")", "        crash_point(\"staged\")"),
    ),
    misread(
        "a row without a key is sent", APP, "spark/test_app_check.py::test_a_row_whose_key_cannot_be_taken_is_set_aside",
        ("        for name, key in keys:\n", "        for name, key in keys[:0]:\n"),
    ),
)  # fmt: skip

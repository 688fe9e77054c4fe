"""The page of the protocol prints the table of verdicts as the code has it."""

from __future__ import annotations

from tests.docs.verdict_table import PAGE, table, written


def test_the_page_has_the_rows_of_the_table_in_order() -> None:
    text = PAGE.read_text()
    assert table() in text and written(text) == text, "run `python -m tests.docs.verdict_table`"

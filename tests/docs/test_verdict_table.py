"""The page of the protocol prints the table of verdicts as the code has it."""

from __future__ import annotations

from pathlib import Path

from outbox.runtime.verdict import TABLE

PAGE = Path(__file__).parents[2] / "docs/protocol/README.md"
WORDS = {None: "", True: "yes", False: "no"}


def test_the_page_has_the_rows_of_the_table_in_order() -> None:
    rows = []
    for row in TABLE:
        facts = [WORDS[fact] for fact in row[1:4]]
        rows.append(" | ".join(["| " + row.record.value, *facts, f"`{row.verdict.name}`: {row.verdict.value} |"]))
    assert "\n".join(rows) in PAGE.read_text()

"""The page of the protocol prints the table of verdicts as the code has it."""

from __future__ import annotations

from pathlib import Path

from outbox.runtime.verdict import TABLE, OnRecord, Payload

PAGE = Path(__file__).parents[2] / "docs/protocol/README.md"
WORDS = {None: "", True: "yes", False: "no"}


def test_the_page_has_the_rows_of_the_table_in_order() -> None:
    rows = []
    for row in TABLE:
        payload = "" if row.record is OnRecord.NOTHING and row.payload is Payload.SAME else row.payload.value
        facts = [payload, *(WORDS[fact] for fact in (row.is_later_attempt, row.is_past_retention))]
        rows.append(" | ".join(["| " + row.record.value, *facts, f"`{row.verdict.name}`: {row.verdict.value} |"]))
    assert "\n".join(rows) in PAGE.read_text()

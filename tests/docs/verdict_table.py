"""The table of verdicts on the page of the protocol, as the code has it: `python -m tests.docs.verdict_table`."""

from __future__ import annotations

import re

from outbox.runtime.verdict import TABLE, OnRecord, Payload
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/protocol/README.md"
_HEAD = "| on record | payload | later attempt | past retention | verdict |\n|---|---|---|---|---|\n"
_WORDS = {None: "", True: "yes", False: "no"}
_PLACE = re.compile(r"(<!-- verdicts: [^>]*-->\n)(.*?)(<!-- /verdicts -->)", re.DOTALL)


def table() -> str:
    """The rows of `outbox/runtime/verdict.py`, in order, as the page prints them."""
    rows = []
    for row in TABLE:
        payload = "" if row.record is OnRecord.NOTHING and row.payload is Payload.SAME else row.payload.value
        facts = [payload, *(_WORDS[fact] for fact in (row.is_later_attempt, row.is_past_retention))]
        rows.append(" | ".join(["| " + row.record.value, *facts, f"`{row.verdict.name}`: {row.verdict.value} |\n"]))
    return _HEAD + "".join(rows)


def written(page: str) -> str:
    """The page with the table in its place."""
    found, count = _PLACE.subn(lambda at: at[1] + table() + at[3], page)
    assert count == 1, "the page has no place for the table of verdicts"
    return found


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

"""Stale edits: only a record that an edit's own create has lost to refuses the edit for its payload.

Other edits change the payload on record, so a read may show one that is there no more.  Then the edit counts as an edit
of nothing: its refusal loses to the record, and is told which one that is.
"""

from __future__ import annotations

from outbox import stored
from outbox.ports import Document
from outbox.runtime.verdict import Verdict
from outbox.runtime.work import Work
from outbox.stored import Record


def may_be_stale(work: Work, document: Document) -> bool:
    """Whether a record turns an edit down that a later record of its message would not."""
    is_edit = work.delivery.message.replaces is not None
    return is_edit and work.verdict(stored.decode(document, Record)) is Verdict.PAYLOAD_DIFFERS

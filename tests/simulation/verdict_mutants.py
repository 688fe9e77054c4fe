"""Each row of the table in `outbox/runtime/verdict.py` turned wrong, alone: where each must show.

In engine scope some of them cannot take effect, because the commit creates its markers under a condition of its own:
there a worker that is wrong makes no progress.  In item scope what waits shows by a way too long for the limit.  No
exploration comes to the rows of another payload over a record that waits, nor to those of a younger message over a
refusal for its age; of the rows of edits it comes to those over nothing, over a refusal, and over what was applied as
edited.  `tests/unit/runtime/test_verdicts.py` has a test for every row.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.planting import VERDICT, Mutant, mutant
from tests.simulation.resubmission_mutants import BLOCKED


def row(
    record: str, facts: str, verdict: str, wrong: str, scope: str, promise: str, app: str = "counting", **options: Any
) -> Mutant:
    """A fault in one row: its three facts, its verdict, and what stands there instead.

    The first fact is the payload: the same (True, or None where there is no record), another (False), or by its name.
    """
    name = f"verdict: {record.lower().replace('_', ' ')} ({facts}) is {wrong.lower()} ({scope})"
    same, later, past = facts.split("/")
    payload = f"Payload.{PAYLOADS.get(same, same)},"
    right = f"    Row({f'OnRecord.{record},':<30}{payload:<18}{f'{later},':<15}{f'{past},':<7}Verdict.{verdict}),\n"
    edit = (right, right.replace(f"Verdict.{verdict})", f"Verdict.{wrong})"))
    return mutant(name, scope, promise, VERDICT, edit, app=app, **options)


PAYLOADS = {"None": "SAME", "True": "SAME", "False": "OTHER"}
SCOPES = ("engine", "partition", "item")
LATE: dict[str, Any] = {"copies": 2, "faults": {"jump": 1}}
LATER: dict[str, Any] = LATE | {"copies": 3}
ENDED: dict[str, Any] = {"amounts": (-50, 60), "copies": [2, 1]}
BEHIND: dict[str, Any] = BLOCKED | {"amounts": (-1, 5), "repeated": ()}
"""The first blocks its key, and the second waits behind it."""
AGAIN: dict[str, Any] = {"amounts": (-50, 60), "resubmissions": 1}
REFUSED_CLASH: dict[str, Any] = {"amounts": (-50, 60), "clashing": 5}
STORES = ("partition", "item")
EDITED: dict[str, Any] = {"amounts": (-50,), "edited": (("a", 5),), "resubmissions": 1}
"""What is refused is edited to what is applied."""
TOO_LATE: dict[str, Any] = {"amounts": (-50, 60), "edited": (("a", 5),), "resubmissions": 2, "copies": [2, 1]}
"""It may be resubmitted and applied as it is before the edit comes."""
NO_BETTER: dict[str, Any] = {"amounts": (-50, 60), "edited": (("a", -80),), "resubmissions": 1, "copies": [2, 1]}
"""The edit is refused as well, and then a copy of what it replaced comes."""
ELSEWHERE: dict[str, Any] = {"amounts": (-50,), "edited": (("b", 5),), "resubmissions": 1}
"""The edit has another key."""
VERDICT_MUTANTS = (
    *(row("NOTHING", "None/None/False", "FRESH", "TOO_OLD", scope, "NoDeadLetter") for scope in STORES),
    *(row("NOTHING", "None/None/True", "TOO_OLD", "FRESH", scope, "NoDuplicate", **LATE) for scope in SCOPES),
    row("APPLIED", "True/None/None", "DUPLICATE", "RESUBMISSION", "engine", "Progress", copies=2, live=True),
    *(row("APPLIED", "True/None/None", "DUPLICATE", "RESUBMISSION", scope, "NoDuplicate", copies=2) for scope in STORES),
    row("APPLIED", "False/None/None", "PAYLOAD_DIFFERS", "RESUBMISSION", "engine", "Progress", clashing=7, live=True),
    *(row("APPLIED", "False/None/None", "PAYLOAD_DIFFERS", "RESUBMISSION", scope, "NoDuplicate", clashing=7) for scope in STORES),
    row("REFUSED", "True/False/None", "REFUSED", "RESUBMISSION", "engine", "Progress", **ENDED, live=True),
    *(row("REFUSED", "True/False/None", "REFUSED", "RESUBMISSION", scope, "NoDuplicate", **ENDED) for scope in STORES),
    *(row("REFUSED", "True/True/None", "RESUBMISSION", "REFUSED", scope, "EveryMessageEnds|Serializable", **AGAIN) for scope in SCOPES),
    row("REFUSED", "False/None/None", "PAYLOAD_DIFFERS", "RESUBMISSION", "engine", "Progress", **REFUSED_CLASH, live=True),
    *(row("REFUSED", "False/None/None", "PAYLOAD_DIFFERS", "RESUBMISSION", scope, "NoDuplicate", **REFUSED_CLASH) for scope in STORES),
    row("REFUSED_FOR_AGE", "True/False/None", "REFUSED", "RESUBMISSION", "engine", "Progress", **LATER, live=True),
    *(row("REFUSED_FOR_AGE", "True/False/None", "REFUSED", "RESUBMISSION", scope, "NoDuplicate", **LATER) for scope in STORES),
    *(row("REFUSED_FOR_AGE", "False/None/None", "PAYLOAD_DIFFERS", "RESUBMISSION", scope, "NoDuplicate", clashing=7, **LATE) for scope in STORES),
    *(row("REFUSED_FOR_AGE", "True/True/True", "TOO_OLD", "RESUBMISSION", scope, "NoDuplicate", resubmissions=1, **LATE) for scope in SCOPES),
    *(row("NOTHING", "EDIT/None/None", "EDIT_WITHOUT_RECORD", "FRESH", scope, "NoDuplicate", **ELSEWHERE) for scope in SCOPES),
    *(row("APPLIED", "REPLACED/None/None", "DUPLICATE", "PAYLOAD_DIFFERS", scope, "NoDeadLetter", **EDITED | {"copies": 2}) for scope in SCOPES),
    *(row("APPLIED", "REPLACED/None/None", "DUPLICATE", "RESUBMISSION", scope, "NoDuplicate", **TOO_LATE) for scope in STORES),
    *(row("REFUSED", "EDIT/None/None", "RESUBMISSION", "PAYLOAD_DIFFERS", scope, "EveryMessageEnds", **EDITED) for scope in SCOPES),
    *(row("REFUSED", "REPLACED/None/None", "REFUSED", "RESUBMISSION", scope, "NoDuplicate", **NO_BETTER) for scope in STORES),
    *(row("REFUSED", "REPLACED/None/None", "REFUSED", "PAYLOAD_DIFFERS", scope, "NoDeadLetter", **NO_BETTER) for scope in SCOPES),
    *(row("EDIT_WITHOUT_RECORD", "True/None/None", "REFUSED", "RESUBMISSION", scope, "NoDuplicate", **ELSEWHERE | {"resubmissions": 2}) for scope in SCOPES),
    *(row("WAITING", "True/None/None", "RESUBMISSION", "REFUSED", scope, "EveryMessageEnds|NothingLeavesEarly|Serializable", "blocking", **BEHIND) for scope in ("engine", "partition")),
)  # fmt: skip

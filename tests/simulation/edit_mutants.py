"""Faults in what becomes of edits and of what they replace, each planted alone: where each must show."""

from __future__ import annotations

from typing import Any

from tests.simulation.planting import BATCH, ENDINGS, GROUP, PARTITION, RUN, STOPS, VERDICT, WAITING, Mutant, mutant
from tests.simulation.verdict_mutants import EDITED, ELSEWHERE, NO_BETTER, SCOPES, STORES

OF_EDITS = "unit/runtime/test_edits.py"
OF_STEPS = "unit/steps/test_runtime_steps.py"
OF_LETTERS = "functions/test_stored_dead_letters.py"
DOOR = "outbox/runtime/delivery/admission.py"
LETTERS = "outbox/runtime/delivery/stored_dead_letters.py"
RESUBMISSION = "outbox/resubmission.py"

TWO_EDITS: dict[str, Any] = {"amounts": (-50,), "edited": (("a", 5), ("a", -70)), "resubmissions": 2, "copies": 2}
"""Two edits of one refusal: one is refused as well, the other is not."""
AGAIN: dict[str, Any] = NO_BETTER | {"amounts": (-50, 90), "resubmissions": 2}
"""The edit is refused, and applied when it is resubmitted as it is; then a copy of what it replaced comes."""

EDIT_MUTANTS = (
    *(
        mutant(
            f"edit: what it replaced is forgotten ({scope})", scope, "NoDeadLetter", VERDICT,
            ("    return (*replaced, Replaced(record.fingerprint, record.attempt, now_ms))[-REPLACED_COUNT_MAX:]\n", "    return ()\n"),
            **EDITED | {"copies": 2},
        )
        for scope in SCOPES
    ),
    *(
        mutant(
            f"edit: what it replaced is forgotten when it is resubmitted ({scope})", scope, "NoDeadLetter", VERDICT,
            ("        return replaced\n", "        return ()\n"),
            **AGAIN,
        )
        for scope in SCOPES
    ),
    *(
        mutant(
            f"edit: it takes the place of any refusal ({scope})", scope, "NoDuplicate", VERDICT,
            ("    if replaces == record.fingerprint and attempt", "    if replaces is not None and attempt"),
            **TWO_EDITS | {"resubmissions": 3},
        )
        for scope in ("engine", "partition")
    ),
    *(
        mutant(
            f"edit: an attempt before that on record is one ({scope})", scope, "EveryMessageEnds|NoDuplicate|Progress", VERDICT,
            ("    if replaces == record.fingerprint and attempt > record.attempt:\n", "    if replaces == record.fingerprint and attempt < record.attempt:\n"),
            **EDITED,
        )
        for scope in STORES
    ),
    mutant("edit: a record that may be old turns it down", "partition", "EveryMessageEnds", PARTITION,
        ("        if found is None or may_be_stale(attempt.work, found):\n", "        if found is None:\n"),
        **TWO_EDITS | {"faults": {"stale": 1}, "copies": 1},
    ),
    mutant("edit: what it replaced takes the place of its refusal", "engine", "NoDuplicate", GROUP,
        ("        return isinstance(marker, Refusal) and attempt.work.verdict(as_record(marker)) is Verdict.REFUSED\n", "        return isinstance(marker, Refusal) and marker.attempt >= attempt.work.delivery.message.attempt\n"),
        **NO_BETTER | {"amounts": (-50,), "copies": 2, "resubmissions": 3},
    ),
    mutant("edit: one of nothing leaves no record", "engine", "NothingLeavesEarly", RUN,
        ("not group.has_refused(attempt) and poison.reason != \"payload-differs\":\n", "not group.has_refused(attempt) and poison.reason not in (\"payload-differs\", \"edit-without-record\"):\n"),
        **ELSEWHERE,
    ),
    *(
        mutant(
            f"edit: one of nothing is run ({scope})", scope, "NoDuplicate", file,
            ("            case Verdict.EDIT_WITHOUT_RECORD:\n", "            case Verdict.EDIT_WITHOUT_RECORD if False:\n"),
            **ELSEWHERE,
        )
        for scope, file in (("engine", GROUP), ("partition", BATCH), ("item", BATCH))
    ),
    *(
        mutant(
            f"edit: tried again it is none ({scope})", scope, "EveryMessageEnds", ENDINGS,
            ("        copy = with_error(copy, later.why)\n", "        copy = with_error(msgspec.structs.replace(copy, properties=None), later.why)\n"),
            app="trying", amounts=(-50,), edited=(("a", -70),), resubmissions=1,
        )
        for scope in STORES
    ),
)  # fmt: skip


def tested(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    """A fault that a test finds."""
    return Mutant(f"edit: {name}", "letters", (test,), file, edits)


TESTED_EDIT_MUTANTS = (
    tested("the marker that it replaces may have changed", GROUP,
        f"{OF_STEPS}::test_an_edit_replaces_no_later_refusal_than_the_one_it_was_judged_by",
        ("earlier.attempt + 1 if is_edit else work.delivery.message.attempt\n", "work.delivery.message.attempt\n            del is_edit\n"),
    ),
    tested("a block does not know it", STOPS,
        f"{OF_EDITS}::test_an_edited_head_unblocks_its_key",
        ("digest in (self.fingerprint, *(self.edits or ()))", "digest == self.fingerprint"),
    ),
    tested("one of nothing is put on record while it waits", WAITING,
        f"{OF_EDITS}::test_an_edit_of_nothing_is_not_put_on_record_while_it_waits",
        ("        if work.delivery.message.replaces is not None:\n            return None\n", ""),
    ),
    tested("a broker takes it for what was sent before a crash", LETTERS,
        f"{OF_LETTERS}::test_an_edit_after_a_crash_is_no_duplicate_of_what_was_sent_before",
        ("    return plain if edit is None else", "    return plain if edit is None or edit else"),
    ),
    tested("a client gives it another key", DOOR,
        f"{OF_EDITS}::test_an_edit_keeps_key_and_type",
        ("    if before.inbox != after.inbox:\n", "    if not after.inbox:\n"),
    ),
    tested("a client edits what has no record of its own", DOOR,
        f"{OF_EDITS}::test_what_was_refused_without_its_key_is_not_edited",
        ("    check_editable(where, dead.reason, dead.description)\n", ""),
    ),
    tested("one of nothing is resubmitted", RESUBMISSION,
        f"{OF_EDITS}::test_an_edit_of_nothing_is_refused_and_stays_so",
        ("    if is_edit_without_record(reason, description):\n        raise", "    if is_edit_without_record(reason, \"\") and not reason:\n        raise"),
    ),
    tested("it names what is in its place", RESUBMISSION,
        f"{OF_EDITS}::test_an_edit_is_handled_under_the_identity_of_what_it_replaces",
        ("fingerprint(message.body, message.type).hex()}", "fingerprint(body, message.type).hex()}"),
    ),
)  # fmt: skip

"""Faults in cancelling what was scheduled, each planted alone: which test must find it."""

from __future__ import annotations

from tests.simulation.planting import BATCH, GROUP, PARTITION, RUN, STATE, Mutant

OF_CANCELLATIONS = "unit/runtime/test_cancellations.py"
WORK = "outbox/runtime/work.py"
ADMISSION = "outbox/runtime/delivery/admission.py"


INGEST = "outbox/streams/ingest.py"
TAKES_IN = "unit/streams/test_ingest.py::test_what_is_cancelled_is_not_taken_in_however_late_it_comes"


def tested(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    """A fault that a test finds."""
    found_by = test if "::" in test else f"{OF_CANCELLATIONS}::{test}"
    return Mutant(f"cancellation: {name}", "letters", (found_by,), file, edits)


CANCELLATION_MUTANTS = (
    tested("it runs its message", RUN, "test_a_cancellation_runs_no_handler_and_keeps_the_state",
        ("    if work.cancels_due_ms:\n        group.cancel(attempt)\n        return None\n", ""),
    ),
    tested("its marker is gone before the message is due", GROUP, "test_it_is_remembered_until_the_message_was_due",
        ("self._plan.record_life_ms + max(0, work.cancels_due_ms - self.now_ms)", "self._plan.record_life_ms"),
    ),
    tested("its record is gone before the message is due", BATCH, "test_it_is_remembered_until_the_message_was_due",
        ("self._plan.record_life_ms + max(0, attempt.work.cancels_due_ms - self.now_ms)", "self._plan.record_life_ms"),
    ),
    tested(
        "its record is stored for the life of any other", PARTITION, "test_it_is_remembered_until_the_message_was_due",
        ("None if record.pending else self._plan.life_s(record.life_ms)", "None if record.pending else self._record_ttl_s"),
    ),
    tested(
        "an engine keeps no marker of a scheduled message", STATE, "test_what_is_cancelled_before_it_is_due_has_no_effect",
        ("fingerprint(message.body, message.type) if output.due_ms else b\"\"\n", "b\"\"\n"),
    ),
    tested("it follows the refusal of its message", WORK,
        "test_a_cancellation_of_a_refused_message_leaves_its_dead_letter_alone",
        ("        return Verdict.DUPLICATE if self.cancels_due_ms and verdict is Verdict.REFUSED else verdict\n", "        return verdict\n"),
    ),
    tested("it is dead-lettered by the record of its message", PARTITION,
        "test_a_cancellation_of_a_refused_message_leaves_its_dead_letter_alone",
        ("        return None if work.cancels_due_ms else record.refusal\n", "        return record.refusal\n"),
    ),
    tested("its record is that of another payload", ADMISSION, "test_what_is_cancelled_before_it_is_due_has_no_effect",
        ("    work, digest = _admit_with_care(plan, source, target, now_ms), fingerprint(message.body, message.type)\n", "    work, digest = _admit_with_care(plan, source, target, now_ms), fingerprint(message.body, \"\")\n"),
    ),
    tested(
        "it has the type of its message", "outbox/context.py", "test_a_cancellation_runs_no_handler_and_keeps_the_state",
        ("            type=CANCELLATION_TYPE,\n", "            type=asked.type,\n"),
    ),
    tested("it comes to another shard", INGEST, TAKES_IN,
        ("shard_of(handled_identity(work.delivery.message), ", "shard_of(work.delivery.message.identity, "),
    ),
    tested("an ingest's record is gone before the message is due", INGEST, TAKES_IN,
        ("self._plan.record_life_ms + max(0, work.cancels_due_ms - now_ms)", "self._plan.record_life_ms"),
    ),
)  # fmt: skip

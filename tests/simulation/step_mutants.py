"""Faults in single steps of the runtime: what it remembers and for how long, its limits, and its edges.

Each is planted alone, and the test that it names must fail of it.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

OF_STEPS = "unit/steps/test_runtime_steps.py"
OF_HOSTS = "unit/steps/test_host_steps.py"
OF_MARKS = "unit/stores/test_riding_marks.py"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault in `outbox/`; `found_by` names a test below `tests/`."""
    return Mutant(name, "steps", (found_by,), f"outbox/{file}", edits)


STEP_MUTANTS = (
    # Retention and names
    mutant("notes: an application forgets the handlers of its other workers", "runtime/start/notes.py",
        "unit/runtime/test_handler_names.py::test_applications_that_read_other_sources_leave_each_other_alone",
        ("wanted = sorted([*current, *(other for other in known.values() if other.source not in sources)])", "wanted = sorted(current)"),
    ),
    # Admission
    mutant("admission: what has arrived by its broker's clock is ahead of time", "runtime/delivery/admission.py",
        f"{OF_STEPS}::test_a_message_is_not_ahead_of_time_while_its_broker_says_that_it_has_arrived",
        ("max(now_ms, delivery.enqueued_ms)", "now_ms"),
    ),
    mutant("admission: a claim opens the body of any message", "runtime/delivery/claim_check.py",
        "unit/runtime/test_claim_checks.py::test_a_claim_taken_from_another_message_is_not_read",
        ("if match is None or match[1] != _owner(message):", "if match is None:"),
    ),
    # Settlement
    mutant("letters: one whose number is taken is lost", "runtime/delivery/stored_dead_letters.py",
        "functions/test_stored_dead_letters.py::test_dead_letters_whose_numbers_meet_are_all_kept",
        ("        return _decoded(document).origin == dead.origin\n", "        return bool(_decoded(document))\n"),
    ),
    # Commits
    mutant("commit: what was applied is on record as refused too", "runtime/commit/engine_transaction.py",
        f"{OF_STEPS}::test_what_a_group_refuses_and_then_applies_is_applied",
        ("            commit.refused.pop(key, None)\n", ""),
    ),
    mutant("deadline: one attempt takes all messages of a batch", "runtime/commit/store_transaction.py",
        f"{OF_STEPS}::test_an_attempt_is_late_behind_its_deadline_and_not_at_it",
        ("return 2 * (now_ms - self.now_ms) > self._plan.attempt_ms_max", "return False"),
    ),
    mutant("cache: an older state takes the place of a newer one", "runtime/commit/state_cache.py",
        "unit/stores/test_port_calls.py::test_a_cache_takes_nothing_older_than_it_has",
        ("if known is not None and known.item.version > state.item.version:", "if False:"),
    ),
    mutant("marks: the handler runs again where a mark has lost", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_mark_that_another_has_made_takes_no_handling_with_it",
        ("            return None if lost >= 0 else answer\n", "            return answer\n"),
    ),
    mutant("marks: those beside one that has lost are forgotten", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_marks_beside_one_that_has_lost_are_still_due",
        ("            return None if lost >= 0 else answer\n",
         "            riding = riding if lost < 0 else []\n            return None if lost >= 0 else answer\n"),
    ),
    mutant("marks: what rides in a batch that fails is forgotten", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_marks_whose_batch_was_not_written_are_still_due",
        ("        lost = -1\n", "        lost, taken, riding = -1, riding, []\n"),
        ("*(mark.write for mark in riding)])", "*(mark.write for mark in taken)])"),
    ),
    mutant("marks: that of spilled outputs rides, and their blob stays", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_mark_of_outputs_in_a_blob_does_not_ride",
        ("            if not mark.spilled:\n                taken", "            if True:\n                taken"),
    ),
    mutant("staged: a worker reclaims what it is about to swap", "runtime/commit/recovery.py",
        f"{OF_STEPS}::test_a_worker_reclaims_what_it_staged_in_vain_and_not_what_it_is_about_to_swap",
        ("            if tx == but:\n                continue\n", ""),
    ),
    mutant("overflow: a blob goes when one attempt could have ended", "runtime/commit/overflow.py",
        "unit/stores/test_overflow.py::test_a_blob_goes_only_when_no_record_that_is_not_dispatched_can_name_it",
        ("return self._now_ms() - overflow.at_ms > 2 * self._plan.attempt_ms_max", "return self._now_ms() - overflow.at_ms > self._plan.attempt_ms_max"),
    ),
    mutant("sweep: the next one skips what was finished", "runtime/commit/sweeper.py",
        "unit/stores/test_sweeps.py::test_what_can_never_be_sent_keeps_no_sweep_from_what_is_behind_it",
        ("start + seen - finished if is_cut", "start + seen if is_cut"),
    ),
    # Threads and failures
    mutant("failures: they count as deliveries too", "runtime/failures/failure_counts.py",
        f"{OF_STEPS}::test_a_failure_count_lives_as_long_as_a_record_from_each_failure_on",
        ("left = max(0, delivery.delivery_count - count)", "left = delivery.delivery_count"),
    ),
    # Requests, clients and workers
    mutant("requests: a repetition is as old as itself", "runtime/http/attempts.py",
        "unit/stores/test_idempotency_keys.py::test_a_request_is_as_old_as_its_claim",
        ("created_ms=claim.created_ms)", "created_ms=work.delivery.message.created_ms)"),
    ),
    mutant("requests: a claim goes before its record", "runtime/http/attempts.py",
        "unit/stores/test_idempotency_keys.py::test_a_claim_says_where_to_look_and_goes_when_records_do",
        ("self._plan.record_life_ms / 1_000", "self._plan.retention_ms / 1_000"),
    ),
    mutant("requests: a reply on record does not wait for the gate", "runtime/http/attempts.py",
        "unit/stores/test_http_entries.py::test_a_replayed_reply_waits_until_its_record_is_durable",
        ("            await self._journal.durable()\n            return\n", "            return\n"),
    ),
    mutant("client: a dead letter as old as retention needs no record", "client.py",
        f"{OF_HOSTS}::test_a_dead_letter_as_old_as_retention_needs_a_record",
        ("created_ms > plan.retention.oldest_ms(now_ms):", "created_ms >= plan.retention.oldest_ms(now_ms):"),
    ),
    # Edges of several of these
    mutant("sweep: each begins at the front", "runtime/shell.py",
        f"{OF_STEPS}::test_a_sweep_begins_where_the_last_was_cut_off",
        ("        self._start = swept.next_start\n", ""),
    ),
    mutant("overflow: a read that may be old proves that nothing is staged", "runtime/commit/overflow.py",
        f"{OF_STEPS}::test_that_nothing_is_staged_is_believed_behind_a_write_only",
        ("            document = await confirmed(self._store, document)  # that read may have been stale\n", ""),
    ),
    mutant("overflow: a blob goes before its record is marked", "runtime/commit/overflow.py",
        "unit/stores/test_overflow.py::test_a_blob_goes_only_when_no_record_that_is_not_dispatched_can_name_it",
        ("            return not record.pending", "            return True"),
    ),
    mutant("commit: what has changed counts as confirmed", "runtime/delivery/retrying.py",
        f"{OF_STEPS}::test_a_document_that_was_read_is_confirmed_while_it_is_unchanged_and_only_then",
        ("    if isinstance(answer, Lost):\n        raise NothingCommitted\n", "    if isinstance(answer, Lost):\n        return document\n"),
    ),
    mutant("marks: the blob of a record whose mark lost is deleted", "runtime/commit/marks.py",
        "unit/stores/test_marks.py::test_a_mark_that_loses_leaves_the_blob_that_the_pending_record_names",
        ("        for mark in left:\n            if mark.spilled:", "        for mark in marks:\n            if mark.spilled:"),
    ),
    # What is remembered of failures, blocks and eras
)  # fmt: skip

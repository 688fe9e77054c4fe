"""Faults in what depends on ages, settings and long chains, each planted alone, and the tests that must fail of it.

An exploration is short, and its messages are young and few.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import BATCH, ENDINGS, GROUP, LANES, MARKERS, WAITING, Mutant

CONTEXT = "outbox/context.py"
RESUBMISSION = "outbox/resubmission.py"
RETENTION = "outbox/runtime/start/notes.py"
CHAINS = "unit/runtime/test_chains.py"
BLOCKED = "unit/runtime/test_blocked_keys.py"
SHOWN = "unit/engine/test_blocked.py"
QUEUES = "outbox/engine/state/session_order.py"
RESUBMITTING = "unit/runtime/test_resubmission.py"
AGES = "unit/runtime/test_age_fence.py"
CHANGES = "unit/runtime/test_retention_changes.py"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` is a file and the names of tests in it that must fail, `file::one|another`."""
    path, _, names = found_by.partition("::")
    return Mutant(name, "ages", tuple(f"{path}::{test}" for test in names.split("|")), file, edits)


AGE_MUTANTS = (
    # Chains
    mutant("a delayed output keeps counting", CONTEXT,
        f"{CHAINS}::test_a_nightly_clock_goes_on_for_ever|"
        "test_a_pause_of_a_second_begins_a_chain_anew_one_of_a_millisecond_less_does_not",
        ("        if due_ms - self.now_ms >= CHAIN_GAP_MS:\n            return 0\n", ""),
    ),
    mutant("any delay begins a chain anew", CONTEXT,
        f"{CHAINS}::test_a_pause_of_a_second_begins_a_chain_anew_one_of_a_millisecond_less_does_not",
        ("        if due_ms - self.now_ms >= CHAIN_GAP_MS:\n", "        if due_ms > self.now_ms:\n"),
    ),
    mutant("a resubmission keeps counting", RESUBMISSION,
        f"{CHAINS}::test_a_resubmission_begins_a_chain_anew",
        ("failures=0, hops=0)", "failures=0)"),
    ),
    mutant("Retry begins a chain anew", ENDINGS,
        f"{CHAINS}::test_a_retry_does_not_begin_a_chain_anew|test_a_failure_does_not_begin_a_chain_anew",
        ("            failures=later.failures,\n        )\n        copy = with_error", "            failures=later.failures,\n            hops=0,\n        )\n        copy = with_error"),
    ),
    # A retention or margin that changes
    mutant("records of new workers live short at once", RETENTION,
        f"{CHANGES}::test_a_worker_that_starts_in_the_overlap_remembers_for_the_higher_retention|"
        "test_the_worker_that_lowers_it_remembers_for_the_higher_retention_too|"
        "test_in_the_overlap_of_a_lowered_margin_records_live_as_long_as_before",
        ("max([self.record_life_ms, *lives])", "max([self.record_life_ms, *lives[:0]])"),
    ),
    mutant("records of new workers live long for ever", RETENTION,
        f"{CHANGES}::test_a_worker_that_starts_behind_the_overlap_remembers_for_the_lowered_retention",
        ("for era in eras if era.until_ms > now_ms]", "for era in eras]"),
    ),
    mutant("an overlap ends a millisecond late", RETENTION,
        f"{CHANGES}::test_a_worker_that_starts_behind_the_overlap_remembers_for_the_lowered_retention",
        ("for era in eras if era.until_ms > now_ms]", "for era in eras if era.until_ms >= now_ms]"),
    ),
    mutant("an era ends without an overlap", RETENTION,
        f"{CHANGES}::test_what_was_created_before_the_overlap_ends_is_too_old_as_the_lower_retention_has_it|"
        "test_a_worker_that_starts_later_heeds_the_earlier_retention_as_the_first_does|"
        "test_a_worker_that_starts_in_the_overlap_remembers_for_the_higher_retention",
        ("PastRetention(now_ms + overlap_ms,", "PastRetention(now_ms,"),
    ),
    mutant("the overlap is the later margin", RETENTION,
        f"{CHANGES}::test_what_was_created_before_the_overlap_ends_is_too_old_as_the_lower_retention_has_it",
        ("overlap_ms = max(known.margin_ms, own.margin_ms)", "overlap_ms = own.margin_ms"),
    ),
    mutant("an era's last moment is not of it", RETENTION,
        f"{CHANGES}::test_what_was_created_before_the_overlap_ends_is_too_old_as_the_lower_retention_has_it",
        ("min(era.until_ms, now_ms - era.retention_ms))", "min(era.until_ms - 1, now_ms - era.retention_ms))"),
    ),
    mutant("a raised margin counts at once", RETENTION,
        f"{CHANGES}::test_a_raised_margin_lets_an_attempt_take_longer_when_no_earlier_record_matters_any_more|"
        "test_the_worker_that_raises_the_margin_takes_no_longer_than_before",
        ("min([UNLIMITED_MS, *(ms // 2 for ms in spare_ms)])", "min([UNLIMITED_MS, *(ms for ms in spare_ms if not ms)])"),
    ),
    # What waits behind a blocked key
    mutant("what waits is exempt from the age fence without a record", BATCH,
        f"{BLOCKED}::test_a_copy_that_comes_behind_a_block_when_the_record_is_gone_is_not_applied_again",
        ("is_past = work.created_ms", "is_past = not work.blocks_key and work.created_ms"),
    ),
    mutant("the record of what waits has a time to live", WAITING,
        f"{BLOCKED}::test_what_waited_behind_a_block_is_handled_in_order_however_long_it_was",
        ("stored.encode(record), None, tag)", "stored.encode(record), self._plan.record_life_ms / 1_000, tag)"),
    ),
    mutant("the record of what waits is written over what is there", WAITING,
        f"{BLOCKED}::test_a_copy_of_what_was_applied_before_the_block_is_not_applied_again",
        ("            if kind_of(stored.decode(found, Record)) is not OnRecord.WAITING:\n                return found\n", "            await self._store.write([Replace(key, stored.encode(record), found.version)])\n"),
        ("    Create,\n", "    Create,\n    Replace,\n"),
    ),
    mutant("what is too old when it comes behind a block is put on record as waiting", WAITING,
        f"{BLOCKED}::test_what_was_too_old_when_it_came_behind_a_block_stays_too_old|"
        "test_a_copy_that_comes_behind_a_block_when_the_record_is_gone_is_not_applied_again",
        ("or work.created_ms <= self._plan.retention.oldest_ms(now_ms):", "or work.created_ms <= -1:"),
    ),
    mutant("a copy of what was applied waits for its turn", LANES,
        f"{BLOCKED}::test_a_copy_of_what_was_applied_before_the_block_is_not_applied_again",
        ("        return None if outcome is None else waits  #", "        return waits  #"),
    ),
    mutant("nothing is put on record of what waits", LANES,
        f"{BLOCKED}::test_what_waited_behind_a_block_is_handled_in_order_however_long_it_was",
        ("            outcome = await self.protocol.hold(attempt)\n", "            outcome = await self.protocol.hold(attempt) if not attempt else waits\n"),
    ),
    # What waits behind a blocked key, on an engine
    mutant("what waits on an engine is exempt from the age fence without a record", GROUP,
        f"{BLOCKED}::test_a_copy_that_comes_behind_a_block_when_the_record_is_gone_is_not_applied_again",
        ("is_past = work.created_ms", "is_past = not work.blocks_key and work.created_ms"),
    ),
    mutant("the marker of what waits has an age", WAITING,
        f"{BLOCKED}::test_what_waited_behind_a_block_is_handled_in_order_however_long_it_was",
        ("    commit = Commit(now_ms, 0, [], ", "    commit = Commit(now_ms, now_ms + plan.record_life_ms, [], "),
    ),
    mutant("what is too old when it comes behind a block on an engine is put on record", WAITING,
        f"{BLOCKED}::test_what_was_too_old_when_it_came_behind_a_block_stays_too_old|"
        "test_a_copy_that_comes_behind_a_block_when_the_record_is_gone_is_not_applied_again",
        ("work.delivery, work.created_ms <= oldest_ms\n", "work.delivery, work.created_ms <= -1\n"),
    ),
    mutant("what has the id of an applied message passes for its copy", WAITING,
        f"{BLOCKED}::test_another_message_under_the_id_of_one_that_was_applied_is_refused_when_its_turn_comes",
        ("if all(verdict is Verdict.DUPLICATE for", "if all(verdict in (Verdict.DUPLICATE, Verdict.PAYLOAD_DIFFERS) for"),
    ),
    mutant("a marker without an age is forgotten at once", MARKERS,
        f"{SHOWN}::test_a_marker_of_what_waits_is_kept_until_it_is_replaced",
        ("        if not expire_ms:  # they have no age until something becomes of their messages\n", "        if expire_ms < 0:\n"),
    ),
    mutant("a snapshot drops markers without an age", "outbox/engine/log/snapshot.py",
        f"{SHOWN}::test_a_marker_of_what_waits_is_kept_until_it_is_replaced",
        ("if isinstance(marker, Refusal))\n", "if isinstance(marker, Refusal) and not marker.waits)\n"),
    ),
    mutant("what comes behind a block is not shown", QUEUES,
        f"{SHOWN}::test_what_waits_is_shown_once_in_a_block",
        ("            self._unshown[task.sequence] = None\n", "            self._unshown.pop(task.sequence, None)\n"),
    ),
    # What is resubmitted or rescheduled too late
    mutant("a client resubmits what is too old by now", "outbox/client.py",
        f"{RESUBMITTING}::test_a_late_resubmission_is_refused_up_front_and_the_dead_letter_keeps_its_reason|"
        "test_a_copy_that_the_broker_dead_lettered_is_not_applied_again_when_its_record_is_gone",
        ("        is_remembered = await self._is_remembered(dead)\n", "        is_remembered = True\n"),
    ),
    mutant("an engine resubmits what is too old by now", "outbox/engine/dead_letters.py",
        f"{RESUBMITTING}::test_an_operator_cannot_resubmit_late_either_and_the_others_go",
        ("is_remembered=not 0 < until_ms <= core.now_ms())", "is_remembered=True)"),
    ),
    mutant("a Retry beyond retention comes again", "outbox/runtime/commit/run_handler.py",
        f"{AGES}::test_a_retry_that_would_come_too_late_is_the_last_and_keeps_its_words|"
        "test_what_was_rescheduled_until_it_was_too_old_can_be_resubmitted",
        ("        outcome = _rescheduled(", "        _rescheduled("),
    ),
)  # fmt: skip

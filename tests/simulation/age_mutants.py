"""Faults in what depends on ages, settings and long chains, each planted alone, and the tests that must fail of it.

An exploration is short, and its messages are young and few.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import BATCH, ENDINGS, LANES, WAITING, Mutant

CONTEXT = "outbox/context.py"
DELIVERIES = "outbox/deliveries.py"
RETENTION = "outbox/runtime/retention.py"
CHAINS = "unit/app/test_chains.py"
BLOCKED = "unit/app/test_blocked_keys.py"
RESUBMITTING = "unit/app/test_resubmitting.py"
AGES = "unit/app/test_ages.py"
CHANGES = "unit/app/test_retention_changes.py"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` is a file and the names of tests in it that must fail, `file::one|another`."""
    path, _, names = found_by.partition("::")
    return Mutant(name, "ages", tuple(f"{path}::{test}" for test in names.split("|")), file, edits)


AGE_MUTANTS = (
    # Chains
    mutant(
        "a delayed output keeps counting", CONTEXT,
        f"{CHAINS}::test_a_nightly_clock_goes_on_for_ever|"
        "test_a_pause_of_a_second_begins_a_chain_anew_one_of_a_millisecond_less_does_not",
        ("        if due_ms - self.now_ms >= CHAIN_GAP_MS:\n            return 0\n", ""),
    ),
    mutant(
        "any delay begins a chain anew", CONTEXT,
        f"{CHAINS}::test_a_pause_of_a_second_begins_a_chain_anew_one_of_a_millisecond_less_does_not",
        ("        if due_ms - self.now_ms >= CHAIN_GAP_MS:\n", "        if due_ms > self.now_ms:\n"),
    ),
    mutant(
        "a resubmission keeps counting", DELIVERIES,
        f"{CHAINS}::test_a_resubmission_begins_a_chain_anew",
        ("failures=0, hops=0)", "failures=0)"),
    ),
    mutant(
        "Retry begins a chain anew", ENDINGS,
        f"{CHAINS}::test_a_retry_does_not_begin_a_chain_anew|test_a_failure_does_not_begin_a_chain_anew",
        ("            failures=failures,\n        )\n        # It may", "            failures=failures,\n            hops=0,\n        )\n        # It may"),
    ),
    mutant(
        "too many outputs look like a cycle", CONTEXT,
        f"{CHAINS}::test_too_many_outputs_have_words_of_their_own",
        ("        if len(self.outputs) >= OUTPUT_COUNT_MAX:\n", "        if len(self.outputs) >= OUTPUT_COUNT_MAX << 8:\n"),
        ("        if cause.hops >= hops_max:\n", "        if cause.hops >= hops_max or self.outputs:\n"),
    ),
    # A retention or margin that changes
    mutant(
        "records of new workers live short at once", RETENTION,
        f"{CHANGES}::test_a_worker_that_starts_in_the_overlap_remembers_for_the_higher_retention|"
        "test_the_worker_that_lowers_it_remembers_for_the_higher_retention_too|"
        "test_in_the_overlap_of_a_lowered_margin_records_live_as_long_as_before",
        ("max([self.record_life_ms, *lives])", "max([self.record_life_ms, *lives[:0]])"),
    ),
    mutant(
        "records of new workers live long for ever", RETENTION,
        f"{CHANGES}::test_a_worker_that_starts_behind_the_overlap_remembers_for_the_lowered_retention",
        ("for era in eras if era.until_ms > now_ms]", "for era in eras]"),
    ),
    mutant(
        "an overlap ends a millisecond late", RETENTION,
        f"{CHANGES}::test_a_worker_that_starts_behind_the_overlap_remembers_for_the_lowered_retention",
        ("for era in eras if era.until_ms > now_ms]", "for era in eras if era.until_ms >= now_ms]"),
    ),
    mutant(
        "an era ends without an overlap", RETENTION,
        f"{CHANGES}::test_what_was_created_before_the_overlap_ends_is_too_old_as_the_lower_retention_has_it|"
        "test_a_worker_that_starts_later_heeds_the_earlier_retention_as_the_first_does|"
        "test_a_worker_that_starts_in_the_overlap_remembers_for_the_higher_retention",
        ("Era(now_ms + overlap_ms,", "Era(now_ms,"),
    ),
    mutant(
        "the overlap is the later margin", RETENTION,
        f"{CHANGES}::test_what_was_created_before_the_overlap_ends_is_too_old_as_the_lower_retention_has_it",
        ("overlap_ms = max(known.margin_ms, own.margin_ms)", "overlap_ms = own.margin_ms"),
    ),
    mutant(
        "an era's last moment is not of it", RETENTION,
        f"{CHANGES}::test_what_was_created_before_the_overlap_ends_is_too_old_as_the_lower_retention_has_it",
        ("min(era.until_ms, now_ms - era.retention_ms))", "min(era.until_ms - 1, now_ms - era.retention_ms))"),
    ),
    mutant(
        "a raised margin counts at once", RETENTION,
        f"{CHANGES}::test_a_raised_margin_lets_an_attempt_take_longer_when_no_earlier_record_matters_any_more|"
        "test_the_worker_that_raises_the_margin_takes_no_longer_than_before",
        ("min([UNLIMITED_MS, *(ms // 2 for ms in spare_ms)])", "min([UNLIMITED_MS, *(ms for ms in spare_ms if not ms)])"),
    ),
    mutant(
        "an earlier margin is forgotten when its overlap ends", RETENTION,
        f"{CHANGES}::test_a_raised_margin_lets_an_attempt_take_longer_when_no_earlier_record_matters_any_more",
        ("        if era.until_ms > now_ms - own.retention_ms:\n", "        if era.until_ms > now_ms:\n"),
    ),
    # What waits behind a blocked key
    mutant(
        "what waits is exempt from the age fence without a record", BATCH,
        f"{BLOCKED}::test_a_copy_that_comes_behind_a_block_when_the_record_is_gone_is_not_applied_again",
        ("        if work.was_refused:\n", "        if work.was_refused or work.stops_key:\n"),
    ),
    mutant(
        "the record of what waits has a time to live", WAITING,
        f"{BLOCKED}::test_what_waited_behind_a_block_is_handled_in_order_however_long_it_was",
        ("items.encode(record), None, tag)", "items.encode(record), self._plan.record_life_ms / 1_000, tag)"),
    ),
    mutant(
        "the record of what waits is written over what is there", WAITING,
        f"{BLOCKED}::test_a_copy_of_what_was_applied_before_the_block_is_not_applied_again",
        ("            if not items.decode(found, Record).waits:\n                return found\n", "            await self._store.write([Replace(key, items.encode(record), found.version)])\n"),
        ("from outbox.ports import Create,", "from outbox.ports import Create, Replace,"),
    ),
    mutant(
        "what is too old when it comes behind a block is put on record as waiting", WAITING,
        f"{BLOCKED}::test_what_was_too_old_when_it_came_behind_a_block_stays_too_old|"
        "test_a_copy_that_comes_behind_a_block_when_the_record_is_gone_is_not_applied_again",
        ("or created_ms <= self._plan.memory.oldest_ms(now_ms):", "or created_ms <= -1:"),
    ),
    mutant(
        "a copy of what was applied waits for its turn", LANES,
        f"{BLOCKED}::test_a_copy_of_what_was_applied_before_the_block_is_not_applied_again",
        ("        return None if outcome is None else waits  #", "        return waits  #"),
    ),
    mutant(
        "nothing is put on record of what waits", LANES,
        f"{BLOCKED}::test_what_waited_behind_a_block_is_handled_in_order_however_long_it_was",
        ("            outcome = await self.protocol.hold(work)\n", "            outcome = await self.protocol.hold(work) if not work else waits\n"),
    ),
    # What is resubmitted or put off too late
    mutant(
        "a client resubmits what is too old by now", "outbox/client.py",
        f"{RESUBMITTING}::test_a_late_resubmission_is_refused_up_front_and_the_dead_letter_keeps_its_reason|"
        "test_a_copy_that_the_broker_buried_is_not_applied_again_when_its_record_is_gone",
        ("        await self._check_remembered(newest)\n", ""),
    ),
    mutant(
        "an engine resubmits what is too old by now", "outbox/engine/engine.py",
        f"{RESUBMITTING}::test_an_operator_cannot_resubmit_late_either_and_the_others_go",
        ("        if 0 < task.remembered_until_ms <= self.now_ms():\n", "        if 0 < task.remembered_until_ms < 0:\n"),
    ),
    mutant(
        "a Retry beyond retention comes again", "outbox/runtime/handling.py",
        f"{AGES}::test_a_retry_that_would_come_too_late_is_the_last_and_keeps_its_words|"
        "test_what_was_put_off_until_it_was_too_old_can_be_resubmitted",
        ("        outcome = _put_off(", "        _put_off("),
    ),
)  # fmt: skip

"""Which explorations take too long for every run."""

from __future__ import annotations

import pytest

LONG = frozenset(
    (
        "test_a_resubmission_keeps_every_promise_under_any_single_fault[stale-item]",
        "test_a_resubmission_keeps_every_promise_under_any_single_fault[delay-item]",
        "test_a_key_goes_on_behind_what_was_resubmitted_and_applied[partition]",
        "test_an_edit_of_an_edit_keeps_every_promise_under_any_single_fault[delay-item]",
        "test_any_single_fault_changes_nothing_that_can_be_seen[ordered by key, handlers that wait-item]",
        "test_any_pair_of_faults_changes_nothing_that_can_be_seen[ordered by key, handlers that wait-item]",
        "test_an_application_whose_messages_are_too_large_for_its_bus_is_explored[item]",
        "test_two_workers_and_their_overflow",
        "test_overflow_lies_with_the_infrastructure[stale]",
        "test_what_is_as_old_as_a_blob_may_get_is_looked_at_once_more[stale-item]",
        "test_the_program_prints_and_publishes_nothing_for_one_scope[partition]",
        "test_the_program_prints_and_publishes_nothing_for_one_scope[item]",
        "test_a_resubmission_keeps_every_promise_under_any_single_fault[crash-item]",
        "test_what_is_as_old_as_a_blob_may_get_is_looked_at_once_more[crash-item]",
        "test_outputs_that_overflow_leave_once_and_nothing_of_them_stays[delay-item]",
        "test_outputs_of_a_request_overflow_as_well[crash-item]",
        "test_two_faults_at_once_lose_nothing[('delay', 'stale')]",
        "test_two_faults_at_once_lose_nothing[('crash', 'delay')]",
        "test_workers_that_stage_outputs_and_workers_that_do_not_keep_every_promise_together[delay]",
        "test_workers_of_an_earlier_version_and_of_this_one_keep_every_promise_together[delay]",
        "test_overflow_lies_with_the_infrastructure[crash]",
        "test_an_application_whose_messages_are_too_large_for_its_bus_is_explored[partition]",
        "test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault[error]",
        "test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault[delay]",
        "test_outputs_of_a_request_overflow_as_well[lost-item]",
        "test_outputs_of_a_request_overflow_as_well[stale-item]",
        "test_outputs_that_overflow_leave_once_and_nothing_of_them_stays[error-item]",
        "test_what_was_committed_leaves_though_its_message_is_gone[delay]",
        "test_messages_that_commit_together_have_an_entry_each[delay]",
        "test_pointers_that_wait_for_the_next_swap_keep_every_promise_under_any_single_fault[delay]",
        "test_marks_that_ride_in_later_batches_keep_every_promise_under_any_single_fault[delay-{'workers': 2}]",
        "test_marks_that_ride_in_later_batches_keep_every_promise_under_any_single_fault[error-{'workers': 2}]",
        "test_marks_that_ride_in_later_batches_keep_every_promise_under_any_single_fault[expire-{'workers': 2}]",
        "test_a_request_asked_twice_at_once_has_one_effect_and_one_answer[timeout-partition]",
        "test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault[lost]",
        "test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault[jump]",
        "test_an_edit_of_an_edit_keeps_every_promise_under_any_single_fault[error-item]",
        "test_workers_that_stage_outputs_and_workers_that_do_not_keep_every_promise_together[stale]",
        "test_workers_that_stage_outputs_and_workers_that_do_not_keep_every_promise_together[lost]",
        "test_what_is_emitted_to_a_queue_was_committed_and_is_sent_before_the_next_step[delay]",
        "test_a_request_asked_twice_at_once_has_one_effect_and_one_answer[delay-partition]",
        "test_a_request_asked_twice_at_once_has_one_effect_and_one_answer[error-partition]",
        "test_messages_are_handled_once_though_power_is_lost[{'power': 2, 'lost': 1}]",
        "test_what_was_committed_leaves_though_its_message_is_gone[error]",
        "test_copies_are_recognised_and_push_again_under_the_same_ids[delay]",
        "test_copies_are_recognised_and_push_again_under_the_same_ids[error]",
        "test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault[expire]",
        "test_outputs_that_overflow_leave_once_and_nothing_of_them_stays[jump-item]",
        "test_outputs_that_overflow_leave_once_and_nothing_of_them_stays[stale-item]",
        "test_workers_of_an_earlier_version_and_of_this_one_keep_every_promise_together[lost]",
        "test_workers_of_an_earlier_version_and_of_this_one_keep_every_promise_together[stale]",
        "test_two_faults_at_once_lose_nothing[('crash', 'error')]",
        "test_each_message_of_a_queue_is_one_entry[delay]",
        "test_two_processors_of_one_log_and_its_trimmer_write_nothing_below_the_floor[delay]",
        "test_workers_with_and_without_a_ledger_finish_what_the_other_began[delay]",
        "test_two_sweepers_and_a_ledger_that_is_saved_late_lose_nothing[delay]",
        "test_two_producers_and_two_replicas_write_everything_once[delay]",
        "test_any_single_fault_changes_nothing_that_can_be_seen[three outputs, known state-item]",
        "test_any_single_fault_changes_nothing_that_can_be_seen[ordered by key, refusals-item]",
        "test_any_pair_of_faults_changes_nothing_that_can_be_seen[ordered by key-item]",
    )
)
"""`make soak` runs them; of each kind another fault or scope is part of every run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in LONG:
            item.add_marker(pytest.mark.soak)

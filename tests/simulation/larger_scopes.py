"""Explorations that take more than about three CPU seconds, where smaller ones of the same test are part of every run.

`make soak` runs them, and so does `pytest -m "soak or not soak"`; see tests/conftest.py.
"""

from __future__ import annotations

LARGER: dict[str, tuple[str, ...]] = {
    "test_crash_matrix.py::test_any_pair_of_faults_changes_nothing_that_can_be_seen": (
        "duplicates-partition",
        "ordered by key-partition",
        "three outputs, new state-item",
    ),
    "test_crash_matrix.py::test_any_single_fault_changes_nothing_that_can_be_seen": (
        "asks for another delivery-item",
        "asks for another delivery-partition",
        "duplicates-item",
        "duplicates-partition",
        "handlers that wait-engine",
        "handlers that wait-item",
        "handlers that wait-partition",
        "large bodies-item",
        "large bodies-partition",
        "one output, known state-item",
        "ordered by key, handlers that wait-engine",
        "ordered by key, handlers that wait-partition",
        "ordered by key-item",
        "ordered by key-partition",
        "refusals-item",
        "refusals-partition",
        "three outputs, known state-partition",
        "three outputs, new state-item",
        "three outputs, new state-partition",
    ),
    "test_explore_app.py::test_every_interleaving_of_the_other_protocols": ("partition-2",),
    "test_explore_app.py::test_what_is_sent_under_one_identity_may_depend_on_the_order": (
        "item",
        "partition",
    ),
    "test_explore_app_requests.py::test_a_read_is_explored_beside_what_it_may_see": ("partition",),
    "test_explore_blobs.py::test_outputs_that_overflow_leave_once_and_nothing_of_them_stays": (
        "delay-partition",
        "lost-item",
    ),
    "test_explore_blocked_keys.py::test_a_copy_of_what_was_applied_before_a_block_is_never_applied_again": (
        "partition",
    ),
    "test_explore_blocked_keys.py::test_what_waits_behind_a_block_is_applied_in_order_though_retention_is_over": (
        "partition",
    ),
    "test_explore_calls.py::test_a_message_that_calls_out_of_its_batch_takes_effect_once": (
        "delay-item",
        "error-item",
        "expire-partition",
    ),
    "test_explore_cancellation.py::test_cancelling_keeps_every_promise_under_any_single_fault": (
        "delay-item",
        "error-item",
        "jump-item",
        "lost-item",
    ),
    "test_explore_cancellation.py::test_two_workers_cancel_what_comes_twice": ("item",),
    "test_explore_discards.py::test_a_host_that_stores_it_once_more_meanwhile_makes_no_second_one": ("kept as well",),
    "test_explore_discards.py::test_nor_under_any_single_fault": (
        "discards-kept as well",
        "discards-on the bus",
        "discards-stored",
        "restores-kept as well",
        "resubmits-kept as well",
    ),
    "test_explore_discards.py::test_they_do_under_any_single_fault_as_often_as_they_come": ("kept as well",),
    "test_explore_discards.py::test_they_do_under_any_two_faults": ("kept as well",),
    "test_explore_edit.py::test_an_edit_keeps_every_promise_under_any_single_fault": (
        "delay-item",
        "error-item",
    ),
    "test_explore_edit.py::test_an_edit_of_an_edit_keeps_every_promise_under_any_single_fault": (
        "crash-item",
        "crash-partition",
        "lost-engine",
        "lost-item",
        "stale-partition",
    ),
    "test_explore_edit.py::test_an_edited_head_takes_effect_once": ("lost-item",),
    "test_explore_edit.py::test_nothing_goes_ahead_of_an_edited_head": (
        "error-engine",
        "error-item",
        "lost-item",
    ),
    "test_explore_lattice.py::test_all_small_scopes_are_exhausted_and_break_no_promise": (
        "engine-2-7",
        "partition-2-6",
    ),
    "test_explore_ledger.py::test_copies_are_recognised_and_push_again_under_the_same_ids": (
        "jump",
        "lost",
    ),
    "test_explore_ledger.py::test_messages_that_commit_together_have_an_entry_each": ("lost",),
    "test_explore_ledger.py::test_two_sweepers_and_a_ledger_that_is_saved_late_lose_nothing": ("crash",),
    "test_explore_ledger.py::test_what_a_request_sends_leaves_though_nobody_asks_again": (
        "delay",
        "error",
    ),
    "test_explore_ledger.py::test_what_was_committed_leaves_though_its_message_is_gone": (
        "jump",
        "lost",
    ),
    "test_explore_new_states.py::test_a_request_that_is_asked_twice_beside_a_message": (
        "crash",
        "expire",
    ),
    "test_explore_new_states.py::test_two_workers_and_a_duplicate_under_any_single_fault": (
        "False-delay",
        "False-error",
        "True-lost",
    ),
    "test_explore_new_states.py::test_under_two_faults": (
        "{'crash': 1, 'lost': 1}",
        "{'delay': 1, 'stale': 1}",
    ),
    "test_explore_power.py::test_what_a_client_was_answered_is_there_after_power_was_lost": (
        "{'power': 1, 'expire': 1}",
    ),
    "test_explore_processor.py::test_a_bad_entry_is_refused_once_beside_traffic_on_another_input": (
        "delayed",
        "lost",
        "stale",
    ),
    "test_explore_processor.py::test_a_handler_is_explored_with_all_that_it_emits_to": ("a crash",),
    "test_explore_reads.py::test_a_read_beside_a_request_is_answered_from_a_committed_state": (
        "delay-item",
        "error-item",
        "lost-item",
    ),
    "test_explore_reductions.py::test_a_new_state_makes_as_many_worlds_as_a_known_one_unless_it_is_said": (
        "crash-item",
        "delay-item",
        "error-item",
        "jump-item",
        "lost-engine",
    ),
    "test_explore_requests.py::test_a_request_asked_twice_at_once_has_one_effect_and_one_answer": (
        "crash-partition",
        "delay-item",
        "expire-partition",
        "lost-partition",
    ),
    "test_explore_requests.py::test_a_request_without_a_state_takes_effect_once": (
        "item",
        "partition",
    ),
    "test_explore_requests.py::test_another_request_under_the_same_key_is_refused": (
        "another payload-item",
        "of another state-item",
    ),
    "test_explore_requests.py::test_requests_of_one_state_take_effect_one_after_the_other": ("partition",),
    "test_explore_requests.py::test_what_an_answered_request_has_emitted_needs_a_sweeper_when_its_process_dies": (
        "partition",
    ),
    "test_explore_resubmission.py::test_it_may_be_resubmitted_again_and_copies_of_it_may_come": ("partition",),
    "test_explore_resubmission.py::test_nothing_goes_ahead_of_what_its_key_is_blocked_by": ("error-item",),
    "test_explore_resubmission.py::test_what_a_resubmission_in_item_scope_sends_arrives_under_any_single_fault": (
        "error",
        "lost",
    ),
    "test_explore_retention_changes.py::test_a_copy_is_applied_once_whatever_retention_was": (
        "item-jump-raised",
        "partition-jump-crash-raised",
        "partition-jump-expire-raised",
        "partition-jump-lost-lowered",
        "partition-jump-lost-raised",
    ),
    "test_explore_sinks.py::test_a_sink_that_rests_while_another_goes_on_and_trims_goes_on_from_there": (
        "at the beginning-database-delay",
        "at the beginning-database-error",
        "at the beginning-database-jump",
        "at the beginning-database-lost",
        "at the beginning-database-stale",
        "at the beginning-documents-crash",
        "at the beginning-documents-delay",
        "at the beginning-documents-jump",
        "at the beginning-documents-stale",
    ),
    "test_explore_stores.py::test_marks_that_ride_in_later_batches_keep_every_promise_under_any_single_fault": (
        "crash-{'workers': 2}",
        "expire-{'workers': 1, 'sweepers': 1}",
        "jump-{'workers': 2}",
        "lost-{'workers': 2}",
    ),
    "test_explore_stores.py::test_partition_scope_two_workers_and_a_duplicate_under_any_single_fault": (
        "delay",
        "expire",
    ),
    "test_explore_stores.py::test_pointers_that_wait_for_the_next_swap_keep_every_promise_under_any_single_fault": (
        "crash",
        "error",
        "lost",
    ),
    "test_explore_stores.py::test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault": (
        "crash",
    ),
    "test_explore_streams.py::test_a_large_entry_that_is_appended_twice_has_a_blob_for_each_cell_and_leaves_none": (
        "error",
    ),
    "test_explore_streams.py::test_a_lost_answer_and_another_fault_of_the_same_call_break_no_promise": (
        "beginning together-error",
        "beginning together-lost",
        "one output-error",
        "to a queue-error",
        "to a queue-lost",
        "trimmed-error",
        "trimmed-jump",
    ),
    "test_explore_streams.py::test_each_message_of_a_queue_is_one_entry": (
        "error",
        "lost",
    ),
    "test_explore_streams.py::test_producers_that_are_paused_within_an_append_lose_nothing": ("two pauses",),
    "test_explore_streams.py::test_replicas_that_are_paused_within_an_append_write_everything_once": (
        "lost",
        "stale",
    ),
    "test_explore_streams.py::test_replicas_that_begin_together_create_one_register": (
        "delay",
        "jump",
        "lost",
        "stale",
    ),
    "test_explore_streams.py::test_two_processors_of_one_log_and_its_trimmer_write_nothing_below_the_floor": (
        "error",
        "lost",
    ),
    "test_explore_streams.py::test_two_producers_and_two_replicas_write_everything_once": ("crash",),
    "test_explore_streams.py::test_warm_replicas_step_over_what_the_other_did": ("delay",),
    "test_explore_streams.py::test_what_fails_is_refused_once_and_everything_else_handled_once": (
        "beside one that fails once-crash",
        "beside one that fails once-delay",
        "beside traffic-crash",
        "beside traffic-delay",
        "beside traffic-lost",
        "beside traffic-stale",
    ),
    "test_explore_streams.py::test_what_is_emitted_to_a_queue_was_committed_and_is_sent_before_the_next_step": (
        "crash",
        "error",
        "stale",
    ),
    "test_explore_streams.py::test_with_all_thresholds_at_one_cell_each_append_is_there_once": ("produced",),
    "test_explore_streams.py::test_with_all_thresholds_at_one_cell_trims_take_what_was_read": (
        "begins-delay",
        "begins-lost",
        "begins-stale",
        "reports after each step-delay",
        "reports after each step-error",
        "reports after each step-jump",
        "reports after each step-stale",
    ),
    "test_explore_sweeping.py::test_what_a_crash_leaves_is_finished_when_it_is_as_old_as_the_grace": (
        "{'delay': 1, 'jump': 1}-item",
    ),
    "test_explore_triggers.py::test_a_stored_dead_letter_that_is_resubmitted_ends_again": (
        "delay-item",
        "error-partition",
    ),
}
"""The larger scopes by their tests, from this folder on."""

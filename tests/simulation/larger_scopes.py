"""Explorations that take more than about three CPU seconds, where smaller ones of the same test are part of every run.

`make soak` runs them, and so does `pytest -m "soak or not soak"`; see tests/conftest.py.
"""

from __future__ import annotations

LARGER: dict[str, dict[str, str]] = {
    "crash_matrix": {
        "any_pair_of_faults_changes_nothing_that_can_be_seen": (
            "duplicates-partition; ordered by key, handlers that wait-item; ordered by key-item; "
            "ordered by key-partition; three outputs, new state-item"
        ),
        "any_single_fault_changes_nothing_that_can_be_seen": (
            "asks for another delivery-item; asks for another delivery-partition; duplicates-item; "
            "duplicates-partition; handlers that wait-engine; handlers that wait-item; handlers that wait-partition; "
            "large bodies-item; large bodies-partition; one output, known state-item; "
            "ordered by key, handlers that wait-engine; ordered by key, handlers that wait-item; "
            "ordered by key, handlers that wait-partition; ordered by key, refusals-item; ordered by key-item; "
            "ordered by key-partition; refusals-item; refusals-partition; three outputs, known state-item; "
            "three outputs, known state-partition; three outputs, new state-item; three outputs, new state-partition"
        ),
    },
    "explore_app": {
        "every_interleaving_of_the_other_protocols": "partition-2",
        "what_is_sent_under_one_identity_may_depend_on_the_order": "item; partition",
    },
    "explore_app_requests": {"a_read_is_explored_beside_what_it_may_see": "partition"},
    "explore_blobs": {
        "an_application_whose_messages_are_too_large_for_its_bus_is_explored": "item; partition",
        "outputs_of_a_request_overflow_as_well": "crash-item; lost-item; stale-item",
        "outputs_that_overflow_leave_once_and_nothing_of_them_stays": (
            "crash-item; delay-item; delay-partition; error-item; jump-item; lost-item; stale-item"
        ),
        "what_is_as_old_as_a_blob_may_get_is_looked_at_once_more": "crash-item; stale-item",
    },
    "explore_blocked_keys": {
        "a_copy_of_what_was_applied_before_a_block_is_never_applied_again": "item; partition",
        "what_waits_behind_a_block_is_applied_in_order_though_retention_is_over": "item; partition",
    },
    "explore_calls": {
        "a_message_that_calls_out_of_its_batch_takes_effect_once": "delay-item; error-item; expire-partition"
    },
    "explore_cancellation": {
        "cancelling_keeps_every_promise_under_any_single_fault": "delay-item; error-item; jump-item; lost-item",
        "two_workers_cancel_what_comes_twice": "item",
    },
    "explore_discards": {
        "a_host_that_stores_it_once_more_meanwhile_makes_no_second_one": "kept as well",
        "nor_under_any_single_fault": (
            "discards-kept as well; discards-on the bus; discards-stored; restores-kept as well; resubmits-kept as well"
        ),
        "they_do_under_any_single_fault_as_often_as_they_come": "kept as well",
        "they_do_under_any_two_faults": "kept as well",
    },
    "explore_edit": {
        "an_edit_keeps_every_promise_under_any_single_fault": "delay-item; error-item",
        "an_edit_of_an_edit_keeps_every_promise_under_any_single_fault": (
            "crash-item; crash-partition; delay-engine; delay-item; delay-partition; error-engine; error-item; "
            "error-partition; expire-engine; expire-item; expire-partition; lost-engine; lost-item; stale-item; "
            "stale-partition"
        ),
        "an_edited_head_takes_effect_once": "lost-item",
        "nothing_goes_ahead_of_an_edited_head": "error-engine; error-item; lost-item",
    },
    "explore_lattice": {"all_small_scopes_are_exhausted_and_break_no_promise": "engine-2-7; partition-2-6"},
    "explore_ledger": {
        "a_key_that_stops_goes_on_after_a_resubmission": "delay",
        "copies_are_recognised_and_push_again_under_the_same_ids": "delay; error; jump; lost",
        "messages_that_commit_together_have_an_entry_each": "delay; error; lost",
        "two_faults_at_once_lose_nothing": (
            "('crash', 'delay'); ('crash', 'error'); ('crash', 'stale'); ('delay', 'stale')"
        ),
        "two_sweepers_and_a_ledger_that_is_saved_late_lose_nothing": "crash; delay",
        "what_a_request_sends_leaves_though_nobody_asks_again": "delay; error",
        "what_was_committed_leaves_though_its_message_is_gone": "delay; error; jump; lost; stale",
        "workers_with_and_without_a_ledger_finish_what_the_other_began": "delay",
    },
    "explore_new_states": {
        "a_request_that_is_asked_twice_beside_a_message": "crash; expire",
        "two_workers_and_a_duplicate_under_any_single_fault": "False-delay; False-error; True-lost",
        "under_two_faults": "{'crash': 1, 'lost': 1}; {'delay': 1, 'stale': 1}",
    },
    "explore_power": {
        "messages_are_handled_once_though_power_is_lost": "{'power': 2, 'lost': 1}",
        "what_a_client_was_answered_is_there_after_power_was_lost": "{'power': 1, 'expire': 1}",
    },
    "explore_processor": {
        "a_bad_entry_is_refused_once_beside_traffic_on_another_input": "delayed; lost; stale",
        "a_handler_is_explored_with_all_that_it_emits_to": "a crash",
    },
    "explore_program": {"the_program_prints_and_publishes_nothing_for_one_scope": "item; partition"},
    "explore_reads": {
        "a_read_beside_a_request_is_answered_from_a_committed_state": "delay-item; error-item; lost-item"
    },
    "explore_reductions": {
        "a_new_state_makes_as_many_worlds_as_a_known_one_unless_it_is_said": (
            "crash-item; delay-item; error-item; jump-item; lost-engine"
        )
    },
    "explore_requests": {
        "a_request_asked_twice_at_once_has_one_effect_and_one_answer": (
            "crash-partition; delay-item; delay-partition; error-partition; expire-partition; lost-partition; "
            "timeout-partition"
        ),
        "a_request_without_a_state_takes_effect_once": "item; partition",
        "another_request_under_the_same_key_is_refused": "another payload-item; of another state-item",
        "requests_of_one_state_take_effect_one_after_the_other": "partition",
        "two_requests_of_one_state_in_one_process_take_effect_in_turn": "partition",
        "what_an_answered_request_has_emitted_needs_a_sweeper_when_its_process_dies": "partition",
    },
    "explore_resubmission": {
        "a_key_goes_on_behind_what_was_resubmitted_and_applied": "partition",
        "a_resubmission_keeps_every_promise_under_any_single_fault": "crash-item; delay-item; stale-item",
        "it_may_be_resubmitted_again_and_copies_of_it_may_come": "partition",
        "nothing_goes_ahead_of_what_its_key_is_blocked_by": "error-item",
        "what_a_resubmission_in_item_scope_sends_arrives_under_any_single_fault": "delay; error; lost",
    },
    "explore_retention_changes": {
        "a_copy_is_applied_once_whatever_retention_was": (
            "item-jump-raised; partition-jump-crash-raised; partition-jump-expire-raised; "
            "partition-jump-lost-lowered; partition-jump-lost-raised"
        )
    },
    "explore_sinks": {
        "each_entry_takes_effect_once": (
            "rests at the beginning-database-delay; rests at the beginning-database-error; "
            "rests at the beginning-database-jump; rests at the beginning-database-lost; "
            "rests at the beginning-database-stale; rests at the beginning-documents-crash; "
            "rests at the beginning-documents-delay; rests at the beginning-documents-jump; "
            "rests at the beginning-documents-stale"
        )
    },
    "explore_stores": {
        "marks_that_ride_in_later_batches_keep_every_promise_under_any_single_fault": (
            "crash-{'workers': 2}; delay-{'workers': 2}; error-{'workers': 2}; expire-{'workers': 1, 'sweepers': 1}; "
            "expire-{'workers': 2}; jump-{'workers': 2}; lost-{'workers': 2}"
        ),
        "partition_scope_two_workers_and_a_duplicate_under_any_single_fault": "delay; expire",
        "pointers_that_wait_for_the_next_swap_keep_every_promise_under_any_single_fault": "crash; delay; error; lost",
        "warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault": (
            "crash; delay; error; expire; jump; lost"
        ),
        "workers_of_an_earlier_version_and_of_this_one_keep_every_promise_together": "delay; lost; stale",
        "workers_that_stage_outputs_and_workers_that_do_not_keep_every_promise_together": "delay; lost; stale",
    },
    "explore_streams": {
        "a_large_entry_that_is_appended_twice_has_a_blob_for_each_cell_and_leaves_none": "error",
        "a_lost_answer_and_another_fault_of_the_same_call_break_no_promise": (
            "beginning together-error; beginning together-lost; one output-error; to a queue-error; to a queue-lost; "
            "trimmed-error; trimmed-jump"
        ),
        "one_kind_of_fault_breaks_no_promise": (
            "messages with copies-delay; messages with copies-error; messages with copies-lost; "
            "replicas that begin together-delay; replicas that begin together-jump; "
            "replicas that begin together-lost; replicas that begin together-stale; "
            "two processors and a trim-delay; two processors and a trim-error; two processors and a trim-lost; "
            "two producers and two replicas-crash; two producers and two replicas-delay; warm replicas-delay; "
            "to a queue-crash; to a queue-delay; to a queue-error; to a queue-lost; to a queue-stale; "
            "each cell counts as a reader begins-delay; each cell counts as a reader begins-lost; "
            "each cell counts as a reader begins-stale; each cell counts in reports-delay; "
            "each cell counts in reports-error; each cell counts in reports-jump; each cell counts in reports-stale"
        ),
        "producers_that_are_paused_within_an_append_lose_nothing": "two pauses",
        "replicas_that_are_paused_within_an_append_write_everything_once": "lost; stale",
        "what_fails_is_refused_once_and_everything_else_handled_once": (
            "beside one that fails once-crash; beside one that fails once-delay; beside traffic-crash; "
            "beside traffic-delay; beside traffic-lost; beside traffic-stale"
        ),
        "with_all_thresholds_at_one_cell_each_append_is_there_once": "produced",
    },
    "explore_sweeping": {
        "what_a_crash_leaves_is_finished_when_it_is_as_old_as_the_grace": "{'delay': 1, 'jump': 1}-item"
    },
    "explore_triggers": {"a_stored_dead_letter_that_is_resubmitted_ends_again": "delay-item; error-partition"},
}
"""The larger scopes by file and test, both without `test_`."""


def is_larger(file: str, name: str) -> bool:
    """Whether a test of a file, by its stem and with its parameters, explores one of them."""
    test, _, parameters = name.removeprefix("test_").partition("[")
    larger = LARGER.get(file.removeprefix("test_"), {})
    return test in larger and parameters.removesuffix("]") in larger[test].split("; ")

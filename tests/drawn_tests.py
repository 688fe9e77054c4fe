"""Which of the tests that take long `make test` runs: of each case one in four, drawn by the tree.

They are two thirds of the CPU of all, and few of them break by one change.  A tree runs the same quarter whenever it is
tested, and the next change to the package runs another; `make soak` runs the rest of its tree.  Only these two draw
(`--drawn`): whoever names a file to pytest runs all of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.drawn_faults import place_of, tree_digest

TESTS = Path(__file__).resolve().parent
ONE_OF = 4
WHOLE = (
    "simulation/test_explore_",
    *(f"spark/test_{name}.py" for name in ("reconcile", "reconcile_inputs", "reconcile_screens", "quarantines")),
)
"""Beginnings of the files of which all tests are long."""
ALWAYS = ("simulation/test_explore_lattice.py",)
"""The smallest scopes of the three protocols are explored by every run."""
LONG: dict[str, tuple[str, ...]] = {
    "docs/test_pages.py": ("a_page_does_what_it_says",),
    "docs/test_process_a_log.py": (
        "replica_and_feeder_survive_a_restart_of_the_store_and_end_by_ctrl_c_without_a_traceback",
    ),
    "docs/test_quickstart.py": ("the_quickstart_does_what_it_says",),
    "examples/test_inverted_index.py": ("a_process_that_is_killed_goes_on_where_it_was",),
    "examples/test_shooting_range_hosts.py": (
        "every_attempt_counts_once_with_faults_on_everything_and_a_duplicate_of_each",
        "the_commands_of_the_readme_do_what_it_says",
    ),
    "examples/test_shooting_range_storage.py": (
        "what_is_installed_in_the_cloud_is_what_the_sample_beside_the_library_installs",
    ),
    "formal/test_specifications.py": ("a_specification_keeps_its_promises_and_comes_to_rest",),
    "functions/test_local_azure.py": (
        "a_port_that_is_taken_is_named_with_the_cure_before_anything_starts",
        "the_printed_commands_move_money_and_a_restart_keeps_it",
    ),
    "functions/test_on_emulators.py": (
        "a_request_is_applied_once_by_whichever_host_it_reaches",
        "one_of_two_hosts_is_killed_and_nothing_is_lost_or_doubled",
        "poison_is_kept_in_the_store_and_can_be_resubmitted",
        "the_timer_sends_what_a_killed_host_had_committed",
        "transfers_settle_exactly_once_with_faults_on_everything",
    ),
    "functions/test_spark_on_emulators.py": ("a_request_whose_host_is_killed_runs_its_job_once",),
    "functions/test_spark_triggers.py": ("what_is_deployed_starts_spark_jobs_where_the_settings_say_so",),
    "fuzz/test_doors.py": ("a_hostile_client_harms_no_other",),
    "fuzz/test_parsers.py": ("drawn_nonsense_is_refused_as_declared",),
    "infra/test_faults.py": ("a_planted_fault_is_found", "code_that_moves_away_from_the_templates_is_found"),
    "infra/test_infra_for.py": (
        "a_folder_that_is_no_functions_app_is_refused",
        "a_new_project_gets_templates_that_agree_with_its_code",
        "a_queue_that_the_code_has_got_since_is_added_and_ones_own_changes_stay",
        "topics_and_subscriptions_are_made_with_rights_on_just_these",
        "what_does_not_agree_any_more_is_found",
    ),
    "infra/test_topics.py": ("what_is_wrong_with_them_is_found",),
    "packaging/test_installed.py": (
        "an_application_runs_and_handles_a_message_that_comes_twice_once",
        "the_library_brings_three_packages_and_what_those_need_and_no_sdk",
        "the_lock_is_all_that_the_functions_app_needs",
        "the_wheel_carries_what_bench_measures",
    ),
    "simulation/prior_art/test_talk_algorithm.py": (
        "a_staged_result_that_is_kept_survives_an_unknown_swap",
        "the_repaired_algorithm_bears_a_crash_and_a_lost_answer_at_once",
    ),
    "simulation/test_crash_matrix.py": (
        "any_pair_of_faults_changes_nothing_that_can_be_seen",
        "any_single_fault_changes_nothing_that_can_be_seen",
        "drawn_faults_and_duplicates_change_nothing_that_can_be_seen",
    ),
    "simulation/test_mutate.py": ("survivors_are_listed_until_they_are_judged_and_no_file_changes",),
    "simulation/test_mutating.py": ("every_fault_of_a_file_compiles_to_something_else",),
    "simulation/test_stalling.py": ("an_output_is_late_where_all_replicas_stall_at_once",),
    "simulation/test_swapping.py": (
        "a_body_is_exchanged_wherever_its_function_is_held",
        "a_change_outside_of_bodies_is_left_to_an_import",
    ),
    "spark/test_consume.py": ("a_driver_killed_around_the_commit_adds_each_row_once",),
    "spark/test_feed.py": ("a_driver_that_dies_goes_on_where_it_was",),
    "spark/test_following.py": (
        "a_follower_is_killed_and_another_goes_on_until_it_is_asked_to_end",
        "an_outage_longer_than_the_limit_ends_a_follower_with_everything_merged",
    ),
    "spark/test_inputs_on_spark.py": ("spans_that_tasks_read_give_the_rows_that_a_judge_sees",),
    "spark/test_inputs_at_addresses.py": ("spans_archives_and_row_groups_are_read_in_ranges",),
    "spark/test_lakes.py": (
        "a_feed_is_killed_at_every_step_and_sends_each_row",
        "receivers_are_killed_at_every_step_and_land_each_message",
    ),
    "spark/test_ledger_kills.py": (
        "a_vacuum_that_is_killed_between_its_deletions_is_done_again",
        "mergers_that_race_add_each_row_once",
    ),
    "spark/test_ledger_lakes.py": (
        "a_merger_dies_at_every_step_and_each_row_is_there_once",
        "a_vacuum_under_drawn_faults_takes_nothing_that_is_named",
        "drawn_faults_cost_no_row_and_double_none",
    ),
    "spark/test_ledger_power.py": (
        "a_power_loss_in_a_merge_costs_nothing",
        "a_power_loss_in_a_take_over_costs_nothing",
    ),
    "spark/test_messy_files.py": ("each_row_is_sent_as_it_stands_or_set_aside",),
    "spark/test_place_faults.py": ("drawn_faults_change_no_answer",),
    "spark/test_submit_local.py": ("a_job_is_submitted_locally_from_exactly_the_package",),
    "spark/test_sweep.py": (
        "the_command_says_so_by_its_exit_code",
        "two_sweeps_of_one_part_and_of_all_at_once_send_no_second_identity",
        "what_is_stuck_is_finished_once_and_a_second_sweep_finds_nothing",
    ),
    "unit/amqp/test_amqp_types.py": ("what_is_encoded_reads_back",),
    "unit/emulator/test_cosmos_query_steps.py": ("what_grows_with_a_value_counts_on_one_row",),
    "unit/engine/test_compaction_process.py": ("a_host_that_is_killed_while_it_compacts_loses_nothing",),
    "unit/engine/test_replay.py": ("what_an_open_finds_is_what_was_logged",),
    "unit/engine/test_slices.py": (
        "a_crash_between_any_two_steps_loses_nothing_acknowledged",
        "slices_hold_what_one_image_holds",
    ),
    "unit/engine/test_snapshot_fields.py": (
        "a_snapshot_that_forgets_a_field_is_found",
        "the_comparison_covers_every_field_of_the_state",
    ),
    "unit/engine_log/test_log_closed.py": (
        "a_block_of_zeros_at_any_place_of_a_log_at_rest_loses_nothing_unseen",
        "a_block_with_the_content_of_before_loses_nothing_unseen",
        "a_crash_at_any_call_of_the_next_open_hides_no_cut_and_refuses_nothing_that_is_whole",
        "a_flipped_bit_at_any_place_of_a_log_at_rest_loses_nothing_unseen",
    ),
    "unit/engine_log/test_log_crashes.py": (
        "a_crash_before_any_disk_call_loses_nothing_acknowledged",
        "a_crash_during_recovery_loses_nothing_acknowledged",
    ),
    "unit/engine_log/test_log_mutants.py": ("a_fault_planted_in_the_log_is_found",),
    "unit/handlers/test_guards.py": ("an_exploration_has_no_guards",),
    "unit/handlers/test_middleware.py": ("a_handler_with_middleware_keeps_every_promise",),
    "unit/ops/test_cli.py": ("bench_measures_in_the_current_folder_and_leaves_nothing_there",),
    "unit/ops/test_looks_in_slices.py": ("an_answer_looks_at_a_bounded_number_between_two_turns_of_the_loop",),
    "unit/ops/test_new.py": ("a_new_project_passes_its_own_tests",),
    "unit/ops/test_situations.py": ("one_command_names_the_cause_and_the_cure",),
    "unit/ops/test_terminal.py": ("a_terminal_that_cannot_show_an_id_gets_the_answer",),
    "unit/runtime/test_async_handlers.py": ("waiting_messages_act_once_under_drawn_faults",),
    "unit/runtime/test_fast_path.py": ("a_batch_in_one_go_comes_to_the_same_commit",),
    "unit/runtime/test_message_schemas.py": ("a_newer_message_is_released_uncounted_and_never_decoded",),
    "unit/runtime/test_ordering.py": (
        "order_is_kept_under_drawn_faults",
        "plain_waiting_and_shared_messages_of_one_key_keep_their_order_under_drawn_faults",
    ),
    "unit/runtime/test_protocol_seams.py": ("a_key_that_stops_has_its_dead_letter_whatever_happens_between",),
    "unit/runtime/test_redacting.py": ("a_hostile_text_takes_no_time",),
    "unit/streams/pipeline/test_state_types.py": (
        "what_is_saved_of_changes_is_the_state_whatever_becomes_of_checkpoints",
    ),
    "unit/streams/test_processor.py": ("replicas_killed_at_any_time_leave_the_log_of_a_run_without_a_failure",),
    "unit/verify/test_audit_command.py": ("a_killed_hosts_history_is_judged_sound",),
    "unit/verify/test_pytest_plugin.py": ("what_is_wrong_is_the_failure",),
    "unit/verify/test_recording.py": ("lives_that_end_by_a_crash_are_one_sound_history",),
    "unit/verify/test_words.py": ("too_much_on_its_way_is_refused_with_the_cure",),
    "wire/blobs/test_blobs_lasting.py": ("what_was_acknowledged_survives_kills",),
    "wire/cli/test_access_key.py": (
        "a_client_without_the_folders_key_is_refused_at_every_endpoint",
        "a_key_that_others_can_read_or_that_is_none_stops_the_start",
        "the_key_outlives_kill_9_until_it_is_replaced",
        "without_the_endpoint_no_port_is_taken_and_commands_still_work",
    ),
    "wire/cli/test_azure.py": ("options_may_be_given_in_place_of_the_environment",),
    "wire/cli/test_backup.py": ("after_a_kill_the_backup_is_one_moment_and_its_audit_finds_nothing",),
    "wire/cli/test_cures.py": ("a_subscription_gets_a_corrected_message_as_all_others_do",),
    "wire/cli/test_dead_letters_in_two_places.py": ("a_message_without_an_id_is_named_by_its_number",),
    "wire/cli/test_deep_queues.py": (
        "what_is_scheduled_behind_thousands_is_due_or_cancelled",
        "what_waits_behind_thousands_is_shown_and_traced",
        "where_there_is_more_than_is_looked_through_nothing_is_said_to_be_absent",
    ),
    "wire/cli/test_emulators.py": ("items_and_blobs_outlive_the_process_that_served_them",),
    "wire/cli/test_giving_way.py": (
        "a_host_starts_while_lines_are_waited_for_and_gets_the_later_ones",
        "a_host_starts_while_nobody_reads_an_export_and_the_export_is_whole",
        "a_second_host_is_refused_at_once",
        "what_a_killed_host_left_is_no_other_host_while_a_command_has_the_log",
    ),
    "wire/cli/test_host.py": (
        "a_drain_loses_nothing_and_redelivers_nothing",
        "a_host_logs_which_messages_it_has_no_handler_for",
        "a_host_whose_disk_fails_stops_with_the_error",
        "a_killed_host_keeps_what_was_sent_and_the_next_one_goes_on",
        "an_application_that_does_not_load_is_one_clear_line",
        "an_emulator_needs_no_application_and_takes_the_official_entities_file",
        "the_first_programs_commands_do_what_they_say",
    ),
    "wire/cli/test_http.py": (
        "a_host_serves_metrics_and_is_traced_where_it_is_asked_to",
        "a_reply_survives_the_host_that_gave_it",
        "entries_without_a_port_and_a_port_without_entries_are_reported",
    ),
    "wire/cli/test_situations.py": ("one_command_names_it_in_item_scope", "one_command_names_the_cause_and_the_cure"),
    "wire/cosmos/test_cosmos_batch.py": ("the_answer_of_a_batch_has_a_size",),
    "wire/cosmos/test_cosmos_pages.py": (
        "pages_are_what_they_would_be_without_a_snapshot",
        "the_fortieth_page_looks_at_no_item_again",
    ),
    "wire/cosmos/test_cosmos_queries.py": ("a_query_that_would_take_everything_is_refused",),
    "wire/cosmos/test_cosmos_types.py": (
        "a_header_that_makes_no_sense_is_no_error_of_the_emulator",
        "a_member_of_the_wrong_type_is_no_error_of_the_emulator",
    ),
    "wire/on_azure/test_adapter_mutants.py": ("a_fault_planted_in_an_adapter_is_found",),
    "wire/on_azure/test_bench_account.py": (
        "rows_say_what_a_message_took_and_nothing_is_left",
        "what_cannot_be_deleted_is_named",
        "what_has_no_room_in_the_limit_is_not_begun",
    ),
    "wire/on_azure/test_bench_azure.py": (
        "a_run_far_away_publishes_both_sides",
        "requests_a_message_are_those_of_the_protocol",
    ),
    "wire/on_azure/test_bench_streams.py": ("an_append_is_one_request_and_a_step_three",),
    "wire/on_azure/test_blob_contract.py": (
        "blob_storage_is_a_blob_store",
        "names_of_blobs_stay_apart",
        "ordered_logs_keep_their_promises_on_blob_storage",
    ),
    "wire/on_azure/test_blob_duel.py": (
        "an_emulator_that_ignores_etags_is_caught",
        "drawn_operations_come_to_what_azurite_says",
    ),
    "wire/on_azure/test_cosmos_contract.py": ("ordered_logs_keep_their_promises_on_cosmos",),
    "wire/on_azure/test_crashes.py": ("drawn_faults_change_nothing_that_can_be_seen",),
    "wire/on_azure/test_models.py": ("the_store_model_does_what_cosmos_does_through_the_sdk",),
    "wire/on_azure/test_round_trips.py": ("the_rate_rises_with_concurrency",),
    "wire/on_azure/test_thousand.py": ("messages_under_every_kind_of_fault_are_neither_lost_nor_doubled",),
    "wire/servicebus/test_fuzz.py": ("mutated_streams_never_break_the_broker",),
    "wire/servicebus/test_kill.py": ("what_was_acknowledged_survives_kills_and_comes_once",),
    "wire/servicebus/test_limits.py": (
        "a_peers_words_make_no_line_of_the_log_and_few_lines",
        "who_does_not_read_why_its_connection_ends_is_dropped",
        "who_reads_nothing_and_has_no_token_is_dropped",
    ),
    "wire/servicebus/test_suspects.py": ("a_message_that_kills_its_host_is_dead_lettered_alone",),
    "wire/streams/test_pipeline_on_blobs.py": ("replicas_that_are_killed_release_each_output_once_and_in_order",),
    "wire/streams/test_sink_on_postgresql.py": ("an_apply_that_ends_the_transaction_is_refused",),
    "wire/streams/test_streams_on_the_command_line.py": (
        "a_list_costs_some_requests_a_row_however_many_cells_there_are",
        "a_store_that_cannot_list_is_refused_with_what_can",
    ),
}
"""The other tests that take a CPU second or more in all their cases, without `test_`, by their files."""


def is_left_out(item: pytest.Item) -> bool:
    """Whether a test is a long one that this tree's draw leaves to the soak."""
    file = item.path.relative_to(TESTS).as_posix()
    test = item.name.partition("[")[0].removeprefix("test_")
    is_long = test in LONG.get(file, ()) or (file.startswith(WHOLE) and file not in ALWAYS)
    return is_long and place_of(f"{file}::{item.name}", tree_digest()) % ONE_OF != 0

"""Faults in the commands that follow, move, copy and pause: trails, states by If-Match, backups, blocked keys, queues.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.operator_mutants import GROUPS, VIEWS, fault

TRACE = "unit/ops/test_message_trace.py"
STATES = "unit/ops/test_state_import.py"
LINES, STORE_STATES, ENGINE_STATES = (
    f"outbox/ops/{name}.py" for name in ("state_lines", "store_states", "engine_states")
)
BLOBS = "outbox/engine/backend/blobs.py"
BACKUPS, BACKUP, BACKUP_FILES = "unit/ops/test_backup.py", "outbox/ops/backup.py", "outbox/ops/backup_files.py"
BLOCKED, PLACES = "unit/ops/test_blocked.py", "outbox/ops/blocked_places.py"
COMPLETED, COMPLETION = "unit/ops/test_completion.py", "outbox/ops/completion.py"
DISCARDS = "unit/ops/test_discards.py"
OF_ONE_ID, GROUPED = "unit/ops/test_dead_letters_of_one_id.py", "outbox/ops/dead_letters.py"
IN_LANES = "unit/stores/test_waiting_in_lanes.py"
TRAIL, RECORDS, HISTORY = (f"outbox/ops/trail{name}.py" for name in ("", "_records", "_history"))

COMMAND_MUTANTS = (
    fault(
        "an effect that is gone hides what it caused", RECORDS,
        f"{TRACE}::test_an_order_leads_over_a_charge_that_is_gone_to_its_parcel",
        ("    found = list(unseen_effects(starts, first.unseen, handlers, keys))\n", "    found = list[Sighting[Fact]]()\n"),
    ),
    fault(
        "the first message of a chain is not looked for from below", RECORDS,
        f"{TRACE}::test_a_parcel_leads_back_to_its_order_without_a_key",
        ("dict.fromkeys((first.id, *filter(None, begun)))", "dict.fromkeys((first.id,))"),
    ),
    fault(
        "what has not left is no hop of a trail", "outbox/ops/store_trail.py",
        f"{TRACE}::test_over_a_store_an_output_that_has_not_left_is_a_hop_too",
        ("        for output in record.outputs:\n", "        for output in record.outputs[:0]:\n"),
    ),
    fault(
        "a transaction that a state still points to has no record", "outbox/ops/store_trail.py",
        f"{TRACE}::test_over_a_store_an_output_that_has_not_left_is_a_hop_too",
        ("        return None if state is None else await self._pointed(state, inbox)\n", "        return None\n"),
    ),
    fault(
        "a commit that failed counts in a history", HISTORY,
        f"{TRACE}::test_a_commit_without_an_outcome_is_said_to_be_unknown",
        ("                open_.pop(event.op, None)\n", "                yield open_.pop(event.op), \"ok\"\n"),
    ),
    fault(
        "a commit without an outcome counts as done", HISTORY,
        f"{TRACE}::test_a_commit_without_an_outcome_is_said_to_be_unknown",
        ("        yield left, \"unknown\"\n", "        yield left, \"ok\"\n"),
    ),
    fault(
        "effects beyond the width are dropped unsaid", TRAIL,
        f"{TRACE}::test_a_circle_and_a_wide_tree_end",
        ("more=len(below) - len(shown)))", "more=0))"),
    ),
    fault(
        "an import writes over what changed meanwhile", LINES,
        f"{STATES}::test_a_state_that_changed_meanwhile_is_never_written_over",
        ("    if line.version != found.version:\n", "    if False:\n"),
    ),
    fault(
        "an import makes again what was deleted", LINES,
        f"{STATES}::test_a_state_that_changed_meanwhile_is_never_written_over",
        ("        if line.version == ABSENT:\n            return StateWritten(\"written\", id)\n        return StateWritten(\"changed\"",
         "        if True:\n            return StateWritten(\"written\", id)\n        return StateWritten(\"changed\""),
    ),
    fault(
        "a state with a pointer is written over", STORE_STATES,
        f"{STATES}::test_a_state_whose_transaction_is_not_finished_is_left",
        ("verdict.outcome == \"written\" and item.pending", "verdict.outcome == \"written\" and False"),
    ),
    fault(
        "a dry run writes", ENGINE_STATES,
        f"{STATES}::test_a_dry_run_changes_nothing",
        ("verdict.outcome != \"written\" or dry_run", "verdict.outcome != \"written\""),
    ),
    fault(
        "a history is not told of an import", ENGINE_STATES,
        f"{STATES}::test_an_audit_misses_a_writer_only_where_it_was_not_told_of_an_import",
        ("    if on_written is not None and written is not None:\n", "    if False:\n"),
    ),
    fault(
        "a file with a bad line is written up to it", "outbox/ops/state_commands.py",
        f"{STATES}::test_a_file_with_a_bad_line_changes_nothing",
        ("    check_file(options.file)\n", ""),
    ),
    fault(
        "a backup leaves out what the host has just acknowledged", BACKUP,
        f"{BACKUPS}::test_under_load_a_backup_is_one_moment_and_has_all_that_was_acknowledged",
        ("                    least = await operator.seal()\n", "                    least = 0\n"),
    ),
    fault(
        "a large body that the host deletes under the copy is missing", BACKUP,
        f"{BACKUPS}::test_a_large_body_that_is_deleted_behind_the_cut_comes_along",
        ("_blobs(root, folder / BLOBS, deleted)", "_blobs(root, folder / BLOBS)"),
    ),
    fault(
        "two backups share what is kept, and the first to end removes it", BLOBS,
        f"{BACKUPS}::test_a_large_body_that_is_deleted_behind_the_cut_comes_along",
        ("return hold(folder, os.O_RDONLY | os.O_DIRECTORY)", "return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)"),
    ),
    fault(
        "a file that was retired under the copy is left out", BACKUP,
        f"{BACKUPS}::test_a_file_that_is_retired_meanwhile_makes_the_copy_begin_again",
        ("            shutil.rmtree(root / LOG, ignore_errors=True)\n", "            return []\n"),
    ),
    fault(
        "a restored log gives out the locks of the first", BACKUP,
        f"{BACKUPS}::test_a_restored_log_is_another_one_and_voids_the_locks_of_the_first",
        ("        epoch_step=EPOCH_STEP,\n", ""),
    ),
    fault(
        "a damaged file of a backup is restored", BACKUP_FILES,
        f"{BACKUPS}::test_a_damaged_backup_restores_nothing",
        ("    if digest.hexdigest() != file.sha256:\n", "    if False:\n"),
    ),
    fault(
        "what lies in a packed backup is written wherever it says", BACKUP_FILES,
        f"{BACKUPS}::test_a_packed_backup_holds_nothing_else",
        ("not (member.name == MANIFEST or _NAME(member.name))", "False"),
    ),
    fault(
        "a torn tail is copied", BACKUP,
        f"{BACKUPS}::test_without_a_host_a_torn_tail_is_left_out_and_the_folder_stays_as_it_is",
        ("[found.tail]", "[(folder / segment_name(found.last_segment)).read_bytes()]"),
    ),
    fault(
        "what waits behind a dead letter is counted over all keys", PLACES,
        f"{BLOCKED}::test_each_blocked_key_says_by_what_and_how_many_wait",
        ("{*session.ready, *session.claimed}", "queue.tasks.keys()"),
        ("task.message.session_id == session.id for", "bool(task) for"),
    ),
    fault(
        "a key is unblocked by the first that begins so", "outbox/ops/blocked.py",
        f"{BLOCKED}::test_only_a_blocked_key_is_unblocked_and_its_prefix_must_be_one",
        ("    if len(found) > 1:\n", "    if len(found) > 2:\n"),
    ),
    fault(
        "a dead letter is discarded where it was to be resubmitted", "outbox/ops/blocked.py",
        f"{BLOCKED}::test_resubmitting_it_runs_it_first_and_blocks_the_key_again_if_it_fails",
        ("operator.discard if by == \"discard\" else operator.resubmit", "(operator.discard)"),
    ),
    fault(
        "a list of blocked keys ends with its first page", "outbox/ops/blocked_places.py",
        f"{BLOCKED}::test_pages_go_on_where_the_last_one_ended",
        ("if len(found) > len(shown) else", "if len(found) < len(shown) else"),
    ),
    fault(
        "a missing package for completion is a traceback", COMPLETION,
        f"{COMPLETED}::test_what_writes_the_scripts_is_optional",
        ("    except ModuleNotFoundError as error:\n", "    except EOFError as error:\n"),
    ),
    fault(
        "completion knows a part of the commands", COMPLETION,
        f"{COMPLETED}::test_a_script_has_every_command_and_its_options",
        ("    return shtab.complete(parser, shell)", "    parser._actions = parser._actions[:2]\n    return shtab.complete(parser, shell)"),
    ),
    fault(
        "all that comes for a key may wait for it", "outbox/worker.py",
        f"{IN_LANES}::test_no_more_wait_than_may_be_at_work",
        (", 2 * self._concurrency - held_count)", ", 20 * self._concurrency - held_count)"),
    ),
    fault(
        "what has waited counts as waiting for ever", "outbox/runtime/store_scope.py",
        f"{IN_LANES}::test_no_more_wait_than_may_be_at_work",
        ("                self._count_waiting(attempts, -1)\n", ""),
    ),
    fault(
        "what is to be due now is cancelled before it is sent", "outbox/ops/store_messages.py",
        "unit/ops/test_store_operator.py::test_what_is_to_be_due_now_is_cancelled_only_when_it_was_sent",
        ("            await self._operations.send([Output(queue, 0, message)])\n            await self._cancel(queue, [held.sequence])\n",
         "            await self._cancel(queue, [held.sequence])\n            await self._operations.send([Output(queue, 0, message)])\n"),
    ),
    fault(
        "a filter discards all dead letters of an id", "outbox/ops/engine_operator.py",
        f"{OF_ONE_ID}::test_a_filter_discards_what_it_means_and_no_other_of_the_id",
        ("in_slices(dict.fromkeys(sequences), MOVED_COUNT)", "in_slices([*self._engine.broker.queue(dead_letter_path(queue)).tasks])"),
    ),
    fault(
        "a number means the newest dead letter of an id", VIEWS,
        f"{OF_ONE_ID}::test_a_filter_resubmits_what_it_means",
        ("if sequence in (0, each.sequence)]", "]"),
    ),
    fault(
        "copies that went along with a resubmission count as left", GROUPED,
        f"{OF_ONE_ID}::test_copies_that_go_along_with_a_resubmission_are_not_left",
        ("            if its in run:\n                return 0  # a copy, which went along\n", ""),
    ),
    fault(
        "unblocking a key goes by the id of its dead letter", "outbox/ops/blocked.py",
        f"{OF_ONE_ID}::test_unblocking_a_key_moves_the_dead_letter_of_no_other",
        ("await move(queue, key.id, sequence=key.sequence)", "await move(queue, key.id)"),
    ),
    fault(
        "an id in a cure may be several words", "outbox/ops/names.py",
        f"{OF_ONE_ID}::test_a_cure_holds_an_id_as_one_word_whatever_its_sender_chose",
        ("    return shlex.quote(text)\n", "    return text\n"),
    ),
    fault(
        "a discard of what another client has in hand unblocks its key", "outbox/runtime/store_operations.py",
        f"{DISCARDS}::test_what_another_client_has_in_hand_is_left_as_it_is",
        ("            await self._bus.discard(dead.queue, dead.sequence, first=unblock)\n",
         "            await unblock()\n            await self._bus.discard(dead.queue, dead.sequence)\n"),
    ),
    fault(
        "a filter by exception means a part of its name", VIEWS,
        f"{GROUPS}::test_a_filter_means_those_that_fit_all_of_it",
        ("        if where.exception not in (name, name.rpartition(\".\")[2]):", "        if where.exception not in name:"),
    ),
    fault(
        "a filter by handler means all of its queue", VIEWS,
        f"{GROUPS}::test_a_filter_means_those_that_fit_all_of_it",
        ("    if where.handler and not types.taken_by(where.handler, dead.message):", "    if where.handler == \"?\":"),
    ),
)  # fmt: skip

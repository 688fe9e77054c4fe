"""Faults in single steps of the runtime: what it remembers and for how long, its limits, and its edges.

Each is planted alone, and the test that it names must fail of it.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

OF_STEPS = "unit/steps/test_runtime_steps.py"
OF_HOSTS = "unit/steps/test_host_steps.py"
OF_NOTES = "unit/steps/test_registrations.py"
OF_MARKS = "unit/stores/test_riding_marks.py"
OF_LEDGER = "unit/stores/test_dispatch_ledger.py"
OF_ERAS = "unit/steps/test_retention_eras.py"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault in `outbox/`; `found_by` names a test below `tests/`."""
    return Mutant(name, "steps", (found_by,), f"outbox/{file}", edits)


STEP_MUTANTS = (
    # Retention and names
    mutant(
        "notes: one retention less may matter", "runtime/start/retention.py",
        f"{OF_NOTES}::test_so_many_earlier_retentions_matter_and_no_more",
        ("if len(latest) > ERA_COUNT_MAX", "if len(latest) >= ERA_COUNT_MAX"),
    ),
    mutant(
        "notes: a topic has none of the types of its subscriptions", "runtime/start/handler_names.py",
        f"{OF_NOTES}::test_the_types_of_a_topic_are_those_of_its_subscriptions",
        (' or handler.source.startswith(f"{queue}/Subscriptions/")', ""),
    ),
    mutant(
        "notes: a source that is gone still holds messages", "runtime/start/handler_names.py",
        f"{OF_NOTES}::test_a_handler_may_have_another_name_when_its_source_is_gone",
        ("    except UnknownDestination:\n        return True\n", "    except UnknownDestination:\n        return False\n"),
    ),
    mutant(
        "retention: an attempt takes all of what an earlier margin spares", "runtime/start/retention.py",
        "unit/runtime/test_retention_changes.py::test_a_raised_margin_lets_an_attempt_take_longer_when_no_earlier_record_matters_any_more",
        ("ms // 2 for ms in spare_ms", "ms for ms in spare_ms"),
    ),
    mutant(
        "notes: an application forgets the handlers of its other workers", "runtime/start/handler_names.py",
        "unit/runtime/test_handler_names.py::test_applications_that_read_other_sources_leave_each_other_alone",
        ("wanted = sorted([*current, *(other for other in known.values() if other.source not in sources)])", "wanted = sorted(current)"),
    ),
    # Admission
    mutant(
        "admission: the ids of all keys are kept", "runtime/start/plan.py",
        f"{OF_STEPS}::test_the_ids_of_so_many_keys_are_cached_and_no_more",
        ("        if len(self) >= KEY_COUNT_MAX:\n            self.clear()\n", ""),
    ),
    mutant(
        "admission: what has arrived by its broker's clock is ahead of time", "runtime/delivery/admission.py",
        f"{OF_STEPS}::test_a_message_is_not_ahead_of_time_while_its_broker_says_that_it_has_arrived",
        ("max(now_ms, delivery.enqueued_ms)", "now_ms"),
    ),
    mutant(
        "admission: all claim checks have one payload", "runtime/delivery/admission.py",
        f"{OF_STEPS}::test_the_payload_of_a_claim_check_is_what_its_blob_holds",
        (', fingerprint=b"")\n', ")\n"),
    ),
    mutant(
        "admission: a claim opens the body of any message", "runtime/delivery/claim_check.py",
        "unit/runtime/test_claim_checks.py::test_a_claim_taken_from_another_message_is_not_read",
        ("if match is None or match[1] != _owner(message):", "if match is None:"),
    ),
    # Settlement
    mutant(
        "settlement: a pause grows for ever", "runtime/delivery/retrying.py",
        f"{OF_STEPS}::test_the_pause_before_a_release_grows_until_something_is_committed",
        ("    def reset(self) -> None:\n        self.count = 0", "    def reset(self) -> None:\n        pass"),
    ),
    mutant(
        "settlement: a delivery that was released is settled again", "runtime/delivery/settlement.py",
        f"{OF_STEPS}::test_a_delivery_that_was_released_is_not_settled_again",
        ("            one.is_released = True\n", "            pass\n"),
    ),
    mutant(
        "letters: all are read to be counted", "runtime/delivery/stored_dead_letters.py",
        f"{OF_STEPS}::test_dead_letters_are_counted_up_to_a_limit",
        ("            if count >= count_max:\n                break\n", ""),
    ),
    mutant(
        "letters: one whose number is taken is lost", "runtime/delivery/stored_dead_letters.py",
        "functions/test_stored_dead_letters.py::test_dead_letters_whose_numbers_meet_are_all_kept",
        ("        return _decoded(document).origin == dead.origin\n", "        return bool(_decoded(document))\n"),
    ),
    mutant(
        "letters: one that came since goes with a resubmission", "runtime/delivery/stored_dead_letters.py",
        "functions/test_stored_dead_letters.py::test_a_dead_letter_that_came_since_is_no_copy_of_what_is_resubmitted",
        (" and other.message.attempt < attempt\n", "\n"),
    ),
    mutant(
        "blocked: all that waits is kept in memory", "runtime/delivery/waiting.py",
        f"{OF_STEPS}::test_so_many_waiting_messages_are_known_and_no_more",
        ("        while len(self._known) >= KNOWN_COUNT_MAX:\n            del self._known[next(iter(self._known))]\n", ""),
    ),
    mutant(
        "blocked: the last payload under an id waits for the first", "runtime/delivery/waiting.py",
        f"{OF_STEPS}::test_the_first_of_two_payloads_under_an_id_is_put_on_record_as_waiting",
        ("known[branch.inbox] = commit.refused[branch.inbox] = waiting", "commit.refused[branch.inbox] = waiting"),
    ),
    mutant(
        "blocked: a message goes when one of its handlers has applied it", "runtime/delivery/waiting.py",
        f"{OF_STEPS}::test_a_message_stays_behind_a_block_while_one_of_its_handlers_has_not_applied_it",
        ("if all(verdict is Verdict.DUPLICATE for", "if any(verdict is Verdict.DUPLICATE for"),
    ),
    # Commits
    mutant(
        "commit: what was applied is on record as refused too", "runtime/commit/engine_transaction.py",
        f"{OF_STEPS}::test_what_a_group_refuses_and_then_applies_is_applied",
        ("            commit.refused.pop(key, None)\n", ""),
    ),
    mutant(
        "commit: a state of equal bytes keeps its old schema", "runtime/commit/engine_transaction.py",
        f"{OF_STEPS}::test_a_state_of_equal_bytes_is_written_under_its_new_schema",
        ("elif before.value != value or before.schema != schema:", "elif before.value != value:"),
    ),
    mutant(
        "deadline: an attempt is late at its deadline", "runtime/commit/store_transaction.py",
        f"{OF_STEPS}::test_an_attempt_is_late_behind_its_deadline_and_not_at_it",
        ("return now_ms - self.now_ms > self._plan.attempt_ms_max", "return now_ms - self.now_ms >= self._plan.attempt_ms_max"),
    ),
    mutant(
        "deadline: one attempt takes all messages of a batch", "runtime/commit/store_transaction.py",
        f"{OF_STEPS}::test_an_attempt_is_late_behind_its_deadline_and_not_at_it",
        ("return 2 * (now_ms - self.now_ms) > self._plan.attempt_ms_max", "return False"),
    ),
    mutant(
        "cache: what is remembered again counts twice", "runtime/commit/state_cache.py",
        f"{OF_STEPS}::test_a_cached_state_counts_once_however_often_it_is_remembered",
        ("        self.forget(state_id)\n        self._states[state_id]", "        self._states[state_id]"),
    ),
    mutant(
        "cache: states of any size are kept", "runtime/commit/state_cache.py",
        f"{OF_STEPS}::test_states_are_cached_up_to_a_limit_of_bytes",
        (" or self._bytes > self._bytes_max:", ":"),
    ),
    mutant(
        "cache: an older state takes the place of a newer one", "runtime/commit/state_cache.py",
        "unit/stores/test_port_calls.py::test_a_cache_takes_nothing_older_than_it_has",
        ("if known is not None and known.item.version > state.item.version:", "if False:"),
    ),
    mutant(
        "marks: any number is due", "runtime/commit/marks.py",
        f"{OF_STEPS}::test_marks_are_kept_up_to_their_limits",
        ("self.due_count >= DUE_COUNT_MAX or ", ""),
    ),
    mutant(
        "marks: what was written still takes room", "runtime/commit/marks.py",
        f"{OF_STEPS}::test_marks_that_are_written_make_room_for_others",
        ("        self._due_bytes -= len(mark.write.body)\n", ""),
    ),
    mutant(
        "marks: they linger once and never again", "runtime/commit/marks.py",
        f"{OF_STEPS}::test_marks_linger_each_time_and_not_once_only",
        ("        finally:\n            self._is_waiting = False\n", "        finally:\n            pass\n"),
    ),
    mutant(
        "marks: none rides in the next batch of its key", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_mark_rides_in_the_next_batch_of_its_key",
        ("            if riding:\n", "            if False:\n"),
    ),
    mutant(
        "marks: the handler runs again where a mark has lost", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_mark_that_another_has_made_takes_no_handling_with_it",
        ("            return None if lost >= 0 else answer\n", "            return answer\n"),
    ),
    mutant(
        "marks: one that has lost rides again", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_mark_that_another_has_made_takes_no_handling_with_it",
        ("for at, mark in enumerate(riding) if at != lost])", "for mark in riding])"),
    ),
    mutant(
        "marks: those beside one that has lost are forgotten", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_marks_beside_one_that_has_lost_are_still_due",
        ("            return None if lost >= 0 else answer\n",
         "            riding = riding if lost < 0 else []\n            return None if lost >= 0 else answer\n"),
    ),
    mutant(
        "marks: what rides in a batch that fails is forgotten", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_marks_whose_batch_was_not_written_are_still_due",
        ("        lost = -1\n", "        lost, taken, riding = -1, riding, []\n"),
        ("*(mark.write for mark in riding)])", "*(mark.write for mark in taken)])"),
    ),
    mutant(
        "marks: the state has the version of a mark", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_what_rides_does_not_lend_the_state_its_version",
        ("Won(answer.versions[: len(writes)], answer.session)", "answer"),
    ),
    mutant(
        "marks: more ride than a batch has room for", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_no_more_marks_ride_than_a_batch_has_room_for",
        ("batch_count_max - len(writes)\n", "batch_count_max\n"),
    ),
    mutant(
        "marks: more bytes ride than a batch has room for", "runtime/commit/fitting.py",
        f"{OF_MARKS}::test_no_more_bytes_ride_than_a_batch_has_room_for",
        ("return fitted, limit - size_of(fitted)", "return fitted, limit"),
    ),
    mutant(
        "marks: a batch is refused for the bytes of its marks", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_batch_that_is_too_large_for_its_marks_alone_is_written_without",
        ("        except TooLarge:\n            return None\n        finally:", "        finally:"),
    ),
    mutant(
        "marks: that of spilled outputs rides, and their blob stays", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_mark_of_outputs_in_a_blob_does_not_ride",
        ("            if not mark.spilled:\n                taken", "            if True:\n                taken"),
    ),
    mutant(
        "marks: a batch that lost to a mark is written past its deadline", "runtime/commit/marks.py",
        f"{OF_MARKS}::test_a_batch_that_lost_to_a_mark_is_not_written_past_its_deadline",
        ("                check()\n", "                pass\n"),
    ),
    mutant(
        "staged: a worker reclaims what it is about to swap", "runtime/commit/orphaned_staged.py",
        f"{OF_STEPS}::test_a_worker_reclaims_what_it_staged_in_vain_and_not_what_it_is_about_to_swap",
        ("            if tx == but:\n                continue\n", ""),
    ),
    mutant(
        "overflow: a blob goes when one attempt could have ended", "runtime/commit/overflow.py",
        "unit/stores/test_overflow.py::test_a_blob_goes_only_when_no_record_that_is_not_dispatched_can_name_it",
        ("return self._now_ms() - overflow.at_ms > 2 * self._plan.attempt_ms_max", "return self._now_ms() - overflow.at_ms > self._plan.attempt_ms_max"),
    ),
    mutant(
        "sweep: a document whose grace is over is too young", "runtime/commit/sweeper.py",
        f"{OF_STEPS}::test_a_document_is_swept_when_its_grace_is_over",
        ("is_young = now - at_ms < grace_s * 1_000", "is_young = now - at_ms <= grace_s * 1_000"),
    ),
    mutant(
        "sweep: the next one skips what was finished", "runtime/commit/sweeper.py",
        "unit/stores/test_sweeps.py::test_what_can_never_be_sent_keeps_no_sweep_from_what_is_behind_it",
        ("start + seen - finished if is_cut", "start + seen if is_cut"),
    ),
    mutant(
        "sweep: it takes as long as it takes", "runtime/commit/sweeper.py",
        "unit/stores/test_sweeps.py::test_a_sweep_that_takes_long_is_gone_on_with_by_the_next",
        (" or now_ms() - now > SWEEP_FOR_S * 1_000:", ":"),
    ),
    # Threads and failures
    mutant(
        "threads: what has just ended holds its key for ever", "runtime/commit/handler_threads.py",
        f"{OF_STEPS}::test_a_function_that_has_just_ended_holds_no_key",
        ("        if job not in self.running:\n            return  # it has just ended\n", ""),
    ),
    mutant(
        "threads: a thread that is taken counts as idle", "runtime/commit/handler_threads.py",
        f"{OF_STEPS}::test_a_thread_that_is_taken_is_idle_no_more",
        ("            self._idle_count -= 1\n", "            pass\n"),
    ),
    mutant(
        "failures: they count as deliveries too", "runtime/failures/failure_counts.py",
        f"{OF_STEPS}::test_a_failure_count_lives_as_long_as_a_record_from_each_failure_on",
        ("left = max(0, delivery.delivery_count - count)", "left = delivery.delivery_count"),
    ),
    mutant(
        "failures: a count that grows is never forgotten", "runtime/failures/failure_counts.py",
        f"{OF_STEPS}::test_a_failure_count_lives_as_long_as_a_record_from_each_failure_on",
        ("Replace(key, body, known.version, self._life_s, tag)", "Replace(key, body, known.version, None, tag)"),
    ),
    mutant(
        "letters: a resubmission has failed before", "resubmission.py",
        f"{OF_HOSTS}::test_a_resubmission_has_not_failed_yet_and_begins_a_chain",
        ("failures=0, hops=0)", "hops=0)"),
    ),
    mutant(
        "letters: a resubmission goes on with its chain", "resubmission.py",
        f"{OF_HOSTS}::test_a_resubmission_has_not_failed_yet_and_begins_a_chain",
        ("failures=0, hops=0)", "failures=0)"),
    ),
    # Requests, clients and workers
    mutant(
        "requests: a client is to come again in years", "runtime/http/responses.py",
        f"{OF_HOSTS}::test_a_client_is_asked_to_come_again_within_a_day",
        ("min(max(after_s, AGAIN_AFTER_S), RETRY_AFTER_S_MAX)", "max(after_s, AGAIN_AFTER_S)"),
    ),
    mutant(
        "requests: any text is a trace", "runtime/http/requests.py",
        f"{OF_HOSTS}::test_only_a_trace_that_can_be_one_is_passed_on",
        ('return text if _TRACEPARENT(text) else ""', "return text"),
    ),
    mutant(
        "requests: a repetition is as old as itself", "runtime/http/idempotency_keys.py",
        "unit/stores/test_idempotency_keys.py::test_a_request_is_as_old_as_its_claim",
        ("created_ms=claim.created_ms)", "created_ms=work.delivery.message.created_ms)"),
    ),
    mutant(
        "requests: a claim goes before its record", "runtime/http/idempotency_keys.py",
        "unit/stores/test_idempotency_keys.py::test_a_claim_says_where_to_look_and_goes_when_records_do",
        ("self._plan.record_life_ms / 1_000", "self._plan.retention_ms / 1_000"),
    ),
    mutant(
        "requests: a reply on record does not wait for the gate", "runtime/http/attempts.py",
        "unit/stores/test_http_entries.py::test_a_replayed_reply_waits_until_its_record_is_durable",
        ("            await self._journal.durable()\n            return\n", "            return\n"),
    ),
    mutant(
        "client: a dead letter as old as retention needs no record", "client.py",
        f"{OF_HOSTS}::test_a_dead_letter_as_old_as_retention_needs_a_record",
        ("created_ms > plan.retention.oldest_ms(now_ms):", "created_ms >= plan.retention.oldest_ms(now_ms):"),
    ),
    mutant(
        "client: a blob that was changed is handed out", "client.py",
        f"{OF_HOSTS}::test_a_blob_that_was_changed_is_not_handed_out",
        ("if data is None or sha256(data).hexdigest() != ref.digest:", "if data is None:"),
    ),
    mutant(
        "worker: locks are looked at as often as the shortest that ever was", "worker.py",
        f"{OF_HOSTS}::test_locks_are_looked_at_as_often_as_the_shortest_that_there_is_now",
        ("            self._shortest_ms = min(self._lock_ms.values(), default=sys.maxsize)\n", ""),
    ),
    mutant(
        "worker: what is in flight when it stops stays locked", "worker.py",
        f"{OF_HOSTS}::test_what_a_worker_has_in_flight_when_it_stops_is_released_uncounted",
        ("            await self._intake.release(left)\n", ""),
    ),
    # Edges of several of these
    mutant(
        "sweep: each begins at the front", "runtime/shell.py",
        f"{OF_STEPS}::test_a_sweep_begins_where_the_last_was_cut_off",
        ("        self._start = swept.next_start\n", ""),
    ),
    mutant(
        "overflow: a read that may be old proves that nothing is staged", "runtime/commit/overflow.py",
        f"{OF_STEPS}::test_that_nothing_is_staged_is_believed_behind_a_write_only",
        ("            document = await confirmed(self._store, document)  # that read may have been stale\n", ""),
    ),
    mutant(
        "overflow: a blob goes before its record is marked", "runtime/commit/overflow.py",
        "unit/stores/test_overflow.py::test_a_blob_goes_only_when_no_record_that_is_not_dispatched_can_name_it",
        ("            return not record.pending", "            return True"),
    ),
    mutant(
        "commit: what has changed counts as confirmed", "runtime/commit/store_io.py",
        f"{OF_STEPS}::test_a_document_that_was_read_is_confirmed_while_it_is_unchanged_and_only_then",
        ("    if isinstance(answer, Lost):\n        raise NothingCommitted\n", "    if isinstance(answer, Lost):\n        return document\n"),
    ),
    mutant(
        "blocked: the last message that was refused blocks a session", "runtime/delivery/blocked_sessions.py",
        f"{OF_STEPS}::test_the_first_message_that_blocks_a_session_is_the_one_that_unblocks_it",
        ("if isinstance(answer, Lost) and attempt.is_blocker:", "if isinstance(answer, Lost):"),
    ),
    mutant(
        "admission: a body at the limit goes to a blob", "runtime/delivery/claim_check.py",
        f"{OF_STEPS}::test_a_body_at_the_limit_travels_in_its_message",
        ("if len(output.message.body) > above_bytes:", "if len(output.message.body) >= above_bytes:"),
    ),
    mutant(
        "settlement: a destination that is gone stops the worker", "runtime/delivery/settlement.py",
        f"{OF_STEPS}::test_outputs_for_a_destination_that_is_gone_are_tried_again_and_then_wait_on_record",
        ("        except (*MAY_RETRY, UnknownDestination):\n            pass", "        except MAY_RETRY:\n            pass"),
    ),
    mutant(
        "marks: the blob of a record whose mark lost is deleted", "runtime/commit/marks.py",
        "unit/stores/test_marks.py::test_a_mark_that_loses_leaves_the_blob_that_the_pending_record_names",
        ("        for mark in left:\n            if mark.spilled:", "        for mark in marks:\n            if mark.spilled:"),
    ),
    mutant(
        "overflow: the record of a landed attempt is read in the past", "runtime/commit/overflow.py",
        "unit/stores/test_overflow.py::test_the_record_of_a_landed_attempt_is_read_as_fresh_as_the_state_it_moved",
        ("overflow.inbox), state.session)", "overflow.inbox))"),
    ),
    mutant(
        "settlement: failed pushes are noted for any number of destinations", "runtime/delivery/settlement.py",
        f"{OF_STEPS}::test_failed_pushes_are_noted_for_so_many_destinations_and_counted_for_all",
        ("                if len(self._recent) >= FAILED_PUSH_DESTINATION_COUNT_MAX:\n                    continue\n", ""),
    ),
    mutant(
        "requests: the turns of every state are kept", "runtime/delivery/lanes.py",
        "unit/stores/test_http_entries.py::test_requests_of_one_state_take_turns_and_of_others_do_not_wait",
        ("            inside.pop()\n            if not inside:\n                del self._lanes[lane]", "            inside.pop()"),
    ),
    mutant(
        "requests: a body at the limit is too large", "http_entry.py",
        f"{OF_HOSTS}::test_a_body_up_to_the_limit_is_taken",
        ("if len(request.body) > self.body_bytes_max:", "if len(request.body) >= self.body_bytes_max:"),
    ),
    mutant(
        "worker: it is idle while its handler runs", "worker.py",
        f"{OF_HOSTS}::test_a_worker_is_not_idle_while_its_handler_runs_on_for_a_message_that_is_gone",
        ("while self._is_busy or not await", "while not await"),
    ),
    mutant(
        "client: only the first handler's record counts", "client.py",
        f"{OF_HOSTS}::test_an_old_dead_letter_may_go_back_when_any_of_its_handlers_refused_it_on_record",
        ("for branch in (work, *work.others):", "for branch in (work,):"),
    ),
    mutant(
        "failures: a stack shows every cause", "runtime/failures/error_text.py",
        f"{OF_HOSTS}::test_a_stack_shows_so_many_causes_and_no_more",
        ("    while waiting and count < CHAIN_COUNT_MAX:", "    while waiting:"),
    ),
    # What is remembered of failures, blocks and eras
    mutant(
        "retention: one that comes back is an earlier one", "runtime/start/retention.py",
        f"{OF_ERAS}::test_a_retention_that_comes_back_is_no_earlier_one",
        ("    latest.pop((own.retention_ms, own.margin_ms), None)\n", ""),
    ),
    mutant(
        "waiting: what cannot be put on record is never given back", "runtime/engine_scope.py",
        f"{OF_STEPS}::test_what_cannot_be_put_on_record_as_waiting_is_given_back",
        ("            await self.retry_backoff.cool_down(left[0], error)\n            await self._release(left)\n", "            await self.retry_backoff.cool_down(left[0], error)\n"),
    ),
    mutant(
        "waiting: a store that does not tell has nothing on record", "runtime/delivery/waiting.py",
        f"{OF_STEPS}::test_what_is_on_record_of_a_waiting_message_is_read_from_a_store_that_does_not_tell",
        ("found = answer.current or await read(self._store, key, answer.session)", "found = answer.current"),
    ),
    mutant(
        "engine: a message that lost its lock in a batch is under way for ever", "runtime/engine_scope.py",
        f"{OF_STEPS}::test_a_message_whose_lock_was_over_in_a_batch_is_no_longer_under_way",
        ("        self._settled([work.delivery for work in gone])\n", ""),
    ),
    mutant(
        "engine: a row of releases has no end", "runtime/engine_scope.py",
        f"{OF_STEPS}::test_the_first_commit_ends_a_row_of_releases",
        ("            self.retry_backoff.reset()\n", ""),
    ),
    mutant(
        "stores: a row of releases has no end", "runtime/store_scope.py",
        "unit/stores/test_refusing_store.py::test_the_first_commit_over_a_store_ends_a_row_of_releases",
        ("        self.retry_backoff.reset()\n        return await", "        return await"),
    ),
    mutant(
        "stores: a row of releases has no end for messages that commit together", "runtime/store_scope.py",
        "unit/stores/test_refusing_store.py::test_the_first_commit_over_a_store_ends_a_row_of_releases",
        ("        if outcomes:\n            self.retry_backoff.reset()\n", ""),
    ),
    mutant(
        "blocked: a message whose body is in a blob is another", "runtime/delivery/blocked_sessions.py",
        f"{OF_STEPS}::test_a_message_that_blocks_is_known_by_its_id_while_its_body_is_in_a_blob",
        ("    if message.claim:\n        return b\"\"\n", ""),
    ),
    mutant(
        "blocked: a block that is not ours keeps its dead letter from going back", "runtime/delivery/blocked_sessions.py",
        f"{OF_STEPS}::test_a_block_that_is_not_ours_blocks_and_is_left_alone",
        ("and blocked is not None and blocked.is_behind(message)", "and blocked.is_behind(message)"),
    ),
    mutant(
        "marks: what left with a batch is waited for", "runtime/commit/marks.py",
        f"{OF_STEPS}::test_a_partition_whose_marks_left_with_a_batch_waits_for_nothing",
        ("            self._waiting.pop(key.partition, None)\n", ""),
    ),
    mutant(
        "drained: what a state is to send is overlooked", "runtime/store_operations.py",
        "unit/stores/test_unsent_outputs.py::test_what_is_unsent_is_found_wherever_it_lies",
        ("record = inline.record or found", "record = found"),
    ),
    mutant(
        "drained: what overflows is overlooked", "runtime/store_operations.py",
        "unit/stores/test_unsent_outputs.py::test_what_is_unsent_is_found_wherever_it_lies",
        ("return bool(record.spilled) or any(", "return any("),
    ),
    mutant(
        "ledger: the entry of a lost batch stays open", "runtime/commit/store_transaction.py",
        f"{OF_LEDGER}::test_the_entry_of_a_batch_that_cannot_land_any_more_is_closed_with_that_of_the_next",
        ("entry.attempt.ledger_entries = (*entry.attempt.ledger_entries, entry.stored.entry)", "pass"),
    ),
    mutant(
        "ledger: a sweeper opens any number of entries", "runtime/commit/dispatch_ledger.py",
        f"{OF_LEDGER}::test_a_sweeper_leaves_numbers_between_open_that_may_land_later",
        ("if number > last and number - last + len(opened) <= OPEN_COUNT_MAX:", "if number > last:"),
    ),
    mutant(
        "sweep: what is finished has no age", "runtime/commit/sweeper.py",
        f"{OF_STEPS}::test_a_document_is_swept_when_its_grace_is_over",
        ("                oldest_ms = min(oldest_ms, at_ms or oldest_ms)\n", ""),
    ),
    mutant(
        "verdict: a refusal that says waiting waits", "runtime/verdict.py",
        "unit/runtime/test_verdicts.py::test_a_refusal_that_says_waiting_is_a_refusal",
        ("record.reason == WAITING and record.attempt == WAITING_ATTEMPT", "record.reason == WAITING"),
    ),
    mutant(
        "ledger: a sweeper forgets the numbers behind one that it closes", "runtime/commit/dispatch_ledger.py",
        f"{OF_LEDGER}::test_a_sweeper_that_closes_an_early_number_forgets_no_later_one",
        ("if number > last and number - last + len(opened) <=", "if number - last + len(opened) <="),
    ),
    mutant(
        "ledger: the entry of a refused batch stays open", "runtime/commit/dispatch_ledger.py",
        f"{OF_LEDGER}::test_the_entry_of_a_batch_that_was_refused_is_closed",
        ("        except NothingCommitted:\n            self.leave(batch)\n            raise\n", "        except NothingCommitted:\n            raise\n"),
    ),
    mutant(
        "blocked: what is refused again blocks as resubmitted", "runtime/delivery/blocked_sessions.py",
        f"{OF_STEPS}::test_a_resubmission_that_is_refused_again_blocks_anew_over_a_store_that_does_not_tell",
        ("found = answer.current or await self._store.read(key)", "found = answer.current"),
    ),
    mutant(
        "blocked: what is tried again in place blocks its key", "runtime/store_scope.py",
        f"{OF_STEPS}::test_only_a_dead_letter_blocks_its_session",
        ("if holds and isinstance(outcome, PoisonMessage):", "if holds:"),
    ),
    mutant(
        "limits: a batch is over its limit when all of its handlers are", "runtime/engine_scope.py",
        f"{OF_STEPS}::test_a_batch_is_over_its_limit_when_one_of_its_handlers_is",
        ("return any(work.handler is not None and taken_ms > plan.limit_ms", "return all(work.handler is not None and taken_ms > plan.limit_ms"),
    ),
    mutant(
        "settlement: failed pushes name any number of messages", "runtime/delivery/settlement.py",
        f"{OF_STEPS}::test_failed_pushes_name_so_many_messages_and_no_more",
        ("if len(found.ids) < FAILED_PUSH_ID_COUNT_MAX:", "if len(found.ids) <= FAILED_PUSH_ID_COUNT_MAX:"),
    ),
    mutant(
        "settlement: what was lost to others is reported", "runtime/delivery/retrying.py",
        f"{OF_STEPS}::test_what_was_lost_to_others_is_no_failure_to_report",
        ("if cause is not None and not has_failed_push", "if not has_failed_push"),
    ),
    mutant(
        "requests: what was lost to others is reported", "runtime/http/responses.py",
        f"{OF_STEPS}::test_what_was_lost_to_others_is_no_failure_to_report",
        ("if cause is not None and self._unavailable", "if self._unavailable"),
    ),
    mutant(
        "settlement: any dead letter keeps its successors back", "runtime/work.py",
        f"{OF_STEPS}::test_a_dead_letter_keeps_its_successors_back_only_where_it_blocks_its_key",
        ("(work.blocks_key and isinstance(outcome, PoisonMessage))", "isinstance(outcome, PoisonMessage)"),
    ),
    mutant(
        "requests: a key has no owner in a store that does not tell", "runtime/http/idempotency_keys.py",
        f"{OF_STEPS}::test_the_owner_of_a_key_is_read_from_a_store_that_does_not_tell",
        ("document = answer.current or await read(self._store, key, answer.session)", "document = answer.current"),
    ),
    mutant(
        "requests: the longest integer is too long", "runtime/http/bodies.py",
        f"{OF_STEPS}::test_a_number_of_a_body_is_as_long_as_it_may_be",
        ("    if len(text) > DIGIT_COUNT_MAX:", "    if len(text) >= DIGIT_COUNT_MAX:"),
    ),
    mutant(
        "requests: the longest fraction is too long", "runtime/http/bodies.py",
        f"{OF_STEPS}::test_a_number_of_a_body_is_as_long_as_it_may_be",
        ("    if len(text) > DIGIT_COUNT_MAX or isinf", "    if len(text) >= DIGIT_COUNT_MAX or isinf"),
    ),
    mutant(
        "admission: every declared queue takes sequence numbers", "runtime/start/plan.py",
        f"{OF_STEPS}::test_only_a_queue_that_says_so_takes_sequence_numbers_for_identities",
        ('takes_sequence_number=spec is not None and spec.identity == "sequence-number"', "takes_sequence_number=spec is not None"),
    ),
    mutant(
        "shell: a process that stops leaves its marks", "runtime/shell.py",
        f"{OF_STEPS}::test_a_process_that_stops_writes_its_marks_and_tells_what_it_could_not_send",
        ("        await finish(self._protocol)\n", ""),
    ),
    mutant(
        "shell: a process that stops does not tell what it could not send", "runtime/shell.py",
        f"{OF_STEPS}::test_a_process_that_stops_writes_its_marks_and_tells_what_it_could_not_send",
        ("        await finish(self._protocol)\n        log_failed_pushes(self._failed_pushes)\n", "        await finish(self._protocol)\n"),
    ),
    mutant(
        "item: the token of a loss is not kept", "runtime/item_scope.py",
        f"{OF_STEPS}::test_a_marker_that_is_there_can_be_read_under_its_token_or_that_of_the_loss",
        ("return known.session or answer.session", "return known.session"),
    ),
    mutant(
        "item: whatever is staged goes into a blob", "runtime/commit/fitting.py",
        "unit/stores/test_lost_answers.py::test_what_is_staged_and_fits_goes_into_no_blob",
        ("if len(stored.encode(fitted)) > limit and record.outputs:", "if record.outputs:"),
    ),
    mutant(
        "several: a key is unblocked before all handlers have applied its message", "runtime/work.py",
        f"{OF_STEPS}::test_the_others_of_a_message_are_applied_when_all_but_one_are",
        ("return len(self.outcomes) + 1 == len(self.branches) and not any(", "return not any("),
    ),
    mutant(
        "sizes: a record without a state counts for a key", "runtime/commit/partition_size.py",
        "unit/stores/test_partition_size.py::test_neither_a_record_without_a_state_nor_a_store_without_a_limit_is_metered",
        ("if self._bytes_max and state_id is not None:", "if self._bytes_max:"),
    ),
    mutant(
        "sizes: a store without a limit has a full partition", "runtime/commit/partition_size.py",
        "unit/stores/test_partition_size.py::test_neither_a_record_without_a_state_nor_a_store_without_a_limit_is_metered",
        ("        if not self._bytes_max:\n            return\n", ""),
    ),
)  # fmt: skip

"""Faults planted in the engine and its log, each alone: what one module's text is changed to, and who must notice.

Each takes out a rule that keeps an acknowledged record, or one that keeps a log that is whole from being refused.
Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant, Table

CLOSED = "outbox/engine/log/closed.py"
SEGMENTS = "outbox/engine/log/segments.py"
WAL = "outbox/engine/log/wal.py"
SALVAGE = "outbox/engine/log/salvage.py"
SNAPSHOT = "outbox/engine/log/snapshot.py"
STATE = "outbox/engine/state/state.py"
MARKERS = "outbox/engine/state/markers.py"
BROKER = "outbox/engine/broker.py"
SESSIONS = "outbox/engine/sessions.py"
JOURNAL = "outbox/engine/backend/journal.py"
ENGINE = "outbox/engine/engine.py"
DISK = "outbox/engine/log/disk.py"
CORE = "outbox/engine/core.py"
TOPOLOGY = "outbox/engine/topology.py"
DOCUMENTS = "outbox/engine/documents.py"
SLICES = "outbox/engine/log/slices.py"
DEAD_LETTERS = "outbox/engine/dead_letters.py"
CHECKS = "outbox/engine/checks.py"
STORE = "outbox/engine/backend/store.py"
BUS = "outbox/engine/backend/bus.py"
BLOBS = "outbox/engine/backend/blobs.py"
OPERATIONS = "outbox/engine/backend/operations.py"
QUEUE = "outbox/engine/state/queues.py"
ORDER = "outbox/engine/state/session_order.py"

OF_CLOSED = "engine_log/test_log_closed.py"

FLIPPED = f"{OF_CLOSED}::test_a_flipped_bit_at_any_place_of_a_log_at_rest_loses_nothing_unseen"
ZEROED = f"{OF_CLOSED}::test_a_block_of_zeros_at_any_place_of_a_log_at_rest_loses_nothing_unseen"
CUT = f"{OF_CLOSED}::test_a_closed_log_that_was_cut_anywhere_is_refused_and_left_as_it_was"
AFTER_A_POWER_LOSS = f"{OF_CLOSED}::test_a_closed_log_refuses_a_cut_after_a_power_loss_too"
NEXT_OPEN = f"{OF_CLOSED}::test_a_crash_at_any_call_of_the_next_open_hides_no_cut_and_refuses_nothing_that_is_whole"
CLOSING = f"{OF_CLOSED}::test_a_crash_at_any_call_of_a_close_leaves_a_log_that_opens"
LOST = f"{OF_CLOSED}::test_a_log_that_lost_the_segment_that_its_mark_names_is_refused_and_left_as_it_was"
ASIDE = f"{OF_CLOSED}::test_a_new_log_keeps_the_mark_of_the_lost_one_aside_whenever_it_crashes"
OPENED = f"{OF_CLOSED}::test_closing_leaves_the_mark_behind_the_sync_of_what_it_names_and_opening_removes_it"
OF_ANOTHER = f"{OF_CLOSED}::test_a_mark_of_something_else_does_not_count_and_is_removed"
FULL = f"{OF_CLOSED}::test_a_full_disk_closes_without_a_mark_and_one_that_fails_is_reported"
DAMAGED = f"{OF_CLOSED}::test_a_damaged_mark_is_none"
SALVAGED = f"{OF_CLOSED}::test_a_salvaged_copy_is_refused_when_it_is_cut"
RETIRED = "engine_log/test_log_life.py::test_retiring_behind_the_snapshot_of_a_job_that_was_killed_loses_nothing"
SALVAGED_FROM = "engine_log/test_log_salvage.py::test_the_newest_snapshot_that_decodes_is_taken"
BEHIND = "engine_log/test_log_life.py::test_a_segment_that_goes_on_behind_a_snapshot_is_not_retired_with_it"
EPOCHS = "engine_log/test_log_salvage.py::test_of_two_records_of_an_ordinal_the_greater_epoch_wins_and_the_next_writer_is_above_it"
NAMELESS = "engine_log/test_disks.py::test_a_lock_on_a_file_that_has_lost_its_name_is_none"
CHANGED = "engine/test_replay.py::test_changed_settings_count_for_dead_letters_at_once_and_behind_a_snapshot"
LOCKS = "engine/test_locks.py"
OF_FEW = "engine/test_few_deliveries.py"
REFUSED = "engine/test_remembered.py::test_a_refusal_is_remembered_for_the_longest_of_its_ages"
DRAWN = "engine/test_replay.py::test_what_an_open_finds_is_what_was_logged"
OF_SYNCING = "engine/test_sync_policies.py"
OF_QUEUES = "engine/test_queues_and_sessions.py"
OF_LETTERS = "engine/test_letters.py"
OF_ANSWERS = "engine/test_store_answers.py"
OF_OPENING = "engine/test_open.py"
OF_SLICES = "engine/test_slices.py"
OF_BESIDE = "engine/test_beside.py"
OF_RACES = "engine/test_snapshot_races.py"
OF_REMEMBERED = "engine/test_remembered.py"
ANSWERED = f"{OF_ANSWERS}::test_what_a_store_answers_is_durable"
LISTED = f"{OF_ANSWERS}::test_what_is_written_while_documents_are_listed_is_durable_when_it_is_handed_out"
STOPPED = f"{OF_QUEUES}::test_who_waits_for_a_message_learns_that_the_engine_has_stopped"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test, under `tests/unit`."""
    return Mutant(name, "log", (found_by,), file, edits)


LOG_MUTANTS = (
    # The witness
    mutant("a witness is not padded", WAL, ZEROED, ("_PADDING = bytes(4096)\n", '_PADDING = b""\n')),
    mutant(
        "the padding is shorter than a block", WAL, ZEROED,
        ("_PADDING = bytes(4096)\n", "_PADDING = bytes(4000)\n"),
    ),
    mutant(
        "no empty witness behind the padded one", WAL, FLIPPED,
        ('            self.append(TYPE_WITNESS, b"")\n', ""),
    ),
    # The mark of a clean close
    mutant(
        "the mark is not synced", CLOSED, AFTER_A_POWER_LOSS,
        ("    replace_file(disk, CLOSED_NAME, fields + _CHECKSUM.pack(crc32(fields, seed_of(log_id)))).close()\n",
         "    file = disk.create(CLOSED_NAME)\n    file.write(fields + _CHECKSUM.pack(crc32(fields, seed_of(log_id))))\n"),
    ),
    mutant(
        "the mark comes before the sync of what it names", WAL, CLOSING,
        ("                    self.write()\n                    self.sync()\n                    self.witness()\n",
         """                    with _DiskCalls(self, "close") as live:
                        mark = Closed(self._first, self.epoch, live.size_bytes + sum(map(len, self._buffer)), self.appended)
                        store_closed(self._disk, mark, self.recovered.log_id)
                    self.write()
                    self.sync()
                    self.witness()
"""),
    ),
    mutant(
        "what differs from the mark is opened", SEGMENTS, CUT,
        ("    if mark is None:\n        return\n    if (mark", "    if mark is None or mark:\n        return\n    if (mark"),
    ),
    mutant(
        "a mark counts under another epoch", SEGMENTS, OF_ANOTHER,
        ("(mark.epoch, mark.segment) >= (last.first.epoch, last.ordinal)", "mark.segment >= last.ordinal"),
    ),
    mutant(
        "a mark counts for another segment", SEGMENTS, OF_ANOTHER,
        ("(mark.epoch, mark.segment) >= (last.first.epoch, last.ordinal)", "mark.epoch >= last.first.epoch"),
    ),
    mutant(
        "a mark of a later segment does not count", SEGMENTS, LOST,
        ("(mark.epoch, mark.segment) >= (last.first.epoch, last.ordinal)", "(mark.epoch, mark.segment) == (last.first.epoch, last.ordinal)"),
    ),
    mutant(
        "a new log removes the mark of the lost one", SEGMENTS, ASIDE,
        ('        disk.rename(name, f"{name}.before-{clock_ms}")\n', "        disk.remove(name)\n"),
    ),
    mutant(
        "a damaged mark counts", CLOSED, DAMAGED,
        ("    if checksum != _CHECKSUM.pack(crc32(fields, seed_of(log_id))):\n", "    if len(checksum) != _CHECKSUM.size:\n"),
    ),
    mutant(
        "the removal of a mark is not synced", CLOSED, OPENED,
        ("    disk.remove(CLOSED_NAME)\n    disk.sync_dir()\n", "    disk.remove(CLOSED_NAME)\n"),
    ),
    mutant(
        "the mark goes before the segment behind it is there", WAL, NEXT_OPEN,
        ("        if CLOSED_NAME in names:  # until here it said how long the segment before is\n            remove_closed(self._disk)\n", ""),
        ("        names, recovered = self._disk.names(), self.recovered\n", "        names, recovered = self._disk.names(), self.recovered\n        if CLOSED_NAME in names:\n            remove_closed(self._disk)\n"),
    ),
    mutant(
        "a full disk keeps a log from being closed", WAL, FULL,
        ("            if error.errno not in NO_ROOM:\n                raise\n\n    def _take_over", "            raise\n\n    def _take_over"),
    ),
    mutant(
        "a disk that fails at the mark is passed over", WAL, FULL,
        ("            if error.errno not in NO_ROOM:\n                raise\n\n    def _take_over", "            pass\n\n    def _take_over"),
    ),
    mutant(
        "a mark that was true stays", WAL, OPENED,
        ("        if CLOSED_NAME in names:  # until here it said how long the segment before is\n            remove_closed(self._disk)\n", ""),
    ),
    mutant(
        "a salvaged copy has no mark", SALVAGE, SALVAGED,
        ("            store_closed(self._target, mark, self._header.log_id)\n", ""),
    ),
    # The snapshot; that each of its fields is missed, one by one, is in `test_snapshot_fields`
    mutant(
        "a snapshot forgets what was applied", SNAPSHOT, DRAWN,
        ("for key, marker in known if isinstance(marker, bytes))", "for key, marker in known if marker is None)"),
    ),
    mutant(
        "a snapshot forgets blocked keys", STATE, DRAWN,
        ("                    if task.stops_session:\n", "                    if not task.stops_session:\n"),
    ),
    mutant(
        "a snapshot forgets rules", SNAPSHOT, DRAWN,
        ("    image.rules = {path: list(rules.values()) for path, rules in state.rules.items()}\n", ""),
    ),
    mutant(
        "what a snapshot holds of replies is not counted", MARKERS, DRAWN,
        ("        self.known.update(applied)\n        self.reply_bytes += reply_bytes_of(applied.values())\n", "        self.known.update(applied)\n"),
    ),
    mutant(
        "changed settings leave dead letters as they were", STATE, CHANGED,
        ("known.settings = self.queues[known.number + 1].settings = settings", "known.settings = settings"),
    ),
    mutant(
        "an open differs from what was logged in the settings of dead letters", STATE, DRAWN,
        ("known.settings = self.queues[known.number + 1].settings = settings", "known.settings = settings"),
    ),
    mutant(
        "a deferred message that comes back goes to any receiver", STATE,
        f"{OF_QUEUES}::test_a_deferred_message_that_comes_back_is_deferred_again",
        ("DEFERRED if task.set_aside is True else ACTIVE", "ACTIVE"),
    ),
    mutant(
        "one dead letter that goes frees a key that another stops", "outbox/engine/state/session_order.py",
        "engine/test_stopped_keys.py::test_a_key_that_two_dead_letters_stop_goes_on_behind_the_last_of_them",
        ("        session.blocked_by.discard(sequence)\n", "        session.blocked_by.clear()\n"),
    ),
    # What is remembered of messages
    mutant(
        "markers are forgotten when somebody looks at the time", STATE, DRAWN,
        ("            self.forget(now_ms)  # what is remembered is the records' doing, not that of whoever looked at the time\n", ""),
    ),
    mutant(
        "a marker has the age of its last attempt", MARKERS, REFUSED,
        ("        for key in refused:\n            renewed[key] = max(renewed.get(key, 0), expire_ms)\n",
         "        for key in refused:\n            renewed[key] = expire_ms\n"),
    ),
    # Slices
    mutant(
        "each slice takes the place of the one before", SNAPSHOT, DRAWN,
        ("        queue.seen.update(found.seen)\n", "        queue.seen = found.seen\n"),
    ),
    mutant(
        "a slice of another ordinal counts", SNAPSHOT, f"{OF_SLICES}::test_a_slice_of_another_ordinal_or_queue_is_refused",
        ("        if ordinal not in (-1, image.ordinal):\n", "        if ordinal < -1:\n"),
    ),
    mutant(
        "an older build takes slices for an empty snapshot", SLICES,
        f"{OF_SLICES}::test_an_older_build_refuses_slices_by_the_name_of_their_format",
        ('_FRONT = b"\\x9f\\x03\\xcf"', '_FRONT = b"\\x9f\\x01\\xcf"'),
    ),
    mutant(
        "an open writes a large snapshot anew for little", SNAPSHOT,
        f"{OF_SLICES}::test_an_open_decodes_a_large_snapshot_once_and_writes_none_for_little",
        ("    if snapshot_bytes <= SMALL_BYTES or", "    if snapshot_bytes or"),
    ),
    # Read back, adopted, retired
    mutant(
        "a host retires before it read back", SNAPSHOT,
        f"{OF_RACES}::test_a_host_retires_nothing_behind_a_snapshot_that_does_not_decode_under_its_name",
        ("    if log.read_snapshot(ordinal, verify) != ordinal:\n", "    if ordinal < 0:\n"),
    ),
    mutant(
        "a host adopts before it read back", ENGINE,
        f"{OF_BESIDE}::test_a_host_retires_nothing_behind_a_jobs_snapshot_that_does_not_read_back",
        ("        if ordinal != read_whole and not await compaction_process.is_whole(folder, ordinal):\n", "        if ordinal < 0:\n"),
        ("            self._passed_over = ordinal\n            return 0\n        retiring", "            return 0\n        self._passed_over = ordinal\n        retiring"),
    ),
    mutant(
        "a job does not read what has the name in the end", SNAPSHOT, f"{OF_SLICES}::test_a_job_reads_what_has_the_name_in_the_end",
        ("        if not is_whole(disk, ordinal):\n", "        if ordinal < 0:\n"),
    ),
    mutant(
        "a snapshot gets its name before it was compared", WAL,
        f"{OF_SLICES}::test_a_snapshot_that_reads_back_differently_gets_no_name",
        ("        if read.digest() != written.digest():\n", "        if read is None:\n"),
    ),
    mutant(
        "a snapshot gets its name before it is synced", DISK,
        f"{OF_SLICES}::test_a_crash_between_any_two_steps_loses_nothing_acknowledged",
        ("            file.reserve(reserve_bytes)\n        file.sync()\n", "            file.reserve(reserve_bytes)\n"),
    ),
    mutant(
        "a snapshot of what is not sealed yet", SEGMENTS, f"{OF_SLICES}::test_a_snapshot_of_a_host_at_work_is_of_one_moment",
        ("        if index == last_index and sealed_only:\n", "        if index > last_index and sealed_only:\n"),
    ),
    mutant(
        "a folder is given back while files are being retired", WAL,
        f"{OF_BESIDE}::test_a_retirement_keeps_no_writer_waiting_and_a_close_waits_for_it",
        ("        with self._retiring, self._io:\n            try:\n", "        with self._io:\n            try:\n"),
    ),
    # Retirement, salvage
    mutant(
        "segments are retired before the snapshot's name is synced", WAL, RETIRED,
        ("            self._disk.sync_dir()  # the snapshot may be another process's, whose rename is not synced yet\n", ""),
    ),
    mutant(
        "a salvage takes a snapshot that does not decode", SALVAGE, SALVAGED_FROM,
        ("            if accept_snapshot is None or accept_snapshot(ordinal, data):\n", "            if data:\n"),
    ),
    mutant(
        "a snapshot of what is not sealed is adopted", WAL,
        "engine_log/test_log_life.py::test_a_snapshot_that_is_ahead_of_what_is_sealed_is_not_adopted",
        ("if self._retired_to < n < self._first)", "if self._retired_to < n)"),
    ),
    mutant(
        "a segment is retired by where it begins", WAL, BEHIND,
        ("if following <= upto + 1 and following <= first\n", "if ordinal <= upto and following <= first\n"),
    ),
    mutant(
        "a writer's epoch is above that of headers only", SEGMENTS, EPOCHS,
        ("max(recovery.epoch, first.epoch, kept[-1].epoch)", "max(recovery.epoch, first.epoch)"),
    ),
    # Locks
    mutant(
        "a folder is held by a lock file that was replaced", DISK, NAMELESS,
        ("if os.fstat(descriptor).st_ino != path.stat().st_ino:", "if descriptor < 0:"),
    ),
    mutant(
        "a renewal does not move the end", BROKER, LOCKS,
        ("        task.locked_until_ms = until_ms\n        heappush(self._lock_timers, (until_ms, queue.number, task.lock,", "        heappush(self._lock_timers, (until_ms, queue.number, task.lock,"),
    ),
    mutant(
        "what may be delivered once is claimed together with others", JOURNAL, f"{OF_FEW}::test_a_kill_ends_no_message_but_the_one_that_was_handled",
        ("        if not (is_single and taken):\n            taken += take(queue, 1 if is_single else count_max - len(taken))\n", "        taken += take(queue, count_max - len(taken))\n"),
    ),
    mutant(
        "what may be delivered once joins a claim that others began", JOURNAL, f"{OF_FEW}::test_a_kill_ends_no_message_but_the_one_that_was_handled",
        ("        if not (is_single and taken):\n            taken +=", "        if True:\n            taken +="),
    ),
    # Syncing and time
    mutant(
        "time starts behind the log where the wall clock was set back", CORE,
        "engine/test_system_clock.py::test_time_goes_on_from_the_log_when_the_wall_clock_was_set_back",
        ("max(state.time_ms, clock.wall_ms())", "clock.wall_ms()"),
    ),
    mutant(
        "an interval that is over once is over for ever", CORE, f"{OF_SYNCING}::test_an_interval_begins_again_with_every_sync",
        ("            self._last_sync_s = self.clock.monotonic_s()\n", ""),
    ),
    mutant(
        "what time brings waits for somebody's gate", ENGINE,
        f"{OF_SYNCING}::test_what_time_brings_is_written_although_nobody_waits_for_it",
        ("                self.core.write()  # so that the buffer has room for what the time brings\n", ""),
    ),
    mutant(
        "a waiter does not learn that the engine stops", CORE, STOPPED,
        ("            if self.dismiss_waiters is not None:\n                self.dismiss_waiters(reason)\n", ""),
    ),
    mutant(
        "a wait begins on an engine that has stopped", BROKER, STOPPED,
        ("            if self._core.stopped is not None:\n                raise self._core.stopped\n", ""),
    ),
    # Answers before the gate
    mutant(
        "a write that lost does not wait for the gate", STORE, ANSWERED,
        ("                await self._core.gate()\n                return Lost(", "                return Lost("),
    ),
    mutant(
        "a scan that finds nothing does not wait for the gate", STORE, ANSWERED,
        ("        await self._core.gate()\n        for id in sorted(id", "        for id in sorted(id"),
    ),
    mutant(
        "a scan hands out what was written since it began", STORE, LISTED,
        ("                await self._core.gate()  # again: it may have been written since\n", ""),
    ),
    mutant(
        "a list of what is unfinished hands out what was written since it began", STORE, LISTED,
        ("is_wanted(document.body):\n                    await self._core.gate()\n", "is_wanted(document.body):\n"),
    ),
    mutant(
        "what is released is not written", JOURNAL,
        f"{OF_REMEMBERED}::test_what_is_released_is_uncounted_when_the_process_dies_right_behind_it",
        ("Settlement.RELEASE)\n        self._core.write()\n", "Settlement.RELEASE)\n"),
    ),
    # Limits
    mutant(
        "a description has any length", BROKER, f"{OF_QUEUES}::test_both_texts_of_a_dead_letter_are_cut_to_their_limit",
        ("reason[:cut], description[:cut]", "reason[:cut], description"),
    ),
    mutant(
        "the numbers of deleted queues are not given again", TOPOLOGY,
        f"{OF_QUEUES}::test_the_numbers_of_deleted_queues_count_as_free",
        ("2 * (fresh - len(self._state.free))", "2 * fresh"),
    ),
    mutant(
        "what one call declares is compared with what was there before only", TOPOLOGY,
        f"{OF_QUEUES}::test_names_that_two_calls_could_not_declare_are_refused_in_one",
        ("        for queue in reversed(queues):\n            if queue.name == path:\n                return queue\n", ""),
    ),
    mutant(
        "a queue that is named twice takes two places", TOPOLOGY,
        f"{OF_QUEUES}::test_a_queue_that_is_named_twice_takes_one_place",
        ("len({queue.name for queue in queues} - self._state.paths.keys())", "len(queues)"),
    ),
    # Queues, copies and sessions
    mutant(
        "messages without an id are duplicates of each other", BROKER,
        f"{OF_QUEUES}::test_a_message_without_an_id_is_no_duplicate_of_another",
        ("            if message.broker_id:\n", "            if True:\n"),
    ),
    mutant(
        "a message that is cancelled takes its equals with it", BROKER,
        f"{OF_QUEUES}::test_a_copy_that_is_gone_already_is_not_made_up_for_by_an_equal_one_of_another_sending",
        ("(other.version, other.message) == (task.version, task.message)", "other.message == task.message"),
    ),
    mutant(
        "a message that is cancelled takes its equals of the same sending with it", BROKER,
        f"{OF_QUEUES}::test_of_equal_messages_of_one_sending_each_is_cancelled_with_its_own_copies",
        ("_equal_to(task, queue)[place : place + 1]", "_equal_to(task, queue)"),
    ),
    mutant(
        "a message that is cancelled takes the first of its equals with it", BROKER,
        f"{OF_QUEUES}::test_of_equal_messages_of_one_sending_each_is_cancelled_with_its_own_copies",
        ("_equal_to(task, queue)[place : place + 1]", "_equal_to(task, queue)[:1]"),
    ),
    mutant(
        "the delivery that the bus dead-letters does not count", BUS,
        f"{OF_QUEUES}::test_the_delivery_that_the_bus_dead_letters_counts_too",
        ("failures + 1, False", "failures, False"),
    ),
    mutant(
        "a session that runs out counts no delivery", SESSIONS,
        f"{OF_QUEUES}::test_what_a_receiver_had_claimed_counts_as_delivered_when_its_session_runs_out",
        ("self._unlock(queue, session, Settlement.ABANDON)", "self._unlock(queue, session, Settlement.RELEASE)"),
    ),
    mutant(
        "the locks on sessions outlive their queue", TOPOLOGY, f"{OF_QUEUES}::test_the_lock_on_a_session_is_lost_with_its_queue",
        ("        self._sessions.drop(numbers)\n", ""),
    ),
    mutant(
        "a modification wakes nobody", DOCUMENTS, f"{OF_QUEUES}::test_a_modification_wakes_who_waits_for_what_it_inserts",
        ("        self._broker.wake()\n", ""),
    ),
    # Ages
    mutant(
        "an id that comes again keeps its place among those that are over", QUEUE,
        f"{OF_REMEMBERED}::test_an_id_that_comes_again_keeps_none_behind_it_in_memory",
        ("        self.seen.pop(broker_id, None)  # over, behind one whose window was longer: the new one goes to the end\n", ""),
    ),
    mutant(
        "what is claimed after a wait is not written when it is handed out", JOURNAL,
        "engine/test_store_answers.py::test_what_is_claimed_is_written_before_it_is_handed_out[True]",
        ("        if deliveries:\n            self._core.write()", "        elif deliveries:\n            self._core.write()"),
    ),
    # Files
    mutant(
        "what could not be put in place stays on a full disk", DISK,
        "engine_log/test_disks.py::test_a_file_that_could_not_be_put_in_place_leaves_nothing_on_a_disk_that_is_full",
        ("            with suppress(OSError):\n                disk.remove(temporary)\n", "            pass\n"),
    ),
    mutant(
        "a disk that fails counts as a full one", DISK,
        "engine_log/test_disks.py::test_only_a_disk_that_is_full_may_refuse_room",
        ("            if error.errno not in NO_ROOM:\n                raise\n            return False", "            return False"),
    ),
    mutant(
        "a snapshot does not prove what it holds durable", SEGMENTS,
        "engine_log/test_log_life.py::test_a_job_that_finds_nothing_behind_the_snapshot_reads_up_to_that",
        ("            recovery.durable = ordinal\n            break", "            break"),
    ),
    mutant(
        "a job writes the snapshot that is there again", SNAPSHOT, f"{OF_OPENING}::test_a_job_that_finds_nothing_new_writes_nothing",
        ("    if not recovered.records:\n        return 0\n", ""),
    ),
    # What else is synced, given back and shown
    mutant(
        "a blob's name is not synced", BLOBS,
        "engine/test_blob_folder.py::test_a_blob_is_in_its_folder_for_good_whichever_process_wrote_it_first",
        ("            sync_folder(self._folder)  # also where the blob was: whoever wrote it may have ended before this\n", ""),
    ),
    mutant(
        "a blob's bytes are not synced", BLOBS,
        "engine/test_blob_folder.py::test_a_blob_is_in_its_folder_for_good_whichever_process_wrote_it_first",
        ("            os.fsync(file.fileno())\n", ""),
    ),
    mutant(
        "a full buffer never has room again", WAL, "engine_log/test_log_life.py::test_the_buffer_and_a_record_are_limited",
        ("self._buffered_bytes - self._released_bytes + size_bytes", "self._buffered_bytes + size_bytes"),
    ),
    mutant(
        "a host fails of a newer job's snapshot", SNAPSHOT,
        "engine/test_snapshot_races.py::test_a_host_leaves_a_snapshot_of_a_newer_format_alone",
        ("    except (CorruptRecord, FormatTooNew):\n        return 0\n", "    except CorruptRecord:\n        return 0\n"),
    ),
    mutant(
        "what a receiver had for itself is not shown again", SESSIONS,
        "engine/test_blocked.py::test_what_a_receiver_had_for_itself_is_shown_when_it_lets_go",
        ("        queue.sessions.show_again(session)\n", ""),
    ),
    mutant(
        "any number of operations is remembered", STATE,
        f"{OF_REMEMBERED}::test_so_many_operations_are_remembered_and_the_oldest_is_forgotten_first",
        ("            while len(self.operations) > OPERATION_COUNT_MAX:\n                del self.operations[next(iter(self.operations))]\n", ""),
    ),
    mutant(
        "a state that was deleted is shown to clients", OPERATIONS,
        f"{OF_REMEMBERED}::test_a_state_that_was_deleted_is_none_to_a_client",
        ("found if found is not None and found.value else None", "found"),
    ),
    mutant(
        "the rules of a subscription outlive it", STATE,
        "engine/test_rules.py::test_a_subscription_that_is_declared_again_takes_everything",
        ("        self.rules.pop(path, None)\n", ""),
    ),
    mutant(
        "what was shown behind a block is never shown again", ORDER,
        "engine/test_stopped_keys.py::test_what_waits_is_shown_again_when_it_was_resubmitted_meanwhile",
        ("            if task.sequence not in self._tasks:\n                session.shown.discard(task.sequence)\n", ""),
    ),
    mutant(
        "a modification leaves its message claimed", STATE,
        "engine/test_stopped_keys.py::test_a_key_goes_on_when_a_modification_changes_what_was_claimed_of_it",
        ("        task = queue.tasks.pop(item.sequence)\n        queue.order.unlocked(task)\n", "        task = queue.tasks.pop(item.sequence)\n"),
    ),
    mutant(
        "a scheduled message ages before it is due", STATE,
        "engine/test_expiry.py::test_a_scheduled_message_begins_to_age_when_it_is_due",
        ("max(now_ms, due_ms) + min(", "now_ms + min("),
    ),
    mutant(
        "an open that the disk fails keeps the folder", WAL,
        "engine/test_open.py::test_a_folder_is_free_again_when_it_could_not_be_opened",
        ("        except OSError as error:\n            disk.unlock()\n            raise", "        except OSError as error:\n            raise"),
    ),
    mutant(
        "an open that is refused keeps the folder", ENGINE,
        "engine/test_open.py::test_a_folder_is_free_again_when_it_could_not_be_opened",
        ("        except BaseException:\n            log.close()\n            raise", "        except BaseException:\n            raise"),
    ),
    mutant(
        "one frame says whose log it is", SALVAGE,
        "engine_log/test_log_salvage.py::test_a_single_frame_without_a_header_is_no_record",
        ("return seed if count > 1 else None", "return seed if count > 0 else None"),
    ),
    mutant(
        "one key's messages are handed out without a limit", ORDER,
        f"{OF_QUEUES}::test_so_many_messages_of_one_key_are_handed_out_at_a_time",
        ("min(RUN_COUNT_MAX, count_max - len(taken))", "count_max - len(taken)"),
    ),
    mutant(
        "a deferred message keeps its key", STATE,
        f"{OF_QUEUES}::test_a_key_whose_message_was_deferred_goes_on",
        ("                task.status, task.lock = DEFERRED, 0\n                queue.order.unlocked(task)\n", "                task.status, task.lock = DEFERRED, 0\n"),
    ),
    mutant(
        "a look at a session counts the messages of others", BROKER,
        f"{OF_QUEUES}::test_a_look_at_a_session_counts_its_own_messages_only",
        ("            if len(found) >= count_max:\n                break\n", "            break\n"),
    ),
    mutant(
        "a key that goes on is listed as blocked", ORDER, f"{OF_LETTERS}::test_what_the_indexes_say_is_what_a_look_at_all_says",
        ("            del self.blocked[at : at + (self.blocked[at : at + 1] == [session.id])]\n", ""),
    ),
    mutant(
        "the gate of an engine that has stopped is open", CORE,
        f"{OF_QUEUES}::test_nothing_passes_the_gate_of_an_engine_that_has_stopped",
        ("        if self.stopped is not None:\n            raise self.stopped\n        if self._is_through:", "        if self._is_through:"),
    ),
    mutant(
        "a snapshot that was taken over is taken over again", WAL,
        "engine/test_open.py::test_a_running_engine_adopts_what_a_separate_job_compacted",
        ("if self._retired_to < n < self._first)", "if n < self._first)"),
    ),
    mutant(
        "a list that finds nothing unfinished does not wait for the gate", STORE,
        f"{OF_ANSWERS}::test_that_nothing_is_unfinished_is_durable_when_it_is_answered",
        ("        await self._core.gate()\n        for name in sorted(spaces", "        for name in sorted(spaces"),
    ),
    mutant(
        "what was shown in one block is not shown in the next", ORDER,
        "engine/test_blocked.py::test_what_is_postponed_in_a_later_block_is_shown_in_it",
        ("            session.shown.clear()\n            self.settle_session(session)\n", "            self.settle_session(session)\n"),
    ),
    mutant(
        "an id whose window is over is kept for ever", QUEUE,
        f"{OF_REMEMBERED}::test_an_id_whose_window_is_over_goes_from_memory_when_another_comes",
        ("        self.forget_seen(now_ms)\n        if self.seen", "        if self.seen"),
    ),
    mutant(
        "a modification inserts what is due beyond all records", CHECKS,
        "engine/test_checks.py::test_what_could_not_be_read_back_is_refused_before_the_log",
        ("        check_due(insert.due_ms)\n", ""),
    ),
    mutant(
        "a modification reschedules beyond all records", CHECKS,
        "engine/test_checks.py::test_what_could_not_be_read_back_is_refused_before_the_log",
        ("        check_due(item.due_ms)\n", ""),
    ),
    mutant(
        "a modification writes a message with times that are none", CHECKS,
        "engine/test_checks.py::test_what_could_not_be_read_back_is_refused_before_the_log",
        ("        if item.message is not None:\n            _check_times(item.message)\n", ""),
    ),
    mutant(
        "a message that was rewritten keeps its digest", STATE,
        f"{OF_QUEUES}::test_a_message_that_is_rewritten_has_the_digest_of_what_it_says_now",
        ("            task.fingerprint = fingerprint(item.message.body, item.message.type) if task.external else b\"\"\n", ""),
    ),
    mutant(
        "nobody is woken by a resubmission", DEAD_LETTERS,
        f"{OF_QUEUES}::test_a_resubmission_wakes_who_waits_for_its_queue",
        ("sequence, message))\n        self._broker.wake()\n", "sequence, message))\n"),
    ),
    mutant(
        "a delivery leaves the bus before it is durable", BUS,
        f"{OF_ANSWERS}::test_what_the_bus_hands_out_is_durable",
        ("        await self._core.gate()\n        return [", "        return ["),
    ),
    mutant(
        "a settlement is answered before it is durable", BUS,
        f"{OF_ANSWERS}::test_what_the_bus_has_settled_is_durable",
        ("description=settle.description)\n        await self._core.gate()\n", "description=settle.description)\n"),
    ),
    mutant(
        "a postponement is answered before it is durable", BUS,
        f"{OF_ANSWERS}::test_what_the_bus_has_settled_is_durable",
        ("settle.due_ms, count, why)])\n        await self._core.gate()\n", "settle.due_ms, count, why)])\n"),
    ),
    mutant(
        "a dead letter is answered before it is durable", BUS,
        f"{OF_ANSWERS}::test_what_the_bus_has_settled_is_durable",
        ("            dead_lettered=[records.DeadLettered(queue.number, delivery.sequence, reason, text, failures + 1, False)]\n        )\n        await self._core.gate()\n", "            dead_lettered=[records.DeadLettered(queue.number, delivery.sequence, reason, text, failures + 1, False)]\n        )\n"),
    ),
    mutant(
        "a dead letter is discarded before that is durable", OPERATIONS,
        f"{OF_ANSWERS}::test_what_a_client_is_answered_is_durable",
        ("        self._dead_letters.discard(queue, sequence)\n        await self._core.gate()\n", "        self._dead_letters.discard(queue, sequence)\n"),
    ),
    mutant(
        "a dead letter is resubmitted before that is durable", OPERATIONS,
        f"{OF_ANSWERS}::test_what_a_client_is_answered_is_durable",
        ("        self._dead_letters.resubmit(queue, sequence, attempt=attempt, edit=edit)\n        await self._core.gate()\n", "        self._dead_letters.resubmit(queue, sequence, attempt=attempt, edit=edit)\n"),
    ),
    mutant(
        "a blob is synced before it is written", BLOBS,
        "engine/test_blob_folder.py::test_what_is_flushed_of_a_blob_is_all_of_it",
        ("            file.flush()\n", ""),
    ),
    mutant(
        "an engine goes on though nothing was retired", ENGINE,
        f"{OF_OPENING}::test_an_engine_stops_when_it_could_not_retire_what_a_snapshot_replaces",
        ("        self.core.guarded(retiring.result)\n", ""),
    ),
    mutant(
        "any figure confirms a wall clock", CHECKS, f"{OF_OPENING}::test_a_clock_far_ahead_of_the_log_needs_confirmation",
        ("unaccepted_s = abs(ahead_s - accepted_s)", "unaccepted_s = 0 if accepted else ahead_s"),
    ),
    mutant(
        "a token of another size is no lost lock", "outbox/engine/state/tasks.py",
        f"{LOCKS}::test_a_token_of_another_size_locks_nothing",
        ("    if len(token) != _TOKEN.size:\n        return 0, 0, 0, 0\n", ""),
    ),
)  # fmt: skip

TABLE = Table(LOG_MUTANTS, "tests/unit/")

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
BROKER = "outbox/engine/broker.py"
SESSIONS = "outbox/engine/sessions.py"
JOURNAL = "outbox/engine/backend/journal.py"
ENGINE = "outbox/engine/engine.py"
DISK = "outbox/engine/log/disk.py"
CORE = "outbox/engine/core.py"
SLICES = "outbox/engine/log/slices.py"
STORE = "outbox/engine/backend/apart.py"
ORDER = "outbox/engine/state/session_order.py"

OF_CLOSED = "engine_log/test_log_closed.py"

CUT = f"{OF_CLOSED}::test_a_closed_log_that_was_cut_anywhere_is_refused_and_left_as_it_was"
AFTER_A_POWER_LOSS = f"{OF_CLOSED}::test_a_closed_log_refuses_a_cut_after_a_power_loss_too"
CLOSING = f"{OF_CLOSED}::test_a_crash_at_any_call_of_a_close_leaves_a_log_that_opens"
ASIDE = f"{OF_CLOSED}::test_a_new_log_keeps_the_mark_of_the_lost_one_aside_whenever_it_crashes"
DAMAGED = f"{OF_CLOSED}::test_a_damaged_mark_is_none"
BEHIND = "engine_log/test_log_life.py::test_a_segment_that_goes_on_behind_a_snapshot_is_not_retired_with_it"
NAMELESS = "engine_log/test_disks.py::test_a_lock_on_a_file_that_has_lost_its_name_is_none"
OF_FEW = "engine/test_few_deliveries.py"
DRAWN = "engine/test_replay.py::test_what_an_open_finds_is_what_was_logged"
OF_QUEUES = "engine/test_queues_and_sessions.py"
OF_ANSWERS = "engine/test_store_answers.py"
OF_OPENING = "engine/test_open.py"
OF_SLICES = "engine/test_slices.py"
OF_BESIDE = "engine/test_compaction_process.py"
OF_RACES = "engine/test_snapshot_races.py"
ANSWERED = f"{OF_ANSWERS}::test_what_a_store_answers_is_durable"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test, under `tests/unit`."""
    return Mutant(name, "log", (found_by,), file, edits)


LOG_MUTANTS = (
    # The witness
    # The mark of a clean close
    mutant("the mark is not synced", CLOSED, AFTER_A_POWER_LOSS,
        ("    replace_file(disk, CLOSED_NAME, fields + _CHECKSUM.pack(crc32(fields, seed_of(log_id)))).close()\n",
         "    file = disk.create(CLOSED_NAME)\n    file.write(fields + _CHECKSUM.pack(crc32(fields, seed_of(log_id))))\n"),
    ),
    mutant("the mark comes before the sync of what it names", WAL, CLOSING,
        ("                    self.write()\n                    self.sync()\n                    self.witness()\n",
         """                    with _DiskCalls(self, "close") as live:
                        mark = Closed(self._first, self.epoch, live.size_bytes + sum(map(len, self._buffer)), self.appended)
                        store_closed(self._disk, mark, self.recovered.log_id)
                    self.write()
                    self.sync()
                    self.witness()
"""),
    ),
    mutant("what differs from the mark is opened", SEGMENTS, CUT,
        ("    if mark is None:\n        return\n    if (mark", "    if mark is None or mark:\n        return\n    if (mark"),
    ),
    mutant("a new log removes the mark of the lost one", SEGMENTS, ASIDE,
        ('        disk.rename(name, f"{name}.before-{clock_ms}")\n', "        disk.remove(name)\n"),
    ),
    mutant("a damaged mark counts", CLOSED, DAMAGED,
        ("    if checksum != _CHECKSUM.pack(crc32(fields, seed_of(log_id))):\n", "    if len(checksum) != _CHECKSUM.size:\n"),
    ),
    # The snapshot; that each of its fields is missed, one by one, is in `test_snapshot_fields`
    mutant("a snapshot forgets what was applied", SNAPSHOT, DRAWN,
        ("for key, marker in known if isinstance(marker, bytes))", "for key, marker in known if marker is None)"),
    ),
    mutant("a snapshot forgets blocked keys", STATE, DRAWN,
        ("                    if task.stops_session:\n", "                    if not task.stops_session:\n"),
    ),
    mutant("one dead letter that goes frees a key that another stops", "outbox/engine/state/session_order.py",
        "engine/test_stopped_keys.py::test_a_key_that_two_dead_letters_stop_goes_on_behind_the_last_of_them",
        ("        session.blocked_by.discard(sequence)\n", "        session.blocked_by.clear()\n"),
    ),
    # What is remembered of messages
    # Slices
    mutant("each slice takes the place of the one before", SNAPSHOT, DRAWN,
        ("        queue.seen.update(found.seen)\n", "        queue.seen = found.seen\n"),
    ),
    mutant(
        "a slice of another ordinal counts", SNAPSHOT, f"{OF_SLICES}::test_a_slice_of_another_ordinal_or_queue_is_refused",
        ("        if ordinal not in (-1, image.ordinal):\n", "        if ordinal < -1:\n"),
    ),
    mutant("an older build takes slices for an empty snapshot", SLICES,
        f"{OF_SLICES}::test_an_older_build_refuses_slices_by_the_name_of_their_format",
        ('_FRONT = b"\\x9f\\x03\\xcf"', '_FRONT = b"\\x9f\\x01\\xcf"'),
    ),
    # Read back, adopted, retired
    mutant("a host retires before it read back", SNAPSHOT,
        f"{OF_RACES}::test_a_host_retires_nothing_behind_a_snapshot_that_does_not_decode_under_its_name",
        ("    if log.read_snapshot(ordinal, verify) != ordinal:\n", "    if ordinal < 0:\n"),
    ),
    mutant("a host adopts before it read back", ENGINE,
        f"{OF_BESIDE}::test_a_host_retires_nothing_behind_a_jobs_snapshot_that_does_not_read_back",
        ("        if ordinal != read_whole and not await compaction_process.is_whole(folder, ordinal):\n", "        if ordinal < 0:\n"),
        ("            self._passed_over = ordinal\n            return 0\n        retiring", "            return 0\n        self._passed_over = ordinal\n        retiring"),
    ),
    mutant(
        "a job does not read what has the name in the end", SNAPSHOT, f"{OF_SLICES}::test_a_job_reads_what_has_the_name_in_the_end",
        ("        if not is_whole(disk, ordinal):\n", "        if ordinal < 0:\n"),
    ),
    mutant("a snapshot gets its name before it was compared", WAL,
        f"{OF_SLICES}::test_a_snapshot_that_reads_back_differently_gets_no_name",
        ("        if read.digest() != written.digest():\n", "        if read is None:\n"),
    ),
    # Retirement, salvage
    mutant("a segment is retired by where it begins", WAL, BEHIND,
        ("if following <= upto + 1 and following <= first\n", "if ordinal <= upto and following <= first\n"),
    ),
    # Locks
    mutant("a folder is held by a lock file that was replaced", DISK, NAMELESS,
        ("if os.fstat(descriptor).st_ino != path.stat().st_ino:", "if descriptor < 0:"),
    ),
    mutant(
        "what may be delivered once joins a claim that others began", JOURNAL, f"{OF_FEW}::test_a_kill_ends_no_message_but_the_one_that_was_handled",
        ("        if not (is_single and taken):\n            taken +=", "        if True:\n            taken +="),
    ),
    # Syncing and time
    # Answers before the gate
    mutant("a write that lost does not wait for the gate", STORE, ANSWERED,
        ("                await self._core.gate()\n                return Lost(", "                return Lost("),
    ),
    mutant("a scan that finds nothing does not wait for the gate", STORE, ANSWERED,
        ("        await self._core.gate()\n        for id in sorted(id", "        for id in sorted(id"),
    ),
    # Limits
    # Queues, copies and sessions
    mutant("messages without an id are duplicates of each other", BROKER,
        f"{OF_QUEUES}::test_a_message_without_an_id_is_no_duplicate_of_another",
        ("            if message.broker_id:\n", "            if True:\n"),
    ),
    mutant("a message that is cancelled takes its equals with it", BROKER,
        f"{OF_QUEUES}::test_a_copy_that_is_gone_already_is_not_made_up_for_by_an_equal_one_of_another_sending",
        ("(other.version, other.message) == (task.version, task.message)", "other.message == task.message"),
    ),
    mutant("a session that runs out counts no delivery", SESSIONS,
        f"{OF_QUEUES}::test_what_a_receiver_had_claimed_counts_as_delivered_when_its_session_runs_out",
        ("self._unlock(queue, session, Settlement.ABANDON)", "self._unlock(queue, session, Settlement.RELEASE)"),
    ),
    # Ages
    mutant("what is claimed after a wait is not written when it is handed out", JOURNAL,
        "engine/test_store_answers.py::test_what_is_claimed_is_written_before_it_is_handed_out[True]",
        ("        if deliveries:\n            self._core.write()", "        elif deliveries:\n            self._core.write()"),
    ),
    # Files
    # What else is synced, given back and shown
    mutant("a scheduled message ages before it is due", STATE,
        "engine/test_expiry.py::test_a_scheduled_message_begins_to_age_when_it_is_due",
        ("max(now_ms, due_ms) + min(", "now_ms + min("),
    ),
    mutant("one frame says whose log it is", SALVAGE,
        "engine_log/test_log_salvage.py::test_a_single_frame_without_a_header_is_no_record",
        ("return seed if count > 1 else None", "return seed if count > 0 else None"),
    ),
    mutant("one key's messages are handed out without a limit", ORDER,
        f"{OF_QUEUES}::test_so_many_messages_of_one_key_are_handed_out_at_a_time",
        ("min(RUN_COUNT_MAX, count_max - len(taken))", "count_max - len(taken)"),
    ),
    mutant("the gate of an engine that has stopped is open", CORE,
        f"{OF_QUEUES}::test_nothing_passes_the_gate_of_an_engine_that_has_stopped",
        ("        if self.stopped is not None:\n            raise self.stopped\n        if self._is_through:", "        if self._is_through:"),
    ),
    mutant(
        "any figure confirms a wall clock", CORE, f"{OF_OPENING}::test_a_clock_far_ahead_of_the_log_needs_confirmation",
        ("unaccepted_s = abs(ahead_s - accepted_s)", "unaccepted_s = 0 if accepted else ahead_s"),
    ),
)  # fmt: skip

TABLE = Table(LOG_MUTANTS, "tests/unit/")

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

OF_CLOSED = "engine_log/test_log_closed.py"

FLIPPED = f"{OF_CLOSED}::test_a_flipped_bit_at_any_place_of_a_log_at_rest_loses_nothing_unseen"
ZEROED = f"{OF_CLOSED}::test_a_block_of_zeros_at_any_place_of_a_log_at_rest_loses_nothing_unseen"
CUT = f"{OF_CLOSED}::test_a_closed_log_that_was_cut_anywhere_is_refused_and_left_as_it_was"
AFTER_A_POWER_LOSS = f"{OF_CLOSED}::test_a_closed_log_refuses_a_cut_after_a_power_loss_too"
NEXT_OPEN = f"{OF_CLOSED}::test_a_crash_at_any_call_of_the_next_open_hides_no_cut_and_refuses_nothing_that_is_whole"
CLOSING = f"{OF_CLOSED}::test_a_crash_at_any_call_of_a_close_leaves_a_log_that_opens"
PUT_BACK = f"{OF_CLOSED}::test_the_mark_of_a_newer_truth_does_not_speak_of_a_copy_that_was_put_back"
OPENED = f"{OF_CLOSED}::test_closing_leaves_the_mark_behind_the_sync_of_what_it_names_and_opening_removes_it"
OF_ANOTHER = f"{OF_CLOSED}::test_a_mark_of_something_else_does_not_count_and_goes_before_anything_is_written"
FULL = f"{OF_CLOSED}::test_a_full_disk_closes_without_a_mark_and_one_that_fails_is_reported"
DAMAGED = f"{OF_CLOSED}::test_a_damaged_mark_is_none"
SALVAGED = f"{OF_CLOSED}::test_a_salvaged_copy_is_refused_when_it_is_cut"
INSPECTED = f"{OF_CLOSED}::test_inspection_and_salvage_report_what_a_cut_took"
IDLE = "engine/test_idle.py"
RETIRED = "engine_log/test_log_life.py::test_retiring_behind_the_snapshot_of_a_job_that_was_killed_loses_nothing"
SALVAGED_FROM = "engine_log/test_log_salvage.py::test_the_newest_snapshot_that_decodes_is_taken"
OPENED_FROM = "engine_log/test_log_life.py::test_an_open_takes_the_newest_snapshot_that_decodes"
BEHIND = "engine_log/test_log_life.py::test_a_segment_that_goes_on_behind_a_snapshot_is_not_retired_with_it"
EPOCHS = "engine_log/test_log_salvage.py::test_of_two_records_of_an_ordinal_the_greater_epoch_wins_and_the_next_writer_is_above_it"
SYNCED = "engine_log/test_log_salvage.py::test_a_record_of_the_live_segment_that_a_later_one_says_was_synced_is_reported_as_such"
NAMELESS = "engine_log/test_disks.py::test_a_lock_on_a_file_that_has_lost_its_name_is_none"
CHANGED = "engine/test_replay.py::test_changed_settings_count_for_dead_letters_at_once_and_behind_a_snapshot"
LOCKS = "engine/test_locks.py"
REFUSED = "engine/test_remembered.py::test_a_refusal_is_remembered_for_the_longest_of_its_ages"
DRAWN = "engine/test_replay.py::test_what_an_open_finds_is_what_was_logged"


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
    mutant(
        "the padded witness is the second one", WAL, ZEROED,
        ('            self.append(TYPE_WITNESS, _PADDING)\n            self.append(TYPE_WITNESS, b"")\n',
         '            self.append(TYPE_WITNESS, b"")\n            self.append(TYPE_WITNESS, _PADDING)\n'),
    ),
    mutant(
        "an idle engine writes no witness", ENGINE, IDLE,
        ("                    if idle_ticks >= _WITNESS_TICKS and self.log.synced:\n", "                    if False:\n"),
    ),
    mutant(
        "a witness at every pause", ENGINE, IDLE,
        ("                    if idle_ticks >= _WITNESS_TICKS and", "                    if idle_ticks >= 1 and"),
    ),
    mutant(
        "a witness behind a witness", WAL, "engine_log/test_log_life.py::test_a_witness_is_written_once_and_only_where_it_proves_something",
        ("        if not self.witnessed and self.synced", "        if self.synced"),
    ),
    # The mark of a clean close
    mutant(
        "a close leaves no mark", WAL, CUT,
        ("                        self._leave_mark(live.size_bytes)\n", "                        pass\n"),
    ),
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
        ("    if mark is None:\n        return\n    ordinal", "    if mark is None or mark:\n        return\n    ordinal"),
    ),
    mutant(
        "a mark counts under another epoch", SEGMENTS, OF_ANOTHER,
        ("(mark.segment, mark.epoch) == (last.ordinal, last.first.epoch)", "mark.segment == last.ordinal"),
    ),
    mutant(
        "a mark counts for another segment", SEGMENTS, OF_ANOTHER,
        ("(mark.segment, mark.epoch) == (last.ordinal, last.first.epoch)", "mark.epoch == last.first.epoch"),
    ),
    mutant(
        "another log's mark counts", CLOSED, OF_ANOTHER,
        ("    if checksum != _CHECKSUM.pack(crc32(fields, seed_of(log_id))):\n", "    if len(checksum) != _CHECKSUM.size:\n"),
    ),
    mutant(
        "a damaged mark counts", CLOSED, DAMAGED,
        ("    if checksum != _CHECKSUM.pack(crc32(fields, seed_of(log_id))):\n", "    if len(checksum) != _CHECKSUM.size:\n"),
    ),
    mutant(
        "a mark that does not count is left until the next segment is written", WAL, PUT_BACK,
        ("        if is_marked and recovered.closed is None:  # it must not come to count for the segment that starts here\n            remove_closed(self._disk)\n", ""),
        ("        if is_marked and recovered.closed is not None:  # until", "        if is_marked:  # until"),
    ),
    mutant(
        "the removal of a mark is not synced", CLOSED, OF_ANOTHER,
        ("    disk.remove(CLOSED_NAME)\n    disk.sync_dir()\n", "    disk.remove(CLOSED_NAME)\n"),
    ),
    mutant(
        "the mark goes before the segment behind it is there", WAL, NEXT_OPEN,
        ("        if is_marked and recovered.closed is None:  # it", "        if is_marked:  # it"),
        ("        if is_marked and recovered.closed is not None:  # until here it said how long the segment before is\n            remove_closed(self._disk)\n", ""),
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
        ("        if is_marked and recovered.closed is not None:  # until here it said how long the segment before is\n            remove_closed(self._disk)\n", ""),
    ),
    mutant(
        "a salvaged copy has no mark", SALVAGE, SALVAGED,
        ("            store_closed(self._target, mark, self._header.log_id)\n", ""),
    ),
    mutant(
        "inspection does not ask the mark", SALVAGE, INSPECTED,
        ("    closed = 0 if mark is None else mark.last_ordinal\n", "    closed = 0\n"),
    ),
    # The snapshot; that each of its fields is missed, one by one, is in `test_snapshot_fields`
    mutant(
        "a snapshot forgets refusals", SNAPSHOT, DRAWN,
        ("        {key: marker for key, marker in markers.items() if isinstance(marker, Refusal)},\n", "        {},\n"),
    ),
    mutant(
        "a snapshot forgets what was applied", SNAPSHOT, DRAWN,
        ("        {key: marker for key, marker in markers.items() if isinstance(marker, bytes)},\n", "        {},\n"),
    ),
    mutant(
        "a snapshot forgets blocked keys", STATE, DRAWN,
        ("                    if task.stops_session:\n", "                    if not task.stops_session:\n"),
    ),
    mutant("a snapshot forgets the ages of markers", SNAPSHOT, DRAWN, ("        sorted(state.markers.ages),\n", "        [],\n")),
    mutant(
        "a snapshot forgets renewed markers", SNAPSHOT, DRAWN,
        ("        state.markers.renewed,\n        state.operations,\n", "        {},\n        state.operations,\n"),
    ),
    mutant(
        "a snapshot forgets operation ids", SNAPSHOT, DRAWN,
        ("        state.markers.renewed,\n        state.operations,\n", "        state.markers.renewed,\n        {},\n"),
    ),
    mutant("a snapshot forgets dead letters", SNAPSHOT, DRAWN, ("list(queue.tasks.values()), list(dead.tasks.values())", "list(queue.tasks.values()), []")),
    mutant(
        "a snapshot forgets duplicate detection", SNAPSHOT, DRAWN,
        ("tasks, letters, queue.seen, states,", "tasks, letters, {}, states,"),
    ),
    mutant(
        "a snapshot forgets the states of sessions", SNAPSHOT, DRAWN,
        ("for session in sessions if session.state}", "for session in sessions if not session.state}"),
    ),
    mutant(
        "a snapshot forgets rules", SNAPSHOT, DRAWN,
        ("        {path: list(rules.values()) for path, rules in state.rules.items()},\n", "        {},\n"),
    ),
    mutant("a snapshot forgets free numbers", SNAPSHOT, DRAWN, ("    state.free = list(image.free)\n", "    state.free = []\n")),
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
        "what is published to one subscription passes its rules by", STATE,
        "engine/test_rules.py::test_what_a_handler_publishes_is_sorted_by_the_same_rules",
        ("queues[0].fresh if len(queues) == 1 and not ruled else None", "queues[0].fresh if len(queues) == 1 else None"),
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
        "the first age of a refusal is not kept", MARKERS, REFUSED,
        ("        for key in refused:\n            renewed[key] = max(renewed.get(key, 0), expire_ms)\n",
         "        for key in refused:\n            if key in markers:\n                renewed[key] = max(renewed.get(key, 0), expire_ms)\n"),
    ),
    mutant(
        "a marker has the age of its last attempt", MARKERS, REFUSED,
        ("        for key in refused:\n            renewed[key] = max(renewed.get(key, 0), expire_ms)\n",
         "        for key in refused:\n            renewed[key] = expire_ms\n"),
    ),
    # Retirement, salvage
    mutant(
        "segments are retired before the snapshot's name is synced", WAL, RETIRED,
        ("            self._disk.sync_dir()  # the snapshot may be another process's, whose rename is not synced yet\n", ""),
    ),
    mutant(
        "a salvage takes the oldest snapshot", SALVAGE, SALVAGED_FROM,
        ("        for ordinal in reversed(inspection.snapshots):\n", "        for ordinal in inspection.snapshots:\n"),
    ),
    mutant(
        "a salvage takes a snapshot that does not decode", SALVAGE, SALVAGED_FROM,
        ("            if accept_snapshot is None or accept_snapshot(ordinal, data):\n", "            if data:\n"),
    ),
    mutant(
        "an open takes the oldest snapshot", SEGMENTS, OPENED_FROM,
        ("    for ordinal in reversed(ordinals):\n", "    for ordinal in ordinals:\n"),
    ),
    mutant(
        "a snapshot of what is not sealed is adopted", WAL,
        "engine_log/test_log_life.py::test_a_snapshot_that_is_ahead_of_what_is_sealed_is_not_adopted",
        ("if self._retired_to < n < self._first]", "if self._retired_to < n]"),
    ),
    mutant(
        "a segment is retired by where it begins", WAL, BEHIND,
        ("if following <= upto + 1 and following <= self._first:", "if ordinal <= upto and following <= self._first:"),
    ),
    mutant(
        "a salvage takes the record of the smaller epoch", SALVAGE, EPOCHS,
        ("key=lambda record: (record.ordinal, -record.epoch)", "key=lambda record: (record.ordinal, record.epoch)"),
    ),
    mutant(
        "an inspection asks headers only what was synced", SALVAGE, SYNCED,
        ("max([durable, *(record.durable for record in records)])", "max([durable, *(record.durable for record in records[:1])])"),
    ),
    mutant(
        "a writer's epoch is above that of headers only", SEGMENTS, EPOCHS,
        ("max(recovery.epoch, first.epoch, kept[-1].epoch)", "max(recovery.epoch, first.epoch)"),
    ),
    # Locks
    mutant(
        "a dead letter that somebody holds goes as a copy", "outbox/engine/dead_letters.py",
        f"{LOCKS}::test_a_copy_of_a_resubmitted_message_stays_with_its_lock_holder",
        ("other.status != LOCKED and is_copy(", "is_copy("),
    ),
    mutant(
        "a folder is held by a lock file that was replaced", DISK, NAMELESS,
        ("if os.fstat(descriptor).st_ino != (self._path / LOCK_NAME).stat().st_ino:", "if descriptor < 0:"),
    ),
    mutant(
        "a lock is renewed after its end", BROKER, LOCKS,
        ("held and task.locked_until_ms > self._core.now_ms():", "held:"),
    ),
    mutant(
        "a lock is held in the millisecond of its end", BROKER, LOCKS,
        ("held and task.locked_until_ms > self._core.now_ms():", "held and task.locked_until_ms >= self._core.now_ms():"),
    ),
    mutant(
        "a session is renewed after its end", SESSIONS, LOCKS,
        ("session.lock == lock and session.locked_until_ms > self._core.now_ms():", "session.lock == lock:"),
    ),
    mutant(
        "a session is held in the millisecond of its end", SESSIONS, LOCKS,
        ("session.locked_until_ms > self._core.now_ms():", "session.locked_until_ms >= self._core.now_ms():"),
    ),
    mutant(
        "a renewal does not move the end", BROKER, LOCKS,
        ("        task.locked_until_ms = until_ms\n        heappush(self._lock_timers, (until_ms, queue.number, task.lock,", "        heappush(self._lock_timers, (until_ms, queue.number, task.lock,"),
    ),
    mutant(
        "a session's renewal leaves its messages behind", SESSIONS, LOCKS,
        ("            self._broker.extend(queue, queue.tasks[sequence], until_ms)\n", "            pass\n"),
    ),
    mutant(
        "one lock that is over ends the renewal of the others", JOURNAL, LOCKS,
        ("            with suppress(LockLost):  # one that ran out does not keep the others from it\n", "            if True:\n"),
    ),
    mutant(
        "one lock that is over keeps the others from being given back", JOURNAL, LOCKS,
        ("            with suppress(LockLost):\n", "            if True:\n"),
    ),
)  # fmt: skip

TABLE = Table(LOG_MUTANTS, "tests/unit/", ("asyncio", "hypothesis", "msgspec", "pytest_asyncio"))

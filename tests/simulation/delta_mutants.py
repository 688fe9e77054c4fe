"""Faults in the ledger of `consume` as a Delta table, each planted alone, and the tests that must fail of it.

Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

TABLES = "spark_jobs/draining/tables.py"
MERGING = "spark_jobs/draining/merging.py"
ENTRIES = "spark_jobs/draining/entries.py"
DURABLE = "spark_jobs/draining/durable.py"
KEYS = "spark_jobs/draining/keys.py"
JUDGED = "spark_jobs/draining/judged.py"
LEFTOVERS = "spark_jobs/draining/leftovers.py"
TAKING_OVER = "spark_jobs/draining/taking_over.py"
MANIFEST = "spark_jobs/draining/manifest.py"
OF_TABLES = "spark/test_ledger_tables.py"
OF_MERGING = "spark/test_merging.py"
OF_KEYS = "spark/test_ledger_keys.py"
OF_POWER = "spark/test_ledger_power.py"
OF_LEFTOVERS = "spark/test_ledger_leftovers.py"
OF_TAKE_OVER = "spark/test_take_over.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "jobs", (test,), file, edits)


DELTA_MUTANTS = (
    # The fence, and what a failed commit means
    fault(
        "delta: a commit that lost its version takes the next", TABLES,
        f"{OF_LEFTOVERS}::test_a_merge_that_began_before_a_vacuum_is_lost_to_it",
        ("        max_commit_retries=0,\n", ""),
    ),
    fault(
        "delta: a table is opened once", MERGING,
        f"{OF_MERGING}::test_one_merger_finds_what_it_and_others_merged",
        ("            base = self.table.read_or_create()\n            waiting",
         "            base = vars(self).setdefault('base', None) or self.table.read_or_create()\n            self.base = base\n            waiting"),
    ),
    fault(
        "delta: each commit has the same number", MERGING,
        f"{OF_TABLES}::test_each_commit_has_the_number_behind_the_newest",
        ("number=base.number + 1, files=len(added), consumed=list(taken)", "number=1, files=len(added), consumed=list(taken)"),
    ),
    fault(
        "delta: the number of the table is not read", TABLES,
        f"{OF_TABLES}::test_a_number_that_another_program_wrote_is_an_error",
        ("                if entry.progress.number != number:\n", "                if False:\n"),
    ),
    fault(
        "delta: a failed commit is a lost one", TABLES,
        f"{OF_TABLES}::test_a_commit_whose_answer_is_lost_stands",
        ("            return entry.progress is not None and entry.progress.token == progress.token\n", "            return False\n"),
    ),
    fault(
        "delta: a version that is there is ours", TABLES,
        f"{OF_MERGING}::test_who_lost_a_version_deletes_no_file_and_decides_anew",
        ("            return entry.progress is not None and entry.progress.token == progress.token\n", "            return True\n"),
    ),
    fault(
        "delta: a commit without an answer is a lost one", TABLES,
        f"{OF_TABLES}::test_a_commit_without_an_answer_or_a_version_is_unknown_and_comes_true_later",
        ("                raise unknown(self.place, base.version + 1, error) from error\n", "                return False\n"),
    ),
    fault(
        "delta: what a lost commit wrote is deleted", MERGING,
        f"{OF_MERGING}::test_who_lost_a_version_deletes_no_file_and_decides_anew",
        ("        if not self.table.commit(base, added, progress):\n",
         "        if not self.table.commit(base, added, progress):\n            [self.place.delete(file.name) for file in added]\n"),
    ),
    fault(
        "delta: two tables of one name are one", TABLES,
        f"{OF_TABLES}::test_two_ledgers_of_one_name_are_refused",
        ("        if self.id and str(told.id) != self.id:\n", "        if False:\n"),
    ),
    # What is written, and what is refused
    fault(
        "delta: a table has deletion vectors", TABLES,
        f"{OF_TABLES}::test_the_protocol_is_what_synapse_reads",
        ('"delta.enableDeletionVectors": "false"', '"delta.enableDeletionVectors": "true"'),
    ),
    fault(
        "delta: a newer protocol is written to", TABLES,
        f"{OF_TABLES}::test_a_table_that_is_not_written_by_this_build_is_refused",
        ("        if versions != PROTOCOL or features:\n", "        if False:\n"),
    ),
    fault(
        "delta: a table of another program is written to", TABLES,
        f"{OF_TABLES}::test_a_table_that_is_not_written_by_this_build_is_refused",
        ("        if told.name != self.name:\n", "        if False:\n"),
    ),
    fault(
        "delta: other columns are written to", TABLES,
        f"{OF_TABLES}::test_a_table_that_is_not_written_by_this_build_is_refused",
        ("if pa.schema(handle.schema().to_arrow()) != ROW or told.partition_columns:", "if told.partition_columns:"),
    ),
    # Torn logs, and what must be on disk
    fault(
        "delta: an entry without bytes is an empty version", ENTRIES,
        f"{OF_TABLES}::test_a_torn_newest_entry_is_named_and_its_cure_loses_nothing",
        ("    if not actions or (progress", "    if (progress"),
    ),
    fault(
        "delta: an entry that was cut behind a line is whole", ENTRIES,
        f"{OF_TABLES}::test_a_torn_newest_entry_is_named_and_its_cure_loses_nothing",
        (" (progress is not None and not is_whole(actions, progress)):", " False:"),
    ),
    fault(
        "delta: an entry without its transaction is whole", ENTRIES,
        f"{OF_TABLES}::test_a_torn_newest_entry_is_named_and_its_cure_loses_nothing",
        ("    return added == progress.files and progress.number in [", "    return added == progress.files or progress.number in ["),
    ),
    fault(
        "delta: a landing file goes before its version is on disk", MERGING,
        f"{OF_POWER}::test_a_power_loss_in_a_merge_costs_nothing",
        ("        self.durable.sync()\n        self.crash_point(\"synced\")\n", "        self.crash_point(\"synced\")\n"),
    ),
    fault(
        "delta: an entry is not on disk", DURABLE,
        f"{OF_POWER}::test_a_power_loss_in_a_merge_costs_nothing",
        ("            sync_path(root / LOG / name)\n", "            pass\n"),
    ),
    fault(
        "delta: the names of entries are not on disk", DURABLE,
        f"{OF_POWER}::test_a_power_loss_in_a_merge_costs_nothing",
        ("for folder in (root / LOG, root, *root.parents):", "for folder in (root, *root.parents):"),
    ),
    fault(
        "delta: the name of a table's folder is not on disk", DURABLE,
        f"{OF_POWER}::test_a_power_loss_in_a_merge_costs_nothing",
        ("for folder in (root / LOG, root, *root.parents):", "for folder in (root / LOG, root):"),
    ),
    fault(
        "delta: messages are completed in a folder without a name on disk", MERGING,
        f"{OF_POWER}::test_a_power_loss_in_a_merge_costs_nothing",
        ("before receivers complete what they landed below it.\"\"\"\n        self.durable.sync()\n",
         "before receivers complete what they landed below it.\"\"\"\n"),
    ),
    fault(
        "delta: a conflict is not on disk when its landing file goes", MERGING,
        f"{OF_POWER}::test_a_power_loss_in_a_merge_costs_nothing",
        ("                self.durable_contradictions.sync()\n", ""),
    ),
    fault(
        "delta: conflicts are committed behind the version that consumed them", MERGING,
        f"{OF_MERGING}::test_a_merger_that_dies_anywhere_leaves_no_row_out_and_none_twice",
        ("        if judged.conflicts:\n            self._keep_conflicts(chosen(landed, judged.conflicts))\n", ""),
        ("        self.crash_point(\"committed\")\n",
         "        self.crash_point(\"committed\")\n        if judged.conflicts:\n            self._keep_conflicts(chosen(landed, judged.conflicts))\n"),
    ),
    fault(
        "delta: a conflict that is kept is kept again", MERGING,
        f"{OF_MERGING}::test_another_body_under_a_known_id_is_kept_beside_the_ledger_once",
        ("            known = self.known_contradictions.among(identities, base.files)\n", "            known = {}\n"),
    ),
    fault(
        "delta: entries expire before the checkpoint is on disk", TABLES,
        f"{OF_LEFTOVERS}::test_entries_expire_in_a_sweep_and_only_behind_a_checkpoint_on_disk",
        ("cleanup_expired_logs=False)", "cleanup_expired_logs=True)"),
    ),
    fault(
        "delta: a sweep lets entries expire before it syncs", LEFTOVERS,
        f"{OF_LEFTOVERS}::test_entries_expire_in_a_sweep_and_only_behind_a_checkpoint_on_disk",
        ("    durable.sync()\n    behind_s", "    behind_s"),
    ),
    # What the ledger holds
    fault(
        "delta: damaged hashes are believed", KEYS,
        f"{OF_KEYS}::test_a_damaged_key_file_is_made_anew_from_its_data_file",
        ("len(hashed) != count * HASH_BYTES or zlib.crc32(hashed) != checksum", "len(hashed) != count * HASH_BYTES"),
    ),
    fault(
        "delta: damaged rests of identities are believed", KEYS,
        f"{OF_KEYS}::test_a_damaged_key_file_is_made_anew_from_its_data_file",
        ("    if running != checksum:\n", "    if False:\n"),
    ),
    fault(
        "delta: of equal hashes the first counts", KEYS,
        f"{OF_KEYS}::test_equal_hashes_of_other_identities_are_told_apart",
        ("np.searchsorted(held, asked, \"left\"), np.searchsorted(held, asked, \"right\")",
         "np.searchsorted(held, asked, \"left\"), np.searchsorted(held, asked, \"left\") + np.isin(asked, held)"),
    ),
    fault(
        "delta: a damaged key file stays", KEYS,
        f"{OF_KEYS}::test_a_damaged_key_file_is_made_anew_from_its_data_file",
        ("            self.place.delete(file)  # what", "            pass  # what"),
    ),
    fault(
        "delta: two texts are told apart by their letters alone", JUDGED,
        f"{OF_KEYS}::test_a_pair_of_texts_is_not_another_pair_of_the_same_letters",
        ('b"%d:%b" % (len(part), part)', "part"),
    ),
    fault(
        "delta: what landed first is the first delivery", JUDGED,
        f"{OF_MERGING}::test_of_copies_that_differ_the_first_delivery_is_the_row",
        ("pc.sort_indices(rows, sort_keys=FIRST_DELIVERY, null_placement=\"at_start\").to_pylist()", "list(range(rows.num_rows))"),
    ),
    # Limits, vacuum and sweep
    fault(
        "delta: one version takes all that has landed", MERGING,
        f"{OF_MERGING}::test_one_version_takes_so_many_files_and_bytes_of_what_waits",
        ("            elif len(waiting) < FILE_COUNT_MAX:\n", "            else:\n"),
    ),
    fault(
        "delta: what has landed may decode to any size", MERGING,
        f"{OF_MERGING}::test_one_version_takes_so_many_files_and_bytes_of_what_waits",
        ("                    if parts and size > LANDED_BYTES_MAX:\n", "                    if False:\n"),
    ),
    fault(
        "delta: a merge may take any time", MERGING,
        f"{OF_MERGING}::test_a_merge_that_took_longer_than_vacuum_waits_does_not_commit",
        ("        if self.place.now_s() - started_s > MERGE_S_MAX:\n", "        if False:\n"),
    ),
    fault(
        "delta: what is not read of what landed counts as consumed", MERGING,
        f"{OF_MERGING}::test_one_version_takes_so_many_files_and_bytes_of_what_waits",
        ("taken, landed = waiting[: len(parts)], pa.concat_tables(parts)", "taken, landed = waiting, pa.concat_tables(parts)"),
    ),
    fault(
        "delta: a store's clock that is behind makes files old", LEFTOVERS,
        f"{OF_LEFTOVERS}::test_a_clock_of_the_store_that_is_behind_makes_nothing_old",
        ("math.ceil((age_s + behind_s) / HOUR_S)", "math.ceil(age_s / HOUR_S)"),
    ),
    fault(
        "delta: what no version ever named stays", LEFTOVERS,
        f"{OF_LEFTOVERS}::test_what_no_version_names_goes_and_everything_else_stays",
        ("enforce_retention_duration=False, full=True)", "enforce_retention_duration=False)"),
    ),
    fault(
        "delta: keys of files that are there are swept", LEFTOVERS,
        f"{OF_LEFTOVERS}::test_what_no_version_names_goes_and_everything_else_stays",
        (" if data_file(item.name) not in base.files]", "]"),
    ),
    fault(
        "delta: keys that a merge is about to commit are swept", LEFTOVERS,
        f"{OF_LEFTOVERS}::test_what_no_version_names_goes_and_everything_else_stays",
        ("    old = [item.name for item in keys if item.changed_s <= horizon_s]\n", "    old = [item.name for item in keys]\n"),
    ),
    fault(
        "delta: what a receiver writes is swept", LEFTOVERS,
        f"{OF_LEFTOVERS}::test_what_no_version_names_goes_and_everything_else_stays",
        ("place.sweep_parts(age_s)", "place.sweep_parts(0)"),
    ),
    # Take-over
    fault(
        "take-over: the old log stays open", TAKING_OVER,
        f"{OF_TAKE_OVER}::test_a_commit_that_overtakes_the_take_over_is_in_it",
        ("        if log.close(state):\n", "        if log.close(state) or True:\n"),
    ),
    fault(
        "take-over: the closing record goes", MANIFEST,
        f"{OF_TAKE_OVER}::test_a_build_that_writes_the_old_log_loses_its_next_version_and_stops",
        (" if item.name != closing]:", "]:"),
    ),
    fault(
        "take-over: conflicts stay behind", TAKING_OVER,
        f"{OF_TAKE_OVER}::test_rows_conflicts_and_what_waits_are_taken_over",
        ("    if state.conflicts:\n", "    if False:\n"),
    ),
    fault(
        "take-over: what was consumed is merged again", TAKING_OVER,
        f"{OF_TAKE_OVER}::test_rows_conflicts_and_what_waits_are_taken_over",
        ("[name for name in state.consumed if name in landed])", "[])"),
    ),
    fault(
        "take-over: a landing file goes for a data file that is not on disk", TAKING_OVER,
        f"{OF_POWER}::test_what_older_builds_did_not_sync_is_on_disk_before_its_landing_file_goes",
        ("    sync_data(table.place, names)\n", ""),
    ),
    fault(
        "take-over: the conflicts are not on disk when the rows are", TAKING_OVER,
        f"{OF_POWER}::test_what_older_builds_did_not_sync_is_on_disk_before_its_landing_file_goes",
        ("        Durable(beside).sync()\n", ""),
    ),
    fault(
        "take-over: a table that was there is taken for its own", TAKING_OVER,
        f"{OF_TAKE_OVER}::test_two_ledgers_of_one_name_are_refused",
        ("        if table.read() is not None:\n", "        if False:\n"),
    ),
    fault(
        "take-over: an older form is merged into", MANIFEST,
        f"{OF_TAKE_OVER}::test_consume_on_an_older_form_names_the_command",
        ("    if not log.is_there():\n        return\n", "    return\n"),
    ),
    fault(
        "take-over: a commit that is missing is passed over", MANIFEST,
        f"{OF_TAKE_OVER}::test_a_missing_version_is_noticed",
        ("                if commit.version != state.version + 1:\n", "                if False:\n"),
    ),
)  # fmt: skip

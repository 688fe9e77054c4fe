"""Faults in the commands that follow, move, copy and pause: trails, states by If-Match, backups, blocked keys, queues.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.operator_mutants import fault

BLOBS = "outbox/engine/backend/blobs.py"
BACKUPS, BACKUP, BACKUP_FILES = (
    "unit/ops/test_backup.py",
    "outbox/ops/folder/backup.py",
    "outbox/ops/folder/backup_files.py",
)
DISCARDS = "unit/ops/test_discards.py"

COMMAND_MUTANTS = (
    fault("a backup leaves out what the host has just acknowledged", BACKUP,
        f"{BACKUPS}::test_under_load_a_backup_is_one_moment_and_has_all_that_was_acknowledged",
        ("                    least = await admin.ask(Seal())\n", "                    least = 0\n"),
    ),
    fault("a large body that the host deletes under the copy is missing", BACKUP,
        f"{BACKUPS}::test_a_large_body_that_is_deleted_behind_the_cut_comes_along",
        ("_blobs(root, folder / BLOBS, deleted)", "_blobs(root, folder / BLOBS)"),
    ),
    fault("two backups share what is kept, and the first to end removes it", BLOBS,
        f"{BACKUPS}::test_a_large_body_that_is_deleted_behind_the_cut_comes_along",
        ("return hold(folder, os.O_RDONLY | os.O_DIRECTORY)", "return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)"),
    ),
    fault("a restored log gives out the locks of the first", BACKUP,
        f"{BACKUPS}::test_a_restored_log_is_another_one_and_voids_the_locks_of_the_first",
        ("        epoch_step=EPOCH_STEP,\n", ""),
    ),
    fault("what lies in a packed backup is written wherever it says", BACKUP_FILES,
        f"{BACKUPS}::test_a_packed_backup_holds_nothing_else",
        ("not (member.name == MANIFEST or _NAME(member.name))", "False"),
    ),
    fault("what is to be due now is cancelled before it is sent", "outbox/ops/messages/store.py",
        "unit/ops/test_store_operator.py::test_what_is_to_be_due_now_is_cancelled_only_when_it_was_sent",
        ("        await at.operations.send([Output(queue, 0, message)])\n        await at.cancel(queue, [held.sequence])\n",
         "        await at.cancel(queue, [held.sequence])\n        await at.operations.send([Output(queue, 0, message)])\n"),
    ),
    fault("a discard of what another client has in hand unblocks its key", "outbox/runtime/store_operations.py",
        f"{DISCARDS}::test_what_another_client_has_in_hand_is_left_as_it_is",
        ("            await self._bus.discard(dead.queue, dead.sequence, first=unblock)\n",
         "            await unblock()\n            await self._bus.discard(dead.queue, dead.sequence)\n"),
    ),
)  # fmt: skip

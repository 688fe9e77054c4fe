"""Faults in how a command finds what it is given: a message by its id, a dead letter by its number, a queue by its name.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.operator_mutants import fault

TWO = "wire/cli/test_dead_letters_in_two_places.py"
OPERATIONS = "outbox/runtime/store_operations.py"
TERMINAL, SHOWN = "outbox/ops/cli/terminal.py", "unit/ops/test_terminal.py"
LETTERS = "outbox/azure/servicebus/dead_letters.py"
SCRATCH, LEFT_BESIDE = "outbox/ops/folder/backup.py", "unit/ops/test_scratch.py"

LOOKUP_MUTANTS = (
    fault("a resubmission from the bus knows no copy in the store", OPERATIONS,
        f"{TWO}::test_a_resubmission_is_above_every_copy_wherever_it_lies",
        ("await self._bus.resubmit(queue, sequence, attempt=attempt, edit=edit, first=note)",
         "await self._bus.resubmit(queue, sequence, edit=edit, first=note)"),
    ),
    fault("a copy elsewhere outlives the resubmission", OPERATIONS,
        f"{TWO}::test_a_resubmission_is_above_every_copy_wherever_it_lies",
        ("            if not is_copy(other.message, dead.message):\n", "            if True:\n"),
    ),
    fault("another message of the id goes with a resubmission", OPERATIONS,
        f"{TWO}::test_a_resubmission_is_above_every_copy_wherever_it_lies",
        ("            if not is_copy(other.message, dead.message):\n", "            if False:\n"),
    ),
    fault("a token that stands for an id is shown", TERMINAL,
        f"{SHOWN}::test_a_secret_does_not_pass_for_an_id",
        (" or \"***\" in _strict(word[0])", ""),
    ),
    fault("what a pass does not settle stays under lock", LETTERS,
        f"{TWO}::test_those_that_a_filter_means_are_discarded_in_one_pass",
        ("                await _given_back(receiver, held)\n        return done", "                pass\n        return done"),
    ),
    fault("a pass deletes whatever it comes by", LETTERS,
        f"{TWO}::test_those_that_a_filter_means_are_discarded_in_one_pass",
        ("                        if number in left:\n                            left.discard(number)\n                            await firsts[number]()\n",
         "                        if True:\n                            left.discard(number)\n                            await firsts.get(number, [*firsts.values()][0])()\n"),
    ),
    fault("what a pass deletes cannot be restored", OPERATIONS,
        f"{TWO}::test_those_that_a_filter_means_are_discarded_in_one_pass",
        ("        if life_s is not None:\n", "        if False:\n"),
    ),
    fault("a pass leaves keys blocked", OPERATIONS,
        f"{TWO}::test_a_pass_unblocks_the_keys_of_what_it_discards",
        ("            await self._blocked.unblock(dead.queue, dead.message)\n\n    async def set_aside", "            pass\n\n    async def set_aside"),
    ),
    fault("what a living process has just made is removed", SCRATCH,
        f"{LEFT_BESIDE}::test_what_may_be_in_use_or_anothers_stays",
        (" or not is_alive(process):", " or True:"),
    ),
)  # fmt: skip

"""Faults in how a command finds what it is given: a message by its id, a dead letter by its number, a queue by its name.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.operator_mutants import fault

DEEP = "wire/cli/test_deep_queues.py"
ONE, TWO = "unit/ops/test_dead_letters_of_one_id.py", "wire/cli/test_dead_letters_in_two_places.py"
OPERATIONS, GROUPS = "outbox/runtime/store_operations.py", "outbox/ops/dead_letters.py"
NAMES, WIRE_NAMES = "unit/ops/test_queue_names.py", "wire/cli/test_queue_names.py"
TERMINAL, SHOWN = "outbox/ops/terminal.py", "unit/ops/test_terminal.py"
LETTERS = "outbox/azure/servicebus/dead_letters.py"
SCRATCH, LEFT_BESIDE = "outbox/ops/scratch.py", "unit/ops/test_scratch.py"
MESSAGES = "outbox/ops/store_messages.py"

LOOKUP_MUTANTS = (
    fault(
        "what a look did not reach is in no queue", MESSAGES,
        f"{DEEP}::test_where_there_is_more_than_is_looked_through_nothing_is_said_to_be_absent",
        ("            if not cut:\n                raise\n", "            if True:\n                raise\n"),
    ),
    fault(
        "a message behind thousands is not looked for", MESSAGES,
        f"{DEEP}::test_what_waits_behind_thousands_is_shown_and_traced",
        ("    return max(SCAN_COUNT_MIN, SCAN_COUNT_MAX // max(1, queue_count))", "    return SCAN_COUNT_MIN"),
    ),
    fault(
        "a beginning stands for the first id that was seen", MESSAGES,
        f"{DEEP}::test_a_beginning_stands_for_an_id_only_where_all_was_looked_through",
        ("        if more and id not in ids:\n", "        if more and not ids:\n"),
    ),
    fault(
        "a queue is looked through without end", MESSAGES,
        f"{DEEP}::test_a_search_makes_a_limited_number_of_requests",
        ("is_wanted=is_wanted, look_count_max=count", "is_wanted=is_wanted, look_count_max=1 << 40"),
    ),
    fault(
        "a resubmission from the bus knows no copy in the store", OPERATIONS,
        f"{TWO}::test_a_resubmission_is_above_every_copy_wherever_it_lies",
        ("await self._bus.resubmit(queue, sequence, attempt=attempt, edit=edit, first=note)",
         "await self._bus.resubmit(queue, sequence, edit=edit, first=note)"),
    ),
    fault(
        "a copy elsewhere outlives the resubmission", OPERATIONS,
        f"{TWO}::test_a_resubmission_is_above_every_copy_wherever_it_lies",
        ("            if not is_copy(other.message, dead.message):\n", "            if True:\n"),
    ),
    fault(
        "another message of the id goes with a resubmission", OPERATIONS,
        f"{TWO}::test_a_resubmission_is_above_every_copy_wherever_it_lies",
        ("            if not is_copy(other.message, dead.message):\n", "            if False:\n"),
    ),
    fault(
        "any dead letter of an id is its relapse", GROUPS,
        f"{ONE}::test_another_dead_letter_of_the_id_is_no_relapse",
        ("set(dead) - self._known.get((queue, id), set())", "set(dead)"),
    ),
    fault(
        "a relapse is shown by the number of another dead letter", GROUPS,
        f"{ONE}::test_a_relapse_is_seen_beside_another_dead_letter_of_the_id",
        ("return id, max(fresh).sequence", "return id, max(dead).sequence"),
    ),
    fault(
        "on a folder copies are left by a resubmission of all", "outbox/ops/engine_operator.py",
        f"{ONE}::test_copies_go_along_with_a_resubmission_of_all",
        ("if is_resubmission and task.message.identity and alike(task.message) in moved:", "if False:"),
    ),
    fault(
        "a folder shows another dead letter than it resubmits", "outbox/ops/engine_operator.py",
        f"{ONE}::test_what_is_shown_is_what_is_resubmitted_and_its_cure_names_it",
        ("        dead = newest(those_of(queue, id, same, sequence))\n        only", "        dead = same[-1]\n        only"),
    ),
    fault(
        "a store shows another dead letter than it resubmits", "outbox/ops/store_dead_letters.py",
        f"{ONE}::test_what_is_shown_is_what_is_resubmitted_and_its_cure_names_it",
        ("dead, only = newest(those_of(queue, id, found, sequence)),", "dead, only = found[-1],"),
    ),
    fault(
        "a cure means any dead letter of the id", "outbox/ops/dead_letter_views.py",
        f"{ONE}::test_every_place_of_an_id_has_a_cure_that_means_it",
        ("\"\" if is_only else f\"--sequence {dead.sequence} \"", "\"\""),
    ),
    fault(
        "the case of a queue's name is another queue", "outbox/ops/names.py",
        f"{NAMES}::test_a_queue_is_meant_in_any_case_as_its_application_writes_it",
        ("each.casefold() == name.casefold()", "each == name"),
    ),
    fault(
        "the bus's way of writing a name goes before the application's", "outbox/ops/store_names.py",
        f"{NAMES}::test_a_queue_is_meant_in_any_case_as_its_application_writes_it",
        ("        if (found := spelled(name, known)) or self._on_the_bus is None:\n            return found or name\n",
         "        if self._on_the_bus is None:\n            return name\n"),
    ),
    fault(
        "what was discarded of a queue that is not there is nothing", "outbox/ops/store_operator.py",
        f"{WIRE_NAMES}::test_a_queue_that_is_not_there_is_refused_with_those_that_are_near",
        ("self._dead_letters.discarded(await self._names.declared(queue))", "self._dead_letters.discarded(queue)"),
    ),
    fault(
        "who may not manage can name no queue", "outbox/ops/store_names.py",
        f"{NAMES}::test_where_the_bus_does_not_say_its_names_one_is_as_given",
        ("        except OutboxError:\n            return name\n", "        except EOFError:\n            return name\n"),
    ),
    fault(
        "of two names that differ in case one is taken", "outbox/ops/names.py",
        f"{NAMES}::test_names_that_differ_in_case_alone_are_told_apart",
        ("    if len(same) > 1:\n        raise Refused(f\"{name!r} may be", "    if False:\n        raise Refused(f\"{name!r} may be"),
    ),
    fault(
        "an empty id stands for what has none", "outbox/ops/arguments/kinds.py",
        f"{WIRE_NAMES}::test_an_empty_id_or_name_is_refused",
        ("        raise argparse.ArgumentTypeError(\"it is empty,", "        str(\"it is empty,"),
    ),
    fault(
        "an empty transaction is all of them", "outbox/ops/pending.py",
        f"{NAMES}::test_an_empty_id_stands_for_nothing",
        ("    if not text:\n        raise LookupError(\"an empty", "    if not text:\n        return None  # (\"an empty"),
    ),
    fault(
        "what a terminal cannot show ends a command that is done", TERMINAL,
        f"{SHOWN}::test_what_an_encoding_lacks_is_escaped_as_in_json",
        ("                stream.reconfigure(errors=ESCAPED)", "                stream.flush()"),
    ),
    fault(
        "what an encoding lacks is escaped as JSON does not know it", TERMINAL,
        f"{SHOWN}::test_what_an_encoding_lacks_is_escaped_as_in_json",
        ("ESCAPED = \"outbox-escaped\"", "ESCAPED = \"backslashreplace\""),
    ),
    fault(
        "an id that looks like a secret is redacted in its command", TERMINAL,
        f"{SHOWN}::test_an_id_in_a_command_to_paste_stays",
        ("return re.sub(\"\\0(\\\\d+)\\0\", lambda mark: kept[int(mark[1])], redacted(marked))", "return redacted(text)"),
    ),
    fault(
        "whatever stands in a command is an id", TERMINAL,
        f"{SHOWN}::test_a_secret_does_not_pass_for_an_id",
        ("_IS_SECRET.search(word[0]) or ", ""),
    ),
    fault(
        "a token that stands for an id is shown", TERMINAL,
        f"{SHOWN}::test_a_secret_does_not_pass_for_an_id",
        (" or \"***\" in _strict(word[0])", ""),
    ),
    fault(
        "each that a filter means is a pass of its own", "outbox/ops/store_operator.py",
        f"{TWO}::test_those_that_a_filter_means_are_discarded_in_one_pass",
        ("StoreDeadLetters(ports, self._operations, discard_some)", "StoreDeadLetters(ports, self._operations)"),
    ),
    fault(
        "what a pass does not settle stays under lock", LETTERS,
        f"{TWO}::test_those_that_a_filter_means_are_discarded_in_one_pass",
        ("                await _given_back(receiver, held)\n        return done", "                pass\n        return done"),
    ),
    fault(
        "a pass deletes whatever it comes by", LETTERS,
        f"{TWO}::test_those_that_a_filter_means_are_discarded_in_one_pass",
        ("                        if number in left:\n                            left.discard(number)\n                            await firsts[number]()\n",
         "                        if True:\n                            left.discard(number)\n                            await firsts.get(number, [*firsts.values()][0])()\n"),
    ),
    fault(
        "what a pass deletes cannot be restored", OPERATIONS,
        f"{TWO}::test_those_that_a_filter_means_are_discarded_in_one_pass",
        ("        if life_s is not None:\n", "        if False:\n"),
    ),
    fault(
        "a pass leaves keys blocked", OPERATIONS,
        f"{TWO}::test_a_pass_unblocks_the_keys_of_what_it_discards",
        ("            await self._blocked.unblock(dead.queue, dead.message)\n\n    async def set_aside", "            pass\n\n    async def set_aside"),
    ),
    fault(
        "what a pass has not found counts as discarded", GROUPS,
        f"{TWO}::test_what_another_has_in_hand_is_left_by_a_pass",
        ("if letter.sequence not in done]", "if False]"),
    ),
    fault(
        "what a killed backup has left stays", SCRATCH,
        f"{LEFT_BESIDE}::test_a_killed_backup_leaves_nothing_for_long",
        ("    _remove_left(target)\n    root", "    root"),
    ),
    fault(
        "what was packed stays beside its folder", SCRATCH,
        f"{LEFT_BESIDE}::test_what_was_packed_goes_with_its_folder",
        ("        packed_name(path).unlink(missing_ok=True)\n", ""),
    ),
    fault(
        "what a process holds is taken for left", SCRATCH,
        f"{LEFT_BESIDE}::test_what_may_be_in_use_or_anothers_stays",
        (" or is_held(descriptor):", ":"),
    ),
    fault(
        "what is not of a backup is removed", SCRATCH,
        f"{LEFT_BESIDE}::test_what_may_be_in_use_or_anothers_stays",
        (" and parts <= _PARTS", ""),
    ),
    fault(
        "what a living process has just made is removed", SCRATCH,
        f"{LEFT_BESIDE}::test_what_may_be_in_use_or_anothers_stays",
        ("        return False\n    return False\n", "        return False\n    return True\n"),
    ),
    fault(
        "a folder of a process of this number is taken over", SCRATCH,
        f"{LEFT_BESIDE}::test_a_process_of_this_number_elsewhere_keeps_its_folder",
        ("            return root, hold(root, os.O_RDONLY | os.O_DIRECTORY)", "            return root, os.open(root, os.O_RDONLY | os.O_DIRECTORY)"),
    ),
)  # fmt: skip

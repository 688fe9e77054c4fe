"""Faults in how a command finds what it is given: a message by its id, a dead letter by its number, a queue by its name.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.operator_mutants import fault

DEEP = "wire/cli/test_deep_queues.py"
MESSAGES = "outbox/ops/store_messages.py"

LOOKUP_MUTANTS = (
    fault(
        "what a look did not reach is in no queue", MESSAGES,
        f"{DEEP}::test_where_there_is_more_than_is_looked_through_nothing_is_said_to_be_absent",
        ("            if cut:\n", "            if False:\n"),
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
)  # fmt: skip

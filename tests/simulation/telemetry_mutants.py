"""Faults in breakers, rates and calls, each planted alone, and the tests that must fail of it.

Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

GUARDS = "outbox/guards.py"
CONTEXT = "outbox/context.py"
SPARED = "unit/handlers/test_guards.py"
CALLED = "unit/handlers/test_call_guards.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "telemetry", (test,), file, edits)


TELEMETRY_MUTANTS = (
    fault("guards: a breaker that is half open lets all through", GUARDS,
        f"{SPARED}::test_one_attempt_at_a_time_tries_what_was_down_and_one_that_never_ends_is_given_up",
        ("            case \"half-open\" if now_ms < self._until_ms:\n                return 1.0\n", ""),
    ),
    fault("guards: a message is rescheduled beyond its retention", GUARDS,
        f"{SPARED}::test_no_message_is_rescheduled_for_longer_than_ten_minutes_at_a_time",
        ("        is_far = at_ms - now_ms > WAIT_S_MAX * 1_000\n", "        is_far = False\n"),
    ),
    fault("guards: a call is rescheduled before it is known whether its message is new", CONTEXT,
        f"{CALLED}::test_a_copy_of_what_was_applied_is_completed_while_the_breaker_is_open",
        ("        try:\n            await self.durable()", "        self._enter(ExitStack(), guards)\n        try:\n            await self.durable()"),
    ),
    fault("calls: those made at once have one key", CONTEXT,
        f"{CALLED}::test_calls_that_are_made_at_once_have_keys_of_their_own",
        ("        key = self.idempotency_key if number == 1", "        number = self.call_count\n        key = self.idempotency_key if number == 1"),
    ),
)  # fmt: skip

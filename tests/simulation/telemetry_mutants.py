"""Faults in what is counted and traced, each planted alone, and the tests that must fail of it.

Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

OTEL = "outbox/otel.py"
METRICS = "outbox/metrics.py"
GUARDS = "outbox/guards.py"
CONTEXT = "outbox/context.py"
SPARED = "unit/handlers/test_guards.py"
CALLED = "unit/handlers/test_call_guards.py"
TRACED = "unit/telemetry/test_otel.py"
ENDED = "test_spans_that_nothing_settles_end_when_there_are_too_many_or_the_attempt_is_made_again"
TOLD = "unit/ops/test_metrics.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "telemetry", (test,), file, edits)


TELEMETRY_MUTANTS = (
    fault(
        "guards: an open breaker lets all through", GUARDS,
        f"{SPARED}::test_an_open_breaker_spares_what_is_down_and_counts_no_attempt",
        ("        if rest_s > 0:\n            raise self._rescheduled", "        if rest_s < 0:\n            raise self._rescheduled"),
    ),
    fault(
        "guards: a breaker that is half open lets all through", GUARDS,
        f"{SPARED}::test_one_attempt_at_a_time_tries_what_was_down_and_one_that_never_ends_is_given_up",
        ("            case \"half-open\" if now_ms < self._until_ms:\n                return 1.0\n", ""),
    ),
    fault(
        "guards: what comes back is given all that waits", GUARDS,
        f"{SPARED}::test_what_comes_back_is_not_overrun",
        ("                elif self._made(now_ms // 1_000) >= 1 << second:\n                    return 1.0\n", ""),
    ),
    fault(
        "guards: an attempt that began before a ramp is an error", GUARDS,
        f"{SPARED}::test_an_attempt_that_began_before_the_ramp_waits_for_its_turn",
        ("max(0, now_ms - self._ramp_ms)", "(now_ms - self._ramp_ms)"),
    ),
    fault(
        "guards: a breaker is open from the beginning of what failed", GUARDS,
        f"{SPARED}::test_a_breaker_is_open_from_the_end_of_what_failed",
        ("    return began_ms + round((time.monotonic() - began_s) * 1_000)\n", "    return began_ms\n"),
    ),
    fault(
        "guards: a message at its place is rescheduled again", GUARDS,
        f"{SPARED}::test_a_rate_spreads_a_backlog_and_puts_each_message_off_once",
        ("            if now_ms <= place_ms + LATE_MS_MAX:\n                return 0.0\n", ""),
    ),
    fault(
        "guards: all that comes late runs at once", GUARDS,
        f"{SPARED}::test_what_comes_late_to_its_place_needs_another_and_what_never_comes_is_forgotten",
        ("            if now_ms <= place_ms + LATE_MS_MAX:\n                return 0.0\n", "            return 0.0\n"),
    ),
    fault(
        "guards: a message is rescheduled beyond its retention", GUARDS,
        f"{SPARED}::test_no_message_is_rescheduled_for_longer_than_ten_minutes_at_a_time",
        ("        is_far = at_ms - now_ms > WAIT_S_MAX * 1_000\n", "        is_far = False\n"),
    ),
    fault(
        "guards: all keys share a rate for each", GUARDS,
        f"{SPARED}::test_a_rate_by_key_limits_each_key_alone",
        ("        return str(attempt.work.key) if self.declared.by_key else \"\"\n", "        return \"\"\n"),
    ),
    fault(
        "guards: a failed trial counts for its message", GUARDS,
        f"{SPARED}::test_one_message_alone_outlives_an_outage_of_hours",
        ("            if was_closed or not counts or", "            if counts or"),
    ),
    fault(
        "guards: the same message is tried each time", GUARDS,
        f"{SPARED}::test_trials_are_spread_over_what_waits",
        ("crc32(attempt.work.inbox + self._until_ms.to_bytes(8, \"big\"))", "crc32(attempt.work.inbox)"),
    ),
    fault(
        "guards: the second call of an attempt has no place", GUARDS,
        f"{CALLED}::test_a_rate_spreads_calls_and_the_second_of_an_attempt_does_not_wait",
        ("at_ms + step_ms * self._step_count(attempt)", "at_ms + step_ms"),
    ),
    fault(
        "guards: a breaker that opens between two calls lets the second through", GUARDS,
        f"{CALLED}::test_a_breaker_that_opens_between_two_calls_stops_the_second",
        ("            return max(0.0, self._until_ms - now_ms) / 1_000 or 1.0\n", "            return 0.0\n"),
    ),
    fault(
        "guards: a call is rescheduled before it is known whether its message is new", CONTEXT,
        f"{CALLED}::test_a_copy_of_what_was_applied_is_completed_while_the_breaker_is_open",
        ("        try:\n            await self.durable()", "        self._enter(ExitStack(), guards)\n        try:\n            await self.durable()"),
    ),
    fault(
        "calls: those made at once have one key", CONTEXT,
        f"{CALLED}::test_calls_that_are_made_at_once_have_keys_of_their_own",
        ("        key = self.idempotency_key if number == 1", "        number = self.call_count\n        key = self.idempotency_key if number == 1"),
    ),
    fault(
        "metrics: a label is not escaped", METRICS,
        f"{TOLD}::test_a_host_says_what_became_of_its_messages",
        ("    return text.replace(\"\\\\\", \"\\\\\\\\\").replace(\"\\n\", \"\\\\n\").replace('\"', '\\\\\"')\n", "    return text\n"),
    ),
    fault(
        "traces: the next hop is below the one before the last", OTEL,
        f"{TRACED}::test_all_hops_are_one_trace_each_below_the_one_before",
        ("        context.trace = traceparent_of(span.get_span_context())\n", ""),
    ),
    fault(
        "traces: every message decides for itself", OTEL,
        f"{TRACED}::test_a_share_is_sampled_whole_and_always_the_same",
        ("conversation = message.correlation_id or message.outbox_id", "conversation = message.outbox_id"),
    ),
    fault(
        "traces: an attempt that is made again stays open", OTEL,
        f"{TRACED}::{ENDED}",
        ("            self._end(earlier, \"made again\")\n", "            pass\n"),
    ),
    fault(
        "traces: spans under way have no limit", OTEL,
        f"{TRACED}::{ENDED}",
        ("        if len(self._by_inbox) >= OPEN_COUNT_MAX:\n            self._end(next(iter(self._by_inbox.values())), \"\")\n", ""),
    ),
    fault(
        "traces: an error is no error of its attempt", OTEL,
        f"{TRACED}::test_every_attempt_is_a_span_of_its_own_in_the_same_trace",
        ("            attempt.span.set_status(Status(StatusCode.ERROR, failure_text(error)))\n", ""),
    ),
)  # fmt: skip

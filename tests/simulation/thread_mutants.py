"""Faults in time limits and handlers' threads, each planted alone, and the tests that must fail of it.

What a thread does past its limit is outside of any exploration, which has no threads; so each rule that a line of code
keeps there, and each of time limits, has a fault here that takes the line out, and tests with real threads that find it.
Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

THREADS = "outbox/runtime/commit/handler_threads.py"
HANDLING = "outbox/runtime/commit/run_handler.py"
ENGINE = "outbox/runtime/engine_scope.py"
BLOCKING = "unit/handlers/test_blocking_handlers.py::"
AGAIN = "unit/runtime/test_retried_values.py::"
LIMITS = "unit/runtime/test_time_limits.py::"
MIDDLEWARE = "outbox/middleware.py"
ROUND = "unit/handlers/test_middleware.py::"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault and the test that must fail of it."""
    return Mutant(name, "threads", (found_by,), file, edits)


THREAD_MUTANTS = (
    mutant("the context is not sealed at the limit", THREADS,
        BLOCKING + "test_an_attempt_past_its_limit_commits_nothing_whatever_its_thread_does",
        ("        seal(job.context, why)\n        if job not in", "        if job not in"),
    ),
    mutant("the place is free at the limit", THREADS,
        BLOCKING + "test_a_place_stays_taken_until_its_thread_ends",
        ("        job.is_left = True\n", "        job.is_left = True\n        self._places.release()\n"),
    ),
    mutant("the key is free at the limit", THREADS,
        BLOCKING + "test_a_key_waits_for_a_thread_past_its_limit_and_other_keys_do_not",
        ("        if job.key:\n            self._held.setdefault(job.key, set()).add(job)\n", ""),
    ),
    mutant("a key is free when one of its threads has ended", THREADS,
        BLOCKING + "test_a_key_waits_for_every_thread_that_was_left_behind_with_it",
        ("            if not holders:  # two workers may have left one of this key each\n", "            if holders is not None:\n"),
    ),
    mutant("a session without a state waits for no thread", THREADS,
        BLOCKING + "test_a_session_waits_for_a_thread_past_its_limit_where_there_is_no_state",
        ("work.state_id or work.lane or work.inbox.hex()", "work.state_id or work.inbox.hex()"),
    ),
    mutant("an attempt past its limit is committed when its thread ends", THREADS,
        BLOCKING + "test_an_attempt_past_its_limit_commits_nothing_whatever_its_thread_does",
        ("        except TimeoutError:\n            text = over", "        except TimeoutError:\n            await asyncio.wait([job.ended])\n            return\n            text = over"),
    ),
    mutant("a message that finds no thread has failed", THREADS,
        BLOCKING + "test_a_place_stays_taken_until_its_thread_ends",
        ("            raise Retry(text, after_s=RETRY_AFTER_S) from None\n", "            raise TimeoutError(text) from None\n"),
    ),
    mutant("what a handler did past its limit is applied", HANDLING,
        LIMITS + "test_what_takes_too_long_fails_and_leaves_nothing",
        ("        if life is not None and life.now_ms() - began_ms > plan.limit_ms(work.handler):\n            raise over_limit(plan, work.handler, context)\n", ""),
    ),
    mutant("a handling that is begun again sees what it made of its message", ENGINE,
        AGAIN + "test_a_handling_that_is_begun_again_sees_its_message_as_it_was_sent",
        ("msgspec.structs.replace(work, was_run=True)", "work"),
    ),
    mutant("a batch that took too long is committed", ENGINE,
        LIMITS + "test_what_takes_too_long_fails_and_leaves_nothing",
        ("        if taken_ms <= plan.least_limit_ms:\n", "        if taken_ms >= 0:\n"),
    ),
    mutant("a batch has the longest limit of its handlers", ENGINE,
        LIMITS + "test_a_neighbour_that_may_take_longer_lends_its_time_to_no_other",
        ("        return any(work.handler is not None and taken_ms", "        return all(work.handler is not None and taken_ms"),
    ),
    mutant("a context past its limit takes more", HANDLING,
        LIMITS + "test_a_sealed_context_refuses_every_use",
        ("    if context is not None:\n        seal(context, text)\n", ""),
    ),
    mutant("an error that a middleware swallows is none", MIDDLEWARE,
        ROUND + "test_a_middleware_makes_no_success_of_a_failure",
        ("        result = await handling\n    except BaseException as error:\n        _leave(entered, error)\n        raise\n",
         "        result = await handling\n    except BaseException as error:\n        _leave(entered, error)\n        return None\n"),
    ),
    mutant("variables of a middleware stay behind it", MIDDLEWARE,
        ROUND + "test_what_a_middleware_sets_is_gone_behind_its_handler",
        ("        return variables.run(begin, around, variables, message, state, context)\n",
         "        return begin(around, variables, message, state, context)\n"),
    ),
)  # fmt: skip

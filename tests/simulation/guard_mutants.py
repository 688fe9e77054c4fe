"""Faults in how breakers and rates reschedule messages, each found by an exploration in which they decide either way.

Each is planted alone.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import RUN, mutant

CONTEXT = "outbox/context.py"
MIDDLEWARE = "outbox/middleware.py"

GUARD_MUTANTS = (
    mutant("what a guard reschedules before its handler is taken as handled", "engine", "Serializable", MIDDLEWARE,
        ("            _leave(entered, error)\n            raise\n        if type", "            return _leave(entered, error)\n        if type"),
        app="sparing_plain", amounts=(5,), reschedules=1, allow=frozenset(),
    ),
    mutant("a guarded call is made before its guard is asked", "partition", "OneCall", CONTEXT,
        ("            self._enter(around, guards)\n            return await self._made(function, key, time_limit_s, number)\n",
         "            made = await self._made(function, key, time_limit_s, number)\n            self._enter(around, guards)\n            return made\n"),
        app="sparing_a_call", amounts=(5,), reschedules=1, allow=frozenset(),
    ),
    mutant("what a guard reschedules has failed", "item", "Serializable", RUN,
        ("    outcome = judge(error, work.delivery, retries)\n", "    outcome = judge(error if type(error) is not Retry else ValueError(), work.delivery, retries)\n"),
        app="sparing", amounts=(-3,), reschedules=1, allow=frozenset(),
    ),
)  # fmt: skip

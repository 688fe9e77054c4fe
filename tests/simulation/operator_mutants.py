"""Faults in what serves an operator: a folder that two need, a client that hangs up.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

WEB = "unit/web/test_asgi.py"
ASGI = "outbox/asgi.py"
CONNECTED = "unit/ops/test_connect_operator.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ops", (test,), file, edits)


OPERATOR_MUTANTS = (
    fault(
        "a log is let go in the midst of an answer", "outbox/ops/admins/giving_way.py",
        f"{CONNECTED}::test_an_answer_that_is_under_way_is_ended_first",
        ("                async with self._answering:\n                    self._admin = None\n", "                if True:\n                    self._admin = None\n"),
    ),
    fault(
        "asgi: what hangs up before its body is there is handled", ASGI,
        f"{WEB}::test_a_client_that_hangs_up_or_is_slow_begins_nothing",
        ("            if message[\"type\"] == \"http.disconnect\":\n                raise _HungUp\n",
         "            if message[\"type\"] == \"http.disconnect\":\n                break\n"),
    ),
)  # fmt: skip

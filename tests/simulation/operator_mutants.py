"""Faults in what an operator is told and does: why a message waits, where it is, which dead letters are meant.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

NAMES = ("queue_peek", "message_show", "dead_letters_in_groups", "pending", "doctor")
PEEK, FIND, GROUPS, LEFT, DOCTOR = (f"unit/ops/test_{name}.py" for name in NAMES)
WEB = "unit/web/test_asgi.py"
ASGI = "outbox/asgi.py"
CONNECTED = "unit/ops/test_connect_operator.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ops", (test,), file, edits)


OPERATOR_MUTANTS = (
    fault(
        "a resubmission says the error of the attempt before", "outbox/resubmission.py",
        f"{PEEK}::test_a_resubmission_says_no_error_and_keeps_what_its_sender_said",
        ("    return with_error(again, \"\")", "    return again"),
    ),
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
    fault(
        "asgi: bodies count for ever", ASGI,
        f"{WEB}::test_a_body_in_pieces_is_one_and_one_that_is_too_large_is_refused",
        ("            self.body_bytes -= sum(map(len, parts))\n", "            pass\n"),
    ),
    fault(
        "asgi: of two idempotency keys one is taken", ASGI,
        f"{WEB}::test_two_keys_are_refused_and_other_headers_are_joined",
        ("if name == KEY_HEADER and name in found:", "if False:"),
    ),
    fault(
        "asgi: a path keeps the place where it is mounted", ASGI,
        f"{WEB}::test_however_a_server_gives_the_path_it_is_found",
        ("            path = path[len(prefix) :]\n", ""),
    ),
    fault(
        "asgi: a path is decoded before it is split", ASGI,
        f"{WEB}::test_mounted_in_fastapi_it_serves_below_its_place",
        ("raw = scope.get(\"raw_path\")", "raw = b\"\""),
    ),
)  # fmt: skip

"""Faults in what an operator is told and does: why a message waits, where it is, which dead letters are meant.

Each is planted alone, and the tests that it names must fail of it.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant

NAMES = ("queue_peek", "message_show", "dead_letters_in_groups", "pending", "doctor")
PEEK, FIND, GROUPS, LEFT, DOCTOR = (f"unit/ops/test_{name}.py" for name in NAMES)
WEB = "unit/web/test_asgi.py"
ASGI = "outbox/asgi.py"
HELD = "outbox/ops/held_messages.py"
DEAD = "outbox/ops/dead_letters.py"
PENDING = "outbox/ops/pending.py"
ENGINE = "outbox/ops/engine_operator.py"
CONNECTED = "unit/ops/test_connect_operator.py"
SIGNS = "unit/stores/test_signs.py"
SLICES = "unit/ops/test_looks_in_slices.py"
VIEWS = "outbox/ops/dead_letter_views.py"
CURES, REQUESTS = "unit/ops/test_cures.py", "wire/cli/test_requests.py"


def fault(name: str, file: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "ops", (test,), file, edits)


OPERATOR_MUTANTS = (
    fault(
        "what a dead letter blocks seems to wait for a worker", HELD,
        f"{PEEK}::test_the_reason_says_what_is_waited_for",
        ("    if held.blocked_by is not None:\n        return \"blocked\"\n", ""),
    ),
    fault(
        "what waits behind a retry seems to be tried again itself", HELD,
        f"{PEEK}::test_the_reason_says_what_is_waited_for",
        ("held.due_ms > now_ms and not held.behind", "held.due_ms > now_ms"),
    ),
    fault(
        "a page that is full seems to be the last", ENGINE,
        f"{PEEK}::test_a_page_goes_on_behind_the_last_and_shows_one_state_or_one_key",
        ("asked.count + 1, wanted)", "asked.count, wanted)"),
    ),
    fault(
        "a look holds the loop for all that there is", "outbox/ops/slices.py",
        f"{SLICES}::test_an_answer_looks_at_a_bounded_number_between_two_turns_of_the_loop",
        ("        yield some\n        await asyncio.sleep(0)\n\n\nasync def in_slices", "        yield some\n\n\nasync def in_slices"),
    ),
    fault(
        "what was seen for later is cancelled whatever it is by now", ENGINE,
        f"{SLICES}::test_what_waits_for_its_next_try_by_now_is_not_cancelled",
        ("if is_there(place, task) and is_meant(task)]", "if is_there(place, task)]"),
    ),
    fault(
        "a message is shown where it was seen and is no more", ENGINE,
        f"{SLICES}::test_what_becomes_a_dead_letter_after_it_was_seen_is_found_once_as_that",
        ("for path, place, task in named.of(id) if self._is_in(place, task)]", "for path, place, task in named.of(id)]"),
    ),
    fault(
        "a queue without a worker is attended", "outbox/ops/store_signs.py",
        f"{SIGNS}::test_without_its_sign_a_queue_of_a_handler_is_unattended",
        ("sorted(path for path in handled if path.casefold() not in attended)", "[]"),
    ),
    fault(
        "a command goes before a host that waits", "outbox/ops/connect_operator.py",
        f"{CONNECTED}::test_a_command_does_not_go_before_a_host_that_waits",
        ("if not (is_wanted(folder) or is_held(folder)):", "if not is_held(folder):"),
    ),
    fault(
        "a log is let go in the midst of an answer", "outbox/ops/giving_way.py",
        f"{CONNECTED}::test_an_answer_that_is_under_way_is_ended_first",
        ("                async with self._answering:\n                    self._operator = None\n", "                if True:\n                    self._operator = None\n"),
    ),
    fault(
        "a host that waits does not say so", "outbox/ops/host.py",
        f"{CONNECTED}::test_a_host_that_waits_gets_the_folder_between_two_answers_and_the_next_are_its",
        ("            wanting.say()\n", ""),
    ),
    fault(
        "a message is looked for among the living only", ENGINE,
        f"{FIND}::test_every_place_of_a_message_is_found",
        ("        for path in paths:\n            await self._see(named, path, dead_letter_path(path))\n", ""),
    ),
    fault(
        "an id stands for those that go on behind a number", "outbox/ops/names.py",
        f"{FIND}::test_every_place_of_a_message_is_found",
        ("    found = {text} & ids or {id for id in ids if begins(text, id)}\n",
         "    found = {id for id in ids if id.startswith(text)}\n"),
    ),
    fault(
        "resubmitting goes on behind one that came back", DEAD,
        f"{GROUPS}::test_resubmitting_stops_at_the_first_that_comes_back",
        ("(relapsed := await relapses.first())", "(relapsed := \"\")"),
    ),
    fault(
        "the last that was resubmitted is not waited for", DEAD,
        f"{GROUPS}::test_resubmitting_stops_at_the_first_that_comes_back",
        ("await relapses.first(within_s=RELAPSE_WITHIN_S)", "\"\""),
    ),
    fault(
        "no pace is kept", DEAD,
        f"{GROUPS}::test_a_pace_is_kept_and_what_has_gone_meanwhile_is_left",
        ("began_s + number / a_second", "began_s + 0 / a_second"),
    ),
    fault(
        "a text is looked for in descriptions only", "outbox/ops/dead_letter_views.py",
        f"{GROUPS}::test_a_filter_means_those_that_fit_all_of_it",
        (" or where.text.encode() in dead.message.body", ""),
    ),
    fault(
        "the time of a dead letter makes no difference", "outbox/ops/dead_letter_views.py",
        f"{GROUPS}::test_a_filter_means_those_that_fit_all_of_it",
        ("    if not where.since <= dead.enqueued_ms / 1_000 < where.before:\n        return False\n", ""),
    ),
    fault(
        "what a worker may be finishing is finished by hand too", PENDING,
        f"{LEFT}::test_what_has_not_left_is_listed_and_leaves_by_hand",
        ("now_ms - written_ms(document) < GRACE_S * 1_000", "False"),
    ),
    fault(
        "what could not be sent is not said", PENDING,
        f"{LEFT}::test_what_has_not_left_is_listed_and_leaves_by_hand",
        ("        troubles.append(f\"{one.destination}:", "        str(f\"{one.destination}:"),
    ),
    fault(
        "what cannot be finished counts as finished", PENDING,
        f"{LEFT}::test_what_has_not_left_is_listed_and_leaves_by_hand",
        ("await protocols.of(document).redo(document) is False", "await protocols.of(document).redo(document) is None"),
    ),
    fault(
        "one document that is not ours stops all", PENDING,
        f"{LEFT}::test_what_is_not_ours_is_named_and_left_alone",
        ("        except (OutboxError, msgspec.MsgspecError, ValueError, RecursionError) as error:", "        except EOFError as error:"),
    ),
    fault(
        "a host that does not run is not missed", "outbox/ops/doctor.py",
        f"{DOCTOR}::test_counts_say_what_is_wrong",
        ("if not hosted and waiting:", "if False:"),
    ),
    fault(
        "what has not left is young for ever", "outbox/ops/doctor.py",
        f"{DOCTOR}::test_outputs_that_have_not_left_for_ten_minutes_are_an_error",
        ("now_s - view.committed > PENDING_S_MAX", "False"),
    ),
    fault(
        "asgi: what hangs up before its body is there is handled", ASGI,
        f"{WEB}::test_a_client_that_hangs_up_or_is_slow_begins_nothing",
        ("            if message[\"type\"] == \"http.disconnect\":\n                raise _HungUp\n",
         "            if message[\"type\"] == \"http.disconnect\":\n                break\n"),
    ),
    fault(
        "a resubmission is proposed for what nobody can read", VIEWS,
        f"{CURES}::test_a_cure_is_never_one_that_is_refused",
        ("dead.reason in _AS_IT_IS", "False"),
    ),
    fault(
        "a resubmission is proposed for what was too old", VIEWS,
        f"{CURES}::test_a_cure_is_never_one_that_is_refused",
        ("    if may_have_been_applied(dead.reason, dead.description) or", "    if"),
    ),
    fault(
        "what is right for a subscription is sent to the subscription", VIEWS,
        f"{CURES}::test_what_is_right_for_a_subscription_is_sent_to_its_topic",
        ("outbox send {word(dead.queue.partition(SUBSCRIPTIONS)[0])}", "outbox send {word(dead.queue)}"),
    ),
    fault(
        "an id that begins as an option does is taken for one in a cure", "outbox/ops/names.py",
        "unit/ops/test_dead_letters_of_one_id.py::test_a_cure_holds_an_id_as_one_word_whatever_its_sender_chose",
        ("    return f\"-- {word(text)}\" if text.startswith(\"-\") else word(text)\n", "    return word(text)\n"),
    ),
    fault(
        "what is handled before the first reading is not of the last minute", "outbox/ops/meter.py",
        "unit/ops/test_metrics.py::test_what_is_handled_before_the_first_reading_counts_for_the_minute",
        ("        self._seconds.append((time.monotonic(), {}))", "        pass"),
    ),
    fault(
        "any file is judged as a history", "outbox/ops/audit.py",
        "unit/verify/test_audit_command.py::test_a_file_that_is_no_history_is_refused",
        ("    if verdict.counts.lines == verdict.counts.torn:\n", "    if False:\n"),
    ),
    fault(
        "a subscription in lower case is a queue", "outbox/ops/arguments/kinds.py",
        f"{CURES}::test_a_subscription_is_one_in_any_case",
        ("flags=re.IGNORECASE", "flags=0"),
    ),
    fault(
        "an open breaker is no finding", "outbox/ops/doctor.py",
        f"{CURES}::test_an_open_breaker_is_a_finding_and_a_rate_at_work_is_none",
        ("if guard.kind == \"breaker\" and guard.state != \"closed\":", "if False:"),
    ),
    fault(
        "a status asks the store for each queue", "outbox/ops/store_operator.py",
        f"{REQUESTS}::test_a_look_takes_at_most_ten_requests",
        ("        if self._index is not None:\n            return await self._kept", "        if False:\n            return await self._kept"),
    ),
    fault(
        "the fourth key of a page is not looked up", "outbox/ops/store_operator.py",
        f"{REQUESTS}::test_a_look_takes_at_most_ten_requests",
        ("if self._index is not None and len(keys) > KEYS_LOOKED_UP_MAX:", "if False:"),
    ),
    fault(
        "state history: all messages of a batch made the version", "outbox/ops/state_history.py",
        "unit/ops/test_state_history.py::test_each_version_names_the_messages_that_made_it",
        ("    if prefixes is not None and applied:\n", "    if False:\n"),
    ),
    fault(
        "state history: a commit that failed made a version", "outbox/ops/trail_history.py",
        "unit/ops/test_state_history.py::test_what_is_not_known_is_said_what_failed_is_left_out_and_the_newest_are_shown",
        ("            case Fail():\n                open_.pop(event.op, None)\n", "            case Fail():\n                pass\n"),
    ),
    fault(
        "state history: an import is no version", "outbox/ops/trail_history.py",
        "unit/ops/test_state_history.py::test_each_version_names_the_messages_that_made_it",
        ("            case In() | Put():\n", "            case In():\n"),
    ),
)  # fmt: skip

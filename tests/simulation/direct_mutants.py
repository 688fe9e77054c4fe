"""Faults where no exploration reaches: under a Functions trigger, in dead letters and at the edges of settlement.

Each is planted alone, and the tests that it names must fail of it.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.age_mutants import AGE_MUTANTS
from tests.simulation.planting import (
    BATCH,
    ENDINGS,
    ENGINE_OPERATIONS,
    HTTP_SCOPES,
    ITEM,
    LANES,
    LEFT,
    PARTITION,
    STOPS,
    VERDICT,
    WAITING,
    Mutant,
    Table,
)
from tests.simulation.thread_mutants import THREAD_MUTANTS

TRIGGER_BUS = "outbox/azure/functions/bus.py"
PROCESSOR = "outbox/azure/functions/processor.py"
FUNCTIONS_MESSAGES = "outbox/azure/functions/messages.py"
STORED_LETTERS = "outbox/runtime/delivery/stored_dead_letters.py"
BUS_LETTERS = "outbox/azure/servicebus/dead_letters.py"
OPERATIONS = "outbox/runtime/store_operations.py"
HANDLING = "outbox/runtime/commit/run_handler.py"
WORK = "outbox/runtime/work.py"
RESUBMISSION = "outbox/resubmission.py"
FAILURE_LOG = "outbox/runtime/failures/failure_log.py"
REDACTING = "outbox/runtime/failures/redacting.py"
REQUESTS = "outbox/runtime/http/requests.py"
CLAIMS = "outbox/emulator/bus/claims.py"
ADMINISTRATION = "outbox/emulator/bus/http.py"
ACCESS_KEY = "outbox/ops/access_key.py"

OF_PROCESSOR = "functions/test_processor.py"
OF_LETTERS = "functions/test_stored_dead_letters.py"
OF_CONNECTING = "wire/on_azure/test_connecting.py"
OF_STOPPED = "unit/stores/test_blocked_sessions.py"
OF_ORDERING = "unit/stores/test_order_of_blocked_sessions.py"
OF_SCOPES = "unit/stores/test_port_calls.py"
OF_MESSAGES = "unit/runtime/test_messages.py"
OF_ORDER = "unit/runtime/test_ordering.py"
OF_APART = "unit/stores/test_states_apart.py"
OF_PLACED = "wire/on_azure/test_placed_states.py"
OF_REMEMBERED = "unit/engine/test_remembered.py"
OF_ENTRIES = "unit/stores/test_http_entries.py"
OF_RESUBMITTING = "unit/runtime/test_resubmission.py"
OF_HTTP = "unit/runtime/test_http.py"
OF_SERVER = "wire/servicebus/test_server.py"
OF_JUDGING = "unit/stores/test_refused_over_a_version.py"
OF_FAILURES = "unit/runtime/test_failure_log.py"
OF_REDACTING = "unit/runtime/test_redacting.py"
OF_KEYS = "wire/cli/test_access_key.py"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test below `tests/`."""
    about = "trigger" if "functions" in file else "letters" if "letters" in file else "settlement"
    return Mutant(name, about, (found_by,), file, edits)


DIRECT_MUTANTS = (
    # Under a trigger
    mutant(
        "trigger: an abandoned message counts as done", TRIGGER_BUS,
        f"{OF_PROCESSOR}::test_in_order_a_message_that_fails_is_redelivered_until_its_last_failure",
        ('settle.how in ("complete", "dead-letter")', 'settle.how != "release"'),
    ),
    mutant(
        "trigger: a released message counts as done", TRIGGER_BUS,
        f"{OF_PROCESSOR}::test_in_order_a_rescheduled_message_waits_and_is_released",
        ('settle.how in ("complete", "dead-letter")', 'settle.how != "abandon"'),
    ),
    mutant(
        "trigger: a message goes when its delayed copy could not be sent", ENDINGS,
        f"{OF_PROCESSOR}::test_a_message_whose_delayed_copy_cannot_be_sent_is_redelivered",
        ('            await self._bus.settle(delivery, Settle("release"))\n        else:', '            await self._bus.settle(delivery, Settle("complete"))\n        else:'),
    ),
    mutant(
        "trigger: a refused message is done before it is kept", TRIGGER_BUS,
        f"{OF_PROCESSOR}::test_a_refusal_that_cannot_be_stored_is_released",
        ('        if settle.how == "dead-letter":\n            await self._dead_letters.keep(delivery, settle.reason, settle.description)\n        invocation = self._invocations.get(delivery.lock)\n', '        invocation = self._invocations.get(delivery.lock)\n        if settle.how == "dead-letter" and invocation is not None:\n            invocation.is_done = True\n            await self._letters.keep(delivery, settle.reason, settle.description)\n'),
    ),
    mutant(
        "two attempts of one process: what is staged for the next version is reclaimed", LEFT,
        f"{OF_PROCESSOR}::test_what_another_attempt_of_this_process_has_staged_is_not_reclaimed",
        ("            if version >= state.item.version:\n", "            if version > state.item.version:\n"),
    ),
    mutant(
        "two attempts of one process: all that is staged is reclaimed", LEFT,
        f"{OF_PROCESSOR}::test_what_another_attempt_of_this_process_has_staged_is_not_reclaimed",
        ("            if version >= state.item.version:\n", "            if version < 0:\n"),
    ),
    mutant(
        "trigger: a start does not register its handlers", PROCESSOR, f"{OF_PROCESSOR}::test_a_start_registers_what_is_handled",
        ("        await register_handlers(self.app, self._operations)\n", ""),
    ),
    mutant(
        "trigger: a start does not look how long others remember", PROCESSOR,
        f"{OF_PROCESSOR}::test_a_start_heeds_how_long_others_remember",
        ("        await register_retention(self.app.name, self._plan.retention, self._operations)\n", ""),
    ),
    mutant(
        "trigger: dead letters lie among the states", PROCESSOR, f"{OF_PROCESSOR}::test_nothing_but_states_lies_with_the_states",
        ("Letters(ports.infrastructure or ports.store, ports.blobs)", "Letters(ports.store, ports.blobs)"),
    ),
    mutant(
        "trigger: everything lies among the states", PROCESSOR, f"{OF_PROCESSOR}::test_nothing_but_states_lies_with_the_states",
        ("ports.operations, ports.blobs, ports.infrastructure)", "ports.operations, ports.blobs)"),
    ),
    mutant(
        "trigger: a message has no time to live", FUNCTIONS_MESSAGES,
        f"{OF_PROCESSOR}::test_a_message_of_a_trigger_lives_as_long_as_its_broker_says",
        ("time_to_live_ms=_lives_ms(received, enqueued_ms)", "time_to_live_ms=0"),
    ),
    # Several handlers of one message
    mutant(
        "several: a refusal by one handler ends what another is to try again", WORK,
        f"{OF_MESSAGES}::test_a_message_that_one_handler_refuses_is_redelivered_for_the_other",
        ("return outcome_of_all(self.branches, [self.outcomes[id(branch)] for branch in self.branches])", "outcomes = [self.outcomes[id(branch)] for branch in self.branches]\n        refused = [None if isinstance(outcome, Later) else outcome for outcome in outcomes]\n        return outcome_of_all(self.branches, refused) or outcome_of_all(self.branches, outcomes)"),
    ),
    mutant(
        "several: a refusal by one handler ends what another is to try again, in the engine", HANDLING,
        f"{OF_MESSAGES}::test_a_message_that_one_handler_refuses_is_redelivered_for_the_other",
        ("    return outcome_of_all(branches, [await run_branch(plan, group, branch, life) for branch in branches])\n", "    outcomes = [await run_branch(plan, group, branch, life) for branch in branches]\n    refused = [None if isinstance(outcome, Later) else outcome for outcome in outcomes]\n    return outcome_of_all(branches, refused) or outcome_of_all(branches, outcomes)\n"),
    ),
    # Dead letters
    mutant(
        "letters: one of the bus is completed before it is sent again", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_dead_letter_that_cannot_be_sent_again_stays",
        ("            await self._bus.send([Output(path.partition(SUBSCRIPTIONS)[0], 0, again)])\n            for copy in [letter, *copies]:\n                await receiver.complete_message(copy)\n", "            for copy in [letter, *copies]:\n                await receiver.complete_message(copy)\n            await self._bus.send([Output(path.partition(SUBSCRIPTIONS)[0], 0, again)])\n"),
    ),
    mutant(
        "letters: one of the store is deleted before it is sent again", STORED_LETTERS,
        f"{OF_LETTERS}::test_a_resubmission_that_is_repeated_after_a_crash_has_no_further_effect",
        ("        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])\n        for copy in sorted({sequence, *copies}):\n            await self._delete(await self._store.read(_key(queue, copy)))\n", "        for copy in sorted({sequence, *copies}):\n            await self._delete(await self._store.read(_key(queue, copy)))\n        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])\n"),
    ),
    mutant(
        "letters: one of the bus takes a new time", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_resubmitted_dead_letter_keeps_its_first_time",
        ("            enqueued_ms = milliseconds(letter.enqueued_time_utc)\n", "            enqueued_ms = self._bus._now_ms()\n"),
    ),
    mutant(
        "letters: one without a time is as old as its resubmission", RESUBMISSION,
        f"{OF_LETTERS}::test_a_resubmission_keeps_its_first_time",
        ("    created_ms = message.created_ms or enqueued_ms\n", "    created_ms = message.created_ms\n"),
    ),
    mutant(
        "letters: one takes the time of its delivery", RESUBMISSION,
        f"{OF_LETTERS}::test_a_resubmission_keeps_its_first_time",
        ("    created_ms = message.created_ms or enqueued_ms\n", "    created_ms = enqueued_ms\n"),
    ),
    mutant(
        "letters: one of the store has no time", STORED_LETTERS,
        f"{OF_LETTERS}::test_a_resubmission_keeps_its_first_time",
        ("attempt=attempt, enqueued_ms=dead.enqueued_ms)", "attempt=attempt, enqueued_ms=0)"),
    ),
    mutant(
        "letters: what is noted as resubmitted has no time", STOPS,
        f"{OF_ORDERING}::test_what_is_noted_as_resubmitted_begins_anew_under_its_first_time",
        ("attempt=attempt, enqueued_ms=dead_letter.enqueued_ms)", "attempt=attempt, enqueued_ms=0)"),
    ),
    mutant(
        "a delayed copy is as old as itself", ENDINGS, f"{OF_PROCESSOR}::test_a_delayed_copy_keeps_the_time_of_its_message",
        ("            created_ms=message.created_ms or delivery.enqueued_ms,\n", "            created_ms=self._now_ms(),\n"),
    ),
    mutant(
        "letters: copies of one of the bus stay", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_resubmitted_dead_letter_begins_anew_and_its_copies_go",
        ("            for copy in [letter, *copies]:\n", "            for copy in [letter]:\n"),
    ),
    mutant(
        "letters: one of the bus keeps its failures", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_resubmitted_dead_letter_begins_anew_and_its_copies_go",
        ("                outbox_id=message.identity,\n", "                outbox_id=message.identity,\n                failures=message.failures,\n"),
    ),
    mutant(
        "letters: one of the bus keeps the id that the broker knows", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_resubmitted_dead_letter_begins_anew_and_its_copies_go",
        ("message_id=f\"{message.identity}~{uuid4().hex}\",", "message_id=message.message_id,"),
    ),
    mutant(
        "letters: one of the store keeps its failures", STORED_LETTERS,
        f"{OF_LETTERS}::test_a_resubmitted_dead_letter_has_not_failed_yet",
        ("            outbox_id=message.identity,\n", "            outbox_id=message.identity,\n            failures=message.failures,\n"),
    ),
    mutant(
        "letters: what is noted as resubmitted keeps its failures", STOPS,
        f"{OF_ORDERING}::test_what_is_noted_as_resubmitted_begins_anew_under_its_first_time",
        ("(again, outbox_id=message.identity)", "(again, outbox_id=message.identity, failures=message.failures)"),
    ),
    mutant(
        "letters: one that somebody else has moved is taken for discarded", STORED_LETTERS,
        f"{OF_LETTERS}::test_a_dead_letter_that_another_client_moves_first_is_not_discarded_twice",
        ("        if not await self._delete(await self._find(queue, sequence)):\n", "        if await self._delete(await self._find(queue, sequence)) is None:\n"),
    ),
    mutant(
        "letters: one of a subscription of the bus goes to the subscription", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_resubmitted_dead_letter_of_a_subscription_comes_by_its_topic",
        ("Output(path.partition(SUBSCRIPTIONS)[0], 0, again)", "Output(path, 0, again)"),
    ),
    mutant(
        "letters: one of a subscription in the store goes to the subscription", STORED_LETTERS,
        f"{OF_LETTERS}::test_a_dead_letter_of_a_subscription_goes_to_its_topic",
        ("Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)", "Output(queue, 0, again)"),
    ),
    # What stays in its place
    mutant(
        "in place: what fails there is tried again at once", ENDINGS,
        f"{OF_ORDER}::test_in_order_failures_are_repeated_after_the_delays",
        ("due_ms = self._now_ms() + round(outcome.delay_s * 1_000) if outcome.delay_s > 0 else 0\n                    counts", "due_ms = 0\n                    counts"),
    ),
    mutant(
        "in place: what fails in a subscription is put off as a copy", WORK,
        f"{OF_CONNECTING}::test_what_fails_in_one_subscription_is_tried_again_there_alone",
        ('self.in_order or "/Subscriptions/" in self.delivery.queue', "self.in_order"),
    ),
    # Blocked keys
    mutant(
        "blocked: a key is unblocked behind the completion", LANES,
        f"{OF_STOPPED}::test_what_was_resubmitted_is_completed_only_when_its_key_is_unblocked",
        ("                await self._blocked.unblock_after(attempt)\n", "                await self._settlement.settle(attempt, outcome)\n                await self._blocked.unblock_after(attempt)\n"),
    ),
    mutant(
        "blocked: a message is completed although its key could not be unblocked", LANES,
        f"{OF_STOPPED}::test_what_was_resubmitted_is_completed_only_when_its_key_is_unblocked",
        ("                await self._blocked.unblock_after(attempt)\n", "                with suppress(NothingCommitted):\n                    await self._blocked.unblock_after(attempt)\n"),
    ),
    mutant(
        "blocked: a key is unblocked behind the discarding of its dead letter", OPERATIONS,
        f"{OF_STOPPED}::test_a_dead_letter_is_discarded_only_when_its_key_is_unblocked",
        ("            await self._blocked.unblock(queue, dead.message)  # first: without its dead letter nothing could unblock it\n", "            pass\n"),
        ("            await self._bus.discard(queue, sequence)\n", "            await self._bus.discard(queue, sequence)\n        if dead is not None and dead.message.session_id:\n            await self._blocked.unblock(queue, dead.message)\n"),
    ),
    mutant(
        "blocked: a key learns of a resubmission behind it", OPERATIONS,
        f"{OF_STOPPED}::test_a_dead_letter_is_resubmitted_only_when_its_key_has_the_note",
        ("        if dead.message.session_id:\n            await self._blocked.note_resubmission(queue, dead, attempt)  # unblocked when it is applied\n", ""),
        ("            await self._bus.resubmit(queue, sequence)\n", "            await self._bus.resubmit(queue, sequence)\n        if dead.message.session_id:\n            await self._blocked.note_resubmission(queue, dead, attempt)\n"),
    ),
    mutant(
        "blocked: any payload under the id of a dead letter is that dead letter", STOPS,
        f"{OF_STOPPED}::test_another_payload_under_the_id_of_a_dead_letter_waits_behind_it",
        ("        is_same = not digest or not self.fingerprint or digest == self.fingerprint\n        return is_same and", "        return"),
    ),
    mutant(
        "blocked: a block does not say behind which payload", STOPS,
        f"{OF_STOPPED}::test_another_payload_under_the_id_of_a_dead_letter_waits_behind_it",
        ("BlockedSession(delivery.message.identity, fingerprint=_digest(delivery.message))", "BlockedSession(delivery.message.identity)"),
    ),
    mutant(
        "blocked: any payload under the id of a dead letter unblocks its key", STOPS,
        f"{OF_STOPPED}::test_another_payload_under_the_id_of_a_dead_letter_does_not_unblock_its_key",
        ("(by_number or blocked.is_behind(message))", "(by_number or blocked.identity == message.identity)"),
    ),
    mutant(
        "blocked: any payload under the id of a dead letter is noted as resubmitted", STOPS,
        f"{OF_STOPPED}::test_another_payload_under_the_id_of_a_dead_letter_does_not_unblock_its_key",
        ("blocked is not None and blocked.is_behind(message):\n            again", "blocked is not None and blocked.identity == message.identity:\n            again"),
    ),
    mutant(
        "blocked: a block that somebody else wrote blocks nothing", STOPS,
        f"{OF_STOPPED}::test_a_block_of_another_writer_blocks_its_key_until_it_goes",
        ('        return _decoded(found) or BlockedSession("")', "        return _decoded(found)"),
    ),
    mutant(
        "blocked: a store that is away blocks nothing", LANES,
        f"{OF_STOPPED}::test_a_key_does_not_count_as_unblocked_while_the_store_cannot_be_read",
        ("            await self._cool_down(attempts, error)\n            return [], attempts[0].work.delivery.sequence\n", "            del error\n            return attempts, None\n"),
    ),
    # Reads
    mutant(
        "read: a GET does not wait for the gate", HTTP_SCOPES,
        f"{OF_ENTRIES}::test_a_read_waits_until_what_it_has_seen_is_durable",
        ("            documents, _ = await self._journal.load([] if id is None else [id], [])\n            await self._journal.durable()\n", "            documents, _ = await self._journal.load([] if id is None else [id], [])\n"),
    ),
    mutant(
        "read: a GET passes the gate before it looks", HTTP_SCOPES,
        f"{OF_ENTRIES}::test_a_read_waits_until_what_it_has_seen_is_durable",
        ("            documents, _ = await self._journal.load([] if id is None else [id], [])\n            await self._journal.durable()\n", "            await self._journal.durable()\n            documents, _ = await self._journal.load([] if id is None else [id], [])\n"),
    ),
    mutant(
        "notes lie among the states", OPERATIONS, f"{OF_PLACED}::test_notes_lie_with_the_infrastructure_for_every_client",
        ("self._infrastructure = ports.infrastructure or ports.store", "self._infrastructure = ports.store"),
    ),
    mutant(
        "read: a GET looks for states among the records", HTTP_SCOPES,
        f"{OF_APART}::test_a_request_is_claimed_and_read_apart_from_the_states",
        ("await read(self._states, state_key", "await read(self._records, state_key"),
    ),
    mutant(
        "read: a client's read of a state does not wait for the gate", ENGINE_OPERATIONS,
        f"{OF_REMEMBERED}::test_what_a_client_reads_is_durable_when_it_is_answered",
        ("        found = self._documents.read(STATES, id)\n        await self._core.gate()\n", "        found = self._documents.read(STATES, id)\n"),
    ),
    mutant(
        "read: a list of dead letters does not wait for the gate", ENGINE_OPERATIONS,
        f"{OF_REMEMBERED}::test_what_a_client_reads_is_durable_when_it_is_answered",
        ("        found = dead_letters(self._broker, queue)\n        await self._core.gate()\n", "        found = dead_letters(self._broker, queue)\n"),
    ),
    # Deadlines
    mutant(
        "deadline: a handler may take as long as it likes", HANDLING,
        f"{OF_SCOPES}::test_a_handler_that_waits_past_its_deadline_writes_nothing_and_runs_again",
        ("        if not within.expired() and life.now_ms() - now_ms <= limit_ms:\n", "        if not within.expired():\n"),
    ),
    mutant(
        "deadline: an attempt past it commits", PARTITION,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        writes = await self._prepared(batch, state_id)\n        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n", "        writes = await self._prepared(batch, state_id)\n"),
    ),
    mutant(
        "deadline: an attempt past it stages", ITEM,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n        self._left", "        self._left"),
    ),
    mutant(
        "deadline: what blobs take does not count for a commit", PARTITION,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        writes = await self._prepared(batch, state_id)\n        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n", "        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n        writes = await self._prepared(batch, state_id)\n"),
    ),
    mutant(
        "deadline: what blobs take does not count for what is staged", ITEM,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        staged, tx = await self._prepared(attempt, state_id, batch), batch.tx\n        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n", "        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n        staged, tx = await self._prepared(attempt, state_id, batch), batch.tx\n"),
    ),
    mutant(
        "deadline: it is twice as far", BATCH,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        return now_ms - self.now_ms > self._plan.attempt_ms_max\n", "        return now_ms - self.now_ms > 2 * self._plan.attempt_ms_max\n"),
    ),
    # Several handlers of one message
    mutant(
        "settlement: a key is unblocked though another handler refused its message again", WORK,
        f"{OF_JUDGING}::test_a_key_stops_behind_a_message_that_any_of_its_handlers_stops_for",
        (" and not any(self.outcomes.values())", ""),
    ),
    mutant(
        "blocked: what may be on record as waiting counts as on record", WAITING,
        f"{OF_STOPPED}::test_what_waits_is_put_on_record_again_after_an_unknown_outcome",
        ("        answer = await write_known(self._store, Create(key, stored.encode(record), None, tag))\n",
         "        try:\n            answer = await write_one(self._store, Create(key, stored.encode(record), None, tag))\n        except OutcomeUnknown:\n            answer = None\n"),
        ("from outbox.ports import (\n", "from outbox.errors import OutcomeUnknown\nfrom outbox.ports import (\n"),
        ("import read, write_known\n", "import read, write_one\n"),
    ),
    mutant(
        "letters: any payload takes the place of a refused one, partition", VERDICT,
        f"{OF_RESUBMITTING}::test_another_payload_under_the_id_of_a_refused_one_does_not_take_its_place_by_a_resubmission",
        ("    is_same_payload = record is None or not fingerprint or", "    is_same_payload = record is None or bool(record.reason) or"),
    ),
    mutant(
        "letters: any payload takes the place of a refused one, item", VERDICT,
        f"{OF_RESUBMITTING}::test_another_payload_under_the_id_of_a_refused_one_does_not_take_its_place_by_a_resubmission",
        ("    is_same_payload = record is None or not fingerprint or", "    is_same_payload = record is None or bool(record.reason) or"),
    ),
    mutant(
        "requests: who has no name may spell the key of somebody who has", REQUESTS,
        f"{OF_HTTP}::test_a_caller_without_a_name_cannot_spell_the_key_of_one_with_a_name",
        (" if self.route.caller is not None else key\n", " if caller else key\n"),
    ),
    mutant(
        "trigger: a first delivery counts as one that has failed", FUNCTIONS_MESSAGES,
        f"{OF_PROCESSOR}::test_the_delivery_that_a_host_hands_over_is_none_of_the_earlier_ones",
        ("max(0, (received.delivery_count or 1) - 1)", "max(0, received.delivery_count or 1)"),
    ),
    mutant(
        "trigger: invocations that have ended are kept", PROCESSOR,
        f"{OF_PROCESSOR}::test_nothing_is_kept_of_an_invocation_that_has_ended",
        ("        finally:\n            self._bus.forget(invocation)\n", "        finally:\n            pass\n"),
    ),
    mutant(
        "blocked: a block is of a key on every queue", STOPS,
        f"{OF_STOPPED}::test_a_block_is_of_one_queue_whatever_key_another_has",
        ('f"{len(queue)}:{queue}{session_id}"', 'f"{session_id}"'),
    ),
    # The access key
    mutant(
        "key: a token that is over is put all the same", CLAIMS, f"{OF_SERVER}::test_a_token_opens_nothing_from_when_it_is_over",
        ("        if expires_ms <= self._now_ms():\n", "        if expires_ms <= 0:\n"),
    ),
    mutant(
        "key: a connection outlives its token", CLAIMS, f"{OF_SERVER}::test_a_token_opens_nothing_from_when_it_is_over",
        ("self._key is None or self._now_ms() < self._expires_ms", "self._key is None or self._expires_ms > 0"),
    ),
    mutant(
        "key: a token that is over administers", ADMINISTRATION, f"{OF_SERVER}::test_a_token_administers_nothing_when_it_is_over",
        ("check_signature(token, self._endpoint.key) > self._engine.now_ms()", "check_signature(token, self._endpoint.key) > 0"),
    ),
    mutant(
        "key: its bytes are not synced", ACCESS_KEY, f"{OF_KEYS}::test_a_key_is_durable_before_anybody_is_given_it",
        ("        os.fsync(descriptor)\n", ""),
    ),
    mutant(
        "key: its name is not synced", ACCESS_KEY, f"{OF_KEYS}::test_a_key_is_durable_before_anybody_is_given_it",
        ("        os.fsync(directory)\n", "        pass\n"),
    ),
    mutant(
        "key: a new one is written over the old one", ACCESS_KEY,
        f"{OF_KEYS}::test_a_key_is_durable_before_anybody_is_given_it",
        ('    temporary = folder / f"{FILE_NAME}.tmp"\n', "    temporary = folder / FILE_NAME\n"),
    ),
    mutant(
        "key: it has its name before its bytes are synced", ACCESS_KEY,
        f"{OF_KEYS}::test_a_key_is_durable_before_anybody_is_given_it",
        ("        file.flush()\n        os.fsync(descriptor)\n    temporary.replace(folder / FILE_NAME)\n",
         "        file.flush()\n        temporary.replace(folder / FILE_NAME)\n        os.fsync(descriptor)\n"),
    ),
    # What is logged
    mutant(
        "log: a refusal is a dead letter before it is settled", FAILURE_LOG,
        f"{OF_FAILURES}::test_a_refusal_whose_delivery_cannot_be_settled_is_no_dead_letter_yet",
        ("            if is_settled:\n", "            if names:\n"),
    ),
    mutant(
        "log: an attempt that lost to the record is told of, partition", PARTITION,
        f"{OF_FAILURES}::test_a_refusal_whose_delivery_cannot_be_settled_is_no_dead_letter_yet",
        ("        attempt.failure = None  # the record supersedes this attempt, and what it raised\n", ""),
    ),
    mutant(
        "log: each failure puts off the next traceback", "outbox/log_throttle.py",
        f"{OF_FAILURES}::test_what_fails_all_the_time_shows_its_traceback_each_minute",
        ("            self._due[subject] = due_ms, count + 1\n", "            self._due[subject] = now_ms + self._every_ms, count + 1\n"),
    ),
    mutant(
        "log: a password whose end is cut off is shown", REDACTING,
        f"{OF_REDACTING}::test_a_password_whose_end_is_behind_the_cut_is_redacted",
        ("        is_open = is_cut and end == len(text)\n", "        is_open = False\n"),
    ),
)  # fmt: skip

TABLE = Table(
    (*DIRECT_MUTANTS, *AGE_MUTANTS, *THREAD_MUTANTS),
    "tests/",
    (
        "aiohttp.web", "azure.cosmos.aio", "azure.functions", "azure.identity.aio", "azure.servicebus.aio",
        "azure.servicebus.aio.management", "azure.storage.blob.aio", "hypothesis", "msgspec", "pytest_asyncio",
        "tenacity",
    ),
)  # fmt: skip

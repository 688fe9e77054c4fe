"""Faults where no exploration reaches: under a Functions trigger, in dead letters and at the edges of settlement.

Each is planted alone, and the tests that it names must fail of it.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.age_mutants import AGE_MUTANTS
from tests.simulation.cancellation_mutants import CANCELLATION_MUTANTS
from tests.simulation.command_mutants import COMMAND_MUTANTS
from tests.simulation.delta_mutants import DELTA_MUTANTS
from tests.simulation.edit_mutants import TESTED_EDIT_MUTANTS
from tests.simulation.export_mutants import EXPORT_MUTANTS
from tests.simulation.lookup_mutants import LOOKUP_MUTANTS
from tests.simulation.operator_mutants import OPERATOR_MUTANTS
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
from tests.simulation.reader_mutants import READER_MUTANTS
from tests.simulation.rule_mutants import TESTED_RULE_MUTANTS
from tests.simulation.step_mutants import STEP_MUTANTS
from tests.simulation.telemetry_mutants import TELEMETRY_MUTANTS
from tests.simulation.thread_mutants import THREAD_MUTANTS

OF_LEDGER = "unit/stores/test_dispatch_ledger.py"
OF_NEW = "unit/stores/test_new_states.py"
TRIGGER_BUS = "outbox/azure/functions/bus.py"
PROCESSOR = "outbox/azure/functions/processor.py"
SITES = "outbox/azure/functions/sites.py"
APP_LOGS = "function_app/logs.py"
APP_SPARK = "function_app/spark.py"
LANDING = "spark_jobs/draining/landing.py"
CONTAINERS = "spark_jobs/common/containers.py"
RECEIVED = "spark_jobs/draining/received.py"
FEED = "spark_jobs/feed.py"
PLAN = "spark_jobs/feeding/plan.py"
ONCE = "spark_jobs/submitting/once.py"
RUN_DOCUMENTS = "spark_jobs/submitting/documents.py"
SUBMITTED = "spark_jobs/submitted.py"
SYNAPSE = "spark_jobs/submitting/synapse.py"
FINISHING = "outbox/runtime/scopes.py"
SENDING = "spark_jobs/feeding/sending.py"
COMMANDS = "outbox/ops/states/command.py"
CONTROL = "outbox/ops/admins/control.py"
REMOTE = "outbox/ops/admins/remote.py"
CONTROL_FILE = "outbox/ops/shared/control_file.py"
STREAM_ROW = "outbox/streams/row.py"
STREAM_REPLICA = "outbox/streams/replica.py"
FAILING = "unit/streams/test_failures.py"
READS_AHEAD = "unit/streams/test_read_ahead.py"
JUDGED_LIVES = "outbox/verify/recorded/linear.py"
JUDGED_BUNDLES = "outbox/verify/recorded/logs.py"
OF_BUNDLES = "unit/verify/test_linear_bundles.py"
STORED_LETTERS = "outbox/runtime/delivery/stored_dead_letters.py"
BUS_LETTERS = "outbox/azure/servicebus/dead_letters.py"
OPERATIONS = "outbox/runtime/store_operations.py"
HANDLING = "outbox/runtime/commit/run_handler.py"
WORK = "outbox/runtime/work.py"
RESUBMISSION = "outbox/resubmission.py"
FAILURE_LOG = "outbox/runtime/failures/failure_log.py"
REDACTING = "outbox/runtime/failures/redacting.py"
REQUESTS = "outbox/runtime/http/requests.py"
CLAIMS = "outbox/emulator/bus/requests.py"
ADMINISTRATION = "outbox/emulator/servicebus.py"
ACCESS_KEY = "outbox/ops/host/access_key.py"

OF_PROCESSOR = "functions/test_processor.py"
OF_BLUEPRINT = "functions/test_blueprint.py"
OF_SPARK_TRIGGERS = "functions/test_spark_triggers.py"
OF_LANDING = "spark/test_landing.py"
WATCHING, OF_WATCHING = "spark_jobs/feeding/watching.py", "spark/test_watching.py"
CONSUME = "spark_jobs/consume.py"
OF_CONTAINERS = "spark/test_place_faults.py"
OF_SWEEPING = "spark/test_sweeping.py"
OF_CHUNKS = "spark/test_feed_chunks.py"
OF_SUBMIT_TIMES = "spark/test_submit_times.py"
OF_CLI = "unit/ops/test_cli.py"
OF_CONTROL = "unit/ops/test_control.py"
ANOTHER_LOG = "unit/streams/test_another_log.py"
OF_PLACES = "unit/streams/test_wrong_places.py"
OF_APART_HISTORIES = "unit/verify/test_linear_stores.py"
OF_LETTERS = "functions/test_stored_dead_letters.py"
OF_CONNECTING = "wire/on_azure/test_connecting.py"
OF_STOPPED = "unit/stores/test_blocked_sessions.py"
OF_ORDERING = "unit/stores/test_order_of_blocked_sessions.py"
OF_SCOPES = "unit/stores/test_port_calls.py"
OF_MESSAGES = "unit/runtime/test_messages.py"
OF_ORDER = "unit/runtime/test_ordering.py"
OF_REMEMBERED = "unit/engine/test_remembered.py"
OF_ENTRIES = "unit/stores/test_http_entries.py"
OF_RESUBMITTING = "unit/runtime/test_resubmission.py"
OF_HTTP = "unit/runtime/test_http.py"
OF_SERVER = "wire/servicebus/test_server.py"
OF_FAILURES = "unit/runtime/test_failure_log.py"
OF_REDACTING = "unit/runtime/test_redacting.py"
OF_KEYS = "wire/cli/test_access_key.py"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test below `tests/`."""
    about = "trigger" if "function" in file else "letters" if "letters" in file else "settlement"
    about = "jobs" if file.startswith("spark_jobs/") else "judge" if "/verify/" in file else about
    about = "ops" if "/ops/" in file else "emulator" if "/emulator/" in file else about
    return Mutant(name, about, (found_by,), file, edits)


DIRECT_MUTANTS = (
    # Under a trigger
    mutant("trigger: an abandoned message counts as done", TRIGGER_BUS,
        f"{OF_PROCESSOR}::test_in_order_a_message_that_fails_is_redelivered_until_its_last_failure",
        ('settle.how in ("complete", "dead-letter")', 'settle.how != "release"'),
    ),
    mutant("trigger: a released message counts as done", TRIGGER_BUS,
        f"{OF_PROCESSOR}::test_in_order_a_rescheduled_message_waits_and_is_released",
        ('settle.how in ("complete", "dead-letter")', 'settle.how != "abandon"'),
    ),
    mutant("trigger: a message goes when its delayed copy could not be sent", ENDINGS,
        f"{OF_PROCESSOR}::test_a_message_whose_delayed_copy_cannot_be_sent_is_redelivered",
        ('            await self._bus.settle(delivery, Settle("release"))\n        else:', '            await self._bus.settle(delivery, Settle("complete"))\n        else:'),
    ),
    mutant("trigger: a refused message is done before it is kept", TRIGGER_BUS,
        f"{OF_PROCESSOR}::test_a_refusal_that_cannot_be_stored_is_released",
        ('        if settle.how == "dead-letter":\n            await self._dead_letters.keep(delivery, settle.reason, settle.description)\n        invocation = self._invocations.get(delivery.lock)\n', '        invocation = self._invocations.get(delivery.lock)\n        if settle.how == "dead-letter" and invocation is not None:\n            invocation.is_done = True\n            await self._dead_letters.keep(delivery, settle.reason, settle.description)\n'),
    ),
    mutant("two attempts of one process: what is staged for the next version is reclaimed", LEFT,
        f"{OF_PROCESSOR}::test_what_another_attempt_of_this_process_has_staged_is_not_reclaimed",
        ("            if version >= state.item.version:\n", "            if version > state.item.version:\n"),
    ),
    mutant("two attempts of one process: all that is staged is reclaimed", LEFT,
        f"{OF_PROCESSOR}::test_what_another_attempt_of_this_process_has_staged_is_not_reclaimed",
        ("            if version >= state.item.version:\n", "            if version < 0:\n"),
    ),
    mutant(
        "trigger: a start does not register its handlers", PROCESSOR, f"{OF_PROCESSOR}::test_a_start_registers_what_is_handled",
        ("        await register_handlers(self.app, self._operations)\n", ""),
    ),
    mutant("trigger: a start does not look how long others remember", PROCESSOR,
        f"{OF_PROCESSOR}::test_a_start_heeds_how_long_others_remember",
        ("        await register_retention(self.app.name, self._plan.retention, self._operations)\n", ""),
    ),
    # Several handlers of one message
    mutant("several: a refusal by one handler ends what another is to try again", WORK,
        f"{OF_MESSAGES}::test_a_message_that_one_handler_refuses_is_redelivered_for_the_other",
        ("return outcome_of_all(self.branches, [self.outcomes[id(branch)] for branch in self.branches])", "outcomes = [self.outcomes[id(branch)] for branch in self.branches]\n        refused = [None if isinstance(outcome, Later) else outcome for outcome in outcomes]\n        return outcome_of_all(self.branches, refused) or outcome_of_all(self.branches, outcomes)"),
    ),
    mutant("several: a refusal by one handler ends what another is to try again, in the engine", HANDLING,
        f"{OF_MESSAGES}::test_a_message_that_one_handler_refuses_is_redelivered_for_the_other",
        ("    return outcome_of_all(branches, [await run_branch(plan, group, branch, life) for branch in branches])\n", "    outcomes = [await run_branch(plan, group, branch, life) for branch in branches]\n    refused = [None if isinstance(outcome, Later) else outcome for outcome in outcomes]\n    return outcome_of_all(branches, refused) or outcome_of_all(branches, outcomes)\n"),
    ),
    # Dead letters
    mutant("letters: one of the bus is completed before it is sent again", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_dead_letter_that_cannot_be_sent_again_stays",
        ("            await self._bus.send([Output(path.partition(SUBSCRIPTIONS)[0], 0, again)])\n            for copy in [letter, *copies]:\n                await receiver.complete_message(copy)\n", "            for copy in [letter, *copies]:\n                await receiver.complete_message(copy)\n            await self._bus.send([Output(path.partition(SUBSCRIPTIONS)[0], 0, again)])\n"),
    ),
    mutant("letters: one of the store is deleted before it is sent again", STORED_LETTERS,
        f"{OF_LETTERS}::test_a_resubmission_that_is_repeated_after_a_crash_has_no_further_effect",
        ("        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])\n        for copy in sorted({sequence, *copies}):\n            if (there := await self.read(queue, copy)) is not None:\n                await self.delete(there)\n", "        for copy in sorted({sequence, *copies}):\n            if (there := await self.read(queue, copy)) is not None:\n                await self.delete(there)\n        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])\n"),
    ),
    mutant("letters: one of the bus takes a new time", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_resubmitted_dead_letter_keeps_its_first_time",
        ("            enqueued_ms = milliseconds(letter.enqueued_time_utc)\n", "            enqueued_ms = self._bus._now_ms()\n"),
    ),
    mutant("letters: one without a time is as old as its resubmission", RESUBMISSION,
        f"{OF_LETTERS}::test_a_resubmission_keeps_its_first_time",
        ("    created_ms = message.created_ms or enqueued_ms\n", "    created_ms = message.created_ms\n"),
    ),
    mutant("letters: one takes the time of its delivery", RESUBMISSION,
        f"{OF_LETTERS}::test_a_resubmission_keeps_its_first_time",
        ("    created_ms = message.created_ms or enqueued_ms\n", "    created_ms = enqueued_ms\n"),
    ),
    mutant("letters: one of the store has no time", STORED_LETTERS,
        f"{OF_LETTERS}::test_a_resubmission_keeps_its_first_time",
        ("attempt=attempt, enqueued_ms=found.enqueued_ms)", "attempt=attempt, enqueued_ms=0)"),
    ),
    mutant("letters: what is noted as resubmitted has no time", STOPS,
        f"{OF_ORDERING}::test_what_is_noted_as_resubmitted_begins_anew_under_its_first_time",
        ("attempt=attempt, enqueued_ms=dead_letter.enqueued_ms)", "attempt=attempt, enqueued_ms=0)"),
    ),
    mutant(
        "a delayed copy is as old as itself", ENDINGS, f"{OF_PROCESSOR}::test_a_delayed_copy_keeps_the_time_of_its_message",
        ("            created_ms=message.created_ms or delivery.enqueued_ms,\n", "            created_ms=self._now_ms(),\n"),
    ),
    mutant("letters: one of the bus keeps the id that the broker knows", BUS_LETTERS,
        f"{OF_CONNECTING}::test_a_resubmitted_dead_letter_begins_anew_and_its_copies_go",
        ("message_id=f\"{message.identity}~{uuid4().hex}\",", "message_id=message.message_id,"),
    ),
    # What stays in its place
    mutant("in place: what fails there is tried again at once", ENDINGS,
        f"{OF_ORDER}::test_in_order_failures_are_repeated_after_the_delays",
        ("due_ms = self._now_ms() + round(outcome.delay_s * 1_000) if outcome.delay_s > 0 else 0\n                    counts", "due_ms = 0\n                    counts"),
    ),
    mutant("in place: what fails in a subscription is rescheduled as a copy", WORK,
        f"{OF_CONNECTING}::test_what_fails_in_one_subscription_is_tried_again_there_alone",
        ('self.in_order or "/Subscriptions/" in self.delivery.queue', "self.in_order"),
    ),
    # Blocked keys
    mutant("blocked: a key is unblocked behind the completion", LANES,
        f"{OF_STOPPED}::test_what_was_resubmitted_is_completed_only_when_its_key_is_unblocked",
        ("                await self._blocked.unblock_after(attempt)\n", "                await self._settlement.settle(attempt, outcome)\n                await self._blocked.unblock_after(attempt)\n"),
    ),
    mutant("blocked: a message is completed although its key could not be unblocked", LANES,
        f"{OF_STOPPED}::test_what_was_resubmitted_is_completed_only_when_its_key_is_unblocked",
        ("                await self._blocked.unblock_after(attempt)\n", "                with suppress(NothingCommitted):\n                    await self._blocked.unblock_after(attempt)\n"),
    ),
    mutant("blocked: a key is unblocked behind the discarding of its dead letter", OPERATIONS,
        f"{OF_STOPPED}::test_a_dead_letter_is_discarded_only_when_its_key_is_unblocked",
        ("                await self._blocked.unblock(dead.queue, dead.message)  # else nothing could unblock its key\n", "                pass\n"),
        ("            await self._bus.discard(dead.queue, dead.sequence, first=unblock)\n", "            await self._bus.discard(dead.queue, dead.sequence, first=unblock)\n            await self._blocked.unblock(dead.queue, dead.message)\n"),
    ),
    mutant("blocked: a key learns of a resubmission behind it", OPERATIONS,
        f"{OF_STOPPED}::test_a_dead_letter_is_resubmitted_only_when_its_key_has_the_note",
        ("                await self._blocked.note_resubmission(queue, dead, attempt, edit=edit)  # unblocked when it is applied\n", "                pass\n"),
        ("            await self._bus.resubmit(queue, sequence, attempt=attempt, edit=edit, first=note)\n", "            await self._bus.resubmit(queue, sequence, attempt=attempt, edit=edit)\n        if dead.message.session_id:\n            await self._blocked.note_resubmission(queue, dead, attempt, edit=edit)\n"),
    ),
    mutant("blocked: any payload under the id of a dead letter is that dead letter", STOPS,
        f"{OF_STOPPED}::test_another_payload_under_the_id_of_a_dead_letter_waits_behind_it",
        ("        is_same = not digest or not self.fingerprint or digest in (self.fingerprint, *(self.edits or ()))\n        return is_same and", "        return"),
    ),
    mutant("blocked: any payload under the id of a dead letter unblocks its key", STOPS,
        f"{OF_STOPPED}::test_another_payload_under_the_id_of_a_dead_letter_does_not_unblock_its_key",
        ("(by_number or blocked.is_behind(message))", "(by_number or blocked.identity == message.identity)"),
    ),
    mutant("blocked: a block that somebody else wrote blocks nothing", STOPS,
        f"{OF_STOPPED}::test_a_block_of_another_writer_blocks_its_key_until_it_goes",
        ('        return None if found is None else _decoded(found) or BlockedSession("")\n', "        return None if found is None else _decoded(found)\n"),
    ),
    mutant("blocked: a store that is away blocks nothing", LANES,
        f"{OF_STOPPED}::test_a_key_does_not_count_as_unblocked_while_the_store_cannot_be_read",
        ("            await self._cool_down(attempts, error)\n            return [], attempts[0].work.delivery.sequence\n", "            del error\n            return attempts, None\n"),
    ),
    # States that are taken to be new
    mutant("new: a call is made on a state that was not read", PARTITION,
        f"{OF_NEW}::test_no_call_is_made_on_a_state_that_was_not_read",
        ("        if batch.entries or batch.is_assumed:\n", "        if batch.entries:\n"),
    ),
    mutant("new: a handler fails for want of a state that is there", PARTITION,
        f"{OF_NEW}::test_a_handler_that_fails_on_a_state_that_was_not_read_has_not_failed",
        ("        if batch.is_assumed and isinstance(outcome, Later):\n            raise Premature\n", ""),
    ),
    mutant("new: a state that was there changes nothing", "outbox/runtime/commit/loaded_states.py",
        f"{OF_NEW}::test_a_state_that_is_there_after_all_is_read_and_then_those_of_its_type_are",
        ("operation >= len(batch.entries):\n            self.new_states.note(state_id, is_new=False)\n", "operation >= len(batch.entries):\n"),
    ),
    mutant("new: a handler that has to know changes nothing", "outbox/runtime/commit/loaded_states.py",
        f"{OF_NEW}::test_after_a_handler_that_had_to_know_states_are_read_again",
        ("        if is_doubted:\n            self.new_states.note(state_id, is_new=False)\n", "        if is_doubted:\n            first_of = None\n"),
    ),
    mutant("new: a handler behind a guard runs twice", "outbox/runtime/commit/loaded_states.py",
        f"{OF_NEW}::test_a_handler_that_must_not_run_twice_has_its_state_read",
        ("not handler.guards and not handler.blocking", "not handler.blocking"),
    ),
    mutant("new: a handler in a thread runs twice", "outbox/runtime/commit/loaded_states.py",
        f"{OF_NEW}::test_a_handler_that_must_not_run_twice_has_its_state_read",
        ("not handler.guards and not handler.blocking", "not handler.guards"),
    ),
    mutant("new: what has failed fails twice at each try", "outbox/runtime/commit/loaded_states.py",
        f"{OF_NEW}::test_a_message_that_has_failed_has_its_state_read",
        ("not work.delivery.failures and handler is not None", "handler is not None"),
    ),
    # Reads
    mutant("read: a GET does not wait for the gate", HTTP_SCOPES,
        f"{OF_ENTRIES}::test_a_read_waits_until_what_it_has_seen_is_durable",
        ("            documents, _ = await self._journal.load([] if id is None else [id], [])\n            await self._journal.durable()\n", "            documents, _ = await self._journal.load([] if id is None else [id], [])\n"),
    ),
    mutant("read: a GET passes the gate before it looks", HTTP_SCOPES,
        f"{OF_ENTRIES}::test_a_read_waits_until_what_it_has_seen_is_durable",
        ("            documents, _ = await self._journal.load([] if id is None else [id], [])\n            await self._journal.durable()\n", "            await self._journal.durable()\n            documents, _ = await self._journal.load([] if id is None else [id], [])\n"),
    ),
    mutant("read: a client's read of a state does not wait for the gate", ENGINE_OPERATIONS,
        f"{OF_REMEMBERED}::test_what_a_client_reads_is_durable_when_it_is_answered",
        ("        found = self._documents.read(STATES, id)\n        await self._core.gate()\n", "        found = self._documents.read(STATES, id)\n"),
    ),
    mutant("read: a list of dead letters does not wait for the gate", ENGINE_OPERATIONS,
        f"{OF_REMEMBERED}::test_what_a_client_reads_is_durable_when_it_is_answered",
        ("        found = dead_letters(self._broker, queue)\n        await self._core.gate()\n", "        found = dead_letters(self._broker, queue)\n"),
    ),
    # Deadlines
    mutant("deadline: a handler may take as long as it likes", HANDLING,
        f"{OF_SCOPES}::test_a_handler_that_waits_past_its_deadline_writes_nothing_and_runs_again",
        ("        if not within.expired() and life.now_ms() - now_ms <= limit_ms:\n", "        if not within.expired():\n"),
    ),
    mutant("deadline: an attempt past it commits", PARTITION,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("            self._check_deadline(batch)\n            check", "            check"),
    ),
    mutant("deadline: an attempt past it stages", ITEM,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n        if isinstance(fitted, StateItem):\n            return fitted, None\n", "        if isinstance(fitted, StateItem):\n            if batch.is_late(self._now_ms()):\n                raise NothingCommitted\n            return fitted, None\n"),
    ),
    mutant("deadline: what blobs take does not count for what is staged", ITEM,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        fitted = await self._fitting.item(state_id, batch)\n        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n        if isinstance(fitted, StateItem):\n            return fitted, None\n", "        is_late = batch.is_late(self._now_ms())\n        fitted = await self._fitting.item(state_id, batch)\n        if isinstance(fitted, StateItem):\n            if batch.is_late(self._now_ms()):\n                raise NothingCommitted\n            return fitted, None\n        if is_late:\n            raise NothingCommitted\n"),
    ),
    mutant("deadline: an attempt past it swaps", ITEM,
        "unit/stores/test_inline_outputs.py::test_an_attempt_whose_attachment_takes_past_its_deadline_swaps_nothing",
        ("        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n        if isinstance(fitted, StateItem):\n            return fitted, None\n", "        if isinstance(fitted, StateItem):\n            return fitted, None\n        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n"),
    ),
    mutant("deadline: what blobs take does not count for a commit", PARTITION,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n            self._check_deadline(batch)\n", "            self._check_deadline(batch)\n            writes, left_bytes = await self._fitting.batch(batch, partial(self._writes, batch, state_id))  # 5\n"),
    ),
    mutant("deadline: what blobs take does not count for a swap", ITEM,
        "unit/stores/test_inline_outputs.py::test_an_attempt_whose_attachment_takes_past_its_deadline_swaps_nothing",
        ("        fitted = await self._fitting.item(state_id, batch)\n        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n", "        if batch.is_late(self._now_ms()):\n            raise NothingCommitted\n        fitted = await self._fitting.item(state_id, batch)\n"),
    ),
    mutant("deadline: it is twice as far", BATCH,
        f"{OF_SCOPES}::test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing",
        ("        return now_ms - self.now_ms > self._plan.attempt_ms_max\n", "        return now_ms - self.now_ms > 2 * self._plan.attempt_ms_max\n"),
    ),
    # Several handlers of one message
    mutant("blocked: what may be on record as waiting counts as on record", WAITING,
        f"{OF_STOPPED}::test_what_waits_is_put_on_record_again_after_an_unknown_outcome",
        ("        answer = await write_known(self._store, Create(key, stored.encode(record), None, tag))\n",
         "        try:\n            answer = await write_one(self._store, Create(key, stored.encode(record), None, tag))\n        except OutcomeUnknown:\n            answer = None\n"),
        ("from outbox.ports import (\n", "from outbox.errors import OutcomeUnknown\nfrom outbox.ports import (\n"),
        ("import NothingCommitted, read, write_known\n", "import NothingCommitted, read, write_one\n"),
    ),
    mutant("letters: any payload takes the place of a refused one, partition", VERDICT,
        f"{OF_RESUBMITTING}::test_another_payload_under_the_id_of_a_refused_one_does_not_take_its_place_by_a_resubmission",
        ("    if not fingerprint or record.fingerprint", "    if bool(record.reason) or record.fingerprint"),
    ),
    mutant("letters: any payload takes the place of a refused one, item", VERDICT,
        f"{OF_RESUBMITTING}::test_another_payload_under_the_id_of_a_refused_one_does_not_take_its_place_by_a_resubmission",
        ("    if not fingerprint or record.fingerprint", "    if bool(record.reason) or record.fingerprint"),
    ),
    mutant("requests: who has no name may spell the key of somebody who has", REQUESTS,
        f"{OF_HTTP}::test_a_caller_without_a_name_cannot_spell_the_key_of_one_with_a_name",
        (" if self.route.caller is not None else key\n", " if caller else key\n"),
    ),
    mutant("trigger: a first delivery counts as one that has failed", TRIGGER_BUS,
        f"{OF_PROCESSOR}::test_the_delivery_that_a_host_hands_over_is_none_of_the_earlier_ones",
        ("max(0, (received.delivery_count or 1) - 1)", "max(0, received.delivery_count or 1)"),
    ),
    mutant("blocked: a block is of a key on every queue", STOPS,
        f"{OF_STOPPED}::test_a_block_is_of_one_queue_whatever_key_another_has",
        ('f"{len(queue)}:{queue}{session_id}"', 'f"{session_id}"'),
    ),
    # The access key
    mutant(
        "key: a connection outlives its token", CLAIMS, f"{OF_SERVER}::test_a_token_opens_nothing_from_when_it_is_over",
        ("any(self._now_ms() < ends_ms for ends_ms in self._scopes.values())", "bool(self._scopes)"),
    ),
    mutant(
        "key: a token that is over administers", ADMINISTRATION, f"{OF_SERVER}::test_a_token_administers_nothing_when_it_is_over",
        ("check_signature(token, self._endpoint.key) > self._endpoint.engine.now_ms()", "check_signature(token, self._endpoint.key) > 0"),
    ),
    mutant("key: what a blob's key signs has no path", "outbox/emulator/blobs/auth.py",
        "wire/blobs/test_blobs_wire.py::test_a_signature_is_good_for_what_it_signed",
        ('f"/{account}{path}", *_query_lines', 'f"/{account}", *_query_lines'),
    ),
    mutant("key: a new one is written over the old one", ACCESS_KEY,
        f"{OF_KEYS}::test_a_key_is_durable_before_anybody_is_given_it",
        ('    temporary = folder / f"{FILE_NAME}.tmp"\n', "    temporary = folder / FILE_NAME\n"),
    ),
    mutant("key: it has its name before its bytes are synced", ACCESS_KEY,
        f"{OF_KEYS}::test_a_key_is_durable_before_anybody_is_given_it",
        ("        file.flush()\n        os.fsync(descriptor)\n    temporary.replace(folder / FILE_NAME)\n",
         "        file.flush()\n        temporary.replace(folder / FILE_NAME)\n        os.fsync(descriptor)\n"),
    ),
    # What is logged
    mutant("log: a refusal is a dead letter before it is settled", FAILURE_LOG,
        f"{OF_FAILURES}::test_a_refusal_whose_delivery_cannot_be_settled_is_no_dead_letter_yet",
        ("            if is_settled:\n", "            if names:\n"),
    ),
    mutant("log: a password whose end is cut off is shown", REDACTING,
        f"{OF_REDACTING}::test_a_password_whose_end_is_behind_the_cut_is_redacted",
        ("        is_open = is_cut and end == len(text)\n", "        is_open = False\n"),
    ),
    # The Functions app
    mutant("site: a processor is used before it is open", SITES,
        f"{OF_BLUEPRINT}::test_no_invocation_uses_a_processor_that_could_not_be_opened",
        ("                await made.open()\n                self._processor = made\n",
         "                self._processor = made\n                await made.open()\n"),
    ),
    mutant(
        "app: a field begins a line of its own", APP_LOGS, "infra/test_alerts.py::test_no_field_begins_a_line_of_its_own",
        ("printable(str(value))", "str(value)"),
    ),
    mutant("app: a timer's run is one for each start", APP_SPARK,
        f"{OF_SPARK_TRIGGERS}::test_a_timer_that_is_started_again_for_the_same_time_starts_one_run",
        ("{due:%Y%m%dT%H%M%SZ}", "{datetime.now(UTC):%Y%m%dT%H%M%S%f}"),
    ),
    # The judge of histories
    mutant("judge: what must hold at the end is not asked", "outbox/verify/promises/view.py",
        "simulation/test_explore_findings.py::test_what_must_hold_at_the_end_is_asked_where_nothing_is_under_way",
        ("        return found if broken is None else [*found, broken]\n", "        return found\n"),
    ),
    mutant("judge: what must hold at the end of a processor is not asked", "outbox/verify/promises/streams.py",
        "simulation/test_explore_processor.py::test_what_must_hold_at_the_end_is_asked_where_nothing_more_can_happen",
        ("        return found if broken is None else [*found, broken]\n", "        return found\n"),
    ),
    mutant("judge: a settlement that a death cut off is taken as done", JUDGED_LIVES,
        f"{OF_APART_HISTORIES}::test_a_delivery_that_was_being_settled_when_its_process_died_may_be_redelivered",
        ("            self._flow.settle_perhaps(settled)\n        self._settles.clear()",
         "            self._flow.settle(settled)\n        self._settles.clear()"),
    ),
    mutant("judge: a bundle may begin anywhere", JUDGED_BUNDLES, f"{OF_BUNDLES}::test_a_forged_history_is_found_out",
        ("        if one.until == other.since:\n", "        if one.until is not None:\n"),
    ),
    mutant("release: an append of unknown outcome is made anew", "outbox/streams/pipeline/barrier.py",
        "unit/streams/pipeline/test_drawn.py::"
        "test_what_comes_out_under_drawn_faults_is_what_should[at_most_once-103]",
        ("        if self.bundled is not None and not self._is_chained:\n", "        if self.bundled is not None and at_ms < 0:\n"),
    ),
    mutant("judge: what a bundle holds is not compared with what was made", JUDGED_BUNDLES,
        f"{OF_BUNDLES}::test_a_forged_history_is_found_out",
        ("        if owed != left.items:\n", "        if not owed:\n"),
    ),
    mutant("judge: a checkpoint of a pipeline may stand at any time", JUDGED_BUNDLES,
        f"{OF_BUNDLES}::test_a_forged_history_is_found_out",
        ("            for made in sink.between(durable.version, sink.until, durable.until)[:1]:\n",
         "            for made in sink.between(durable.version, durable.until, durable.until)[:1]:\n"),
    ),
    mutant("judge: an older version of a pipeline must have released all that it made", JUDGED_BUNDLES,
        f"{OF_BUNDLES}::test_a_sound_history_breaks_no_promise",
        ("max(sink.made, default=0), sink.until", "min(sink.made, default=0), sink.until"),
    ),
    mutant("recorder: what a pipeline made stays in the buffer while it leaves", "outbox/verify/recorded/streams.py",
        "unit/verify/test_recording_pipelines.py::test_what_was_made_is_on_record_when_the_process_is_killed",
        ("        self.history.flush()  # what was made is on record before it can leave\n", ""),
    ),
    # Ordered logs: another log, register or cursor than was meant
    mutant("streams: what was cut off counts as not appended", STREAM_ROW,
        "unit/streams/test_ordered_log.py::test_what_may_have_been_appended_is_known_again_after_a_trim",
        ("        except BaseException as error:  #", "        except Refused as error:  #"),
    ),
    mutant("streams: what had no answer counts as refused", "outbox/streams/cells.py",
        "unit/streams/test_ordered_log.py::test_what_may_have_been_appended_is_known_again_after_a_trim",
        ("                is_unsure = is_unsure or not session\n", ""),
    ),
    mutant("streams: what is taken back keeps its id", "outbox/streams/cells.py",
        "unit/streams/test_margin.py::test_what_is_taken_back_is_nobodys_tombstone",
        ("            tombstone = tombstone_of(NOTHING)\n", "            tombstone = tombstone_of(decode_cell(document))\n"),
    ),
    mutant("streams: a cell that is being trimmed is taken back", STREAM_ROW,
        "unit/streams/test_margin.py::test_an_append_below_a_trim_that_stood_still_is_made_again_or_asks_for_a_person",
        ("            if index >= floor.cleared:\n", "            if index < 0:\n"),
    ),
    mutant("streams: a retry of unknown outcome writes another blob", STREAM_ROW,
        "unit/streams/test_cell_blobs.py::test_a_blob_without_an_answer_is_that_of_the_next_try",
        ("                self._nonces[made.id] = nonce\n", "                self._nonces[made.id] = self.place.new_id()\n"),
    ),
    mutant("streams: a cell whose blob was not read yet is passed over", STREAM_ROW,
        f"{READS_AHEAD}::test_few_blobs_are_read_at_once_and_no_entry_is_passed_over",
        ("        return list(takewhile(lambda cell: not cell.blob, there))\n", "        return [cell for cell in there if not cell.blob]\n"),
    ),
    mutant("streams: what was read before a trim is lost with what it took", STREAM_ROW,
        f"{READS_AHEAD}::test_what_was_read_before_a_trim_is_given_before_it_is_said",
        ("        if not there and cells:\n", "        if len(there) < count:\n            there = []\n        if not there and cells:\n"),
    ),
    mutant("streams: an entry is refused for a state that cannot be read", STREAM_REPLICA,
        f"{FAILING}::test_a_state_that_cannot_be_read_stops_the_processor_and_refuses_no_entry",
        ("        state, refusable = self._state_of(register), self._refusable(register, ready)\n        try:\n", "        refusable = self._refusable(register, ready)\n        try:\n            state = self._state_of(register)\n"),
    ),
    mutant("streams: a log that was trimmed is any that was", "outbox/streams/register.py",
        f"{ANOTHER_LOG}::test_another_log_that_was_trimmed_is_told_by_its_floor",
        ("    if who not in known.readers and who not in known.writers:\n", "    if not who:\n"),
    ),
    mutant("streams: an ingest that another has overtaken takes nothing in", "outbox/streams/ingest.py",
        "unit/streams/test_gone.py::test_an_ingest_that_rests_while_its_log_is_trimmed_takes_the_next_message_in",
        ("        if known is None or await self.register.is_current(known):\n", "        if True:\n"),
    ),
    mutant("streams: a message is dated by who sends it", STREAM_REPLICA,
        "unit/streams/test_queue_outputs.py::test_messages_are_dated_by_who_took_their_step_and_not_by_who_sends_them",
        (" else register.made_ms,\n", " else self._now_ms(),\n"),
    ),
    mutant("streams: a restored register is written below the floor", STREAM_ROW,
        f"{OF_PLACES}::test_a_restored_processor_writes_nothing_below_the_floor",
        ("            raise Trimmed(self._passed(index, what), floor=self.horizon.index)\n", "            return\n"),
    ),
    mutant("streams: a renamed input begins where it was first seen", STREAM_REPLICA,
        "unit/streams/test_bad_input.py::test_new_code_with_another_name_for_an_input_begins_where_old_code_ends",
        ("if key not in register.cursors and row.name in left:", "if self._begins.get(key, Position(0)) <= Position(0) and row.name in left:"),
    ),
    mutant("streams: inputs that change their names begin anew", STREAM_REPLICA,
        "unit/streams/test_bad_input.py::test_inputs_that_change_their_names_go_on_where_they_were",
        ("in register.reads.items() if here.get(key) != row}\n        register = self", "in register.reads.items() if key not in here}\n        register = self"),
    ),
    mutant("item scope: a refusal is recorded again once it is forgotten", ITEM,
        "simulation/test_explore_edit.py::test_a_sweeper_that_wakes_up_when_a_refusal_is_forgotten_records_it_no_more",
        ("                state = await self._confirm(state_id, state)", "                pass"),
    ),
    mutant("streams: new code takes over with its first entry", STREAM_REPLICA,
        "unit/streams/test_processor.py::test_new_code_takes_over_without_an_entry_and_old_code_stops",
        ("is_taken_over = register.version == self.plan.version", "is_taken_over = True"),
    ),
    # Endpoints and command line
    mutant("ops: a lost answer is taken as refused", REMOTE,
        f"{OF_CONTROL}::test_a_lost_answer_to_a_send_is_an_unknown_outcome",
        ("        return OutcomeUnknown(\n", "        return Refused(\n"),
    ),
    mutant("ops: the repr of a control file shows its token", CONTROL_FILE,
        f"{OF_CONTROL}::test_the_control_file_is_its_owners_alone_and_goes_with_the_host",
        ("pid={self.pid})\"", "pid={self.pid}, token={self.token})\""),
    ),
    # The Service Bus endpoint
    # Spark jobs
    mutant("consume: messages are completed before they are on disk", LANDING,
        f"{OF_LANDING}::test_a_message_is_completed_when_it_is_on_disk",
        ("                self.land(messages)\n                self._complete(messages)\n",
         "                self._complete(messages)\n                self.land(messages)\n"),
    ),
    mutant("consume: a batch that could not be written is completed", LANDING,
        f"{OF_LANDING}::test_nothing_is_completed_of_a_batch_that_could_not_be_written",
        ("                self.land(messages)\n",
         "                with __import__('contextlib').suppress(OSError):\n                    self.land(messages)\n"),
    ),
    mutant("synapse: half a list is a whole one", SYNAPSE,
        "spark/test_submit_synapse.py::test_a_list_that_is_too_large_to_be_meant_is_not_taken_for_a_whole_one",
        ("        raise OutcomeUnknown(\n            f\"pool {self._settings.pool} lists", "        return found\n        raise OutcomeUnknown(\n            f\"pool {self._settings.pool} lists"),
    ),
    mutant("place: who meets a blob has put it", CONTAINERS,
        f"{OF_CONTAINERS}::test_a_put_whose_answer_is_lost_may_still_have_been_second",
        ("return metadata.get(TOKEN) == token", "return True"),
    ),
    mutant("place: blocks of two writers have the same ids", CONTAINERS,
        f"{OF_CONTAINERS}::test_blocks_of_another_writer_are_not_committed",
        ("[uuid4().hex for _ in range(0, len(data), BLOCK_BYTES)]",
         '[f"{at:032}" for at in range(0, len(data), BLOCK_BYTES)]'),
    ),
    mutant("place: a list ends with its first page", CONTAINERS,
        "spark/test_places.py::test_lists_are_whole_and_in_order[emulator]",
        ("            if not marker:\n", "            if True:\n"),
    ),
    mutant("submit: a document is compared before its lock is held", RUN_DOCUMENTS,
        f"{OF_SUBMIT_TIMES}::test_a_document_is_compared_under_its_lock_and_on_disk_before_it_takes_its_place",
        ("        with self._locked(run):\n            seen = self._read(run)\n",
         "        seen = self._read(run)\n        with self._locked(run):\n"),
    ),
    mutant("feed: the stage of the plan is swept with the others", PLAN,
        f"{OF_CHUNKS}::test_stages_that_nobody_works_at_are_removed_and_the_planned_one_never_is",
        ('lambda file: not file.startswith(f"{manifest.stage}/")', "lambda file: True"),
    ),
    mutant("feed: who planned second sends its own plan", PLAN,
        f"{OF_CHUNKS}::test_of_two_plans_at_once_the_first_counts_and_nothing_is_left_of_the_other",
        ('        if run.create(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest))):\n',
         '        run.create(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))\n        if True:\n'),
    ),
    mutant("watch: a file is done before it is fed", WATCHING,
        f"{OF_WATCHING}::test_an_outage_ends_the_watch_and_marks_nothing",
        ("            report = self.feed(item)\n",
         '            self.kept.create(record_of(item), b"{}")\n            report = self.feed(item)\n'),
    ),
    mutant("watch: a file is known by its name alone", WATCHING,
        f"{OF_WATCHING}::test_a_file_that_is_written_anew_is_fed_anew",
        ('f"{item.name}\\0{item.version}"', 'f"{item.name}"'),
    ),
    mutant("consume: a message without an identity has another with each delivery", RECEIVED,
        "spark/test_received_rows.py::test_the_identity_is_the_senders_then_the_brokers_then_the_place",
        ('f"sequence-number:{message.sequence_number or 0}"', 'f"sequence-number:{message.sequence_number}-{message.delivery_count}"'),
    ),
    mutant("consume: a receiver that failed hides behind the first", CONSUME,
        f"{OF_LANDING}::test_the_rounds_of_a_drain_add_up_and_one_receiver_that_failed_is_enough",
        ('next((row["failed"] for row in results if row["failed"]), "")', 'results[0]["failed"] or ""'),
    ),
    mutant("feed: a chunk of which a part was not sent is done", FEED,
        f"{OF_CHUNKS}::test_a_chunk_of_which_a_part_was_not_sent_is_not_done",
        ("    if failed:\n        raise OutcomeUnknown(", "    if len(failed) > 1:\n        raise OutcomeUnknown("),
    ),
    mutant("reconcile: the look at dead letters stops behind the first page", "spark_jobs/comparing/dead_letters.py",
        "spark/test_dead_letters.py::test_an_outage_is_sat_out_and_no_dead_letter_is_missed",
        ("if page is not None and not page:", "if page is not None and (seen or not page):"),
    ),
    mutant("submit: who is refused gives up the claim of another", ONCE,
        f"{OF_SUBMIT_TIMES}::test_who_is_refused_late_leaves_the_claim_of_another_alone",
        ("if now.claim == claimed.claim else now", "if now.claim is not None else now"),
    ),
    mutant("submit: what is left of a claim is read behind the list", ONCE,
        f"{OF_SUBMIT_TIMES}::test_a_claim_that_ends_while_batches_are_listed_is_waited_for",
        ("        if left_ms > 0 and document.lease is None:\n",
         "        if claim is not None and claim.until_ms > self._now_ms() and document.lease is None:\n"),
    ),
    mutant("submit: a lease begins with the renewal that fails", SUBMITTED,
        f"{OF_SUBMIT_TIMES}::test_the_wait_for_a_renewal_leaves_its_time_out_of_the_lease",
        ("ends_s - time.monotonic())", "times.lease_s - times.spare_s)"),
    ),
    mutant("submit: a lease begins when it has been written down", SUBMITTED,
        f"{OF_SUBMIT_TIMES}::test_the_wait_for_a_renewal_leaves_its_time_out_of_the_lease[100-80]",
        ("ends_s = keeper.taken_s +", "ends_s = time.monotonic() +"),
    ),
    mutant("sweep: records live as short as the shortest", FINISHING,
        "spark/test_sweeping.py::test_a_record_is_kept_for_the_longest_time_that_anybody_registered",
        ("return max(lives), max(margins)", "return min(lives), max(margins)"),
    ),
    # Names, limits and what is left
    mutant("ops: an export that breaks off replaces the last", COMMANDS,
        f"{OF_CLI}::test_an_export_that_breaks_off_leaves_the_file_of_the_last",
        ("options.output.with_name(options.output.name + \".tmp\")", "options.output"),
    ),
    mutant("ops: others can read the control file", CONTROL_FILE,
        f"{OF_CONTROL}::test_the_control_file_is_its_owners_alone_and_goes_with_the_host",
        ("os.O_NOFOLLOW, 0o600)", "os.O_NOFOLLOW, 0o644)"),
    ),
    mutant("feed: a batch without an answer counts as sent", SENDING,
        "spark/test_sending_rows.py::test_a_batch_without_an_answer_is_sent_again_under_the_same_ids_on_another_connection",
        ("            except (ServiceBusError, OSError) as error:\n                self._failed(error)\n        self.patience",
         "            except (ServiceBusError, OSError) as error:\n                self._failed(error)\n                break\n        self.patience"),
    ),
    # Rare moments
    mutant("emulator: a token for one entity opens all", "outbox/emulator/bus/requests.py",
        "unit/emulator/test_claims.py::test_a_token_opens_what_it_names_and_what_is_below",
        ("        scope = scope_of(str(request.value))\n", '        scope = ""\n'),
    ),
    mutant("drained: a subscription is, whatever its topic is still to get", OPERATIONS,
        "unit/stores/test_unsent_outputs.py::test_what_is_unsent_to_a_topic_may_reach_its_subscriptions_and_nothing_else",
        ("{source.partition(SUBSCRIPTIONS)[0] for source in sources}", "set(sources)"),
    ),
    mutant("ledger: it lives no longer than its records", "outbox/runtime/commit/dispatch_ledger.py",
        f"{OF_LEDGER}::test_it_is_stored_before_the_first_entry_and_lives_longer_than_its_records",
        ("    return item.life_ms / 1_000 + MARGIN_S\n", "    return item.life_ms / 1_000\n"),
    ),
    mutant("ledger: it is not renewed while nothing of it is closed", "outbox/runtime/commit/dispatch_ledger.py",
        f"{OF_LEDGER}::test_it_is_renewed_while_numbers_are_handed_out",
        ("            elif self._now_ms() - self._written_ms >= RENEW_MS:\n                await self._write()\n", ""),
    ),
    mutant("ledger: what cannot be sent expires", "outbox/runtime/commit/recovery.py",
        f"{OF_LEDGER}::test_what_cannot_be_sent_for_an_hour_is_kept_until_it_can",
        ("            if self._parts.now_ms() - record.at_ms >= PENDING_AFTER_MS:\n", "            if False:\n"),
    ),
    mutant("ledger: what is kept lives as long as its sweeper says", "outbox/runtime/commit/recovery.py",
        f"{OF_LEDGER}::test_what_another_application_keeps_lives_as_long_as_its_writer_said",
        ("pending=True, entry=\"\")", "pending=True, entry=\"\", life_ms=self._parts.plan.record_life_ms)"),
    ),
    mutant("ledger: a sweeper closes all up to what it has seen", "outbox/runtime/commit/dispatch_ledger.py",
        f"{OF_LEDGER}::test_a_sweeper_leaves_numbers_between_open_that_may_land_later",
        ("            opened |= set(range(last + 1, number + 1))\n", ""),
    ),
    mutant("sweep: the next one forgets what earlier ones passed", "outbox/runtime/commit/sweeper.py",
        "unit/stores/test_sweeps.py::test_each_sweep_begins_behind_what_all_before_it_could_not_finish",
        ("next_start = start + seen - finished if is_cut", "next_start = seen - finished if is_cut"),
    ),
    mutant("feed: half a quarantine counts as whole", FEED,
        f"{OF_CHUNKS}::test_what_a_crash_left_out_of_the_quarantine_is_copied_again",
        ("if name_aside(file.name) not in there]", "if not there]"),
    ),
    mutant("comparison: another file of the same length is taken for the same", "spark_jobs/comparing/steps.py",
        "spark/test_reconcile_screens.py::test_what_is_kept_is_of_these_files_as_they_are_by_these_settings",
        ("file.size, file.version)", 'file.size, "")'),
    ),
    mutant("sweep: a margin that was longer before is forgotten", FINISHING,
        f"{OF_SWEEPING}::test_a_record_is_kept_for_the_longest_time_that_anybody_registered",
        ("margins += [kept.margin_ms, *(era.margin_ms for era in kept.eras)]", "margins += [kept.margin_ms]"),
    ),
)  # fmt: skip

TABLE = Table(
    (
        *DIRECT_MUTANTS,
        *OPERATOR_MUTANTS,
        *LOOKUP_MUTANTS,
        *COMMAND_MUTANTS,
        *READER_MUTANTS,
        *TELEMETRY_MUTANTS,
        *DELTA_MUTANTS,
        *EXPORT_MUTANTS,
        *AGE_MUTANTS,
        *TESTED_EDIT_MUTANTS,
        *CANCELLATION_MUTANTS,
        *THREAD_MUTANTS,
        *STEP_MUTANTS,
        *TESTED_RULE_MUTANTS,
    ),
    "tests/",
)

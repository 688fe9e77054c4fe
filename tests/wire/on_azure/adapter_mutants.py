"""Faults planted in the adapters, each alone: what one module's text is changed to, and the tests that must fail of it.

Here are those that a named rule has, and those that no machine draws and a promise names.  Data only; nothing of the
package is imported here.  The tests run against the emulators, through the real SDKs.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant, Table

COSMOS = "outbox/azure/cosmos/store.py"
OUTCOMES = "outbox/azure/cosmos/outcomes.py"
ACCOUNT = "outbox/azure/cosmos/account.py"
CONNECTION = "outbox/azure/transport.py"
UNSENT = "outbox/azure/unsent.py"
BUS = "outbox/azure/servicebus/bus.py"
BUS_OUTCOMES = "outbox/azure/servicebus/outcomes.py"
LINKS = "outbox/azure/servicebus/links.py"
SENDING = "outbox/azure/servicebus/bus.py"
SOURCES = "outbox/azure/servicebus/sources.py"
MESSAGES = "outbox/azure/servicebus/messages.py"
LETTERS = "outbox/azure/servicebus/dead_letters.py"
CLIENTS = "outbox/azure/connecting.py"
BLOB_OUTCOMES = "outbox/azure/blobs/outcomes.py"
BLOB_STATES = "outbox/azure/blobs/state_store.py"
BLOB_ACCOUNT = "outbox/azure/blobs/account.py"


OF_COSMOS = "test_cosmos_traps"
OF_SENDING = "test_servicebus_traps"
OF_SETTLING = "test_servicebus_settling_traps"
OF_ROUND_TRIPS = "test_round_trips"
OF_SESSIONS = "test_servicebus_session_traps"
OF_CONNECTING = "test_connecting"
OF_UNSENT = "test_unsent"
OF_BREAKS = "test_servicebus_breaks"
OF_PLACED = "test_placed_states"
OF_BLOBS = "test_blob_requests"
OF_ANSWERS = "test_bus_answers"


IN_TWO = """async def in_two(items: Any, fresh: list[Any], partition: str) -> Any:
    one = await items.execute_item_batch(fresh[:1], partition)
    two = await items.execute_item_batch(fresh[1:], partition)
    two[:0] = one
    return two


"""


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str], of: str = "") -> Mutant:
    """A planted fault; `found_by` names a test, `of` its module where the file does not say."""
    service = "cosmos" if "/cosmos" in file or file == CONNECTION or of == OF_PLACED else "bus"
    service = "blobs" if "/blobs/" in file else service
    module = of or {LINKS: OF_SETTLING, BUS: OF_SETTLING, SOURCES: OF_SESSIONS, LETTERS: OF_CONNECTING}.get(
        file, {"cosmos": OF_COSMOS, "bus": OF_SENDING, "blobs": OF_BLOBS}[service]
    )
    return Mutant(name, service, (f"{module}.py::{found_by}",), file, edits)


ADAPTER_MUTANTS = (
    # What a refused request says
    mutant("a read does not ask for its session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("        token = session or self._sessions", "        token = self._sessions"),
    ),
    mutant("a read that cannot be as fresh as its session finds nothing", OUTCOMES,
        "test_a_read_that_cannot_be_as_fresh_as_its_session_is_no_answer",
        ("substatus in (NO_CONTAINER, NOT_YET_READABLE)", "substatus == NO_CONTAINER"),
    ),
    mutant("a missing container is an empty one", OUTCOMES,
        "test_a_key_that_is_wrong_and_a_container_that_is_missing_are_refused_with_the_cure",
        ("substatus in (NO_CONTAINER, NOT_YET_READABLE)", "substatus == NOT_YET_READABLE"),
    ),
    # What happened to a request without an answer
    mutant("the SDK sends again after an answer was lost", ACCOUNT,
        "test_a_write_whose_answer_is_lost_is_unknown_and_sent_once",
        ("            retry_read=0,\n            retry_connect=0,\n", ""),
    ),
    mutant("an unknown outcome is taken as refused", OUTCOMES,
        "test_a_write_whose_answer_is_lost_is_unknown_and_sent_once",
        ("    return OutcomeUnknown(f\"{what}: outcome", "    return Refused(f\"{what}: outcome"),
    ),
    mutant("an unknown outcome is taken as throttled", OUTCOMES,
        "test_a_status_without_an_answer_is_unknown_and_sent_once",
        ("frozenset((429, 449))", "frozenset((408, 429, 449, 500, 503))"),
    ),
    mutant("an unknown outcome is taken as lost", OUTCOMES, "test_a_status_without_an_answer_is_unknown_and_sent_once",
        ("frozenset((404, 409, 412))", "frozenset((404, 408, 409, 412))"),
    ),
    # Batches and conditions
    mutant("throttling within a batch is not known", OUTCOMES,
        "test_throttling_within_a_batch_is_waited_out_with_the_conditions_kept",
        ("    if status in _LATER:", "    if status in _LATER and not isinstance(error, CosmosBatchOperationError):"),
    ),
    mutant("the operations of a batch are built once for all tries", COSMOS,
        "test_a_batch_that_is_throttled_and_then_stale_loses",
        (
            "        def send(container: ContainerProxy) -> Awaitable[Any]:\n            fresh = [",
            "        fresh = [",
        ),
        (
            "items, strict=True)]\n            return container.execute",
            "items, strict=True)]\n\n        def send(container: Any) -> Any:\n            return container.execute",
        ),
    ),
    mutant("a batch goes in two", COSMOS, "test_the_operation_that_lost_is_named",
        (
            "            return container.execute_item_batch(fresh, partition, **self._in_session(\"\"))\n",
            "            return in_two(container, fresh, partition)\n",
        ),
        (
            "async def _next_page(",
            IN_TWO + "async def _next_page(",
        ),
    ),
    mutant("a replace in a batch has no condition", COSMOS, "test_the_operation_that_lost_is_named",
        ("(\"replace\", (item[\"id\"], item), condition)", "(\"replace\", (item[\"id\"], item))"),
    ),
    mutant("a delete in a batch has no condition", COSMOS, "test_a_delete_in_a_batch_keeps_its_condition",
        ("(encode_id(operation.key.id),), condition)", "(encode_id(operation.key.id),))"),
    ),
    mutant("a create in a batch writes over", COSMOS,
        "test_a_lost_write_returns_a_session_in_which_the_winner_can_be_read",
        ("        return (\"create\", (item,))", "        return (\"upsert\", (item,))"),
    ),
    mutant("a single write has no condition", COSMOS, "test_cosmos_is_a_state_store_of_single_items",
        (
            "{\"etag\": operation.if_match, \"match_condition\": MatchConditions.IfNotModified}",
            "{}",
        ),
        of="test_cosmos_contract",
    ),
    mutant("a single create writes over", COSMOS, "test_cosmos_is_a_state_store_of_single_items",
        ("items.create_item(item_of", "items.upsert_item(item_of"),
        of="test_cosmos_contract",
    ),
    # Sending
    mutant("several tasks use one sender at once", SENDING, "test_many_tasks_on_one_bus_send_each_message_once",
        ("        if self._running is None:\n", "        if True:\n"),
        of=OF_SENDING,
    ),
    mutant("the first message of a next batch is left out", SENDING,
        "test_more_than_one_batch_may_count_arrives_whole_and_in_order",
        ("        del self.messages[:count]\n", "        del self.messages[: count + 1]\n"),
        of=OF_SENDING,
    ),
    mutant("a sender that has failed is used again", SENDING,
        "test_a_connection_that_has_gone_silent_is_given_up_after_one_send",
        ("            await self._drop()  #", "            pass  #"),
        of=OF_SENDING,
    ),
    mutant("a send without an answer is taken as refused", BUS_OUTCOMES,
        "test_a_send_whose_answer_is_lost_is_unknown_and_the_next_works",
        ("    return OutcomeUnknown(f\"{what}: outcome", "    return Refused(f\"{what}: outcome"),
    ),
    mutant("what failed behind something sent is taken as refused", BUS,
        "test_what_failed_behind_something_sent_is_unknown",
        ("        if len(errors) == len(sends):\n", "        if errors:\n"),
        of=OF_SENDING,
    ),
    mutant("whoever is cancelled breaks off a send", SENDING, "test_a_sender_that_is_cancelled_leaves_the_link_whole",
        ("        await done\n",
         "        done.add_done_callback(lambda it: it.cancelled() and self._running.cancel())\n        await done\n"),
        of=OF_SENDING,
    ),
    mutant("a message leaves without its identity", MESSAGES, "test_numbers_beyond_32_bits_and_long_ids_arrive",
        ("for name, value in properties_of(message).items()}",
         "for name, value in properties_of(message).items() if name != PROPERTY_ID}"),
    ),
    # Receiving and settling
    mutant(
        "a settlement that failed is taken as done", LINKS, "test_a_settlement_whose_answer_is_lost_is_asked_for_again",
        (
            "        finally:\n            self.out",
            "        except OutboxError:\n            pass\n        finally:\n            self.out",
        ),
    ),
    mutant("the settlements of a session are in flight together", LINKS,
        "test_the_settlements_of_a_session_are_made_in_turn",
        ("        is_alone = bool(self.session_id)", "        is_alone = False"), of=OF_ROUND_TRIPS,
    ),
    # What was never sent
    mutant("a connection that breaks is taken as refused", UNSENT, "test_a_reset_and_a_timeout_prove_nothing",
        ("isinstance(cause, ConnectionRefusedError | gaierror)", "isinstance(cause, OSError)"), of=OF_UNSENT,
    ),
    mutant(
        "an older failure proves what a later one did", UNSENT, "test_an_older_failure_proves_nothing_of_a_later_one",
        ('getattr(cause, "__cause__", None)', 'getattr(cause, "__context__", None)'), of=OF_UNSENT,
    ),
    mutant("a try that was refused makes the one before it refused", CLIENTS,
        "test_a_send_of_unknown_outcome_stays_so_whatever_its_next_try_finds",
        ("raise unknown or error from error.__cause__", "raise"), of=OF_CONNECTING,
    ),
    mutant("a release counts as an attempt", LINKS, "test_closing_does_not_wait_for_what_rests",
        ("            case \"release\":\n                await release(self.receiver, message)",
         "            case \"release\":\n                await self.receiver.abandon_message(message)"),
    ),
    mutant("what was read ahead is given out after its lock", LINKS,
        "test_what_was_read_ahead_and_lost_its_lock_is_not_given_out",
        ("milliseconds(until) > self._now_ms():", "milliseconds(until) > 0:"),
    ),
    # Sessions
    mutant("of a session more is given out while some is out", SOURCES,
        "test_sessions_are_ordered_and_many_are_held_at_once",
        ("            if link.out_count == 0 and link.ready and not", "            if link.ready and not"),
        ("                if link.out_count or not link.ready or", "                if not link.ready or"),
        ("                if link.out_count == 0 and not link.is_spent:\n", "                if not link.is_spent:\n"),
    ),
    mutant("what was read ahead of a session overtakes what is given back", LINKS,
        "test_what_was_prefetched_of_a_session_does_not_overtake_what_is_released",
        ("        self.is_spent = self.is_spent or settle.how in (\"abandon\", \"release\")\n", ""), of=OF_SESSIONS,
    ),
    mutant("two receivers that wait for one session both have it", SOURCES,
        "test_a_session_that_two_receivers_wait_for_goes_to_one_of_them",
        ("if link.out_count or not link.ready or link.is_spent:", "if not link.ready:"),
    ),
    mutant("a message that is held no more is overtaken", LINKS,
        "test_nothing_of_a_session_overtakes_its_message_that_is_held_no_more",
        ("        self.is_spent = True\n        self.out_count -= 1\n", "        self.out_count -= 1\n"), of=OF_BREAKS,
    ),
    # Resubmission
    mutant("a resubmission is the attempt before", LETTERS,
        "test_a_resubmitted_message_runs_once_more_and_has_its_effect",
        ("max(attempt, next_attempt(message, [from_wire(copy) for copy in copies]))", "message.attempt"),
    ),
    mutant("a resubmission has another identity", LETTERS,
        "test_dead_letters_are_listed_resubmitted_and_discarded_in_turn",
        ("outbox_id=message.identity,", "outbox_id=uuid4().hex,"),
    ),
    # Blob Storage
    mutant("blobs: a replace has no condition", BLOB_STATES,
        "test_a_replace_and_a_delete_lose_at_a_version_that_has_gone",
        ("\"overwrite\": True, \"etag\": operation.if_match, \"match_condition\": MatchConditions.IfNotModified}",
         "\"overwrite\": True}"),
    ),
    mutant("blobs: a delete has no condition", BLOB_STATES,
        "test_a_replace_and_a_delete_lose_at_a_version_that_has_gone",
        ("container.delete_blob(name, **condition)", "container.delete_blob(name)"),
    ),
    mutant("blobs: what has expired gives way without a condition", BLOB_STATES,
        "test_of_two_creates_over_what_has_expired_one_wins",
        ("Replace(operation.key, operation.body, known[0].version, operation.ttl_s)",
         "Replace(operation.key, operation.body, \"*\", operation.ttl_s)"),
    ),
    mutant("blobs: a listing ends with its first page", BLOB_ACCOUNT, "test_every_page_of_a_listing_is_read",
        ("            for item in page:\n                yield item\n",
         "            for item in page:\n                yield item\n            return\n"),
    ),
    mutant("blobs: a listing that breaks off has ended", BLOB_ACCOUNT,
        "test_a_listing_that_breaks_off_is_told_and_does_not_end",
        ("            except FAILURES as error:\n                raise as_error(error, \"list of blobs\") from error\n",
         "            except FAILURES:\n                return\n"),
    ),
    mutant("blobs: an unknown outcome is taken as refused", BLOB_OUTCOMES, "test_an_answer_means_what_azure_documents",
        ("    return OutcomeUnknown(f\"{what}: outcome", "    return Refused(f\"{what}: outcome"),
    ),
    # Limits
    mutant("the words of a dead letter are not cut", LINKS,
        "test_the_words_of_a_dead_letter_are_cut_to_what_a_property_holds",
        ("= cut(settle.reason), cut(settle.description)", "= settle.reason, settle.description"), of=OF_ANSWERS,
    ),
)  # fmt: skip

TABLE = Table(ADAPTER_MUTANTS, "tests/wire/on_azure/")

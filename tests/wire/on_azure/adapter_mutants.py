"""Faults planted in the adapters, each alone: what one module's text is changed to, and the tests that must fail of it.

Every decision of an adapter that a line of code takes has one that takes the line out.  Data only; nothing of the
package is imported here.  The tests run against the emulators, through the real SDKs.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant, Table

COSMOS = "outbox/azure/cosmos/store.py"
OUTCOMES = "outbox/azure/cosmos/outcomes.py"
ACCOUNT = "outbox/azure/cosmos/account.py"
ITEMS = "outbox/azure/cosmos/items.py"
CONNECTION = "outbox/azure/transport.py"
BUS = "outbox/azure/servicebus/bus.py"
BUS_OUTCOMES = "outbox/azure/servicebus/outcomes.py"
LINKS = "outbox/azure/servicebus/links.py"
SENDING = "outbox/azure/servicebus/sending.py"
SOURCES = "outbox/azure/servicebus/sources.py"
NAMESPACE = "outbox/azure/servicebus/namespace.py"
MESSAGES = "outbox/azure/servicebus/messages.py"
LETTERS = "outbox/azure/servicebus/dead_letters.py"
PLACED = "outbox/azure/cosmos/placed_states.py"
CONNECTING = "outbox/azure/connecting.py"

OF_COSMOS = "test_cosmos_traps"
OF_SENDING = "test_servicebus_traps"
OF_SETTLING = "test_servicebus_settling_traps"
OF_SESSIONS = "test_servicebus_session_traps"
OF_CONNECTING = "test_connecting"
OF_BREAKS = "test_servicebus_breaks"
OF_PLACED = "test_placed_states"


IN_TWO = """async def in_two(items: Any, fresh: list[Any], partition: str) -> Any:
    one = await items.execute_item_batch(fresh[:1], partition)
    two = await items.execute_item_batch(fresh[1:], partition)
    two[:0] = one
    return two


"""


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str], of: str = "") -> Mutant:
    """A planted fault; `found_by` names a test, `of` its module where the file does not say."""
    service = "cosmos" if "/cosmos" in file or file == CONNECTION or of == OF_PLACED else "bus"
    module = of or {LINKS: OF_SETTLING, BUS: OF_SETTLING, SOURCES: OF_SESSIONS, LETTERS: OF_CONNECTING}.get(
        file, OF_COSMOS if service == "cosmos" else OF_SENDING
    )
    return Mutant(name, service, (f"{module}.py::{found_by}",), file, edits)


ADAPTER_MUTANTS = (
    # What a refused request says
    mutant(
        "the operation that lost is always the first", OUTCOMES, "test_the_operation_that_lost_is_named",
        ("    return Lost(index or 0, None", "    return Lost(0 if index else 0, None"),
    ),
    mutant(
        "a batch that lost tells no session", OUTCOMES,
        "test_a_lost_write_returns_a_session_in_which_the_winner_can_be_read",
        ("None, headers_of(error).get(SESSION_HEADER, \"\"))", "None, \"\")"),
    ),
    mutant(
        "a batch that won tells no session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("        return Won(versions, headers.get(SESSION_HEADER, \"\"))", "        return Won(versions, \"\")"),
    ),
    mutant(
        "a single write tells no session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("        return Won((version,), headers.get(SESSION_HEADER, \"\"))", "        return Won((version,), \"\")"),
    ),
    mutant(
        "a read does not ask for its session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("{\"session_token\": session} if session else {}", "{}"),
    ),
    mutant(
        "a document tells no session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("from_item(item, answer.headers.get(SESSION_HEADER, \"\"))", "from_item(item, \"\")"),
    ),
    mutant(
        "a read that cannot be as fresh as its session finds nothing", OUTCOMES,
        "test_a_read_that_cannot_be_as_fresh_as_its_session_is_no_answer",
        ("substatus in (NO_CONTAINER, NOT_YET_READABLE)", "substatus == NO_CONTAINER"),
    ),
    mutant(
        "a missing container is an empty one", OUTCOMES,
        "test_a_key_that_is_wrong_and_a_container_that_is_missing_are_refused_with_the_cure",
        ("substatus in (NO_CONTAINER, NOT_YET_READABLE)", "substatus == NOT_YET_READABLE"),
    ),
    # What happened to a request without an answer
    mutant(
        "the SDK sends again after an answer was lost", ACCOUNT,
        "test_a_write_whose_answer_is_lost_is_unknown_and_sent_once",
        ("            retry_read=0,\n            retry_connect=0,\n", ""),
    ),
    mutant(
        "aiohttp sends again after an answer was lost", CONNECTION,
        "test_a_write_whose_answer_is_lost_is_unknown_and_sent_once",
        ("            self.session._retry_connection = False\n", "            pass\n"),
    ),
    mutant(
        "the SDK sends again elsewhere", ACCOUNT, "test_a_status_without_an_answer_is_unknown_and_sent_once",
        ("            enable_endpoint_discovery=False,\n", ""),
    ),
    mutant(
        "an unknown outcome is taken as refused", OUTCOMES,
        "test_a_write_whose_answer_is_lost_is_unknown_and_sent_once",
        ("    return OutcomeUnknown(f\"{what}: outcome", "    return Refused(f\"{what}: outcome"),
    ),
    mutant(
        "an unknown outcome is taken as throttled", OUTCOMES,
        "test_a_status_without_an_answer_is_unknown_and_sent_once",
        ("frozenset((429, 449))", "frozenset((408, 429, 449, 500, 503))"),
    ),
    mutant(
        "an unknown outcome is taken as lost", OUTCOMES, "test_a_status_without_an_answer_is_unknown_and_sent_once",
        ("frozenset((404, 409, 412))", "frozenset((404, 408, 409, 412))"),
    ),
    mutant(
        "a write is waited for without an end", COSMOS, "test_a_write_that_takes_too_long_is_unknown",
        ("async with asyncio.timeout(self._timeout_s):", "async with asyncio.timeout(None):"),
    ),
    # Batches and conditions
    mutant(
        "throttling within a batch is not known", OUTCOMES,
        "test_throttling_within_a_batch_is_waited_out_with_the_conditions_kept",
        ("    if status in _LATER:", "    if status in _LATER and not isinstance(error, CosmosBatchOperationError):"),
    ),
    mutant(
        "what a throttled batch asks to wait is not read", OUTCOMES,
        "test_throttling_within_a_batch_is_waited_out_with_the_conditions_kept",
        ("        if any(pauses_ms):", "        if any(pauses_ms) and status_of(error)[0] != 429:"),
    ),
    mutant(
        "the operations of a batch are built once for all tries", COSMOS,
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
    mutant(
        "a batch goes in two", COSMOS, "test_the_operation_that_lost_is_named",
        (
            "            return container.execute_item_batch(fresh, partition)\n",
            "            return in_two(container, fresh, partition)\n",
        ),
        (
            "async def _next_page(",
            IN_TWO + "async def _next_page(",
        ),
    ),
    mutant(
        "a replace in a batch has no condition", COSMOS, "test_the_operation_that_lost_is_named",
        ("(\"replace\", (item[\"id\"], item), condition)", "(\"replace\", (item[\"id\"], item))"),
    ),
    mutant(
        "a delete in a batch has no condition", COSMOS, "test_a_delete_in_a_batch_keeps_its_condition",
        ("(encode_id(operation.key.id),), condition)", "(encode_id(operation.key.id),))"),
    ),
    mutant(
        "a create in a batch writes over", COSMOS,
        "test_a_lost_write_returns_a_session_in_which_the_winner_can_be_read",
        ("        return (\"create\", (item,))", "        return (\"upsert\", (item,))"),
    ),
    mutant(
        "a single write has no condition", COSMOS, "test_cosmos_is_a_state_store_of_single_items",
        (
            "{\"etag\": operation.if_match, \"match_condition\": MatchConditions.IfNotModified}",
            "{}",
        ),
        of="test_cosmos_contract",
    ),
    mutant(
        "a single create writes over", COSMOS, "test_cosmos_is_a_state_store_of_single_items",
        ("items.create_item(item_of", "items.upsert_item(item_of"),
        of="test_cosmos_contract",
    ),
    mutant(
        "what is unfinished has no index", ITEMS, "test_what_is_unfinished_is_found_page_by_page_in_all_partitions",
        ("            item[\"pending\"] = True\n", "            pass\n"),
    ),
    # Sending
    mutant(
        "several tasks use one sender at once", SENDING, "test_many_tasks_on_one_bus_send_each_message_once",
        ("        async with self._turn:\n            is_first", "        if True:\n            is_first"),
    ),
    mutant(
        "a sender that has failed is used again", SENDING,
        "test_a_connection_that_has_gone_silent_is_given_up_after_one_send",
        ("                    await self._drop()  #", "                    pass  #"),
    ),
    mutant(
        "a send without an answer is taken as refused", BUS_OUTCOMES,
        "test_a_send_whose_answer_is_lost_is_unknown_and_the_next_works",
        ("    return OutcomeUnknown(f\"{what}: outcome", "    return Refused(f\"{what}: outcome"),
    ),
    mutant(
        "what failed behind something sent is taken as refused", BUS,
        "test_what_failed_behind_something_sent_is_unknown",
        ("                if sent_count == 0 or isinstance", "                if sent_count >= 0 or isinstance"),
        of=OF_SENDING,
    ),
    mutant(
        "what failed behind a first transfer is taken as refused", SENDING,
        "test_what_failed_behind_a_first_transfer_is_unknown",
        ("                if is_first or isinstance", "                if is_first is not None or isinstance"),
    ),
    mutant(
        "whoever is cancelled breaks off a send", BUS, "test_a_sender_that_is_cancelled_leaves_the_link_whole",
        ("await self._tasks.shielded(self._sending[destination].send(group))",
         "await self._sending[destination].send(group)"),
        of=OF_SENDING,
    ),
    mutant(
        "the SDK sends messages again", NAMESPACE, "test_a_busy_broker_throttles_and_a_missing_queue_is_named",
        ("{\"retry_total\": 0}", "{\"retry_total\": 1}"),
    ),
    mutant(
        "a message leaves without its identity", MESSAGES, "test_numbers_beyond_32_bits_and_long_ids_arrive",
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
    mutant(
        "a settlement is not waited for", LINKS, "test_a_link_that_breaks_loses_its_locks_and_another_goes_on",
        ("            await self._alone(lambda: self._settle(message, settle), what)\n",
         "            self._later = asyncio.ensure_future(self._alone(lambda: self._settle(message, settle), what))\n"),
    ),
    mutant(
        "a settlement waits behind a receiver that waits", LINKS,
        "test_a_settlement_does_not_wait_behind_a_receiver_that_waits",
        ("            reading.cancel()\n", ""),
    ),
    mutant(
        "a lost lock is taken as unknown", BUS_OUTCOMES, "test_a_settlement_whose_answer_is_lost_is_asked_for_again",
        ("    if isinstance(error, _LOST):", "    if isinstance(error, _LOST) and not what:"), of=OF_SETTLING,
    ),
    mutant(
        "a release counts as an attempt", LINKS, "test_closing_does_not_wait_for_what_rests",
        ("            case \"release\":\n                await release(self.receiver, message)",
         "            case \"release\":\n                await self.receiver.abandon_message(message)"),
    ),
    mutant(
        "what was read ahead stays locked when a bus is closed", LINKS,
        "test_what_was_read_ahead_goes_back_uncounted_when_a_bus_is_closed",
        ("        while self.ready and self.error is None:", "        while False:"),
    ),
    mutant(
        "a message given back until a time comes at once", BUS,
        "test_a_message_released_until_a_time_waits_under_its_lock",
        ("delay_s > 0 and not", "delay_s > 1e9 and not"),
    ),
    mutant(
        "what was read ahead is given out after its lock", LINKS,
        "test_what_was_read_ahead_and_lost_its_lock_is_not_given_out",
        ("milliseconds(until) > self._now_ms():", "milliseconds(until) > 0:"),
    ),
    # Sessions
    mutant(
        "of a session more is given out while some is out", SOURCES,
        "test_sessions_are_ordered_and_many_are_held_at_once",
        ("            if link.out_count == 0 and link.ready and not", "            if link.ready and not"),
        ("                if link.out_count or not link.ready or", "                if not link.ready or"),
        ("                if link.out_count == 0 and not link.is_spent:\n", "                if not link.is_spent:\n"),
    ),
    mutant(
        "what was read ahead of a session overtakes what is given back", LINKS,
        "test_what_was_prefetched_of_a_session_does_not_overtake_what_is_released",
        ("        self.is_spent = self.is_spent or settle.how in (\"abandon\", \"release\")\n", ""), of=OF_SESSIONS,
    ),
    mutant(
        "two receivers that wait for one session both have it", SOURCES,
        "test_a_session_that_two_receivers_wait_for_goes_to_one_of_them",
        ("if link.out_count or not link.ready or link.is_spent:", "if not link.ready:"),
    ),
    mutant(
        "a message that is held no more is overtaken", LINKS,
        "test_nothing_of_a_session_overtakes_its_message_that_is_held_no_more",
        ("        self.is_spent = True\n        self.out_count -= 1\n", "        self.out_count -= 1\n"), of=OF_BREAKS,
    ),
    mutant(
        "a quiet session is never let go", SOURCES, "test_a_session_that_has_been_quiet_is_let_go",
        ("(link.out_count == 0 and is_over)", "(link.out_count == 0 and link.is_spent)"),
    ),
    # Resubmission
    mutant(
        "a resubmission is the attempt before", LETTERS,
        "test_a_resubmitted_message_runs_once_more_and_has_its_effect",
        ("attempt = next_attempt(message, [from_wire(copy) for copy in copies])", "attempt = message.attempt"),
    ),
    mutant(
        "a resubmission has another identity", LETTERS,
        "test_dead_letters_are_listed_resubmitted_and_discarded_in_turn",
        ("outbox_id=message.identity,", "outbox_id=uuid4().hex,"),
    ),
    # States in a container of their own
    mutant(
        "two states in one place are one", PLACED, "test_two_states_in_one_place_never_mix",
        ("    if id != key.partition:\n", "    if not id:\n"), of=OF_PLACED,
    ),
    mutant(
        "a state that lies elsewhere is swept", PLACED,
        "test_the_sweeper_is_given_states_by_their_ids_and_what_lies_elsewhere_is_named",
        ("        if at != lies:\n", "        if not at:\n"), of=OF_PLACED,
    ),
    mutant(
        "what is no state is swept as one", PLACED,
        "test_the_sweeper_is_given_states_by_their_ids_and_what_lies_elsewhere_is_named",
        ("yield replace(document, body=_NOT_OURS)", "yield document"), of=OF_PLACED,
    ),
    mutant(
        "the name of a state takes no room", PLACED, "test_a_state_that_just_fits_is_written_with_its_name",
        ("known.item_bytes_max - NAME_BYTES_MAX", "known.item_bytes_max"), of=OF_PLACED,
    ),
    mutant(
        "a start does not look at states", CONNECTING, "test_a_worker_whose_place_has_changed_does_not_start",
        ("        await placed.check(await account.container(states))\n", ""), of=OF_PLACED,
    ),
    mutant(
        "ports keep the infrastructure to themselves", CONNECTING,
        "test_what_does_not_go_together_is_refused_with_the_reason",
        ("self.blobs, self.infrastructure)", "self.blobs)"), of=OF_PLACED,
    ),
)  # fmt: skip

TABLE = Table(
    ADAPTER_MUTANTS,
    "tests/wire/on_azure/",
    (
        "aiohttp.web", "azure.cosmos.aio", "azure.identity.aio", "azure.servicebus.aio",
        "azure.servicebus.aio.management", "azure.storage.blob.aio", "hypothesis", "pytest_asyncio", "outbox",
        "outbox.emulator.cosmos.server", "outbox.emulator.servicebus", "outbox.testing", "outbox.verify.contracts",
        "tests.contract.model_duels",
    ),
)  # fmt: skip

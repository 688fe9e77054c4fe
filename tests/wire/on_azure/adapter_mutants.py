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
UNSENT = "outbox/azure/unsent.py"
BUS = "outbox/azure/servicebus/bus.py"
BUS_OUTCOMES = "outbox/azure/servicebus/outcomes.py"
LINKS = "outbox/azure/servicebus/links.py"
SENDING = "outbox/azure/servicebus/sending.py"
SOURCES = "outbox/azure/servicebus/sources.py"
RECEIVERS = "outbox/azure/servicebus/receivers.py"
NAMESPACE = "outbox/azure/servicebus/namespace.py"
MESSAGES = "outbox/azure/servicebus/messages.py"
LETTERS = "outbox/azure/servicebus/dead_letters.py"
PLACED = "outbox/azure/cosmos/placed_states.py"
CONNECTING = "outbox/azure/connecting.py"
ENTITIES = "outbox/azure/servicebus/entities.py"
CLIENTS = "outbox/azure/operations.py"
BLOB_ACCOUNT = "outbox/azure/blobs/account.py"
BLOB_OUTCOMES = "outbox/azure/blobs/outcomes.py"
BLOB_STATES = "outbox/azure/blobs/state_store.py"
BLOBS = "outbox/azure/blobs/store.py"

LANES = "outbox/runtime/store_scope.py"

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
OF_BLOB_CONTRACT = "test_blob_contract"


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
        ("        return Won(versions, self._session_of(headers))", "        return Won(versions, \"\")"),
    ),
    mutant(
        "a single write tells no session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("        return Won((version,), self._session_of(headers))", "        return Won((version,), \"\")"),
    ),
    mutant(
        "a read does not ask for its session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("        token = session or self._sessions", "        token = self._sessions"),
    ),
    mutant(
        "a document tells no session", COSMOS, "test_a_session_token_makes_a_read_of_another_process_fresh",
        ("from_item(item, self._session_of(answer.headers))", "from_item(item, \"\")"),
    ),
    mutant(
        "a read without a session is not as fresh as what its store wrote", COSMOS,
        "test_a_read_is_as_fresh_as_what_its_store_has_written",
        ("        token = session or self._sessions.latest", "        token = session"),
    ),
    mutant(
        "what beat a store does not make its reads fresh", COSMOS,
        "test_a_read_is_as_fresh_as_what_beat_its_store",
        ("            self._sessions.learn(lost.session)\n", ""),
    ),
    mutant(
        "a batch has its key hashed for a token", COSMOS,
        "test_a_key_is_not_hashed_for_a_session_token_that_is_known",
        ("(fresh, partition, **self._in_session(\"\"))", "(fresh, partition)"),
    ),
    mutant(
        "tokens are kept behind a request that was refused as bad", COSMOS,
        "test_a_request_that_is_refused_as_bad_is_not_refused_for_ever",
        ("                if status == BAD_REQUEST or substatus", "                if substatus"),
    ),
    mutant(
        "tokens of a container that is gone are kept", COSMOS,
        "test_tokens_of_another_container_of_the_same_name_are_forgotten",
        ("                    self._sessions.forget()\n", "                    pass\n"),
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
            "            return container.execute_item_batch(fresh, partition, **self._in_session(\"\"))\n",
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
        ("        if self._running is None:\n", "        if True:\n"),
    ),
    mutant(
        "the first message of a next batch is left out", SENDING,
        "test_more_than_one_batch_may_count_arrives_whole_and_in_order",
        ("        del self.messages[:count]\n", "        del self.messages[: count + 1]\n"),
    ),
    mutant(
        "a sender that has failed is used again", SENDING,
        "test_a_connection_that_has_gone_silent_is_given_up_after_one_send",
        ("            await self._drop()  #", "            pass  #"),
    ),
    mutant(
        "a send without an answer is taken as refused", BUS_OUTCOMES,
        "test_a_send_whose_answer_is_lost_is_unknown_and_the_next_works",
        ("    return OutcomeUnknown(f\"{what}: outcome", "    return Refused(f\"{what}: outcome"),
    ),
    mutant(
        "what failed behind something sent is taken as refused", BUS,
        "test_what_failed_behind_something_sent_is_unknown",
        ("        if len(errors) == len(sends):\n", "        if errors:\n"),
        of=OF_SENDING,
    ),
    mutant(
        "what failed behind a first transfer is taken as refused", SENDING,
        "test_what_failed_behind_a_first_transfer_is_unknown",
        ("        if self.is_begun and not isinstance", "        if False and not isinstance"),
    ),
    mutant(
        "whoever is cancelled breaks off a send", SENDING, "test_a_sender_that_is_cancelled_leaves_the_link_whole",
        ("        await done\n",
         "        done.add_done_callback(lambda it: it.cancelled() and self._running.cancel())\n        await done\n"),
        of=OF_SENDING,
    ),
    mutant(
        "a resubmission ignores the attempts of copies", LETTERS,
        "test_a_resubmission_is_a_later_attempt_than_every_copy",
        ("next_attempt(message, [from_wire(copy) for copy in copies])", "next_attempt(message, [])"), of=OF_CONNECTING,
    ),
    mutant(
        "the check of places ends at what is no state", PLACED,
        "test_what_is_no_state_does_not_hide_a_state_that_lies_elsewhere",
        ("                continue  # no state: a read", "                break  # no state: a read"),
        of=OF_PLACED,
    ),
    mutant(
        "a ledger is kept where its entries have no index", "outbox/azure/cosmos/containers.py",
        "test_a_ledger_is_kept_only_where_its_entries_have_an_index",
        ("    if spec.keeps_ledgers and not", "    if False and not"), of=OF_CONNECTING,
    ),
    mutant(
        "a refusal hides what is unknown beside it", BUS, "test_what_was_refused_beside_something_unknown_is_unknown",
        ("            if not isinstance(error, Refused | UnknownDestination):\n", "            if False:\n"),
        of=OF_SENDING,
    ),
    mutant(
        "what waits for a transfer leaves one after the other", SENDING,
        "test_what_waits_for_a_transfer_leaves_together_behind_it",
        ("        if is_alone:\n", "        if True:\n"), of=OF_SENDING,
    ),
    mutant(
        "of what leaves together only the first is answered for", SENDING,
        "test_a_transfer_that_fails_fails_for_all_who_share_it",
        ("parcels = [parcel for parcel, _ in taken]", "parcels = [parcel for parcel, _ in taken][:1]"), of=OF_SENDING,
    ),
    mutant(
        "who shared a transfer that is unknown shares the next", SENDING,
        "test_a_transfer_that_fails_fails_for_all_who_share_it",
        ("isinstance(meant, OutcomeUnknown | TooLarge):", "isinstance(meant, TooLarge):"), of=OF_SENDING,
    ),
    mutant(
        "who shared a transfer that failed is alone for ever", SENDING,
        "test_a_transfer_that_fails_fails_for_all_who_share_it",
        ("self._alone_count -= is_alone", "pass"), of=OF_SENDING,
    ),
    mutant(
        "what is too large together is refused to all", SENDING, "test_what_is_too_large_together_leaves_alone",
        ("if len(parcels) == 1 or not isinstance(meant, TooLarge) else ()", "if True else ()"),
        of=OF_SENDING,
    ),
    mutant(
        "a sender that cannot be opened is tried for each caller", SENDING,
        "test_a_sender_that_cannot_be_opened_is_tried_once_for_all_who_wait",
        ("self._failed(self._line, error)", "self._failed(self._line[:1], error)"), of=OF_SENDING,
    ),
    mutant(
        "what cannot be encoded fails its neighbours", SENDING, "test_what_one_message_breaks_breaks_no_other_twice",
        ("        except Exception:  # it goes next", "        except MemoryError:  # it goes next"), of=OF_SENDING,
    ),
    mutant(
        "sessions share a transfer", SENDING, "test_what_leaves_together_is_of_one_session_and_in_its_order",
        ("for one in self._line if one.session_id == first.session_id]", "for one in self._line]"), of=OF_SENDING,
    ),
    mutant(
        "a body nested without end stops every sweep", "outbox/azure/blobs/state_store.py",
        "test_what_is_pending_is_found_and_what_was_finished_is_not",
        ("    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):\n        return False\n",
         "    except (msgspec.MsgspecError, UnicodeDecodeError):\n        return False\n"), of="test_blob_contract",
    ),
    mutant(
        "what did not fit is overtaken by what is behind it", SENDING,
        "test_nothing_of_a_session_passes_what_did_not_fit_beside_it",
        ("            if count < len(parcel.messages):\n                break\n", ""), of=OF_SENDING,
    ),
    mutant(
        "a bus that closes begins the next transfer", SENDING,
        "test_a_bus_that_closes_ends_its_transfer_and_begins_no_other",
        ("        self._is_closing = True\n", ""), of=OF_SENDING,
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
        ("            await self._in_turn(lambda: self._settle(message, settle), what, is_alone=is_alone)\n",
         "            done = self._in_turn(lambda: self._settle(message, settle), what, is_alone=is_alone)\n"),
        ("        finally:\n            self.out",
         "            self._later = asyncio.ensure_future(done)\n        finally:\n            self.out"),
    ),
    mutant(
        "settlements are made one after the other", LINKS, "test_settlements_are_in_flight_together_up_to_a_limit",
        ("        while self._calls and len(calls)", "        while False and len(calls)"), of=OF_ROUND_TRIPS,
    ),
    mutant(
        "settlements are in flight together without a limit", LINKS,
        "test_settlements_are_in_flight_together_up_to_a_limit",
        ("and len(calls) < TOGETHER_COUNT_MAX and", "and"), of=OF_ROUND_TRIPS,
    ),
    mutant(
        "what was committed together is settled in turn", LANES, "test_messages_of_a_few_keys_are_settled_together",
        ("        are_aside = len(outcomes) > 1 and", "        are_aside = False and"), of=OF_ROUND_TRIPS,
    ),
    mutant(
        "the settlements of a session are in flight together", LINKS,
        "test_the_settlements_of_a_session_are_made_in_turn",
        ("        is_alone = bool(self.session_id)", "        is_alone = False"), of=OF_ROUND_TRIPS,
    ),
    mutant(
        "the broker sends few ahead where many are handled", LINKS, "test_the_rate_rises_with_concurrency",
        ("AHEAD_COUNT_MAX = 256", "AHEAD_COUNT_MAX = 33"), of=OF_ROUND_TRIPS,
    ),
    mutant(
        "of a session many messages are sent ahead", LINKS, "test_no_more_is_sent_ahead_than_was_wanted",
        ("        if not self.session_id:  # of", "        if True:  # of"), of=OF_ROUND_TRIPS,
    ),
    mutant(
        "the broker may send as many again as are read ahead", RECEIVERS, "test_no_more_is_sent_ahead_than_was_wanted",
        ("flow(link_credit=count - ahead_count)", "flow(link_credit=count)"), of=OF_ROUND_TRIPS,
    ),
    mutant(
        "what settlements have read waits for their end", LINKS,
        "test_what_comes_while_settlements_are_in_flight_is_handed_out",
        ("                elif not await self._take_up():", "                else:"), of=OF_ROUND_TRIPS,
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
    # What was never sent
    mutant(
        "a refused connection is an unknown outcome", UNSENT, "test_what_was_never_sent_did_nothing",
        ("isinstance(cause, ConnectionRefusedError | gaierror)", "isinstance(cause, gaierror)"), of=OF_UNSENT,
    ),
    mutant(
        "a host without an address is an unknown outcome", UNSENT, "test_a_host_without_an_address_was_never_asked",
        ("isinstance(cause, ConnectionRefusedError | gaierror)", "isinstance(cause, ConnectionRefusedError)"),
        of=OF_UNSENT,
    ),
    mutant(
        "a connection that breaks is taken as refused", UNSENT, "test_a_reset_and_a_timeout_prove_nothing",
        ("isinstance(cause, ConnectionRefusedError | gaierror)", "isinstance(cause, OSError)"), of=OF_UNSENT,
    ),
    mutant(
        "an older failure proves what a later one did", UNSENT, "test_an_older_failure_proves_nothing_of_a_later_one",
        ('getattr(cause, "__cause__", None)', 'getattr(cause, "__context__", None)'), of=OF_UNSENT,
    ),
    mutant(
        "a settlement's second way proves what its first did", BUS_OUTCOMES,
        "test_a_settlement_may_have_been_sent_before_its_second_way_was_refused",
        ("    if not settles and (refusal", "    if (refusal"), of=OF_UNSENT,
    ),
    mutant(
        "a try that was refused makes the one before it refused", CLIENTS,
        "test_a_send_of_unknown_outcome_stays_so_whatever_its_next_try_finds",
        ("raise unknown or error from error.__cause__", "raise"), of=OF_CONNECTING,
    ),
    mutant(
        "a start does not wait", CLIENTS, "test_a_start_waits_for_services_that_come_later",
        ("until_s = monotonic() + self._wait_s", "until_s = monotonic()"), of=OF_UNSENT,
    ),
    mutant(
        "a start without create waits for documents only", CLIENTS,
        "test_without_create_a_start_waits_for_service_bus_as_well",
        ("        if self._wait_s:\n", "        if self._wait_s < 0:\n"), of=OF_UNSENT,
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
        ("max(attempt, next_attempt(message, [from_wire(copy) for copy in copies]))", "message.attempt"),
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
        ("self.blobs, self.infrastructure, self.usage)", "self.blobs, None, self.usage)"), of=OF_PLACED,
    ),
    # Blob Storage
    mutant(
        "blobs: a condition that does not hold is an unknown outcome", BLOB_STATES,
        "test_a_replace_and_a_delete_lose_at_a_version_that_has_gone",
        ("_LOSING = frozenset((404, 409, 412))", "_LOSING = frozenset((404, 409))"),
    ),
    mutant(
        "blobs: a delete of what is gone is refused", BLOB_STATES,
        "test_a_replace_and_a_delete_lose_at_a_version_that_has_gone",
        ("_LOSING = frozenset((404, 409, 412))", "_LOSING = frozenset((409, 412))"),
    ),
    mutant(
        "blobs: a replace has no condition", BLOB_STATES,
        "test_a_replace_and_a_delete_lose_at_a_version_that_has_gone",
        ("\"overwrite\": True, \"etag\": operation.if_match, \"match_condition\": MatchConditions.IfNotModified}",
         "\"overwrite\": True}"),
    ),
    mutant(
        "blobs: what takes the place of something expired stays for ever", BLOB_STATES,
        "test_what_takes_the_place_of_something_expired_expires_in_its_turn",
        ("known[0].version, operation.ttl_s))", "known[0].version))"),
    ),
    mutant(
        "blobs: a delete has no condition", BLOB_STATES,
        "test_a_replace_and_a_delete_lose_at_a_version_that_has_gone",
        ("container.delete_blob(name, **condition)", "container.delete_blob(name)"),
    ),
    mutant(
        "blobs: a write to a missing container has lost", BLOB_STATES,
        "test_a_container_that_is_not_there_is_neither_an_absent_document_nor_a_lost_condition",
        ("in _LOSING and not is_no_container(error):", "in _LOSING:"),
    ),
    mutant(
        "blobs: a document of a missing container is absent", BLOB_STATES,
        "test_a_container_that_is_not_there_is_neither_an_absent_document_nor_a_lost_condition",
        ("            if is_no_container(error):\n                raise as_error(error, what) from error\n", ""),
    ),
    mutant(
        "blobs: a blob of a missing container is absent", BLOBS,
        "test_a_container_that_is_not_there_is_neither_an_absent_document_nor_a_lost_condition",
        ("            if is_no_container(error):\n                raise as_error(error, what) from error\n", ""),
    ),
    mutant(
        "blobs: what has expired gives way without a condition", BLOB_STATES,
        "test_of_two_creates_over_what_has_expired_one_wins",
        ("Replace(operation.key, operation.body, known[0].version, operation.ttl_s)",
         "Replace(operation.key, operation.body, \"*\", operation.ttl_s)"),
    ),
    mutant(
        "blobs: what was renewed is purged", BLOB_STATES, "test_what_was_renewed_while_the_container_is_purged_stays",
        ("if known is not None and self._is_over(known[1]):\n                    count",
         "if known is not None:\n                    count"),
    ),
    mutant(
        "blobs: what the index still has is unfinished", BLOB_STATES,
        "test_what_is_finished_is_not_unfinished_while_the_index_is_behind",
        ("if document is not None and is_pending(document.body):  # tags lag behind", "if document is not None:"),
    ),
    mutant(
        "blobs: a listing ends with its first page", BLOB_STATES, "test_every_page_of_a_listing_is_read",
        ("            for item in page:\n                yield item\n",
         "            for item in page:\n                yield item\n            return\n"),
    ),
    mutant(
        "blobs: a listing that breaks off has ended", BLOB_STATES,
        "test_a_listing_that_breaks_off_is_told_and_does_not_end",
        ("            except FAILURES as error:\n                raise as_error(error, \"list of blobs\") from error\n",
         "            except FAILURES:\n                return\n"),
    ),
    mutant(
        "blobs: a second write changes a blob", BLOBS, "test_blob_storage_is_a_blob_store",
        ("overwrite=False, max_concurrency=1", "overwrite=True, max_concurrency=1"), of=OF_BLOB_CONTRACT,
    ),
    mutant(
        "blobs: one over the limit is read cut", BLOBS, "test_blob_storage_is_a_blob_store",
        ("length=bytes_max + 1", "length=bytes_max"), of=OF_BLOB_CONTRACT,
    ),
    mutant(
        "blobs: all of one over the limit is read", BLOBS,
        "test_no_more_of_a_blob_is_read_than_tells_that_it_is_too_large",
        (", offset=0, length=bytes_max + 1)", ")"),
    ),
    mutant(
        "blobs: the SDK sends again", BLOB_ACCOUNT, "test_an_answer_means_what_azure_documents",
        ("\"retry_total\": 0", "\"retry_total\": 1"),
    ),
    mutant(
        "blobs: aiohttp sends again", BLOB_ACCOUNT,
        "test_a_write_whose_answer_is_lost_is_sent_once_and_told_as_unknown",
        (", \"transport\": OnceTransport()}", "}"),
    ),
    mutant(
        "blobs: a container is made unasked", BLOB_ACCOUNT, "test_only_an_account_that_may_create_makes_its_container",
        ("        if create:\n            try:", "        if True:\n            try:"),
    ),
    mutant(
        "blobs: a failure is not counted as one", BLOB_ACCOUNT,
        "test_what_is_asked_for_is_counted_and_so_is_what_failed",
        ("            usage.note(kind, failed=failed)", "            usage.note(kind)"),
    ),
    mutant(
        "blobs: an unknown outcome is taken as refused", BLOB_OUTCOMES, "test_an_answer_means_what_azure_documents",
        ("    return OutcomeUnknown(f\"{what}: outcome", "    return Refused(f\"{what}: outcome"),
    ),
    mutant(
        "blobs: a server error is a busy account", BLOB_OUTCOMES, "test_an_answer_means_what_azure_documents",
        ("(status == 503 and getattr(error, \"error_code\", None) == \"ServerBusy\")", "status == 503"),
    ),
    # What Service Bus answers
    mutant(
        "a full queue is an unknown outcome", BUS_OUTCOMES, "test_a_failed_send_means_what_service_bus_documents",
        ("ServiceBusServerBusyError | ServiceBusQuotaExceededError", "ServiceBusServerBusyError"), of=OF_ANSWERS,
    ),
    mutant(
        "a queue that is disabled is an unknown outcome", BUS_OUTCOMES,
        "test_a_failed_send_means_what_service_bus_documents",
        ("(MessagingEntityNotFoundError, MessagingEntityDisabledError)", "(MessagingEntityNotFoundError,)"),
        of=OF_ANSWERS,
    ),
    mutant(
        "a dead letter forgets the failures of its copies", LETTERS,
        "test_a_dead_letter_counts_the_failures_that_its_copies_carried",
        ("(letter.delivery_count or 0) + message.failures", "(letter.delivery_count or 0)"), of=OF_ANSWERS,
    ),
    mutant(
        "a page of dead letters begins too late", LETTERS, "test_every_page_of_dead_letters_is_listed",
        ("found[-1].sequence + 1", "found[-1].sequence + 2"), of=OF_ANSWERS,
    ),
    mutant(
        "a short batch of dead letters is taken for the last", LETTERS,
        "test_a_dead_letter_is_found_behind_batches_that_come_short",
        ("                    if not some:\n", "                    if len(some) < PAGE_COUNT:\n"), of=OF_ANSWERS,
    ),
    mutant(
        "dead letters that were looked at stay locked", LETTERS, "test_every_page_of_dead_letters_is_listed",
        ("            if not message._settled:\n", "            if False:\n"), of=OF_ANSWERS,
    ),
    mutant(
        "a time to live is more than the wire can say", MESSAGES,
        "test_a_time_to_live_is_what_the_wire_can_say_of_it",
        ("min(message.time_to_live_ms, TTL_MS_MAX) or None", "message.time_to_live_ms or None"), of=OF_ANSWERS,
    ),
    mutant(
        "a queue that cannot be looked at hides one that orders otherwise", ENTITIES,
        "test_a_queue_that_cannot_be_looked_at_hides_none_that_orders_otherwise",
        ("sorted(failed, key=lambda error: isinstance(error, _CannotLook))", "failed"), of=OF_ANSWERS,
    ),
    mutant(
        "a list of dead letters is as long as its pages", LETTERS, "test_every_page_of_dead_letters_is_listed",
        ("min(PAGE_COUNT, DEAD_LETTER_COUNT_MAX - len(found))", "PAGE_COUNT"), of=OF_ANSWERS,
    ),
    mutant(
        "what is scheduled for a subscription does not count", ENTITIES,
        "test_a_subscription_is_not_drained_while_its_topic_has_a_scheduled_message",
        ("            if slash:  # what is scheduled lies in the topic", "            if False:"), of=OF_ANSWERS,
    ),
    mutant(
        "a client gives up where it is throttled", CLIENTS, "test_a_client_sends_the_same_again_until_it_is_known",
        ("not isinstance(error, OutcomeUnknown | Throttled)", "not isinstance(error, OutcomeUnknown)"), of=OF_ANSWERS,
    ),
    mutant(
        "a client's last failure is none", CLIENTS, "test_a_client_sends_the_same_again_until_it_is_known",
        ("                    raise unknown or error from error.__cause__\n", "                    return\n"),
        of=OF_ANSWERS,
    ),
    # Answers that leave something out, and what was given
    mutant(
        "a batch without all versions is won", COSMOS, "test_a_write_that_is_answered_without_a_version_is_unknown",
        ("if len(versions) - versions.count(\"\") < len(items) - items.count(None):", "if False:"),
    ),
    mutant(
        "a write without a version is won", COSMOS, "test_a_write_that_is_answered_without_a_version_is_unknown",
        ("if not version and not isinstance(operation, Delete):", "if False:"),
    ),
    mutant(
        "a credential that was given is closed", "outbox/azure/addresses.py",
        "test_a_credential_is_closed_by_whoever_gave_it",
        ("made, self._made = self._made, None\n", "made, self._made = self._made or self._given, None\n"),
        of=OF_CONNECTING,
    ),
    mutant(
        "a status that asks to come again is an unknown outcome", OUTCOMES,
        "test_throttling_within_a_batch_is_waited_out_with_the_conditions_kept",
        ("_LATER = frozenset((429, 449))", "_LATER = frozenset((429,))"),
    ),
    mutant(
        "a time to live is shorter than was asked for", ITEMS,
        "test_a_time_to_live_is_whole_seconds_and_never_shorter",
        ("math.ceil(write.ttl_s)", "math.floor(write.ttl_s)"), of="test_cosmos_items",
    ),
    mutant(
        "whole numbers that are no doubles are kept as numbers", ITEMS, "test_a_body_comes_back_as_it_was",
        ("EXACT_MAX = 1 << 53", "EXACT_MAX = 1 << 62"), of="test_cosmos_items",
    ),
    # Limits
    mutant(
        "a link that died stays open", SOURCES, "test_a_link_that_died_under_a_receiver_is_closed_at_once",
        ("                self._tasks.start(link.close())\n                raise link.error\n",
         "                raise link.error\n"), of=OF_ANSWERS,
    ),
    mutant(
        "any number of messages may be out", BUS, "test_of_more_messages_than_may_be_out_the_oldest_is_held_no_more",
        ("        if len(self._locked) >= LOCKED_COUNT_MAX:\n", "        if False:\n"), of=OF_ANSWERS,
    ),
    mutant(
        "the words of a dead letter are not cut", LINKS,
        "test_the_words_of_a_dead_letter_are_cut_to_what_a_property_holds",
        ("= cut(settle.reason), cut(settle.description)", "= settle.reason, settle.description"), of=OF_ANSWERS,
    ),
    mutant(
        "a message rests under its lock for as long as it likes", BUS,
        "test_no_message_rests_under_its_lock_for_longer_than_the_limit",
        ("min(DELAY_S_MAX, (settle.due_ms - self._now_ms()) / 1_000)", "((settle.due_ms - self._now_ms()) / 1_000)"),
        of=OF_ANSWERS,
    ),
    mutant(
        "a session is held while others wait for its room", SOURCES,
        "test_a_session_is_let_go_when_it_is_quiet_and_sooner_where_others_may_wait",
        ("is_long = crowded and now_s - link.opened_s > HELD_S", "is_long = False"), of=OF_ANSWERS,
    ),
    mutant(
        "a session with messages that are ready is let go", SOURCES,
        "test_a_session_is_let_go_when_it_is_quiet_and_sooner_where_others_may_wait",
        ("(not link.ready and (is_quiet or is_long))", "is_quiet or is_long"), of=OF_ANSWERS,
    ),
    mutant(
        "throttling is waited out without an end", COSMOS,
        "test_no_caller_waits_longer_for_throttling_than_the_limit",
        ("if count == THROTTLED_COUNT_MAX or waited_s > THROTTLED_WAIT_S_MAX:", "if count == THROTTLED_COUNT_MAX:"),
    ),
    mutant(
        "each pause of a throttled call has the whole limit", COSMOS,
        "test_no_caller_waits_longer_for_throttling_than_the_limit", ("waited_s += pause_s", "waited_s = pause_s"),
    ),
    mutant(
        "a client that could not be opened is left behind", ACCOUNT,
        "test_a_client_that_could_not_be_opened_is_closed",
        ("            await client.close()\n            raise\n", "            raise\n"), of=OF_CONNECTING,
    ),
    mutant(
        "the lock of a message that rests runs out", BUS,
        "test_the_lock_of_a_message_that_rests_is_extended_before_it_ends",
        ("min(left_s, lock_s / 2)", "left_s"), of=OF_ANSWERS,
    ),
    mutant(
        "a lock that is lost is extended again and again", BUS,
        "test_a_lock_is_extended_again_while_it_lasts_and_is_not_lost",
        ("if not isinstance(error, LockLost) and locked.until_ms", "if locked.until_ms"), of=OF_ANSWERS,
    ),
    mutant(
        "a bus that was closed rests no message again", BUS,
        "test_a_message_rests_under_its_lock_on_a_bus_that_was_closed_before",
        ("        self._closing = asyncio.Event()\n\n\ndef _fields", "        pass\n\n\ndef _fields"), of=OF_ANSWERS,
    ),
    mutant(
        "a session whose lock ran out is kept while a message of it is out", SOURCES,
        "test_a_session_whose_lock_ran_out_is_let_go_though_a_message_of_it_is_out",
        ("link.expire() or link.error is not None", "link.error is not None"), of=OF_ANSWERS,
    ),
    mutant(
        "one session is handed out for as long as it has messages", SOURCES, "test_sessions_are_handed_out_in_turn",
        ("                    self._links.remove(link)\n                    self._links.append(link)\n", ""),
        of=OF_ANSWERS,
    ),
    mutant(
        "sessions that cannot be had are asked for without a pause", SOURCES,
        "test_a_session_that_cannot_be_had_is_not_asked_for_again_at_once",
        ("        await asyncio.sleep(FAILED_PAUSE_S)\n", ""), of=OF_ANSWERS,
    ),
    mutant(
        "sessions are taken up though nobody receives any more", SOURCES,
        "test_no_session_is_taken_up_when_nobody_has_asked_for_long",
        ("or self._monotonic_s() - self._asked_s > ACCEPT_S:", "or False:"), of=OF_ANSWERS,
    ),
    mutant(
        "a sender that could not be opened is left behind", SENDING,
        "test_a_sender_that_could_not_be_opened_is_closed",
        ("                with suppress(*FAILURES):\n                    await sender.close()\n                raise\n",
         "                raise\n"), of=OF_ANSWERS,
    ),
    mutant(
        "what waits leaves though its caller is gone", SENDING,
        "test_what_has_not_begun_to_leave_does_not_when_its_caller_is_cancelled",
        ("if parcel.messages and not parcel.done.cancelled()]", "if parcel.messages]"), of=OF_SENDING,
    ),
    mutant(
        "an answer is sent to nobody", MESSAGES, "test_what_a_broker_looks_at_stands_where_it_looks",
        ("reply_to=message.reply_to or None", "reply_to=None"), of=OF_ANSWERS,
    ),
    mutant(
        "a property of thousands of digits stops a queue", MESSAGES,
        "test_messages_of_foreign_senders_are_read_as_the_engine_reads_them",
        ("value.isdecimal() and len(value) < 18", "value.isdecimal()"), of=OF_SENDING,
    ),
    mutant(
        "what is behind a drained subscription is not looked at", ENTITIES,
        "test_all_places_are_looked_at_before_they_are_drained",
        ("scheduled_message_count:\n                    return False\n",
         "scheduled_message_count:\n                    return False\n                return True\n"),
        of=OF_ANSWERS,
    ),
    mutant(
        "of many queues some are not looked at", ENTITIES, "test_however_many_queues_there_are_each_is_looked_at",
        ("len(wanted), LOOK_COUNT_MAX):", "len(wanted), LOOK_COUNT_MAX + 1):"), of=OF_ANSWERS,
    ),
)  # fmt: skip

TABLE = Table(ADAPTER_MUTANTS, "tests/wire/on_azure/")

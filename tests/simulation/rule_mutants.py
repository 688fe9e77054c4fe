"""Faults in rules of the protocol that no other table takes out: some that exploring finds, some that tests find.

Each is planted alone.  Data only; nothing of the package is imported here.
"""

from __future__ import annotations

from tests.simulation.planting import (
    ENGINE,
    HTTP_CLAIMS,
    HTTP_SCOPES,
    ITEM,
    JOURNAL,
    LANES,
    PARTITION,
    PLAIN,
    PLAN,
    VERDICT,
    Mutant,
    mutant,
)

LINEAGE = "outbox/lineage.py"
CONTEXT = "outbox/context.py"
CODEC = "outbox/codec.py"
ENCODING = "outbox/encoding.py"
UNSTORABLE = "unit/runtime/test_unstorable_messages.py"
STORED = "outbox/stored.py"
WORK = "outbox/runtime/work.py"
ADMISSION = "outbox/runtime/delivery/admission.py"
NAMES = "outbox/runtime/start/notes.py"
PROCESSOR = "outbox/azure/functions/processor.py"
REQUESTS = "outbox/runtime/http/requests.py"

OF_IDENTITIES = "unit/runtime/test_identities.py"
OF_AGES = "unit/runtime/test_age_fence.py"
OF_CALLS = "unit/runtime/test_outside_calls.py"
OF_SCHEMAS = "unit/runtime/test_message_schemas.py"
OF_STATES = "unit/runtime/test_states.py"
OF_NAMES = "unit/runtime/test_handler_names.py"
OF_HTTP = "unit/runtime/test_http.py"
OF_JUDGING = "unit/stores/test_refused_over_a_version.py"


def tested(name: str, file: str, found_by: str, *edits: tuple[str, str]) -> Mutant:
    """A planted fault; `found_by` names a test below `tests/`."""
    return Mutant(f"rule: {name}", "rules", (found_by,), file, edits)


RULE_MUTANTS = (
    mutant("a record loses its reply when it is marked", "partition", "OneAnswer", STORED,
        ("replace(self, pending=False, outputs=(), spilled=\"\", life_ms=0)", "replace(self, pending=False, outputs=(), spilled=\"\", life_ms=0, reply=None)"),
        amounts=(), asked=(("k1", "a", 5),), asked_times=2,
    ),
    mutant("a claim lives half as long as messages are young", "partition", "NoDuplicate", HTTP_CLAIMS,
        ("self._plan.record_life_ms / 1_000", "self._plan.retention_ms / 2_000"),
        amounts=(), asked=(("k1", "a", 5), ("k1", "b", 5)), asked_times=2, faults={"jump": 2},
    ),
    mutant("a state is swapped over a pointer", "item", "NoLost|StagedVanish", ITEM,
        ("        if state.item.pending:\n            return Loaded(await self._complete(state_id, state))\n", ""),
        amounts=(5, 3), faults={"crash": 1},
    ),
    mutant("a state is swapped before its result is staged", "item", "StagedVanish|NoAlarm|NoLost", ITEM,
        ("            item, staged = await self._prepared(state_id, batch)  # 5\n            swapped = await self._commit(attempt, state_id, batch, item)  # 6\n", "            item = msgspec.structs.replace(batch.state_after, pending=batch.tx)\n            swapped = await self._commit(attempt, state_id, batch, item)  # 6\n            _, staged = await self._prepared(state_id, batch)  # 5\n"),
        faults={"crash": 1}, staged=True,
    ),
    mutant("an unknown swap is taken as won", "item", "NoGhost|StagedVanish|NoLost", ITEM,
        ("            if found.item.pointer == batch.tx:\n                return found\n", "            if found.item.pointer in (\"\", batch.tx):\n                return CachedState(item, found.version, found.session)\n"),
        faults={"delay": 1},
    ),
    mutant("engine: every message of a batch sees the loaded state", "engine", "Serializable|OneChangePerETag", PLAIN,
        ("            before = states.get(id) or loaded\n", "            before = loaded\n"),
        amounts=(5, 3), batch=2,
    ),
    mutant(
        "engine: what saw an uncommitted state goes on", "engine", "Serializable|NoGhost|OneChangePerETag|ConsistentOutput", ENGINE,
        ("        if work.state_id in group.commit.if_versions or _has_lane(group.works, lane):\n", "        if work.state_id in ():\n"),
        app="calling", amounts=(5, -3), batch=2,
    ),
    mutant("a conflict is taken for a failure", "partition", "NothingLeavesEarly|EveryMessageEnds|NoDuplicate", LANES,
        ("            await self._cool_down([attempt], error)\n            return attempt.work.in_order\n", '            del error\n            return await self._end(attempt, PoisonMessage("failed", "a conflict"))\n'),
        faults={"error": 3},
    ),
)  # fmt: skip

TESTED_RULE_MUTANTS = (
    # Identity
    tested("fields have neither length nor type", LINEAGE, f"{OF_IDENTITIES}::test_neither_keys_nor_ids_run_together",
        ('    return b"%b%d:%b" % (_TAGS[type(value)], len(data), data)\n', "    return data\n"),
        ('tuple(b"s%d:" % length for', 'tuple(b"" for'),
    ),
    tested("the broker's id counts before the message's own", ADMISSION,
        f"{OF_IDENTITIES}::test_the_identity_is_the_property_of_its_own_before_the_brokers_id",
        ("identity = message.outbox_id or message.message_id", "identity = message.message_id or message.outbox_id"),
    ),
    tested("what has no identity is numbered", ADMISSION,
        f"{OF_IDENTITIES}::test_a_message_without_an_identity_is_dead_lettered_with_the_cure",
        ("    if not source.takes_sequence_number:\n", "    if not source.path:\n"),
    ),
    tested("an output has a new id on each attempt", LINEAGE,
        f"{OF_IDENTITIES}::test_outputs_have_the_same_ids_on_every_attempt_and_machine",
        ('    return f"{inbox.hex()}-{position}" if position', '    return f"{uuid4().hex}-{position}" if inbox'),
        ("from uuid import UUID\n", "from uuid import UUID, uuid4\n"),
    ),
    tested("keys do not count for identity", PLAN, f"{OF_IDENTITIES}::test_identity_is_scoped_to_the_key",
        ("KeyIds(id, handler.prefix + field(key))", "KeyIds(id, handler.prefix)"),
    ),
    # Time
    tested(
        "what has no time is as old as can be", WORK, f"{OF_AGES}::test_without_a_creation_time_the_time_of_arrival_counts",
        ("self.delivery.message.created_ms or self.delivery.enqueued_ms", "self.delivery.message.created_ms"),
    ),
    tested("a time that lies ahead is taken", ADMISSION, f"{OF_AGES}::test_a_creation_time_that_lies_ahead_is_refused",
        ("    if ahead_ms > plan.clock_skew_ms:\n", "    if ahead_ms > plan.clock_skew_ms << 40:\n"),
    ),
    tested("a scheduled message is as old as its commit", CONTEXT,
        f"{OF_AGES}::test_an_output_is_as_old_as_its_due_time",
        ("created_ms=due_ms if due_ms > now_ms else now_ms", "created_ms=now_ms"),
    ),
    # Rows of the verdict that no exploration comes to
    tested("a young message that was refused for its age stays refused", VERDICT,
        "unit/runtime/test_verdicts.py::test_every_combination_has_the_verdict_of_the_rules",
        (f"{'OnRecord.REFUSED_FOR_AGE,':<30}{'Payload.SAME,':<18}{'True,':<15}{'False,':<7}Verdict.RESUBMISSION", f"{'OnRecord.REFUSED_FOR_AGE,':<30}{'Payload.SAME,':<18}{'True,':<15}{'False,':<7}Verdict.REFUSED"),
    ),
    tested("another payload takes the place of one that waits", VERDICT,
        "unit/runtime/test_verdicts.py::test_every_combination_has_the_verdict_of_the_rules",
        (f"{'OnRecord.WAITING,':<30}{'Payload.OTHER,':<18}{'None,':<15}{'None,':<7}Verdict.PAYLOAD_DIFFERS", f"{'OnRecord.WAITING,':<30}{'Payload.OTHER,':<18}{'None,':<15}{'None,':<7}Verdict.RESUBMISSION"),
    ),
    # Refusals
    tested("a state that cannot be read back is stored", PLAIN,
        f"{UNSTORABLE}::test_none_in_a_state_where_a_number_belongs_refuses_the_message",
        ("            if null_in(value):\n                codec.check(value)\n", ""),
    ),
    tested("a number that JSON cannot hold is sent as null", ENCODING,
        f"{UNSTORABLE}::test_a_message_that_json_cannot_hold_refuses_its_cause",
        ("_may_be_infinite(_packed(value)) is not None", "False"),
    ),
    tested("a model sends a number that JSON cannot hold as null", ENCODING,
        f"{UNSTORABLE}::test_a_message_that_json_cannot_hold_refuses_its_cause",
        ("if any(mark in data for mark in _MARKS)", "if False"),
    ),
    tested("a text that is no UTF-8 is a failure like any other", ENCODING,
        f"{UNSTORABLE}::test_a_message_that_json_cannot_hold_refuses_its_cause",
        ("    except UnicodeEncodeError as error:\n        raise _refusal(value, _plain(value)) or error from error\n", "    except ZeroDivisionError:\n        raise\n"),
    ),
    tested("a model takes a number that JSON cannot hold", CODEC,
        f"{UNSTORABLE}::test_a_body_with_a_number_that_json_cannot_hold_is_undecodable",
        ("        _decode_any(body)  # pydantic takes", "        # pydantic takes"),
    ),
    # Settings of the broker, schemas, names
    tested("a newer message is decoded", ADMISSION,
        f"{OF_SCHEMAS}::test_a_newer_message_is_released_uncounted_and_never_decoded",
        ("        if message.schema > route.version:  # for a newer worker\n", "        if message.schema > route.version << 9:\n"),
    ),
    tested(
        "a newer state is decoded", CODEC, f"{OF_STATES}::test_a_newer_state_is_released_uncounted_and_never_decoded",
        ("            if schema == self.version:\n                return self.codec.decode(value)\n", "            if schema >= self.version:\n                return self.codec.decode(value)\n"),
    ),
    tested("an older state is lifted by one version only", CODEC,
        f"{OF_STATES}::test_older_state_is_lifted_through_every_version_and_stored_as_the_newest",
        ("    for version in range(schema, codec.version):\n", "    for version in range(codec.version - 1, codec.version):\n"),
    ),
    tested("a missing handler is not missed", NAMES,
        f"{OF_NAMES}::test_a_renamed_handler_is_refused_while_its_source_holds_messages",
        ("    raise NotRegistrable(_cure(old, sorted(", "    str(_cure(old, sorted("),
    ),
    tested(
        "any key is the key of before", NAMES, f"{OF_NAMES}::test_another_key_is_refused_while_its_source_holds_messages",
        ("    if now is not None and now.has_key_of(old):\n", "    if now is not None:\n"),
    ),
    # Time, chance and calls
    tested("chance is drawn anew on each attempt", CONTEXT,
        f"{OF_CALLS}::test_chance_is_the_same_for_every_attempt_and_differs_between_messages_and_draws",
        ("        return derived_bytes(self.work.inbox, purpose, self.draw_count)\n", "        return derived_bytes(uuid4().bytes, purpose, self.draw_count)\n"),
        ("from uuid import UUID\n", "from uuid import UUID, uuid4\n"),
    ),
    tested("a call has another key on each attempt", CONTEXT,
        f"{OF_CALLS}::test_a_call_is_given_the_idempotency_key_the_same_on_every_attempt",
        ("        return str(self.work.inbox.hex())\n", "        return str(self.work.inbox.hex()) + str(self.delivery_count)\n"),
    ),
    tested("a call is made before its message is durable", CONTEXT,
        "unit/runtime/test_durability_gate.py::test_a_call_is_made_only_when_its_message_is_durable",
        ("            await self.durable()  # an", "            pass  # an"),
    ),
    # Hostile neighbours
    tested("a cycle goes on for ever", CONTEXT,
        "unit/runtime/test_messages.py::test_a_message_that_goes_in_a_circle_ends_as_a_dead_letter",
        ("        if cause.hops >= hops_max:\n", "        if cause.hops > hops_max:\n"),
    ),
    tested("ids of any length are taken", ADMISSION,
        "unit/runtime/test_properties.py::test_what_a_handler_could_not_carry_on_is_dead_lettered_with_the_cure",
        ("        if too_much := excess(message):\n", "        if too_much := excess(message)[:0]:\n"),
    ),
    # Store and bus apart
    tested("a redelivered message runs before its record is looked for", PARTITION,
        f"{OF_JUDGING}::test_a_handler_that_waits_for_its_own_effect_is_done",
        ("            if attempt.work.inbox:\n                await self._decide(attempt)", "            if not attempt.work.inbox:\n                await self._decide(attempt)"),
        ("        return bool(inbox and (delivery", "        return bool(not inbox and (delivery"),
    ),
    tested("a judgement over one state stands over another", WORK,
        f"{OF_JUDGING}::test_what_was_too_large_over_one_state_is_run_again_over_another",
        ("        if self.rests_on is not None and self.rests_on != version:\n", "        if self.rests_on == version:\n"),
    ),
    tested("what a key's records take is not metered", "outbox/runtime/commit/partition_size.py",
        "unit/stores/test_partition_size.py::test_a_full_partition_is_reported_once_an_hour_a_key",
        ("        if self._bytes_max and state_id is not None:\n", "        if self._bytes_max and state_id is None:\n"),
    ),
    tested("a record lives as long as who marks it says", PLAN,
        "unit/stores/test_marks.py::test_who_finishes_what_another_application_began_keeps_its_record_as_long",
        ("        return max(at_least_ms, self.record_life_ms) / 1_000\n", "        return self.record_life_ms / 1_000\n"),
    ),
    # Engine scope
    tested("a commit is answered before it is synced", JOURNAL,
        "unit/engine/test_replay.py::test_a_commit_is_synced_when_it_is_answered",
        ("        await core.gate(alone=not is_request)", "        pass"),
    ),
    tested(
        "a claim is not logged", JOURNAL, "unit/engine/test_replay.py::test_a_claim_counts_as_a_delivery_when_the_host_is_killed",
        ("        if deliveries:\n            self._core.write()\n        return deliveries\n", "        return deliveries\n"),
    ),
    tested("a writer has the epoch of the one before", "outbox/engine/log/wal.py",
        "unit/engine/test_replay.py::test_a_lock_token_of_an_older_epoch_is_void",
        ("        self.epoch = recovered.epoch + 1\n", "        self.epoch = max(1, recovered.epoch)\n"),
    ),
    tested("a request is taken in whatever room there is", JOURNAL,
        "unit/engine/test_memory.py::test_a_request_is_refused_where_there_is_no_room_and_a_message_that_is_there_is_handled",
        ("            check_room(self._state, core.limits)\n", "            pass\n"),
    ),
    # Requests
    tested("a request is that of any caller", REQUESTS, f"{OF_HTTP}::test_no_caller_sees_anothers_reply",
        ('identity = f"{key}@{sha256(caller.encode()).hexdigest()}" if', 'identity = f"{key}@" if'),
    ),
    tested("a read may change what it reads", HTTP_SCOPES, f"{OF_HTTP}::test_a_read_that_changes_or_sends_fails",
        ("        if context is None or is_changed or", "        if context is None or"),
    ),
    tested("a low delivery limit of the broker is not logged", "outbox/azure/servicebus/entities.py",
        "wire/on_azure/test_queues_as_found.py::test_a_queue_whose_broker_may_expire_messages_is_logged_once",
        ("    if (count := found.max_delivery_count) is not None and count < DELIVERY_COUNT_MAX:\n", "    if (count := found.max_delivery_count) is not None and count < 0:\n"),
    ),
    tested("any message goes to the only type there is", ADMISSION,
        "unit/runtime/test_messages.py::test_a_type_has_the_name_that_it_was_given_on_the_wire",
        ("        route = source.routes.get(message.type) if message.type else source.only\n", "        route = source.routes.get(message.type) or next(iter(source.routes.values()))\n"),
    ),
    tested("a destination that was never declared is sent to", "outbox/app.py",
        "unit/runtime/test_registration.py::test_sending_to_a_name_never_declared_says_how_to_declare_it",
        ("        if name in self.queues or name in self.topics:\n", "        if name:\n"),
    ),
    tested("what was applied before calls again", PARTITION, f"{OF_CALLS}::test_an_applied_message_calls_nothing_again",
        ("        try:\n            await self._read_record(attempt)\n        except Superseded as found:\n            batch.superseded = found.record\n            raise\n", "        del attempt\n"),
        ("        return bool(inbox and (delivery", "        return bool(not inbox and (delivery"),
    ),
    tested(
        "a context has the time of the wall", CONTEXT, "unit/runtime/test_effects.py::test_schedule_sends_later_by_a_delay_or_at_a_time_in_due_order",
        ("        return self.now_ms / 1_000\n", "        return time.time()\n"),
        ("import inspect\n", "import inspect\nimport time\n"),
    ),
    tested(
        "a message is handled beside another of its lane", ENGINE, "unit/runtime/test_ordering.py::test_nothing_overtakes_a_message_that_is_tried_again",
        ("            if lane is not None and lane in self._lanes.taken:\n                self._lanes.wait(lane, [work])\n            elif", "            if"),
        ("            self._lanes.wait(lane, [later for later in rest if later.lane == lane])\n            rest = [later for later in rest if later.lane != lane]\n", ""),
    ),
    tested("a successor in a trigger is abandoned at once", PROCESSOR,
        "functions/test_blocked_keys.py::test_what_waits_behind_a_dead_letter_keeps_its_deliveries_and_its_order",
        ("            match await self._wait_unblocked(delivery, until_ms):\n", '            match "" if until_ms else await self._wait_unblocked(delivery, until_ms):\n'),
    ),
    tested("a failed request is kept", "outbox/registration/handlers.py",
        f"{OF_HTTP}::test_a_failure_is_reported_without_its_reason_and_not_stored",
        ("UNKEPT = Retries(limit=1 << 31, delays_s=())", "UNKEPT = Retries(limit=1, delays_s=())"),
    ),
    tested(
        "a body in another order is another", REQUESTS, f"{OF_HTTP}::test_a_body_that_says_the_same_in_another_order_is_the_same",
        ("fingerprint(whole, \"\")", "fingerprint(body, \"\")"),
    ),
)  # fmt: skip

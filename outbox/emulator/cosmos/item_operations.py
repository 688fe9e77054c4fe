"""Operations on items, alone and in batches: read from the request first, then applied in one step.

A transactional batch has up to 100 operations on items of one partition key: all of them are done or none.  Every
operation sees what those before it did.  The first that cannot be done, as one on an item of another partition key,
ends the batch: it answers with its own status, all others with 424, the whole with 207, and nothing was written.
A batch that is not transactional, the bulk mode of clients, does each operation for itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import msgspec.structs

from outbox.emulator.cosmos.catalog import DELETE_COUNT, Container
from outbox.emulator.cosmos.charges import write_ru
from outbox.emulator.cosmos.decisions import Decision, Kind, Moment, Operation, decide, whole
from outbox.emulator.cosmos.history import StoredItem
from outbox.emulator.cosmos.patch import Patch
from outbox.emulator.cosmos.query.budget import Budget
from outbox.emulator.cosmos.query.plan import CONDITION_STEP_COUNT_MAX, compile_condition
from outbox.emulator.cosmos.requests import (
    KEY_HEADER,
    Call,
    Prepared,
    check_indexed,
    container_of,
    freshness,
    is_true,
    key_of_call,
)
from outbox.emulator.cosmos.store import Do, Put, Store
from outbox.emulator.cosmos.wire import (
    FAILED_DEPENDENCY,
    ITEM_SIZE_MAX_BYTES,
    KEY_MISMATCH,
    MULTI_STATUS,
    NOT_FOUND,
    NOT_MODIFIED,
    OK,
    THROTTLED,
    TOO_LARGE,
    Answer,
    Json,
    Rejection,
    bad,
    check_id,
    etag_of,
    key_of,
    key_of_header,
    parse,
    parse_object,
    printable,
    wire_form,
)
from outbox.emulator.faults import FaultRule

OPERATION_COUNT_MAX = 100
SIZE_MAX_BYTES = 2 << 20
ANSWER_MAX_BYTES = 16 << 20
"""Of the items in its answer: a hundred operations on one large item would hold it a hundred times."""
_KINDS: dict[str, Kind] = {
    "Create": "create",
    "Read": "read",
    "Replace": "replace",
    "Upsert": "upsert",
    "Delete": "delete",
    "Patch": "patch",
}


def _post(store: Store, call: Call) -> Prepared:
    container, body = container_of(call, store.catalog), _item_of(call)
    header = call.header(KEY_HEADER)
    own = key_of(body, container.key_paths)
    key = key_of_header(header, len(container.key_paths)) if header else own
    operation = whole("upsert" if call.route.operation == "item.upsert" else "create", body, container, key)
    return _single(store, call, container, key, operation)


def _replace(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    key, body = key_of_call(call, container), _item_of(call)
    return _single(
        store, call, container, key, whole("replace", body, container, key, _id(store, call, container, key))
    )


def _delete(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    key = key_of_call(call, container)
    return _single(store, call, container, key, Operation("delete", _id(store, call, container, key)))


def _patch(store: Store, call: Call) -> Prepared:
    container, body = container_of(call, store.catalog), parse(call.body)
    key, patch = key_of_call(call, container), _patch_of(body, Budget(CONDITION_STEP_COUNT_MAX))
    return _single(store, call, container, key, Operation("patch", _id(store, call, container, key), patch=patch))


def _single(store: Store, call: Call, container: Container, key: str, operation: Operation) -> Prepared:
    operation.if_match, operation.if_none_match = call.header("if-match"), call.header("if-none-match")
    is_minimal = "return=minimal" in call.header("prefer").lower()

    def apply(call: Call) -> Answer:
        moment = Moment(store.engine.now_ms(), store.fresh_rid(container))
        new_id = operation.new_id
        at_new_id = store.read(container, key, new_id) if new_id else None
        decision = decide(operation, store.read(container, key, operation.id), container, moment, at_new_id)
        puts = [Put(operation.id, None)] if new_id else []
        version = store.commit(container, key, [*puts, Put(new_id or operation.id, decision.stored)])
        if decision.stored is None:
            return Answer(decision.status, charge_ru=decision.charge_ru)
        body = b"" if is_minimal else wire_form(decision.stored, version)
        return Answer(decision.status, {"etag": etag_of(version)}, body, decision.charge_ru)

    return Prepared(f"{key}/{operation.id}", apply)


def _read(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    key = key_of_call(call, container)
    id = _id(store, call, container, key)
    operation = Operation("read", id, if_none_match=call.header("if-none-match"))

    def apply(call: Call) -> Answer:
        lsn = freshness(call, container)
        past = lsn < container.lsn
        item = store.read_past(container, key, id, lsn) if past else store.read(container, key, id)
        decision = decide(operation, item, container, Moment(0, ""))
        assert item is not None, "decide rejects what is not there"
        body = b"" if decision.status == NOT_MODIFIED else wire_form(item.value, item.version)
        place = f"http://{call.header('host')}{call.raw_path.partition('?')[0]}"
        headers = {"etag": etag_of(item.version), "content-location": printable(place)}
        return Answer(decision.status, headers, body, decision.charge_ru)

    return Prepared(f"{key}/{id}", apply)


def _batch(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    if not is_true(call.headers, "x-ms-cosmos-batch-atomic"):
        wanted, goes_on = _listed(call.body), is_true(call.headers, "x-ms-cosmos-batch-continue-on-error")
        return Prepared("", lambda call: run_bulk(store, container, wanted, call.rule, goes_on=goes_on))
    key = key_of_call(call, container)
    operations = operations_of(call.body, container, key)
    name = f"{key}/{','.join(operation.id for operation in operations)}"
    return Prepared(name, lambda call: run_batch(store, container, key, operations, call.rule))


def _delete_key(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    key = key_of_call(call, container)

    async def apply(call: Call) -> Answer:
        ids = list(store.items(container, key))
        for start in range(0, len(ids), DELETE_COUNT):  # not one step, as on the service
            there = (id for id in ids[start : start + DELETE_COUNT] if store.read(container, key, id) is not None)
            if puts := [Put(id, None) for id in there]:
                store.commit(container, key, puts)
            await asyncio.sleep(0)
        return Answer(OK, charge_ru=write_ru("delete", 0) * max(1, len(ids)))

    return Prepared(f"{key}/", apply)


def _id(store: Store, call: Call, container: Container, key: str) -> str:
    """The id of the item that the path names, by id or by resource id.

    Raises:
        Rejection: 404.
    """
    name = call.route.names[2]
    if call.route.rids:
        id = store.id_of(container, key, name)
        if id is None:
            raise Rejection(NOT_FOUND, f"there is no item {name[:80]!r} under this partition key")
        return id
    try:
        return check_id(name)
    except Rejection as rejected:
        raise Rejection(NOT_FOUND, rejected.text) from rejected


def _item_of(call: Call) -> dict[str, Json]:
    """The item in a request; its size counts as sent, escaped text being longer than its stored form.

    Raises:
        Rejection: 413 or 400.
    """
    if len(call.body) > ITEM_SIZE_MAX_BYTES:
        raise Rejection(
            TOO_LARGE,
            f"a request with an item of {len(call.body)} bytes is over {ITEM_SIZE_MAX_BYTES}; send text unescaped "
            "(enable_compact_utf8_item_writes=True), or move large values to a blob",
        )
    return parse_object(call.body)


OPERATIONS: dict[str, Do] = {
    "item.create": _post,
    "item.upsert": _post,
    "item.read": _read,
    "item.replace": _replace,
    "item.delete": _delete,
    "item.patch": _patch,
    "batch": _batch,
    "key.delete": _delete_key,
}


# Batches


@dataclass(frozen=True, slots=True)
class _Pending:
    """An item as an earlier operation of the batch left it; version 0 while it has no ETag."""

    value: bytes
    version: int = 0


def operations_of(data: bytes, container: Container, key: str) -> list[Operation]:
    """The operations in the body of a batch that is done as a whole.

    Raises:
        Rejection: 413 or 400; the text names the operation.
    """
    found, budget = [], Budget(CONDITION_STEP_COUNT_MAX)
    for index, one in enumerate(_listed(data)):
        try:
            found.append(_operation(one, container, key, budget))
        except Rejection as rejected:
            raise Rejection(
                rejected.status, f"operation {index} of the batch: {rejected.text}", substatus=rejected.substatus
            ) from rejected
    return found


def _listed(data: bytes) -> list[Json]:
    """A batch's body, with as many operations as one may have.

    Raises:
        Rejection: 413 or 400.
    """
    if len(data) > SIZE_MAX_BYTES:
        raise Rejection(TOO_LARGE, f"a batch of {len(data)} bytes is over {SIZE_MAX_BYTES}; split what need not be one")
    body = parse(data, "the batch")
    if not isinstance(body, list):
        raise bad("a batch must be a JSON array of operations")
    if not body:
        raise bad("Batch request has no operations.")  # as the service says it
    if len(body) > OPERATION_COUNT_MAX:
        raise bad(
            "Batch request has more operations than what is supported. "
            f"There are {len(body)}, and {OPERATION_COUNT_MAX} at most; split what need not be one"
        )
    return body


def _operation(one: Json, container: Container, key: str, budget: Budget) -> Operation:
    name = one.get("operationType") if isinstance(one, dict) else None
    if not isinstance(name, str) or name not in _KINDS:
        raise bad(f"it needs an operationType, one of {', '.join(_KINDS)}")
    kind, body = _KINDS[name], one.get("resourceBody")
    check_indexed(one.get("indexingDirective"))
    conditions = [one.get(name) for name in ("ifMatch", "ifNoneMatch")]
    if not all(isinstance(text, str | None) for text in conditions):
        raise bad("ifMatch and ifNoneMatch must be text")
    if kind in ("create", "replace", "upsert"):
        if not isinstance(body, dict):
            raise bad("it needs a resourceBody, a JSON object")
        id = check_id(one["id"]) if kind == "replace" and "id" in one else ""
        try:
            operation = whole(kind, body, container, key, id)
        except Rejection as rejected:
            if rejected.substatus != KEY_MISMATCH:
                raise
            operation = Operation(kind, id or check_id(body.get("id")), refusal=rejected)
    else:
        operation = Operation(kind, check_id(one.get("id")))
        if kind == "patch":
            operation.patch = _patch_of(body, budget)
    operation.if_match, operation.if_none_match = (text or "" for text in conditions)
    return operation


def _patch_of(body: Json, budget: Budget) -> Patch:
    """A patch as a client sends it: an object with operations, or their list alone.

    The conditions of one batch have one budget, because they are evaluated in one go.

    Raises:
        Rejection: 400, it cannot be.
    """
    if isinstance(body, list):
        body = {"operations": body}
    if not isinstance(body, dict):
        raise bad("a patch must be a JSON object with operations, or an array of them")
    text = body.get("condition")
    if not isinstance(text, str | None):
        raise bad("the condition of a patch must be text such as: from c where c.state = 'open'")
    return Patch(body, None if text is None else compile_condition(text, budget))


_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode


def run_batch(
    store: Store, container: Container, key: str, operations: list[Operation], fault: FaultRule | None
) -> Answer:
    """Do all operations or none.

    `fault` throttles one of them, or gives it another status, where it has a `batch_index`.
    """
    touched: dict[str, _Pending | None] = {}
    decisions: list[Decision] = []
    left: list[_Pending | None] = []
    moment_ms, size_bytes = store.engine.now_ms(), 0

    def now_at(id: str) -> StoredItem | None:
        return touched[id] if id in touched else store.read(container, key, id)

    for index, operation in enumerate(operations):
        now, new_id = now_at(operation.id), operation.new_id
        try:
            if fault is not None and fault.batch_index == index:
                raise _injected(fault)
            if operation.refusal is not None:
                raise operation.refusal
            moment = Moment(moment_ms, store.fresh_rid(container))
            decision = decide(operation, now, container, moment, now_at(new_id) if new_id else None)
        except Rejection as rejected:
            return _failed(rejected, index, len(operations))
        if decision.stored is not None:
            if new_id:
                touched[operation.id] = None
            touched[new_id or operation.id] = now = _Pending(decision.stored)
        elif decision.deletes:
            touched[operation.id] = now = None
        size_bytes += 0 if now is None else len(now.value)
        if size_bytes > ANSWER_MAX_BYTES:
            text = f"the items of the batch's answer are over {ANSWER_MAX_BYTES} bytes; split what need not be one"
            return _failed(Rejection(TOO_LARGE, text), index, len(operations))
        decisions.append(decision)
        left.append(None if now is None else _Pending(now.value, now.version))
    version = container.version
    if touched:
        puts = [Put(id, None if item is None else item.value) for id, item in touched.items()]
        there = [put for put in puts if put.stored is not None or store.read(container, key, put.id) is not None]
        version = store.commit(container, key, there) if there else version
    return _succeeded(decisions, left, version)


def run_bulk(
    store: Store, container: Container, wanted: list[Json], fault: FaultRule | None, *, goes_on: bool
) -> Answer:
    """Do each operation for itself, under the partition key that it names; unless it `goes_on`, none behind a failure.

    `fault` is as of a batch.
    """
    results: list[msgspec.Raw] = []
    charge_ru, budget, size_bytes, failed_count = 0.0, Budget(CONDITION_STEP_COUNT_MAX), 0, 0
    for index, one in enumerate(wanted):
        its = (
            msgspec.structs.replace(fault, batch_index=0) if fault is not None and fault.batch_index == index else None
        )
        try:
            if failed_count and not goes_on:
                raise Rejection(FAILED_DEPENDENCY, "an operation before it failed")
            if size_bytes > ANSWER_MAX_BYTES:
                raise Rejection(TOO_LARGE, f"the items of the answer are over {ANSWER_MAX_BYTES} bytes")
            text = one.get("partitionKey") if isinstance(one, dict) else None
            if not isinstance(text, str):
                raise bad("it needs a partitionKey, an array as the text of its JSON")
            key = key_of_header(text, len(container.key_paths))
            answer = run_batch(store, container, key, [_operation(one, container, key, budget)], its)
        except Rejection as rejected:
            answer = _failed(rejected, 0, 1)
        failed_count += answer.status != OK
        size_bytes += len(answer.body)
        charge_ru += answer.charge_ru
        results += _raw(answer.body)
    return Answer(MULTI_STATUS if failed_count else OK, {}, msgspec.json.encode(results), charge_ru)


def _injected(fault: FaultRule) -> Rejection:
    if fault.kind == "throttled":
        return Rejection(THROTTLED, "throttled on demand", retry_after_s=fault.retry_after_s)
    return Rejection(fault.status, "failed on demand", substatus=fault.substatus)


def _failed(rejected: Rejection, failed: int, count: int) -> Answer:
    results: list[dict[str, Json]] = [{"statusCode": FAILED_DEPENDENCY, "requestCharge": 0} for _ in range(count)]
    results[failed] = {"statusCode": rejected.status, "subStatusCode": rejected.substatus, "requestCharge": 1.0}
    if rejected.retry_after_s:
        results[failed]["retryAfterMilliseconds"] = round(rejected.retry_after_s * 1_000)
    return Answer(MULTI_STATUS, {}, msgspec.json.encode(results), 1.0)


def _succeeded(decisions: list[Decision], left: list[_Pending | None], version: int) -> Answer:
    results = []
    for decision, item in zip(decisions, left, strict=True):
        result: dict[str, Json] = {"statusCode": decision.status, "requestCharge": round(decision.charge_ru, 2)}
        if item is not None:
            of_item = item.version or version
            result |= {"eTag": etag_of(of_item), "resourceBody": msgspec.Raw(wire_form(item.value, of_item))}
        results.append(result)
    return Answer(OK, {}, msgspec.json.encode(results), sum(decision.charge_ru for decision in decisions))

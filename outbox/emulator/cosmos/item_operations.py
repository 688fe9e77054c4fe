"""Operations on items, alone and in batches: read from the request first, then applied in one step."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.emulator.cosmos import batch
from outbox.emulator.cosmos.answers import NOT_FOUND, NOT_MODIFIED, Answer, Rejection, unsupported
from outbox.emulator.cosmos.catalog import Container
from outbox.emulator.cosmos.decisions import Moment, Operation, decide, whole
from outbox.emulator.cosmos.gateway import Call, Prepare, Prepared
from outbox.emulator.cosmos.patch import Patch
from outbox.emulator.cosmos.query.budget import Budget
from outbox.emulator.cosmos.query.plan import CONDITION_STEP_COUNT_MAX
from outbox.emulator.cosmos.requests import KEY_HEADER, container_of, freshness, key_of_call
from outbox.emulator.cosmos.routes import is_true
from outbox.emulator.cosmos.store import Put, Store
from outbox.emulator.cosmos.values import check_id, etag_of, key_of, key_of_header, parse_object, wire_form


class ItemOperations:
    """Operations on items, alone and in batches."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def by_name(self) -> Mapping[str, Prepare]:
        """The operations that this is for."""
        return {
            "item.create": self._post,
            "item.upsert": self._post,
            "item.read": self._read,
            "item.replace": self._replace,
            "item.delete": self._delete,
            "item.patch": self._patch,
            "batch": self._batch,
        }

    def _post(self, call: Call) -> Prepared:
        container, body = container_of(call, self._store.catalog), parse_object(call.body)
        header = call.header(KEY_HEADER)
        own = key_of(body, container.key_paths)
        key = key_of_header(header, len(container.key_paths)) if header else own
        operation = whole("upsert" if call.route.operation == "item.upsert" else "create", body, container, key)
        return self._single(call, container, key, operation)

    def _replace(self, call: Call) -> Prepared:
        container = container_of(call, self._store.catalog)
        key, body = key_of_call(call, container), parse_object(call.body)
        return self._single(
            call, container, key, whole("replace", body, container, key, self._id(call, container, key))
        )

    def _delete(self, call: Call) -> Prepared:
        container = container_of(call, self._store.catalog)
        key = key_of_call(call, container)
        return self._single(call, container, key, Operation("delete", self._id(call, container, key)))

    def _patch(self, call: Call) -> Prepared:
        container, body = container_of(call, self._store.catalog), parse_object(call.body)
        key = key_of_call(call, container)
        patch = Patch(body, batch.condition_of(body, Budget(CONDITION_STEP_COUNT_MAX)))
        return self._single(call, container, key, Operation("patch", self._id(call, container, key), patch=patch))

    def _single(self, call: Call, container: Container, key: str, operation: Operation) -> Prepared:
        operation.if_match, operation.if_none_match = call.header("if-match"), call.header("if-none-match")
        is_minimal = "return=minimal" in call.header("prefer").lower()

        def apply(call: Call) -> Answer:
            store = self._store
            moment = Moment(store.engine.now_ms(), store.fresh_rid(container))
            decision = decide(operation, store.read(container, key, operation.id), container, moment)
            version = store.commit(container, key, [Put(operation.id, decision.stored)])
            if decision.stored is None:
                return Answer(decision.status, charge_ru=decision.charge_ru)
            body = b"" if is_minimal else wire_form(decision.stored, version)
            return Answer(decision.status, body, decision.charge_ru, {"etag": etag_of(version)})

        return Prepared(f"{key}/{operation.id}", apply)

    def _read(self, call: Call) -> Prepared:
        container = container_of(call, self._store.catalog)
        key = key_of_call(call, container)
        id = self._id(call, container, key)
        operation = Operation("read", id, if_none_match=call.header("if-none-match"))

        def apply(call: Call) -> Answer:
            lsn = freshness(call, container)
            store = self._store
            past = lsn < container.lsn
            item = store.read_past(container, key, id, lsn) if past else store.read(container, key, id)
            decision = decide(operation, item, container, Moment(0, ""))
            assert item is not None, "decide rejects what is not there"
            body = b"" if decision.status == NOT_MODIFIED else wire_form(item.value, item.version)
            return Answer(decision.status, body, decision.charge_ru, {"etag": etag_of(item.version)})

        return Prepared(f"{key}/{id}", apply)

    def _batch(self, call: Call) -> Prepared:
        container = container_of(call, self._store.catalog)
        if not is_true(call.headers, "x-ms-cosmos-batch-atomic"):
            raise unsupported("a batch that is not atomic")
        key = key_of_call(call, container)
        operations = batch.operations_of(call.body, container, key)
        name = f"{key}/{','.join(operation.id for operation in operations)}"
        return Prepared(name, lambda call: batch.run(self._store, container, key, operations, call.rule))

    def _id(self, call: Call, container: Container, key: str) -> str:
        """The id of the item that the path names, by id or by resource id.

        Raises:
            Rejection: 404.
        """
        name = call.route.names[2]
        if call.route.rids:
            id = self._store.id_of(container, key, name)
            if id is None:
                raise Rejection(NOT_FOUND, f"there is no item {name[:80]!r} under this partition key")
            return id
        try:
            return check_id(name)
        except Rejection as rejected:
            raise Rejection(NOT_FOUND, rejected.text) from rejected

"""Operations on the account, its databases, containers and offers, and on conflicts, of which there are none."""

from __future__ import annotations

from outbox.emulator.cosmos import offers
from outbox.emulator.cosmos.charges import METADATA_RU
from outbox.emulator.cosmos.requests import Call, Prepared, container_of
from outbox.emulator.cosmos.store import Do, Store
from outbox.emulator.cosmos.wire import (
    CREATED,
    NO_CONTENT,
    NOT_FOUND,
    NOT_MODIFIED,
    OK,
    PRECONDITION_FAILED,
    Answer,
    Json,
    Rejection,
    encode,
    parse_object,
)

RANGES_ETAG = '"1"'


def _account(store: Store, call: Call) -> Prepared:
    place = [{"name": "local", "databaseAccountEndpoint": f"http://{call.header('host')}/"}]
    body = {
        "id": "outbox",
        "_rid": "outbox.local",
        "_self": "",
        "writableLocations": place,
        "readableLocations": place,
        "enableMultipleWriteLocations": False,
        "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
        "_dbs": "//dbs/",
    }
    return Prepared("", lambda call: _defined(OK, body))


def _create_database(store: Store, call: Call) -> Prepared:
    body, throughput = parse_object(call.body), offers.of_headers(call.headers)
    name = str(body.get("id"))[:1_024]
    return Prepared(name, lambda call: _defined(CREATED, store.catalog.create_database(body, throughput).definition))


def _read_database(store: Store, call: Call) -> Prepared:
    database = store.catalog.database(call.route.names[0])
    return Prepared(database.id, lambda call: _read(call, database.definition))


def _delete_database(store: Store, call: Call) -> Prepared:
    def apply(call: Call) -> Answer:
        database = store.catalog.database(call.route.names[0])
        _check_match(call, database.definition)
        store.catalog.delete_database(database)
        return Answer(NO_CONTENT, charge_ru=METADATA_RU)

    return Prepared(call.route.names[0], apply)


def _create_container(store: Store, call: Call) -> Prepared:
    body, throughput = parse_object(call.body), offers.of_headers(call.headers)

    def apply(call: Call) -> Answer:
        database = store.catalog.database(call.route.names[0])
        return _defined(CREATED, store.catalog.create_container(database, body, throughput).definition)

    return Prepared(str(body.get("id"))[:1_024], apply)


def _read_container(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    return Prepared(container.id, lambda call: _read(call, container.definition))


def _replace_container(store: Store, call: Call) -> Prepared:
    container, body = container_of(call, store.catalog), parse_object(call.body)

    def apply(call: Call) -> Answer:
        _check_match(call, container.definition)
        store.catalog.replace_container(container, body)
        store.index_expiry(container)
        return _defined(OK, container.definition)

    return Prepared(container.id, apply)


def _delete_container(store: Store, call: Call) -> Prepared:
    def apply(call: Call) -> Answer:
        container = store.catalog.container(call.route.names[0], call.route.names[1])
        _check_match(call, container.definition)
        store.catalog.delete_container(container)
        return Answer(NO_CONTENT, charge_ru=METADATA_RU)

    return Prepared(call.route.names[1], apply)


def _read_offer(store: Store, call: Call) -> Prepared:
    offer = store.catalog.offer(call.route.names[0])
    return Prepared(call.route.names[0], lambda call: _read(call, offer))


def _replace_offer(store: Store, call: Call) -> Prepared:
    rid, body = call.route.names[0], parse_object(call.body)

    def apply(call: Call) -> Answer:
        _check_match(call, store.catalog.offer(rid))
        return _defined(OK, store.catalog.replace_offer(rid, body))

    return Prepared(rid, apply)


def _conflict(store: Store, call: Call) -> Prepared:
    container_of(call, store.catalog)
    raise Rejection(NOT_FOUND, "there is no such conflict: one region has none")


def _ranges(store: Store, call: Call) -> Prepared:
    container = container_of(call, store.catalog)
    whole_range: dict[str, Json] = {
        "_rid": container.rid,
        "id": "0",
        "_etag": RANGES_ETAG,
        "minInclusive": "",
        "maxExclusive": "FF",
        "parents": [],
        "status": "online",
        "ridPrefix": 0,
        "throughputFraction": 1,
    }
    body = {"_rid": container.rid, "PartitionKeyRanges": [whole_range], "_count": 1}

    def apply(call: Call) -> Answer:
        return _read(call, body, RANGES_ETAG)  # without its 304 a client asks for ever

    return Prepared("", apply)


OPERATIONS: dict[str, Do] = {
    "account.read": _account,
    "database.create": _create_database,
    "database.read": _read_database,
    "database.delete": _delete_database,
    "container.create": _create_container,
    "container.read": _read_container,
    "container.replace": _replace_container,
    "container.delete": _delete_container,
    "ranges.read": _ranges,
    "offer.read": _read_offer,
    "offer.replace": _replace_offer,
    "conflict.read": _conflict,
    "conflict.delete": _conflict,
}


def _read(call: Call, definition: dict[str, Json], etag: str = "") -> Answer:
    """A definition, or that it is as the client has it; `etag` is that of one that says none itself."""
    etag = etag or definition["_etag"]
    if call.header("if-none-match") in (etag, etag.strip('"')):
        return Answer(NOT_MODIFIED, {"etag": etag}, charge_ru=METADATA_RU)
    return Answer(OK, {"etag": etag}, encode(definition), METADATA_RU)


def _check_match(call: Call, definition: dict[str, Json]) -> None:
    """Let a change pass of a definition that is as the client has it.

    Raises:
        Rejection: 412.
    """
    wanted, etag = call.header("if-match"), definition["_etag"]
    if wanted and wanted not in (etag, etag.strip('"'), "*"):
        raise Rejection(PRECONDITION_FAILED, f"If-Match does not hold, the ETag is {etag}; read it again")


def _defined(status: int, definition: dict[str, Json]) -> Answer:
    headers = {"etag": definition["_etag"]} if "_etag" in definition else {}
    return Answer(status, headers, encode(definition), METADATA_RU)

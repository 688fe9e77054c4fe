"""Databases and containers: what there is, under which names and resource ids, and how a container is defined.

Their definitions are documents of the engine, one each, so that they survive with the items.  A container that is
deleted is gone with its definition; its items follow in steps, and what a crash leaves of them is removed at the next
start.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from outbox.emulator.cosmos import offers
from outbox.emulator.cosmos.history import History
from outbox.emulator.cosmos.indexing import Indexing
from outbox.emulator.cosmos.wire import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    OWNER_NOT_FOUND,
    Json,
    Rejection,
    bad,
    check_name,
    encode,
    etag_of,
    unsupported,
)
from outbox.engine.engine import Engine
from outbox.engine.log import records

DEFINITIONS = "cosmos"
ITEMS = "cosmos/"
RESOURCE_COUNT_MAX = 2_000
KEY_PATH_COUNT_MAX = 3
DEFINITION_SIZE_MAX_BYTES = 256 << 10
TTL_MAX_S = (1 << 31) - 1
DELETE_COUNT = 1_000
EXPIRING_COUNT = 10_000
_THROUGHPUT = "_offer"
"""The key of a stored definition's offer; clients do not see it there."""
_REFUSED = {"computedProperties": "computed properties", "encryptionPolicy": "client-side encryption"}


class Database:
    """A database and the containers in it, by name."""

    def __init__(self, definition: dict[str, Json], version: int) -> None:
        self.id: str = definition["id"]
        self.rid: str = definition["_rid"]
        self.containers: dict[str, Container] = {}
        self.define(definition, version)

    def define(self, definition: dict[str, Json], version: int) -> None:
        """Take over a definition that was checked."""
        self.throughput = offers.of_stored(definition.get(_THROUGHPUT))
        self.definition = _shown(definition, version)


class Container:
    """A container: its definition, which partition keys have items, and how fresh it is."""

    def __init__(self, database: Database, definition: dict[str, Json], version: int) -> None:
        self.database = database
        self.id: str = definition["id"]
        self.rid: str = definition["_rid"]
        self.link = f"dbs/{database.rid}/colls/{self.rid}/"
        self.path = f"dbs/{database.id}/colls/{self.id}"
        self.prefix = f"{ITEMS}{self.rid}/"
        """Before each partition key, the namespace in which the engine keeps its items."""
        self.keys: set[str] = set()
        self.version = version
        """The engine's version of its last write."""
        self.lsn = version
        """How fresh it is: one more with each write, a batch being one.  It is never above the version: a start goes on
        with that, and so is not below what any session has seen."""
        self.history = History()
        self.expiring: list[tuple[int, str, str]] = []
        """Items that expire: when, partition key, id; soonest first."""
        self.expiring_count_max = EXPIRING_COUNT
        """How many of these are noted before items that were written again since are taken out."""
        self.define(definition, version)

    def define(self, definition: dict[str, Json], version: int) -> None:
        """Take over a definition that was checked."""
        self.throughput = offers.of_stored(definition.get(_THROUGHPUT))
        self.definition = _shown(definition, version)
        self.key_paths: tuple[tuple[str, ...], ...] = tuple(_names(p) for p in definition["partitionKey"]["paths"])
        self.ttl_s: int | None = definition.get("defaultTtl")
        self.indexing = Indexing.of_stored(definition.get("indexingPolicy"))


class Catalog:
    """The databases of an account."""

    def __init__(self, engine: Engine, draw: Callable[[int], bytes]) -> None:
        """Read the definitions; `draw` gives random bytes, for resource ids."""
        self._engine = engine
        self._draw = draw
        self.databases: dict[str, Database] = {}
        self._by_rid: dict[str, Database | Container] = {}
        self._load()

    def _load(self) -> None:
        containers: list[tuple[str, dict[str, Json], int]] = []
        for id, document in self._engine.state.documents.spaces.get(DEFINITIONS, {}).items():
            definition = msgspec.json.decode(document.value)
            if id.startswith("db/"):
                database = Database(definition, document.version)
                self.databases[database.id] = self._by_rid[database.rid] = database
            else:
                containers.append((id.split("/")[1], definition, document.version))
        now = self._engine.core.do(records.Modified(self._engine.now_ms(), records.Modify()))  # above earlier versions
        for rid, definition, version in containers:
            owner = self._by_rid[rid]
            assert isinstance(owner, Database)
            container = Container(owner, definition, version)
            container.lsn = container.version = now
            owner.containers[container.id] = self._by_rid[container.rid] = container
        self._adopt_items()

    def _adopt_items(self) -> None:
        orphans = []
        for namespace in self._engine.state.documents.spaces:
            if namespace.startswith(ITEMS):
                _, rid, key = namespace.split("/", 2)
                container = self._by_rid.get(rid)
                if isinstance(container, Container):
                    container.keys.add(key)
                else:
                    orphans.append(namespace)
        self._remove_items(orphans)

    # Databases

    def names_of(self, rids: tuple[str, ...]) -> tuple[str, ...] | None:
        """A path's resource ids with the names of the database and container instead; None where they are names.

        Raises:
            Rejection: 404.
        """
        if rids[0] in self.databases:
            return None
        database = self._by_rid.get(rids[0])
        if not isinstance(database, Database):
            raise Rejection(NOT_FOUND, f"there is no database {rids[0][:80]!r}", substatus=OWNER_NOT_FOUND)
        if len(rids) == 1:
            return (database.id,)
        container = self._by_rid.get(rids[1])
        if not isinstance(container, Container) or container.database is not database:
            raise Rejection(
                NOT_FOUND,
                f"there is no container with the resource id {rids[1][:80]!r} in {database.id!r}; "
                "a path that begins with a resource id has no names",
                substatus=OWNER_NOT_FOUND,
            )
        return (database.id, container.id, *rids[2:])

    def database(self, name: str) -> Database:
        """The database of this name.

        Raises:
            Rejection: 404.
        """
        found = self.databases.get(name)
        if found is None:
            raise Rejection(NOT_FOUND, f"there is no database {name[:80]!r}", substatus=OWNER_NOT_FOUND)
        return found

    def create_database(self, body: dict[str, Json], throughput: offers.Throughput | None = None) -> Database:
        """Make a database, with a throughput that its containers share or with none.

        Raises:
            Rejection: 400, 403 or 409.
        """
        id = check_name(body.get("id"))
        if id in self.databases:
            raise Rejection(CONFLICT, f"there is a database {id!r} already")
        self._check_room()
        rid = self._fresh_rid(b"", 4)
        definition: dict[str, Json] = {"id": id, "_rid": rid, "_self": f"dbs/{rid}/"}
        definition |= {"_colls": "colls/", "_users": "users/", **_kept(throughput)}
        database = Database(definition, self._write(f"db/{rid}", definition))
        self.databases[id] = self._by_rid[rid] = database
        return database

    def delete_database(self, database: Database) -> None:
        """Delete a database with everything in it."""
        containers = list(database.containers.values())
        self._forget([f"db/{database.rid}", *(_name(container) for container in containers)])
        del self.databases[database.id], self._by_rid[database.rid]
        for container in containers:
            self._by_rid.pop(container.rid, None)
            self._remove_items([container.prefix + key for key in container.keys])

    # Containers

    def container(self, database: str, name: str) -> Container:
        """The container of this name.

        Raises:
            Rejection: 404.
        """
        owner = self.database(database)
        found = owner.containers.get(name)
        if found is None:
            raise Rejection(
                NOT_FOUND, f"there is no container {name[:80]!r} in {owner.id!r}", substatus=OWNER_NOT_FOUND
            )
        return found

    def create_container(
        self, database: Database, body: dict[str, Json], throughput: offers.Throughput | None = None
    ) -> Container:
        """Make a container, with a throughput of its own or with none.

        Raises:
            Rejection: 400, 403 or 409.
        """
        definition = checked(body)
        if definition["id"] in database.containers:
            raise Rejection(CONFLICT, f"there is a container {definition['id']!r} already")
        self._check_room()
        rid = self._fresh_rid(base64.b64decode(database.rid, b"+-"), 4)
        definition |= {"_rid": rid, "_self": f"dbs/{database.rid}/colls/{rid}/", "_docs": "docs/", "_sprocs": "sprocs/"}
        definition |= _kept(throughput)
        version = self._write(f"coll/{database.rid}/{rid}", definition)
        container = Container(database, definition, version)
        database.containers[container.id] = self._by_rid[rid] = container
        return container

    def replace_container(self, container: Container, body: dict[str, Json]) -> None:
        """Change how a container is defined; its name and partition key stay.

        Raises:
            Rejection: 400.
        """
        definition = checked(body)
        if definition["id"] != container.id:
            raise bad(f"the container is {container.id!r} and cannot be renamed; make another")
        if definition["partitionKey"]["paths"] != container.definition["partitionKey"]["paths"]:
            raise bad("the partition key of a container cannot be changed; make another")
        kept = ("_rid", "_self", "_docs", "_sprocs", "partitionKey")
        definition |= {name: container.definition[name] for name in kept} | _kept(container.throughput)
        container.define(definition, self._write(_name(container), definition))

    def delete_container(self, container: Container) -> None:
        """Delete a container with its items."""
        self._forget([_name(container)])
        del container.database.containers[container.id], self._by_rid[container.rid]
        self._remove_items([container.prefix + key for key in container.keys])

    def containers(self) -> list[Container]:
        """All containers of all databases."""
        return [container for database in self.databases.values() for container in database.containers.values()]

    # Throughput

    def offers(self) -> list[dict[str, Json]]:
        """The offers of all databases and containers that have one."""
        return [offer for owner in self._by_rid.values() if (offer := _offer_of(owner)) is not None]

    def offer(self, rid: str) -> dict[str, Json]:
        """The offer with a resource id.

        Raises:
            Rejection: 404.
        """
        owner = self._owner_of(rid)
        offer = None if owner is None else _offer_of(owner)
        if offer is None:
            raise Rejection(NOT_FOUND, f"there is no offer {rid[:80]!r}")
        return offer

    def replace_offer(self, rid: str, body: dict[str, Json]) -> dict[str, Json]:
        """Change the throughput of a database or container that has one.

        Raises:
            Rejection: 400 or 404.
        """
        self.offer(rid)
        owner, throughput = self._owner_of(rid), offers.of_body(body)
        assert owner is not None, "it has an offer"
        definition = {name: value for name, value in owner.definition.items() if name != "_etag"} | _kept(throughput)
        name = f"db/{owner.rid}" if isinstance(owner, Database) else _name(owner)
        owner.define(definition, self._write(name, definition))
        return self.offer(rid)

    def _owner_of(self, offer_rid: str) -> Database | Container | None:
        try:
            return self._by_rid.get(base64.b64encode(bytes.fromhex(offer_rid), b"+-").decode())
        except ValueError:
            return None

    # How they are kept

    def _check_room(self) -> None:
        if len(self._by_rid) >= RESOURCE_COUNT_MAX:
            raise Rejection(FORBIDDEN, f"there are {RESOURCE_COUNT_MAX} databases and containers; delete some first")

    def _fresh_rid(self, owner: bytes, size_bytes: int) -> str:
        while True:
            rid = base64.b64encode(owner + self._draw(size_bytes), b"+-").decode()
            if rid not in self._by_rid and rid not in self.databases:
                return rid

    def _write(self, id: str, definition: dict[str, Json]) -> int:
        now_ms = self._engine.now_ms()
        definition["_ts"] = now_ms // 1_000
        data = encode(definition)
        if len(data) > DEFINITION_SIZE_MAX_BYTES:
            raise bad(f"a definition of {len(data)} bytes is over {DEFINITION_SIZE_MAX_BYTES}")
        change = records.Modify(documents=[records.DocWrite(DEFINITIONS, id, data)])
        return self._engine.core.do(records.Modified(now_ms, change))

    def _forget(self, ids: list[str]) -> None:
        self._delete([records.DocRef(DEFINITIONS, id, 1) for id in ids])

    def _remove_items(self, namespaces: list[str]) -> None:
        spaces = self._engine.state.documents.spaces
        gone = [records.DocRef(namespace, id, 1) for namespace in namespaces for id in spaces.get(namespace, {})]
        for begin in range(0, len(gone), DELETE_COUNT):
            self._delete(gone[begin : begin + DELETE_COUNT])

    def _delete(self, gone: list[records.DocRef]) -> None:
        self._engine.core.do(records.Modified(self._engine.now_ms(), records.Modify(document_deletes=gone)))


def checked(body: dict[str, Json]) -> dict[str, Json]:
    """A container's definition as it came, with what it leaves out.

    Raises:
        Rejection: 400, naming what cannot be.
    """
    definition = {name: value for name, value in body.items() if not name.startswith("_")}
    check_name(definition.get("id"))
    key: Any = definition.get("partitionKey")
    paths = key.get("paths") if isinstance(key, dict) else None
    if not isinstance(paths, list) or not 1 <= len(paths) <= KEY_PATH_COUNT_MAX:
        raise bad(f"a container needs partitionKey.paths, 1 to {KEY_PATH_COUNT_MAX} of them")
    for path in paths:
        if not isinstance(path, str) or not _names(path) or not path.startswith("/"):
            raise bad(f"the partition key path {str(path)[:80]!r} must look like /customer or /order/id")
    version = key.get("version", 2)
    if type(version) is not int or version not in (1, 2) or key.get("kind", "Hash") not in ("Hash", "MultiHash"):
        raise bad("partitionKey needs kind Hash or MultiHash, and version 1 or 2, if it names them")
    if len(paths) > 1 and (key.get("kind") == "Hash" or len(set(paths)) < len(paths)):
        raise bad("a partition key of several paths is of the kind MultiHash, and names each path once")
    definition["partitionKey"] = {"kind": "MultiHash" if len(paths) > 1 else "Hash", "version": 2, **key}
    ttl_s = definition.get("defaultTtl")
    if ttl_s is None:
        definition.pop("defaultTtl", None)
    elif type(ttl_s) is not int or not (ttl_s == -1 or 1 <= ttl_s <= TTL_MAX_S):
        raise bad(f"defaultTtl {str(ttl_s)[:80]!r}: give -1 or seconds from 1 to {TTL_MAX_S}")
    Indexing(definition.get("indexingPolicy"))
    for name, what in _REFUSED.items():
        if definition.get(name):
            raise unsupported(what)
    for name in ("uniqueKeyPolicy", "conflictResolutionPolicy"):
        if not isinstance(definition.get(name, {}), dict | None):
            raise bad(f"{name} must be a JSON object")
    unique = (definition.get("uniqueKeyPolicy") or {}).get("uniqueKeys")
    if not isinstance(unique, list | None):
        raise bad("uniqueKeyPolicy.uniqueKeys must be a JSON array")
    if unique:
        raise unsupported("a unique key policy")
    return definition


def _kept(throughput: offers.Throughput | None) -> dict[str, Json]:
    return {} if throughput is None else {_THROUGHPUT: msgspec.to_builtins(throughput)}


def _shown(definition: dict[str, Json], version: int) -> dict[str, Json]:
    """A definition as clients read it."""
    return {name: value for name, value in definition.items() if name != _THROUGHPUT} | {"_etag": etag_of(version)}


def _offer_of(owner: Database | Container) -> dict[str, Json] | None:
    throughput = owner.throughput
    if throughput is None and isinstance(owner, Container) and owner.database.throughput is None:
        throughput = offers.LEAST
    if throughput is None:
        return None
    of, rid = owner.definition, base64.b64decode(owner.rid, b"+-").hex()  # an offer's link is signed in lower case
    return offers.offer_of(owner.rid, rid, of["_self"], throughput, of["_etag"], of["_ts"])


def _names(path: str) -> tuple[str, ...]:
    return tuple(name.strip('"') for name in path.split("/") if name)


def _name(container: Container) -> str:
    return f"coll/{container.database.rid}/{container.rid}"

"""The effect of one operation on one item: a pure decision, alone as within a batch.

The order of the checks is the service's: the item must be there (404) before its ETag is looked at (412), and a
create does not look at ETags at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outbox.emulator.cosmos.catalog import TTL_MAX_S, Container
from outbox.emulator.cosmos.charges import read_ru, write_ru
from outbox.emulator.cosmos.history import StoredItem
from outbox.emulator.cosmos.patch import Patch
from outbox.emulator.cosmos.wire import (
    CONFLICT,
    CREATED,
    KEY_MISMATCH,
    NO_CONTENT,
    NOT_FOUND,
    NOT_MODIFIED,
    OK,
    PRECONDITION_FAILED,
    WRONG_KEY,
    Json,
    Rejection,
    bad,
    check_id,
    etag_of,
    key_of,
    parse_stored,
    rid_at,
    store_form,
    wire_form,
)

Kind = Literal["create", "read", "replace", "upsert", "delete", "patch"]


@dataclass(slots=True)
class Operation:
    """One operation on one item."""

    kind: Kind
    id: str
    body: dict[str, Json] | None = None
    patch: Patch | None = None
    if_match: str = ""
    if_none_match: str = ""
    refusal: Rejection | None = None
    """The refusal of an operation within a batch, whatever there is, which ends the batch in its turn."""
    new_id: str = ""
    """The id that the item has after a replace, where it is another."""


@dataclass(slots=True)
class Decision:
    """The effect of an operation: its status, the bytes to store (None: nothing), or that the item goes."""

    status: int
    stored: bytes | None = None
    deletes: bool = False
    charge_ru: float = 1.0


def whole(kind: Kind, body: dict[str, Json], container: Container, key: str, id: str = "") -> Operation:
    """An operation that writes an item as it came.

    Raises:
        Rejection: 400, its partition key is not what the request says, or its id or time to live is none.
    """
    own = check_id(body.get("id"))
    if key_of(body, container.key_paths) != key:
        raise bad(
            f"{WRONG_KEY} The partition key in the item is not the one in the request's header; send the item's own",
            substatus=KEY_MISMATCH,
        )
    ttl_s = body.get("ttl", -1)
    if not (type(ttl_s) is int and (ttl_s == -1 or 1 <= ttl_s <= TTL_MAX_S)):
        raise bad(f"ttl {str(ttl_s)[:80]!r}: give -1 or whole seconds from 1 to {TTL_MAX_S}, or leave it out")
    return Operation(kind, id or own, body, new_id=own if id and own != id else "")


@dataclass(frozen=True, slots=True)
class Moment:
    """When a write happens, and the resource id for an item that it makes."""

    now_ms: int
    fresh_rid: str


def decide(
    operation: Operation,
    current: StoredItem | None,
    container: Container,
    moment: Moment,
    at_new_id: StoredItem | None = None,
) -> Decision:
    """Decide the effect of an operation on an item (None: not there), and on the item at its new id.

    An item under another id is another item, with a resource id of its own and behind those that were there.

    Raises:
        Rejection: it is not done: 400, 404, 409, 412 or 413.
    """
    match operation.kind:
        case "read":
            return _read(operation, current)
        case "create":
            if current is not None:
                raise Rejection(CONFLICT, f"there is an item with the id {operation.id[:80]!r} already")
            return _written(operation, None, container, moment, CREATED)
        case "upsert":
            if current is None:  # the service makes it, whatever ETag is asked for
                return _written(operation, None, container, moment, CREATED)
            _check_etag(operation, current)
            return _written(operation, current, container, moment, OK)
    if current is None:
        raise Rejection(NOT_FOUND, f"there is no item {operation.id[:80]!r} under this partition key")
    _check_etag(operation, current)
    if operation.kind == "delete":
        terms = container.indexing.terms(_item(current))
        return Decision(
            NO_CONTENT, deletes=True, charge_ru=write_ru("delete", len(current.value), term_count=len(terms))
        )
    if operation.kind == "patch":
        return _patched(operation, current, container, moment)
    if at_new_id is not None:
        raise Rejection(CONFLICT, f"there is an item with the id {operation.new_id[:80]!r} already")
    return _written(operation, None if operation.new_id else current, container, moment, OK)


def _read(operation: Operation, current: StoredItem | None) -> Decision:
    if current is None:
        raise Rejection(NOT_FOUND, f"there is no item {operation.id[:80]!r} under this partition key")
    charge_ru = read_ru(len(current.value))
    if operation.if_none_match and _is_named(operation.if_none_match, current):
        return Decision(NOT_MODIFIED, charge_ru=charge_ru)
    return Decision(OK, charge_ru=charge_ru)


def _written(
    operation: Operation,
    current: StoredItem | None,
    container: Container,
    moment: Moment,
    status: int,
    patched: int = 0,
) -> Decision:
    assert operation.body is not None, "whole() gave it one"
    rid = moment.fresh_rid if current is None else rid_at(current.value)
    stored = store_form(operation.body, rid, f"{container.link}docs/{rid}/", moment.now_ms // 1_000)
    kind = "create" if current is None else "replace"
    terms = container.indexing.terms(operation.body)
    if current is not None:
        terms ^= container.indexing.terms(_item(current))
    charge_ru = write_ru(kind, len(stored), term_count=len(terms), patched_count=patched)
    return Decision(status, stored, charge_ru=charge_ru)


def _item(current: StoredItem) -> dict[str, Json]:
    """Parse a stored item."""
    return parse_stored(wire_form(current.value, current.version))


def _patched(operation: Operation, current: StoredItem, container: Container, moment: Moment) -> Decision:
    assert operation.patch is not None, "a patch operation has its patch"
    item = _item(current)
    key = key_of(item, container.key_paths)
    changed = operation.patch.apply(item)
    if changed.get("id") != operation.id or key_of(changed, container.key_paths) != key:
        raise bad("a patch can change neither the id nor the partition key of an item")
    # with the checks of an item that comes whole
    written = whole("replace", changed, container, key, operation.id)
    return _written(written, current, container, moment, OK, len(operation.patch.steps))


def _check_etag(operation: Operation, current: StoredItem) -> None:
    if operation.if_match and not _is_named(operation.if_match, current):
        now = f"its ETag is {etag_of(current.version)}"
        raise Rejection(
            PRECONDITION_FAILED, f"item {operation.id[:80]!r}: If-Match does not hold, {now}; read it again"
        )
    if operation.if_none_match and _is_named(operation.if_none_match, current):
        raise Rejection(PRECONDITION_FAILED, f"item {operation.id[:80]!r}: If-None-Match does not hold, it is there")


def _is_named(condition: str, current: StoredItem) -> bool:
    return condition == "*" or condition.strip('"') == etag_of(current.version).strip('"')

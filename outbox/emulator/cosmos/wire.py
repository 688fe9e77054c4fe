"""JSON from outside, parsed with limits, and the answers and rejections that the SDK knows.

An item is stored as the bytes of its JSON with `_rid`, `_self`, `_attachments` and `_ts` at the end; `_etag` is the
version under which the engine has it, and is put in when the item is read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from outbox.emulator import dialect

OK, CREATED, NO_CONTENT, MULTI_STATUS, NOT_MODIFIED = 200, 201, 204, 207, 304
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED = 400, 401, 403, 404, 405
CONFLICT, GONE, PRECONDITION_FAILED, TOO_LARGE = 409, 410, 412, 413
FAILED_DEPENDENCY, THROTTLED, RETRY_WITH, ERROR, UNAVAILABLE = 424, 429, 449, 500, 503

CODES = {
    BAD_REQUEST: "BadRequest",
    UNAUTHORIZED: "Unauthorized",
    FORBIDDEN: "Forbidden",
    NOT_FOUND: "NotFound",
    NOT_ALLOWED: "MethodNotAllowed",
    408: "RequestTimeout",
    CONFLICT: "Conflict",
    GONE: "Gone",
    PRECONDITION_FAILED: "PreconditionFailed",
    TOO_LARGE: "RequestEntityTooLarge",
    FAILED_DEPENDENCY: "FailedDependency",
    THROTTLED: "TooManyRequests",
    RETRY_WITH: "RetryWith",
    ERROR: "InternalServerError",
    UNAVAILABLE: "ServiceUnavailable",
}

# Substatuses
KEY_MISMATCH = 1001
SESSION_NOT_AVAILABLE = 1002
OWNER_NOT_FOUND = 1003
CROSS_PARTITION = 1004
CONTAINER_RECREATED = 1024
STORAGE_FULL = 1014

ITEM_SIZE_MAX_BYTES = 2 << 20
DEPTH_MAX = 128
ID_SIZE_MAX_BYTES = 1_023
KEY_SIZE_MAX_BYTES = 2_048
WRONG_KEY = (
    "Partition key provided either doesn't correspond to definition in the collection or doesn't match partition key "
    "field values specified in the document."
)
"""The service's sentence, which clients look for."""
SYSTEM_NAMES = ("_rid", "_self", "_etag", "_attachments", "_ts")
_BEYOND_DOUBLE = 1 << 1_023
_BAD_IN_ID = re.compile(r"[/\\?#]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
Json = Any


@dataclass(slots=True)
class Answer(dialect.Answer):
    """An answer with a JSON body, and its price."""

    body: bytes = b""
    charge_ru: float = 0.0


class Rejection(dialect.Refusal):
    """A request that is not granted; nothing was written."""

    def __init__(self, status: int, text: str, *, substatus: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.substatus = substatus
        self.retry_after_s = retry_after_s

    def answer(self) -> Answer:
        """The rejection as the wire has it."""
        headers = {}
        if self.substatus:
            headers["x-ms-substatus"] = str(self.substatus)
        if self.retry_after_s or self.status == THROTTLED:
            headers["x-ms-retry-after-ms"] = str(round(self.retry_after_s * 1_000))
        body = msgspec.json.encode({"code": CODES.get(self.status, "Error"), "message": printable(self.text)})
        return Answer(self.status, headers, body, 1.0)


def bad(text: str, *, substatus: int = 0) -> Rejection:
    """A request that can never be granted as it stands."""
    return Rejection(BAD_REQUEST, text, substatus=substatus)


def unsupported(what: str) -> Rejection:
    """A request for something that the service has and the emulator has not."""
    return bad(f"{what} is not supported by this emulator; docs/emulator-compatibility.md lists what is")


def printable(text: str) -> str:
    """Text that came from outside, so that it can be encoded."""
    return text.encode("utf-8", "replace").decode()


class Undefined:
    """The value of a missing property; unlike null."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED = Undefined()


def parse(data: bytes, what: str = "the body") -> Json:
    """The JSON value in bytes from outside.

    Raises:
        Rejection: 400, it is none or too deep.
    """
    if data[:3] == b"\xef\xbb\xbf":
        data = data[3:]
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise bad(f"{what} is not JSON: {error}") from error
    _check_depth(data, value, what)
    return value


parse_stored: Callable[[bytes], dict[str, Json]] = _decode
"""An item from the bytes of its JSON, which were checked when they came."""
parse_values: Callable[[str], list[Json]] = _decode
"""The values of a partition key out of its text."""


def parse_object(data: bytes, what: str = "the body") -> dict[str, Json]:
    """The JSON object in bytes from outside.

    Raises:
        Rejection: 400.
    """
    value = parse(data, what)
    if not isinstance(value, dict):
        raise bad(f"{what} must be a JSON object")
    return value


def encode(value: Json) -> bytes:
    """A value as JSON.

    Raises:
        Rejection: 400, it holds what JSON has not.
    """
    try:
        return _encode(value)
    except (OverflowError, UnicodeEncodeError, ValueError, TypeError) as error:
        raise bad(f"a value cannot be stored: {error}") from error


def _check_depth(data: bytes, value: Json, what: str) -> None:
    if data.count(b"{") + data.count(b"[") > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        raise bad(f"{what} is nested more than {DEPTH_MAX} levels deep")


def _depth(value: Json) -> int:
    depth, level = 0, [value]
    while level and depth <= DEPTH_MAX:
        below: list[Json] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
        nested = any(isinstance(one, dict | list) for one in level)
        depth, level = depth + nested, below
    return depth


def check_id(id: object) -> str:
    """The id of a resource, if it can be one.

    Raises:
        Rejection: 400, saying why not.
    """
    if not isinstance(id, str) or not id:
        raise bad("the input content is invalid because the required property 'id' is missing, empty or no string")
    if _BAD_IN_ID.search(id):
        raise bad(f"id {id[:80]!r} holds one of / \\ ? #, which no id may; encode it")
    try:
        size_bytes = len(id.encode())
    except UnicodeEncodeError as error:
        raise bad("an id must be text without lone surrogates") from error
    if size_bytes > ID_SIZE_MAX_BYTES:
        raise bad(f"an id of {size_bytes} bytes is over {ID_SIZE_MAX_BYTES}; shorten it")
    return id


def check_name(id: object) -> str:
    """The id of a database or a container, if it can be one: answers name it in a header.

    Raises:
        Rejection: 400, saying why not.
    """
    name = check_id(id)
    if _CONTROL.search(name):
        raise bad(f"id {name[:80]!r} holds a control character, which no database and no container may")
    return name


# Partition keys


def key_of(item: dict[str, Json], paths: tuple[tuple[str, ...], ...]) -> str:
    """The partition key of an item, in the form in which keys are compared.

    Raises:
        Rejection: 400, its value cannot be a key.
    """
    return key_text([_at(item, path) for path in paths])


def _at(item: Json, path: tuple[str, ...]) -> Json:
    for name in path:
        if not isinstance(item, dict) or name not in item:
            return UNDEFINED
        item = item[name]
    return item


def key_text(values: list[Json]) -> str:
    """The values of a partition key as text: JSON, with `{}` for undefined and one form for each number.

    Raises:
        Rejection: 400, a value cannot be part of a key.
    """
    if len(values) == 1 and isinstance(values[0], str):  # as most are
        data = _encode(values)
    else:
        data = encode([_key_part(value) for value in values])
    if len(data) > KEY_SIZE_MAX_BYTES + 4 * len(values):
        raise bad(f"a partition key of {len(data)} bytes is over {KEY_SIZE_MAX_BYTES}; shorten it")
    return data.decode()


def _key_part(value: Json) -> Json:
    if value is UNDEFINED or value == {}:
        return {}
    if isinstance(value, dict | list):
        raise bad("a partition key is a string, number, boolean or null", substatus=KEY_MISMATCH)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, int) and abs(value) >= _BEYOND_DOUBLE:
        raise bad("a partition key is a number that a double holds", substatus=KEY_MISMATCH)
    return value


def key_of_header(text: str, path_count: int) -> str:
    """The partition key that a request's header names.

    Raises:
        Rejection: 400, it is none or has the wrong number of values.
    """
    values = parse(text.encode("utf-8", "replace"), "the header x-ms-documentdb-partitionkey")
    if not isinstance(values, list):
        raise bad("the header x-ms-documentdb-partitionkey must be a JSON array")
    if not values:  # how clients name the absent key of containers that had none
        values = [UNDEFINED] * path_count
    if len(values) != path_count:
        raise bad(
            f"{WRONG_KEY} It has {len(values)} values where the container has {path_count} paths; give each",
            substatus=KEY_MISMATCH,
        )
    return key_text(values)


# Items as stored


def store_form(item: dict[str, Json], rid: str, self_link: str, ts_s: int) -> bytes:
    """The bytes to store of an item, with the system's properties in place of any that it brought.

    Raises:
        Rejection: 413, it is too large; 400, it cannot be JSON.
    """
    for name in SYSTEM_NAMES:
        item.pop(name, None)
    data = encode(item)
    _check_depth(data, item, "an item")
    if len(data) > ITEM_SIZE_MAX_BYTES:
        raise Rejection(
            TOO_LARGE, f"an item of {len(data)} bytes is over {ITEM_SIZE_MAX_BYTES}; move large values to a blob"
        )
    tail = f',"_rid":"{rid}","_self":"{self_link}","_attachments":"attachments/","_ts":{ts_s}}}'
    return data[:-1] + tail.encode()


def etag_of(version: int) -> str:
    """The ETag of a version, with its quotes."""
    return f'"{version:016x}"'


def wire_form(stored: bytes, version: int) -> bytes:
    """The JSON of an item as a client reads it."""
    return b'%b,"_etag":"\\"%016x\\""}' % (stored[:-1], version)


def rid_at(stored: bytes) -> str:
    """The `_rid` of an item as stored."""
    start = stored.rindex(b',"_rid":"') + 9
    return stored[start : stored.index(b'"', start)].decode()


def item_rid(container_rid: str, number: int) -> str:
    """The resource id of an item: its container's, and a number that grows."""
    return base64.b64encode(base64.b64decode(container_rid, b"+-") + number.to_bytes(8, "big"), b"+-").decode()


def number_of(rid: str) -> int:
    """The number in an item's resource id."""
    return int.from_bytes(base64.b64decode(rid, b"+-")[8:], "big")


class Times(msgspec.Struct):
    """The times that an item says of its life, in seconds: how long, and since when."""

    ttl: int | None = None
    written_s: int = msgspec.field(name="_ts", default=0)


times_of = msgspec.json.Decoder(Times).decode

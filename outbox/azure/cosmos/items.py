"""Documents as Cosmos DB items, and back.

    {"id": "inbox:5f..", "pk": "Account:alice", "body": {..}, "pending": true, "ttl": 604800}

A body is stored as the JSON object that it is, so that it can be queried where it lies, if it survives that: Cosmos DB
keeps numbers as IEEE doubles and forgets how they were written.  A body of which a single byte could come back changed
is stored as `text`, one that is no text as `base64`.  `pending` and `entry` repeat the body's members outside of it,
because they have an index, as nothing else has.  Of ids, what Cosmos DB does not take is written as `~` and two
hexadecimal digits.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any

import msgspec

from outbox.errors import CorruptRecord, TooLarge
from outbox.ports import Create, Document, DocumentKey, Replace, Session

PARTITION = "pk"
PARTITION_PATH = "/pk"
PENDING_PATH = "/pending/?"
ENTRY_PATH = "/entry/?"

ITEM_BYTES_MAX = 2 << 20
"""The largest item that Cosmos DB takes, and the largest batch."""
ENVELOPE_BYTES_MAX = 64 << 10
"""How much of that is kept for what goes round the bodies of a batch."""
BODY_BYTES_MAX = ITEM_BYTES_MAX - ENVELOPE_BYTES_MAX
ID_BYTES_MAX = 1_023
PARTITION_BYTES_MAX = 2_048
TTL_S_MAX = (1 << 31) - 1
DEPTH_MAX = 64
EXACT_MAX = 1 << 53
"""Up to here every whole number is an IEEE double."""
_AROUND_BYTES = 96
"""Names, quotes, flags and time to live round a body."""

_DOUBTFUL = re.compile(rb"[:\[,]-?[0-9](?:[0-9]{15}|[0-9]*[.eE])")
"""The start of a number that may come back changed; inside a text it costs only a needless check."""

_ESCAPED = re.compile(r"[/\\?#~%\s\x00-\x1f\x7f]")
_ESCAPES = re.compile(r"(?:~[0-9a-f]{2})+")


def to_item(write: Create | Replace) -> tuple[dict[str, Any], int]:
    """The item of a write, and its size in bytes.

    Raises:
        TooLarge: it is none that Cosmos DB takes.
    """
    key = write.key
    id, partition = encode_id(key.id), check_partition(key.partition)
    item: dict[str, Any] = {"id": id, PARTITION: partition}
    size_bytes = _AROUND_BYTES + _size_of(id) + _size_of(partition) + _put_body(item, write.body)
    if size_bytes > ITEM_BYTES_MAX:
        raise TooLarge(
            f"document {key.partition}/{key.id} takes {size_bytes} bytes, Cosmos DB takes "
            f"{ITEM_BYTES_MAX}; move large values to a blob"
        )
    if write.ttl_s is not None:
        item["ttl"] = min(TTL_S_MAX, max(1, math.ceil(write.ttl_s)))
    return item, size_bytes


def _put_body(item: dict[str, Any], body: bytes) -> int:
    """Put a body into an item in the form in which it survives; how many bytes that takes."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = None
    if isinstance(value, dict):
        if "pending" in value:
            item["pending"] = True
        if isinstance(entry := value.get("entry"), str):
            item["entry"] = entry
        if msgspec.json.encode(value) == body and (_is_plain(body) or _survives(value, DEPTH_MAX)):
            item["body"] = value
            return len(body)
    try:
        item["text"] = text = body.decode()
        return len(msgspec.json.encode(text))
    except UnicodeDecodeError:
        item["base64"] = encoded = b64encode(body).decode()
        return len(encoded)


def _is_plain(body: bytes) -> bool:
    """Whether a glance shows that a body survives: it is not deep, and no number is large or fractional."""
    return body.count(b"{") + body.count(b"[") <= DEPTH_MAX and _DOUBTFUL.search(body) is None


def _survives(value: object, depth: int) -> bool:
    """Whether a store that knows IEEE doubles only gives a value back as it was."""
    if isinstance(value, dict | list):
        values = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_survives(inner, depth - 1) for inner in values)
    if isinstance(value, float):
        return not value.is_integer()  # it would come back without its point
    return not isinstance(value, int) or abs(value) <= EXACT_MAX


def from_item(item: Mapping[str, Any], session: Session = "") -> Document:
    """The document that an item holds.

    Raises:
        CorruptRecord: it is none of ours.
    """
    try:
        return Document(DocumentKey(item[PARTITION], decode_id(item["id"])), _body_of(item), item["_etag"], session)
    except (KeyError, TypeError, ValueError, Base64Error) as error:
        where = f"{item.get(PARTITION)}/{item.get('id')}"
        raise CorruptRecord(f"item {where} is none of ours ({error!r}); who else writes to this container?") from error


def _body_of(item: Mapping[str, Any]) -> bytes:
    if "body" in item:
        return msgspec.json.encode(item["body"])
    if "text" in item:
        text: str = item["text"]
        return text.encode()
    return b64decode(item["base64"], validate=True)


def foreign(item: Mapping[str, Any]) -> Document:
    """An item that is none of ours as a document, so that decoding its body shows it."""
    key = DocumentKey(str(item.get(PARTITION)), str(item.get("id")))
    return Document(key, msgspec.json.encode({"pending": True, "foreign": True}), str(item.get("_etag", "")))


def encode_id(id: str) -> str:
    """An id as Cosmos DB takes it; different ids stay different, and a prefix stays one.

    Raises:
        TooLarge: it is too long, or empty.
    """
    if id.isascii() and 0 < len(id) <= ID_BYTES_MAX and not _ESCAPED.search(id):
        return id
    return _checked("id", _ESCAPED.sub(_escape, id), ID_BYTES_MAX)


def _escape(match: re.Match[str]) -> str:
    return "".join(f"~{byte:02x}" for byte in match[0].encode())


def decode_id(encoded: str) -> str:
    """The id that was encoded."""
    if "~" not in encoded:
        return encoded
    return _ESCAPES.sub(lambda match: bytes.fromhex(match[0].replace("~", "")).decode(), encoded)


def check_partition(partition: str) -> str:
    """A partition key value that Cosmos DB takes; it may hold any character.

    Raises:
        TooLarge: it is too long, or empty.
    """
    if partition.isascii() and 0 < len(partition) <= PARTITION_BYTES_MAX:
        return partition
    return _checked("partition", partition, PARTITION_BYTES_MAX)


def _checked(what: str, text: str, bytes_max: int) -> str:
    try:
        size_bytes = _size_of(text)
    except UnicodeEncodeError as error:
        raise TooLarge(f"{what} {text[:80]!r} holds half of a surrogate pair; give text that is Unicode") from error
    if not 0 < size_bytes <= bytes_max:
        raise TooLarge(f"{what} {text[:80]!r} has {size_bytes} bytes; Cosmos DB takes 1 to {bytes_max}: shorten it")
    return text


def _size_of(text: str) -> int:
    """How many bytes a text takes."""
    return len(text) if text.isascii() else len(text.encode())

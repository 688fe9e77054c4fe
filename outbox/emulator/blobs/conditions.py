"""Conditional headers: under which conditions a read or a write is done.

    reads   If-Match and If-Unmodified-Since and (If-None-Match or If-Modified-Since), each as far as it is there;
            what the client has already is a 304, what does not hold a 412
    writes  one of them, or one of the two pairs whose ETag decides; what does not hold is a 412, and where a blob was
            to be created and is there a 409

`If-None-Match: *` is for creating: a read refuses it, and other writes do not look at it, as the service does (a live
report is github.com/apache/opendal/issues/8176).  What is not there is a 404 whatever a read asks for, unlike in
Azurite (github.com/Azure/Azurite/issues/2751).  Times are compared in whole seconds, as headers have them.  An ETag may
come without its quotes.
Source: learn.microsoft.com/rest/api/storageservices/specifying-conditional-headers-for-blob-service-operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from outbox.emulator.blobs.catalog import Blob, etag_of
from outbox.emulator.blobs.requests import NOT_MODIFIED, Rejection, bad_header
from outbox.emulator.blobs.tags import TagCondition, read_condition

ETAG_COUNT_MAX = 100
ANY = "*"
_PAIRS = ({"if-match", "if-unmodified-since"}, {"if-none-match", "if-modified-since"})


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a request; None and empty ask for nothing."""

    match: frozenset[str] = frozenset()
    none_match: frozenset[str] = frozenset()
    modified_since_s: int | None = None
    unmodified_since_s: int | None = None
    tags: TagCondition | None = None


def read_conditions(headers: Mapping[str, str], *, is_write: bool, prefix: str = "") -> Conditions:
    """The conditions among a request's headers, of which all but the one on tags have a prefix.

    Raises:
        Rejection: 400, one is not in the right format, or a write has several.
    """
    found = {name for pair in _PAIRS for name in pair if headers.get(prefix + name)}
    if is_write and len(found) > 1 and found not in _PAIRS:
        raise Rejection("MultipleConditionHeadersNotSupported")
    if_tags, none_match = headers.get("x-ms-if-tags", ""), _etags(headers, prefix + "if-none-match")
    if not is_write and ANY in none_match:
        raise Rejection("UnsatisfiableCondition")
    return Conditions(
        _etags(headers, prefix + "if-match"),
        none_match,
        _seconds(headers, prefix + "if-modified-since"),
        _seconds(headers, prefix + "if-unmodified-since"),
        read_condition(if_tags, "x-ms-if-tags") if if_tags else None,
    )


def check_read(wanted: Conditions, blob: Blob) -> None:
    """Let a read pass whose conditions hold.

    Raises:
        Rejection: 304 or 412.
    """
    if not _may_proceed(wanted, blob) or not _has_tags(wanted, blob):
        raise Rejection("ConditionNotMet")
    if not _is_news(wanted, blob):
        raise Rejection("ConditionNotMet", status=NOT_MODIFIED, headers={"ETag": etag_of(blob.etag)})


def check_write(wanted: Conditions, blob: Blob | None, *, creates: bool = False) -> None:
    """Let a write pass whose conditions hold; `creates` says that it makes a blob where there is none.

    Raises:
        Rejection: 409 or 412.
    """
    if blob is None:
        if wanted.match or wanted.tags is not None:
            raise Rejection("ConditionNotMet")
        return
    if creates and ANY in wanted.none_match:
        raise Rejection("BlobAlreadyExists")
    if not _may_proceed(wanted, blob) or not _is_news(wanted, blob) or not _has_tags(wanted, blob):
        raise Rejection("ConditionNotMet")


def check_container(headers: Mapping[str, str], modified_ms: int) -> None:
    """Let an operation on a container pass whose conditions hold; they are times, nothing else.

    Raises:
        Rejection: 400 or 412.
    """
    check_write(read_conditions(headers, is_write=True), Blob(created_ms=modified_ms, modified_ms=modified_ms))


def _may_proceed(wanted: Conditions, blob: Blob) -> bool:
    """If-Match and If-Unmodified-Since."""
    if wanted.match and ANY not in wanted.match and etag_of(blob.etag) not in wanted.match:
        return False
    return wanted.unmodified_since_s is None or blob.modified_ms // 1_000 <= wanted.unmodified_since_s


def _is_news(wanted: Conditions, blob: Blob) -> bool:
    """If-None-Match or If-Modified-Since: where both are there, one that holds will do."""
    held: list[bool] = []
    if wanted.none_match:
        held.append(etag_of(blob.etag) not in wanted.none_match)
    if wanted.modified_since_s is not None:
        held.append(blob.modified_ms // 1_000 > wanted.modified_since_s)
    return any(held) or not held


def _has_tags(wanted: Conditions, blob: Blob) -> bool:
    return wanted.tags is None or wanted.tags.holds(blob.tags)


def _etags(headers: Mapping[str, str], name: str) -> frozenset[str]:
    text = headers.get(name, "")
    parts = [part.strip() for part in text.split(",")] if text else []
    if len(parts) > ETAG_COUNT_MAX or not all(parts):
        raise bad_header(name, f"1 to {ETAG_COUNT_MAX} ETags, joined by commas")
    return frozenset(part if part == ANY or part.startswith('"') else f'"{part}"' for part in parts)


def _seconds(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name, "")
    if not text:
        return None
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, OverflowError) as error:
        raise bad_header(name, "a date such as Mon, 23 Nov 2026 09:00:00 GMT") from error

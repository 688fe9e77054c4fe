"""The change feed: the latest version of every item, in the order in which they were written.

Where a reader stands is the version that it has seen, as an ETag.  What one batch wrote has one version and comes on
one page.  Deleted items are left out, as are versions that were overwritten, as in the service's `LatestVersion` mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import parsedate_to_datetime

from outbox.emulator.cosmos.answers import NOT_MODIFIED, Answer, bad, unsupported
from outbox.emulator.cosmos.catalog import Container
from outbox.emulator.cosmos.charges import query_ru
from outbox.emulator.cosmos.feeds import PAGE_SIZE_MAX_BYTES, Candidate, Page
from outbox.emulator.cosmos.history import Stored
from outbox.emulator.cosmos.values import written_s

LSN_DIGITS_MAX = 19
FEED = "incremental feed"


def start_of(mode: str, etag: str, container: Container) -> int:
    """The version behind which to read.

    Raises:
        Rejection: 400, the mode or the ETag is none that is known.
    """
    if mode.strip().lower() != FEED:
        raise unsupported(f"the change feed mode {mode[:40]!r}")
    if etag == "*":
        return container.version
    digits = etag.strip('"')
    if not digits.isascii() or not (digits.isdecimal() or not digits) or len(digits) > LSN_DIGITS_MAX:
        raise bad(f"the change feed cannot go on at {etag[:80]!r}; send the ETag of an answer")
    return int(digits or "0")


def since_of(date: str) -> int:
    """The second from which changes are wanted; 0 for all.

    Raises:
        Rejection: 400, it is no date.
    """
    if not date:
        return 0
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, TypeError, OverflowError) as error:
        raise bad(f"If-Modified-Since {date[:80]!r} is no date") from error


def page_of(items: Iterable[tuple[str, Stored]], after: int, since_s: int, page_count: int) -> tuple[Page, int]:
    """A page of the items written after a version, by key and item, and the version that it ends with.

    It ends where it has as many items or bytes as a page may, but not within what was written together.
    """
    page, size_bytes = Page([]), 0
    changed = sorted((item.version, key, item.value) for key, item in items if item.version > after)
    page.examined_count = len(changed)
    last = after
    for version, key, value in changed:
        if (len(page.results) >= page_count or size_bytes > PAGE_SIZE_MAX_BYTES) and version != last:
            break
        last = version
        if not since_s or written_s(value) >= since_s:
            page.results.append(Candidate(key, value, version).wire())
            size_bytes += len(page.results[-1])
    return page, last


def nothing_new(after: int) -> Answer:
    """The answer where nothing was written after a version."""
    return Answer(NOT_MODIFIED, charge_ru=query_ru(0, 0), headers={"etag": f'"{after}"'})

"""The range of bytes of a blob that a request asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from outbox.emulator.blobs.answers import Rejection, bad_header

_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?")


def read_range(headers: Mapping[str, str], size_bytes: int) -> tuple[int, int] | None:
    """The bytes asked for, from and up to (exclusive), or None for all; `x-ms-range` goes before `Range`.

    Raises:
        Rejection: 400, it is no range; 416, it begins behind the end.
    """
    wanted = headers.get("x-ms-range", "") or headers.get("range", "")
    if not wanted:
        return None
    found = _RANGE.fullmatch(wanted)
    if found is None:
        raise bad_header("x-ms-range", "say bytes=FIRST-LAST or bytes=FIRST-")
    first, last = int(found[1]), int(found[2]) if found[2] else size_bytes - 1
    if first >= size_bytes:
        raise Rejection("InvalidRange", headers={"Content-Range": f"bytes */{size_bytes}"})
    if last < first:
        raise bad_header("x-ms-range", "the last byte comes before the first")
    return first, min(last + 1, size_bytes)


def cut(pieces: Sequence[bytes], first: int, end: int) -> tuple[bytes, ...]:
    """The bytes from `first` up to `end` of what the pieces hold together, in pieces."""
    found, at = [], 0
    for piece in pieces:
        begin, stop = max(first - at, 0), min(end - at, len(piece))
        if begin < stop:
            found.append(piece if (begin, stop) == (0, len(piece)) else piece[begin:stop])
        at += len(piece)
        if at >= end:
            break
    return tuple(found)

"""LIKE: whether a text fits a pattern of `%` (any characters) and `_` (one character).

A pattern is cut at its `%` into segments.  The first and the last are anchored where the pattern does not begin or end
with `%`; of the others each is taken at its leftmost place behind the one before, which is never worse than a later
one.  A segment without `_` is found as a text is found, so the whole is linear.  One with `_` is found by its longest
piece, and every place that this leaves is a step of the budget.
"""

from __future__ import annotations

from typing import NamedTuple

from outbox.emulator.cosmos.query.budget import TEXT_STEP_LENGTH, Budget


class Segment(NamedTuple):
    """The text between two `%`: the pieces between its `_`, each with its place in the segment."""

    pieces: tuple[tuple[int, str], ...]
    length: int
    anchor: int
    """The index of the longest piece."""


class Pattern:
    """A pattern, read once."""

    def __init__(self, pattern: str, escape: str) -> None:
        """`escape` is the character before one that stands for itself; empty where there is none."""
        self._segments = [_segment(parts) for parts in _cut(pattern, escape)]

    def fits(self, text: str, budget: Budget) -> bool:
        """Whether a text fits.

        Raises:
            Rejection: 400, it takes too many steps.
        """
        segments = self._segments
        budget.spend(len(segments) + len(text) // TEXT_STEP_LENGTH)
        first, last = segments[0], segments[-1]
        if len(segments) == 1:
            return len(text) == first.length and _fits_at(first, text, 0, budget)
        end = len(text) - last.length
        if end < first.length or not _fits_at(first, text, 0, budget) or not _fits_at(last, text, end, budget):
            return False
        at = first.length
        for segment in segments[1:-1]:
            at = _found(segment, text, at, end, budget)
            if at < 0:
                return False
            at += segment.length
        return True


def _cut(pattern: str, escape: str) -> list[list[str | None]]:
    """The characters of each segment; None is any one."""
    segments: list[list[str | None]] = [[]]
    is_escaped = False
    for letter in pattern:
        if not is_escaped and escape and letter == escape:
            is_escaped = True
        elif letter == "%" and not is_escaped:
            segments.append([])
        else:
            segments[-1].append(None if letter == "_" and not is_escaped else letter)
            is_escaped = False
    inner = [segment for segment in segments[1:-1] if segment]
    return [segments[0], *inner, segments[-1]] if len(segments) > 1 else segments


def _segment(parts: list[str | None]) -> Segment:
    pieces: list[tuple[int, str]] = []
    begin = 0
    for index, part in enumerate([*parts, None]):
        if part is None:
            if index > begin:
                pieces.append((begin, "".join(one for one in parts[begin:index] if one)))
            begin = index + 1
    anchor = max(range(len(pieces)), key=lambda index: len(pieces[index][1]), default=0)
    return Segment(tuple(pieces), len(parts), anchor)


def _fits_at(segment: Segment, text: str, at: int, budget: Budget) -> bool:
    budget.spend(1 + len(segment.pieces) + segment.length // TEXT_STEP_LENGTH)
    return all(text.startswith(piece, at + offset) for offset, piece in segment.pieces)


def _found(segment: Segment, text: str, at: int, end: int, budget: Budget) -> int:
    """The leftmost place from `at` where a segment fits and ends by `end`; -1 where there is none."""
    if not segment.pieces:
        return at if at + segment.length <= end else -1
    offset, piece = segment.pieces[segment.anchor]
    behind = end - (segment.length - offset - len(piece))
    step_count = 1 + len(piece) // TEXT_STEP_LENGTH  # a search looks at all of the piece before it begins
    while (found := text.find(piece, at + offset, behind)) >= 0:
        budget.spend(step_count)
        at = found - offset
        if len(segment.pieces) == 1 or _fits_at(segment, text, at, budget):
            return at
        at += 1
    return -1

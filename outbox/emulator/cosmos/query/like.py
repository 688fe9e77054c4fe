"""LIKE: whether a text fits a pattern of `%` (any characters) and `_` (one character).

A pattern is cut at its `%` into segments and becomes a regular expression.  The first and the last segment are anchored
where the pattern does not begin or end with `%`; of the others each is taken at its leftmost place behind the one
before, which is never worse than a later one, so its group is atomic.  What that takes at most, a look at the longest
segment from each place of the text, counts in the budget.
"""

from __future__ import annotations

import re

from outbox.emulator.cosmos.query.budget import TEXT_STEP_LENGTH, Budget

LETTER_STEP_COUNT, SEGMENT_STEP_COUNT = 4, 50
"""The cost of reading a letter of a pattern, and one of its segments."""


class Pattern:
    """A pattern, read once."""

    def __init__(self, pattern: str, escape: str, budget: Budget) -> None:
        """`escape` is the character before one that stands for itself; empty where there is none.

        Raises:
            Rejection: 400, it takes too many steps.
        """
        budget.spend(LETTER_STEP_COUNT * len(pattern) + SEGMENT_STEP_COUNT * pattern.count("%"))
        segments: list[list[str]] = [[]]
        letters = iter(pattern)
        for letter in letters:
            if letter == escape:
                segments[-1].append(re.escape(next(letters, "")))
            elif letter == "%":
                segments.append([])
            else:
                segments[-1].append("." if letter == "_" else re.escape(letter))
        first, *inner = ["".join(segment) for segment in segments]
        last = f".*{inner.pop()}" if inner else ""
        atoms = [f"(?>.*?{segment})" for segment in inner if segment]
        self._expression = re.compile("".join((first, *atoms, last)), re.DOTALL)
        self._longest = max(1, *map(len, segments))

    def fits(self, text: str, budget: Budget) -> bool:
        """Whether a text fits.

        Raises:
            Rejection: 400, it takes too many steps.
        """
        budget.spend(1 + len(text) * self._longest // TEXT_STEP_LENGTH)
        return self._expression.fullmatch(text) is not None

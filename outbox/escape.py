"""Texts of others on one line of a log or a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape what a terminal obeys and what begins another line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

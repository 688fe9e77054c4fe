"""The command line's output, for a terminal of any encoding: a character that cannot be shown fails no command.

An answer is printed when the work is done.  So a character that the encoding of stdout lacks is written as JSON escapes
it, which leaves an answer in JSON what it was.  Of an error, secrets are redacted; an id that is an argument of a
command to paste is not, because the command would name nothing.
"""

from __future__ import annotations

import codecs
import re
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

from outbox.runtime.failures.redacting import redacted

ESCAPED = "outbox-escaped"


def show_anything(*streams: TextIO) -> None:
    """Let these streams, else stdout and stderr, escape what their encoding lacks."""
    codecs.register_error(ESCAPED, _escaped)
    for stream in streams or (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(ValueError, OSError):  # it is closed, or something else stands behind it
                stream.reconfigure(errors=ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


_COMMAND = re.compile(r"\boutbox(?: [a-z-]+){1,2}(?: [^`;\n]*)?")
_WORD = re.compile(r"(?<= )(?:'[^']*'|\"[^\"]*\"|[^\s'\"`;])+")
_IS_SECRET = re.compile(
    r"(?i)accountkey|sharedaccess|accesskey|apikey|passw|passphrase|pwd|secret|credential|bearer|://|;|\bsig=|&|\?"
)
"""The marks of a connection string, a signed URL or a password, which an id like `key=abc` lacks."""


def without_secrets(text: str) -> str:
    """A text without what looks like a secret, but with the ids in its commands."""
    kept: list[str] = []

    def keep(word: re.Match[str]) -> str:
        if redacted(word[0]) == word[0] or _IS_SECRET.search(word[0]) or "***" in _strict(word[0]):
            return word[0]
        kept.append(word[0])
        return f"\0{len(kept) - 1}\0"

    marked = _COMMAND.sub(lambda command: _WORD.sub(keep, command[0]), text.replace("\0", ""))
    return re.sub("\0(\\d+)\0", lambda mark: kept[int(mark[1])], redacted(marked))


def _strict(word: str) -> str:
    """Redact a word without the names before its values, to find a secret without a name, such as a token."""
    return redacted(re.sub(r"[\w.-]+[=:]", " ", word))

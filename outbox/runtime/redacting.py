"""What looks like a secret in a text is taken out before the text is kept or logged.

A name that speaks of a secret loses the value behind it, whatever quotes are round either; so do the password of a URL
and what follows `Basic` or `Bearer`.  Each character is looked at a bounded number of times: the text may be anybody's.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"""(?<![\w.-])([\w.-]++)[\\"']{0,4}+\s*+[=:]\s*+""")
_VALUE = re.compile(r"""\\?+"[^"]*+"?+ | \\?+'[^']*+'?+ | [^\s;&,'"]*+""", re.VERBOSE)
_URL = re.compile(r"://([^\s/:@]*+):[^\s/@]++@")
_SCHEME = re.compile(r"(?i)\b(basic|bearer)(\s++)[\w.~+/=-]{8,}+")
_WORDS = re.compile(r"(?i)passwd|password|pwd|secret|token|key|sig|credential")
_HARMLESS = ("error", "exception", "name")
"""How the name of a failure or of a name ends; neither `KeyError` nor `SharedAccessKeyName` is a secret's."""


def redacted(text: str) -> str:
    """A text without what looks like a secret."""
    text = _SCHEME.sub(r"\1\2***", _URL.sub(r"://\1:***@", text))
    parts: list[str] = []
    at = 0
    for name in _NAME.finditer(text):
        if name.start() < at or name[1].lower().endswith(_HARMLESS) or not _WORDS.search(name[1]):
            continue
        value = _VALUE.match(text, name.end())
        parts += [text[at : name.end()], "***"]
        at = name.end() if value is None else value.end()
    return "".join([*parts, text[at:]])

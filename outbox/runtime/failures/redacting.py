"""Redact what looks like a secret, before a text is stored or logged.

The value after a secret's name is replaced: a quoted or bracketed value, also after a `b` or a class name, up to its
end; any other value up to a space or a separator.  `code` is such a name only in a query, and the headers Authorization
and Cookie lose their whole line.  A name may be percent-encoded with its value (a signature in a URL that is itself a
parameter), an XML element, the name in a pair of name and value, or an option of a command line.  Also replaced: the
password of a URL, its user if that looks like a token, the text after `Basic`, `Bearer` or `ApiKey`, the signature
after `SharedKey`, a private key in PEM, and a JSON Web Token anywhere (RFC 7515: its header is base64url of `{"`, which
is `eyJ`).

Where the end of a secret is unclear, more is replaced rather than less.  Each character is read a bounded number of
times, because the text may be hostile.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

# Groups are not repeated possessively: up to Python 3.11.4 that goes on from where a part of the group has failed.
_NAME = re.compile(
    r"""(?<![\w.-])([\w.-]++)([\\"'\[\]]{0,8}+)\s*+"""
    r"(?:[=:]{1,2}+|(?<=\\)u003[dD]|&#(?:61|[xX]3[dD]);|(?i:(?<=password-)(?=>)))>?+\s*+"
)
_WORDS = re.compile(
    r"(?i:passwd|password|passphrase|passcode|pwd|secret|token|key|signature|credential"
    r"|connection[_-]?string|(?:authorization|cookies?)$)"
    r"|(?<![a-zA-Z])(?i:(?:pass|pw|jwt|creds|csrf|otp|pin)$|sig(?![a-z]))|(?<![a-zA-Z])sessionid$"
    r"|(?<=[a-z])(?:Pass$|Pw$|Sig(?![a-z]))"
)
_HARMLESS = ("error", "exception", "name")
"""Endings of harmless names: neither `KeyError` nor `SharedAccessKeyName` names a secret."""
_HEADER = re.compile(r"(?i)(?:authorization|cookie)$")
_BEHIND = {"code": ("?", "&", "&amp;"), "u0026code": ("\\",), "phrase": ("pass ", "Pass ", "PASS ")}
"""Names that are a secret's behind these texts only: Functions' query parameter, also as JSON escapes it; pass
phrases."""

_OPENED = re.compile(r"""(?i:[bru]{0,2})(\\*+)(["'])|(?:[\w.]*+)([(\[{])|(<)""")
_PLAIN = re.compile(r"""(?:(?i:basic|bearer|apikey|digest)\s++)?[^\s;&,'"]*+""")
_LINE = re.compile(r"[^\r\n]*+")
_QUOTE_OR_BRACKET = re.compile(r"""(?<!\\)(\\*+)(["'])|([(\[{])|([)\]}])""")
_QUOTE_OR_ANGLE = re.compile(r"""(?<!\\)(\\*+)(["'])|(<)|(>)""")
_QUOTE = {quote: re.compile(rf"(?<!\\)(\\*+){quote}") for quote in "\"'"}

_PAIRS = (
    re.compile(
        r"""(?<=["'])([\w.:-]{1,80}+)\\*+["'](?!\s*+:)(?=([^{}<>]{0,100}?\b[vV]alue(?:\\*+["'])?\s*+[=:]\s*+)[bru]?\\*+["'])"""
    ),
    re.compile(r"""\([bru]?["']([\w.:-]{1,80}+)["'](?=(,\s*+)[bru]?["'])"""),
    re.compile(r"""(?<=>)([\w.:-]{1,80}+)</[\w.:-]++>(?=(\s*+<[\w.:-]*[vV]alue\b[^<>]{0,200}+>))"""),
)
"""A secret's name that is itself a value, and the text between it and the secret."""
_OPTION = re.compile(r"""(?<![\w-])(--?([\w-]{1,80}+)(?:[ \t]++|["'],\s*+["']))(?!-)[^\s"',;]++""")
_HEADERS_KEY = re.compile(r"""(?<![\w-])((?i:x|ocp)-[\w-]{0,80}-(?i:key)[ \t]++)[^\s"',;]++""")
"""A key behind the name of a header without a colon, as `x-functions-key abc1`."""
_OPTIONS_WORDS = re.compile(
    r"(?i)passw|passphrase|pwd|\bpw$|secret|token|credential|(?:account|access|api|private)-?key|\bsas\b"
)
_LOOKS_SECRET = re.compile(r"\S*\d|\S{20}").match
"""Whether the text behind `--key` or a header's name, or a URL's user, is more than a word of prose."""
_COMMAND = "outbox "
"""The command line of ours, whose keys are a message's."""

_REFERENCE = re.compile(r"[A-Z][A-Z0-9_]*+=[\w-]++(?:/[\w-]++){1,2}")
"""The Spark jobs' `--secret`: a variable, and the vault and name of its value; no secret itself."""

_AUTHORITY = re.compile(r"://([^\s/:@\[\]]*+):")
_PORT = re.compile(r"""\d{1,5}+(?![^\s/?#"'<>,;)\]}])""")
_REST_OF_URL = re.compile(r"(?:(?!://)\S)*")
_USER = re.compile(r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://([\w.~%!$&*+=-]++)(@|\Z)")
"""The user of a URL without a password: it may be a token, but a storage account's is the container."""
_SCHEME = re.compile(r"(?i)\b((?:basic|bearer|apikey)\s++|sharedkey(?:lite)?\s++[a-z\d-]{1,80}+:)[\w.~+/=-]{8,}+")

_PEM = re.compile(r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----)(?s:.*?)(-----END |\Z)")
_TOKEN = re.compile(r"(?<![\w-])eyJ[\w-]{5,}+\.[\w-]{2,}+[\w.-]*+")
_ENCODED = re.compile(
    r"(?<![\w.-])((?:(?<=%)(?:25)*+[0-9A-Fa-f]{2})?)([\w.-]++)%(?:25)*+3[dD]((?:(?!%(?:25)*+26)[\w.~%+/=-])*)"
)
"""`sig%3Dabc%3D`: the text before the name, the name, and its value up to an ampersand, encoded any number of times."""
_ENCODED_QUERY = ("3f", "26")
_ELEMENT = re.compile(r"(?:<|&lt;)([\w.:-]++)([^<>&]{0,200}+)(?:>|&gt;)")
_CLOSING = re.compile(r"(?:<|&lt;)/([\w.:-]++)")
_CONTENT = re.compile(r"[^<]*+")
_UNENDED = re.compile(r"[^\s<&]*+")


def redacted(text: str, *, is_cut: bool = False) -> str:
    """Replace what looks like a secret by `***`.

    With `is_cut` the end of the text may be a secret whose mark was cut off: the @ behind a password.
    """
    text = _TOKEN.sub("***", _PEM.sub(r"\1***\2", text))
    text = _OPTION.sub(_without_argument, _HEADERS_KEY.sub(_without_key, _without_pairs(text)))
    text = _SCHEME.sub(r"\1***", _without_users(_without_passwords(text, is_cut=is_cut), is_cut=is_cut))
    text = _without_elements(_ENCODED.sub(_without_value, text))
    parts: list[str] = []
    at = 0
    for name in _NAME.finditer(text):
        if name.start() >= at and _is_secret(text, name):
            parts += [text[at : name.end()], "***"]
            at = _value_end(text, name)
    return "".join([*parts, text[at:]])


def _is_secret(text: str, name: re.Match[str]) -> bool:
    """Whether a name is a secret's, by itself or by the text before it."""
    ahead = _BEHIND.get(name[1].lower())
    return _is_secrets(name[1]) if ahead is None else text.endswith(ahead, 0, name.start())


def _is_secrets(name: str) -> bool:
    return not name.lower().endswith(_HARMLESS) and _WORDS.search(name) is not None


def _without_value(pair: re.Match[str]) -> str:
    """Redact the value of a percent-encoded pair whose name is a secret's."""
    is_code = pair[2].lower() == "code" and pair[1][-2:].lower() in _ENCODED_QUERY
    return pair[0].removesuffix(pair[3]) + "***" if is_code or _is_secrets(pair[2]) else pair[0]


def _without_argument(option: re.Match[str]) -> str:
    """Redact an option's argument if the option is a secret's, unless the argument only names one."""
    argument = option[0][len(option[1]) :]
    if option[2].lower() == "key":
        line = option.string[max(0, option.start() - 200) : option.start()].rpartition("\n")[2]
        is_secret = _LOOKS_SECRET(argument) is not None and _COMMAND not in line
    else:
        is_secret = _OPTIONS_WORDS.search(option[2]) is not None and not _REFERENCE.fullmatch(argument)
    return option[1] + "***" if is_secret else option[0]


def _without_key(header: re.Match[str]) -> str:
    return header[1] + "***" if _LOOKS_SECRET(header[0][len(header[1]) :]) else header[0]


def _without_pairs(text: str) -> str:
    """Redact the values of pairs such as `{"name": "AccountKey", "value": "..."}`."""
    for pattern in _PAIRS:
        parts: list[str] = []
        at = 0
        for pair in pattern.finditer(text):
            begin = pair.end(2)
            if begin < at or pair[1].lower() == "key" or not _is_secrets(pair[1]):
                continue
            opened = _OPENED.match(text, begin)
            parts += [text[at:begin], "***"]
            if opened is not None and opened[2]:
                at = _quoted_end(text, opened.end(), opened[2], len(opened[1]))
            else:
                at = _end(_CONTENT, text, begin)
        text = "".join([*parts, text[at:]])
    return text


def _without_elements(text: str) -> str:
    """Redact the content of XML elements named like a secret, up to their end tag if there is one."""
    parts: list[str] = []
    at = 0
    closings: dict[str, list[int]] = {}
    for closing in _CLOSING.finditer(text):
        closings.setdefault(closing[1], []).append(closing.start())
    for element in _ELEMENT.finditer(text):
        if element.start() < at or element[2].endswith("/") or not _is_secrets(element[1]):
            continue
        end = _element_end(text, element, closings.get(element[1], ()))
        if end > element.end():
            parts += [text[at : element.end()], "***"]
            at = end
    return "".join([*parts, text[at:]])


def _element_end(text: str, element: re.Match[str], closings: Sequence[int]) -> int:
    """The end of an element's content; `<Token object at 0x7f>` has attributes and no end tag, so it is none."""
    after = bisect_left(closings, element.end())
    if after < len(closings):
        return closings[after]
    return element.end() if element[2] else _end(_UNENDED, text, element.end())


def _value_end(text: str, name: re.Match[str]) -> int:
    """The end of the value behind a name."""
    at = name.end()
    if _HEADER.search(name[1]) and not name[2] and ":" in name[0]:
        return _end(_LINE, text, at)
    opened = _OPENED.match(text, at)
    if opened is None:
        return _end(_PLAIN, text, at)
    if opened[2]:
        return _quoted_end(text, opened.end(), opened[2], len(opened[1]))
    return _closed_end(text, opened.end(), _QUOTE_OR_BRACKET if opened[3] else _QUOTE_OR_ANGLE)


def _quoted_end(text: str, at: int, quote: str, slash_count: int) -> int:
    """Find the end of a quoted text: a quote behind at most as many backslashes as the first."""
    quotes = _QUOTE[quote].finditer(text, at)
    return next((found.end() for found in quotes if len(found[1]) <= slash_count), len(text))


def _closed_end(text: str, at: int, marks: re.Pattern[str]) -> int:
    """The end of brackets opened before `at`; brackets in quotes do not count."""
    depth = 1
    while depth and (mark := marks.search(text, at)) is not None:
        at = mark.end()
        if mark[2]:
            at = _quoted_end(text, at, mark[2], len(mark[1]))
        else:
            depth += 1 if mark[3] else -1
    return len(text) if depth else at


def _without_passwords(text: str, *, is_cut: bool) -> str:
    """Redact passwords of URLs; they may hold @ and slashes, so each ends at its URL's last @."""
    parts: list[str] = []
    kept = at = 0
    while (found := _AUTHORITY.search(text, at)) is not None:
        at = found.end()
        end = _end(_REST_OF_URL, text, at)
        is_open = is_cut and end == len(text)
        port = _PORT.match(text, at) if found[1] else None
        if port is not None and not (is_open and port.end() == end):
            continue
        last = end if is_open else text.rfind("@", at, end)  # the last @ may be behind the cut
        if last >= 0:
            parts += [text[kept:at], "***"]
            kept = last
        at = end
    return "".join([*parts, text[kept:]])


def _without_users(text: str, *, is_cut: bool) -> str:
    """Redact users of URLs that look like a token, and what a cut may have parted from its @."""

    def shown(user: re.Match[str]) -> str:
        is_secret = _LOOKS_SECRET(user[1]) if user[2] else is_cut
        return f"://***{user[2]}" if is_secret else user[0]

    return _USER.sub(shown, text)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()

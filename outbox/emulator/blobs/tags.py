"""Index tags: what a request sets, and conditions over them (`x-ms-if-tags`, `where`).

A condition is comparisons of one tag with a text, `"name" = 'value'`, joined by AND; in `x-ms-if-tags` also by OR,
which binds less.  `@container = 'name'` narrows a search.  Texts are compared character by character.
Source: learn.microsoft.com/azure/storage/blobs/storage-manage-find-blobs, rest/api/storageservices/find-blobs-by-tags.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

from outbox.emulator.blobs.requests import Rejection
from outbox.emulator.xml import leaf, read_leaves

TAG_COUNT_MAX = 10
NAME_LENGTH_MAX, VALUE_LENGTH_MAX = 128, 256
EXPRESSION_LENGTH_MAX = 8 << 10
CONTAINER = "@container"
_TAG = re.compile(r"[A-Za-z0-9 +\-./:=_]*")
_TOKEN = re.compile(
    r"""\s*(?:(?P<word>AND\b|OR\b)|(?P<name>@container\b|"(?:[^"]|"")*"|[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<operator>>=|<=|<>|=|>|<)|(?P<value>'(?:[^']|'')*'))""",
    re.IGNORECASE,
)
_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq, "<>": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tag compared with a text."""

    name: str
    operator: str
    value: str

    def holds(self, tags: Mapping[str, str]) -> bool:
        """Whether it holds for a blob with these tags; a tag that is not there is unequal to everything."""
        found = tags.get(self.name)
        return self.operator == "<>" if found is None else _OPERATORS[self.operator](found, self.value)


@dataclass(frozen=True, slots=True)
class TagCondition:
    """Alternatives, each of comparisons that must all hold."""

    alternatives: tuple[tuple[Comparison, ...], ...]

    def holds(self, tags: Mapping[str, str]) -> bool:
        """Whether it holds for a blob with these tags."""
        return any(all(one.holds(tags) for one in all_of) for all_of in self.alternatives)

    @property
    def names(self) -> frozenset[str]:
        """The tags that it asks about."""
        return frozenset(one.name for all_of in self.alternatives for one in all_of)


def read_condition(text: str, header: str) -> TagCondition:
    """A condition as a client writes it; `header` is what names it in a refusal.

    Raises:
        Rejection: 400.
    """
    is_search = header == "where"
    wrong = Rejection(
        "InvalidQueryParameterValue" if is_search else "InvalidHeaderValue",
        f"{header}: say \"tag\" = 'value', joined by AND",
    )
    if not 0 < len(text) <= EXPRESSION_LENGTH_MAX:
        raise wrong
    alternatives: list[tuple[Comparison, ...]] = []
    current: list[Comparison] = []
    tokens = _tokens(text, wrong)
    for at in range(0, len(tokens), 4):
        kinds = [kind for kind, _ in tokens[at : at + 3]]
        if kinds != ["name", "operator", "value"]:
            raise wrong
        name, sign, value = (word for _, word in tokens[at : at + 3])
        plain = name.lower() if name.startswith("@") else name.strip('"').replace('""', '"')
        current.append(Comparison(plain, sign, value[1:-1].replace("''", "'")))
        join = tokens[at + 3] if at + 3 < len(tokens) else None
        if join is not None and (join[0] != "word" or at + 4 >= len(tokens)):
            raise wrong
        if join is None or join[1].upper() == "OR":
            alternatives.append(tuple(current))
            current = []
    has_more = is_search and (len(alternatives) > 1 or any(one.operator == "<>" for one in alternatives[0]))
    if has_more or sum(map(len, alternatives)) > TAG_COUNT_MAX:
        raise wrong
    return TagCondition(tuple(alternatives))


def _tokens(text: str, wrong: Rejection) -> list[tuple[str, str]]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise wrong
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def read_header(text: str) -> dict[str, str]:
    """The tags of `x-ms-tags`, encoded as a query string.

    Raises:
        Rejection: 400.
    """
    pairs = (pair.partition("=") for pair in text.split("&")) if text else ()
    return _checked([(unquote_plus(name), unquote_plus(value)) for name, _, value in pairs])


def read_document(data: bytes) -> dict[str, str]:
    """The tags of a `Set Blob Tags` body.

    Raises:
        Rejection: 400.
    """
    try:
        leaves = read_leaves(data)
    except ValueError as error:
        raise Rejection("InvalidXmlDocument", str(error)) from error
    inner = [(path[2:], text) for path, text in leaves if path[:2] == ("Tags", "TagSet") and len(path) > 2]
    names = [text for path, text in inner if path == ("Tag", "Key")]
    values = [text for path, text in inner if path == ("Tag", "Value")]
    is_known = all(path[0] == "Tags" for path, _ in leaves) and len(names) + len(values) == len(inner)
    if not is_known or len(names) != len(values):
        raise Rejection("InvalidXmlDocument", "say Tags, TagSet, and a Tag with Key and Value for each")
    return _checked(list(zip(names, values, strict=True)))


def _checked(pairs: list[tuple[str, str]]) -> dict[str, str]:
    tags = dict(pairs)
    if len(pairs) > TAG_COUNT_MAX:
        raise Rejection("TagsTooLarge")
    if len(tags) != len(pairs):
        raise Rejection("DuplicateTagNames")
    for name, value in pairs:
        if not name:
            raise Rejection("EmptyTagName")
        is_short = len(name) <= NAME_LENGTH_MAX and len(value) <= VALUE_LENGTH_MAX
        if not is_short or not _TAG.fullmatch(name) or not _TAG.fullmatch(value):
            raise Rejection("InvalidTag")
    return tags


def document(tags: Mapping[str, str]) -> str:
    """Tags as an element."""
    each = (f"<Tag>{leaf('Key', name)}{leaf('Value', value)}</Tag>" for name, value in tags.items())
    return f"<Tags><TagSet>{''.join(each)}</TagSet></Tags>"

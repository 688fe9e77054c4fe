"""Links of Markdown: where they are, and the same text with others in their place.

Code blocks and code in a line have none.  Pages are written here for a forge, with links that are relative to their
file; nothing but the target of a link is ever changed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCED = re.compile(r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(
    r"(?P<ticks>`+)(?:(?!\n\n).)*?(?P=ticks)"  # code: what looks like a link in it is none
    r"|(?P<opens>^(?:\| |- ))?(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\[\]`])*)\]\((?P<target>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Link:
    """One link or picture; `opens` where a row of a table or a list begins with it."""

    text: str
    target: str
    is_image: bool = False
    opens: bool = False

    @property
    def is_outside(self) -> bool:
        """Whether it leads to another host."""
        return ":" in self.target.partition("/")[0]

    @property
    def anchor(self) -> str:
        """The part from `#` on, with it; empty where there is none."""
        return self.target[len(self.target.partition("#")[0]) :]

    def path_from(self, page: str) -> str:
        """The path of the file it leads to, from the root of the repository as `page` is."""
        path = self.target.partition("#")[0]
        return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page


def links(text: str) -> Iterator[Link]:
    """Every link and picture outside code, in order."""
    for part in _between_fences(text):
        for found in _LINK.finditer(part):
            if found["target"]:
                yield _link(found)


def with_targets(text: str, target_of: Callable[[Link], str]) -> str:
    """The same text with another target in every link and picture outside code."""

    def turned(found: re.Match[str]) -> str:
        if not found["target"]:
            return found[0]
        start, end = found.span("target")
        return found[0][: start - found.start()] + target_of(_link(found)) + found[0][end - found.start() :]

    pieces, begin = [], 0
    for fence in _FENCED.finditer(text):
        pieces += [_LINK.sub(turned, text[begin : fence.start()]), fence[0]]
        begin = fence.end()
    return "".join([*pieces, _LINK.sub(turned, text[begin:])])


def _between_fences(text: str) -> Iterator[str]:
    begin = 0
    for fence in _FENCED.finditer(text):
        yield text[begin : fence.start()]
        begin = fence.end()
    yield text[begin:]


def _link(found: re.Match[str]) -> Link:
    text = " ".join(found["text"].split())
    return Link(text, found["target"], is_image=bool(found["image"]), opens=bool(found["opens"]))

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
    for part, is_block in _parts(text):
        if not is_block:
            yield from (_link(found) for found in _LINK.finditer(part) if found["target"])


def with_targets(text: str, target_of: Callable[[Link], str]) -> str:
    """The same text with another target in every link and picture outside code."""

    def turned(found: re.Match[str]) -> str:
        if not found["target"]:
            return found[0]
        start, end = (place - found.start() for place in found.span("target"))
        return found[0][:start] + target_of(_link(found)) + found[0][end:]

    return "".join(part if is_block else _LINK.sub(turned, part) for part, is_block in _parts(text))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The whole text in pieces, each with whether it is a block of code."""
    begin = 0
    for fence in _FENCED.finditer(text):
        yield text[begin : fence.start()], False
        yield fence[0], True
        begin = fence.end()
    yield text[begin:], False


def _link(found: re.Match[str]) -> Link:
    text = " ".join(found["text"].split())
    return Link(text, found["target"], is_image=bool(found["image"]), opens=bool(found["opens"]))

"""The navigation of the site, read off docs/README.md: its groups, and the pages of a folder below the folder's README.

A row of a table or a list that begins with a link names its page in the navigation; a link further on in a row brings
its page in under the page's own heading.  A page that neither docs/README.md nor the README of a folder above it links
to is a mistake, because nobody would find it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.site.markdown import Link, links

INDEX = "docs/README.md"
HOME = "README.md"


class SiteError(Exception):
    """The site cannot be made of these pages; the text says what to mend."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One page in the navigation, under the page's own heading where `title` is empty."""

    page: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """One heading of docs/README.md with its pages; the first group has no heading."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Navigation:
    """The groups of the first page, and below a folder's README the pages of that folder."""

    groups: tuple[Group, ...]
    below: Mapping[str, tuple[Entry, ...]]


def groups(text: str, page: str = INDEX) -> tuple[Group, ...]:
    """Every group of an index page, each linked page once: in the group that names it first."""
    titles = ["", *re.findall(r"^## (.+)$", text, re.MULTILINE)]
    sections = re.split(r"^## .+$", text, flags=re.MULTILINE)
    seen: set[str] = set()
    found = []
    for title, section in zip(titles, sections, strict=True):
        entries = []
        for link in _inside(section):
            path = link.path_from(page)
            if path not in seen and path != page:
                seen.add(path)
                entries.append(Entry(path, link.text if link.opens else ""))
        found.append(Group(title, tuple(entries)))
    return tuple(found)


def navigation(texts: Mapping[str, str]) -> Navigation:
    """Place every page of `texts`, by path.

    Raises:
        SiteError: a page is in no group.
    """
    listed = groups(texts[INDEX])
    named = {entry.page for group in listed for entry in group.entries}
    below: dict[str, tuple[Entry, ...]] = {}
    moved: set[str] = set()
    for readme in sorted((page for page in named if page.endswith("/README.md")), key=len, reverse=True):
        inner = [page for page in _pages_below(readme, texts) if page not in moved]  # the deepest folder comes first
        below[readme] = tuple(Entry(page) for page in inner)
        moved.update(inner)
    if lost := sorted(set(texts) - named - moved - {HOME, INDEX}):
        raise SiteError(
            f"in no group: {', '.join(lost)}; link each from {INDEX}, or from the README.md of its folder "
            f"if {INDEX} links to that"
        )
    kept = (Group(each.title, tuple(entry for entry in each.entries if entry.page not in moved)) for each in listed)
    return Navigation(tuple(group for group in kept if group.entries), below)


def toctree(caption: str, entries: Sequence[tuple[str, str]]) -> str:
    """The block that makes documents, each with a title or none, part of the navigation."""
    head = [f":caption: {caption}"] if caption else []
    lines = [f"{title} <{document}>" if title else document for document, title in entries]
    return "\n".join(["", "```{toctree}", ":hidden:", *head, "", *lines, "```", ""])


def _inside(text: str) -> list[Link]:
    return [link for link in links(text) if not link.is_image and not link.is_outside]


def _pages_below(readme: str, texts: Mapping[str, str]) -> list[str]:
    """Every page in the folder of a README which it links to, in its order."""
    folder = posixpath.dirname(readme) + "/"
    found = (link.path_from(readme) for link in _inside(texts[readme]))
    return [page for page in dict.fromkeys(found) if page.startswith(folder) and page != readme and page in texts]

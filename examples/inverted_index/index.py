"""The pipeline: pages come in, and changes of the index leave, in the order of the pages.

    pages -> words (by page: what its last version had) -> update (by word: its places) -> changes

A word that a new version of a page does not have any more is found by the page's state, so the first reduce puts it
out without places, and the second one removes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from examples.inverted_index.positions import NEXT, POSITIONS_MAX, RANGE_MAX, Place, place_of, start_of
from outbox.streams import Emit, MapState, OrderedLog, Pipeline

Index = dict[str, dict[int, tuple[int, ...]]]
"""Words, the pages that have them, and where, as packed places."""


@dataclass
class Page:
    """A version of a page; one that is gone has no text."""

    number: int
    version: int
    path: str
    text: str


@dataclass
class Word:
    """The places of a word in a version of a page; none where it is gone."""

    text: str
    page: int
    places: tuple[int, ...]


@dataclass
class Change:
    """`ADD`: a word is at these places, too.  `REMOVE`: it is not at `range` of its places in a page, from `places[0]`.

    One class is encoded faster than a union of two.
    """

    kind: Literal["ADD", "REMOVE"]
    word: str
    places: tuple[int, ...]
    range: int = 0


@dataclass
class Content:
    """The words of a page's last version."""

    words: list[str] = field(default_factory=list)


@dataclass
class Postings:
    """The places of a word, by page; a checkpoint writes the pages that changed."""

    pages: MapState[int, tuple[int, ...]] = field(default_factory=MapState)

    def replace(self, page: int, places: tuple[int, ...]) -> tuple[int, ...]:
        """Take the places of a new version, and return those of the one before."""
        before = self.pages.get(page, ())
        if places:
            self.pages[page] = places
        elif before:
            del self.pages[page]
        return before


def page_of(page: Page) -> int:
    return page.number


def text_of(word: Word) -> str:
    return word.text


def places_in(page: Page) -> dict[str, list[int]]:
    """The words of a page, and where they are."""
    found: dict[str, list[int]] = {}
    place = Place(page.number, 0, page.version).packed()
    for word in re.findall(r"\w+", page.text.lower())[:POSITIONS_MAX]:
        found.setdefault(word, []).append(place)
        place += NEXT
    return found


def words(content: Content, page: Page, emit: Emit[Word]) -> None:
    """What a version of a page has, and what the one before had and this one has not."""
    found = places_in(page)
    for text, places in found.items():
        emit(Word(text, page.number, tuple(places)))
    for text in sorted(set(content.words) - found.keys()):
        emit(Word(text, page.number, ()))
    content.words = [*found]


def update(postings: Postings, word: Word, emit: Emit[Change]) -> None:
    """The changes of the index."""
    before = postings.replace(word.page, word.places)
    for begin in range(0, len(before), RANGE_MAX):
        count = min(RANGE_MAX, len(before) - begin)
        emit(Change("REMOVE", word.text, (start_of(before[begin], count),), count))
    if word.places:
        emit(Change("ADD", word.text, word.places))


class Indexing:
    """The pipeline and its logs on a place, such as an engine."""

    def __init__(self, place: Any, *, poll_s_max: float = 1.0) -> None:
        self.pages = OrderedLog("pages", place, type=Page, poll_s_max=poll_s_max)
        self.changes = OrderedLog("changes", place, type=Change, poll_s_max=poll_s_max)
        self.pipeline = Pipeline("index", source=self.pages)
        split = self.pipeline.reduce(source=self.pages, key=page_of, state=Content, emits=Word)(words)
        self.update = self.pipeline.reduce(split, key=text_of, state=Postings, emits=Change)(update)
        self.pipeline.sink(self.update, self.changes)


# The same by other ways, to compare with


def built_at_once(pages: Iterable[Page]) -> Index:
    """The index of the last version of each page."""
    last = {page.number: page for page in pages}
    found: Index = {}
    for number, page in last.items():
        for text, places in places_in(page).items():
            found.setdefault(text, {})[number] = tuple(places)
    return found


def built_of(changes: Iterable[Change]) -> Index:
    """The index that somebody has who follows the changes.

    Raises:
        ValueError: a change does not fit what there is, so one is missing or there twice.
    """
    found: Index = {}
    for change in changes:
        pages = found.setdefault(change.word, {})
        if change.kind == "REMOVE":
            start = place_of(change.places[0])
            there = pages.pop(start.page, ())
            if not there or place_of(there[0])._replace(range=1) != start._replace(range=1) or len(there) < start.range:
                raise ValueError(f"{change} does not fit {there}")
            if there[start.range :]:
                pages[start.page] = there[start.range :]
        else:
            page = place_of(change.places[0]).page
            if page in pages:
                raise ValueError(f"{change} is there twice, or {pages[page]} was not removed")
            pages[page] = change.places
    return {word: pages for word, pages in found.items() if pages}

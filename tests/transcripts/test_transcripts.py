"""Each page is what the code of today does: a change of the protocol is seen as a diff of these pages."""

from __future__ import annotations

from difflib import unified_diff

import pytest

from tests.transcripts.stories import FOLDER, STORIES, path_of, played


def difference(name: str, page: str) -> str:
    """What differs between a page as it lies there and as it was played just now; empty: nothing."""
    path = path_of(name)
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    where = path.relative_to(FOLDER.parent.parent).as_posix()
    lines = unified_diff(known.splitlines(), page.splitlines(), where, "as played", lineterm="")
    return "\n".join(lines)


@pytest.mark.parametrize("name", STORIES)
async def test_a_transcript_is_what_the_code_does(name: str) -> None:
    changes = difference(name, await played(name))
    cure = "is this change meant? `python -m tests.transcripts --write` writes the pages anew; read their diff"
    assert not changes, f"{cure}\n{changes}"


async def test_a_story_played_twice_gives_the_same_page() -> None:
    assert await played("10_request_asked_twice") == await played("10_request_asked_twice")


def test_every_page_has_a_story() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(STORIES)


def test_a_page_is_narrow_enough_to_be_read() -> None:
    long = [
        line for name in STORIES for line in path_of(name).read_text(encoding="utf-8").splitlines() if len(line) > 120
    ]
    assert long == []

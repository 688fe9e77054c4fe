"""The lists of the page about a message's way, made by running one: `python -m tests.docs.the_way`."""

from __future__ import annotations

import asyncio
import re

from tests.docs.blocks import ROOT
from tools.arrows import picture
from tools.way import SCOPES, text, way

PAGE = ROOT / "docs/protocol/the-way.md"
TO_READ = {"Engine scope": "engine", "Partition scope": "partition", "Item scope": "item", "Requests over HTTP": "http"}


def to_read(page: str) -> dict[str, list[str]]:
    """The files that the page says are to be read, by scope, in its order."""
    sections = re.findall(r"^### (.+?)\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    return {TO_READ[title]: re.findall(r"^\d\. `(.+?)`", body, re.MULTILINE) for title, body in sections}


def written(page: str) -> str:
    """The page with what a run gives now."""
    after = "\n\n".join(text(scope, asyncio.run(way(scope))) for scope in SCOPES)
    made = {"imports": f"```text\n{picture(ROOT, 'outbox.runtime')}\n```", "files": f"```text\n{after}\n```"}
    for name, content in made.items():
        place = re.search(rf"<!-- way {name}: [^>]*-->\n(.*?)<!-- /way {name} -->", page, re.DOTALL)
        assert place, f"the page has no place for {name}"
        page = f"{page[: place.start(1)]}{content}\n{page[place.end(1) :]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

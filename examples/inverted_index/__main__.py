"""Index a folder of text, again and again: what has changed since the last time.

    python -m examples.inverted_index FOLDER [--data index.data] [--find WORD ...]

It may be killed at any time; started again it goes on.  At the end it compares the index with one that is built at
once, and with what somebody has who followed the changes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from examples.inverted_index.index import Index, Indexing, Page, built_at_once, built_of
from examples.inverted_index.positions import PAGES_MAX, place_of
from outbox.engine.engine import Engine

TEXT_BYTES_MAX = 1 << 20
PAGES_AT_ONCE = 10


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """The text files of a folder by their paths; without binary ones and what is over 1 MiB."""
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        if file.is_file() and not any(part.startswith(".") for part in path.split("/")):
            data = file.read_bytes() if file.stat().st_size <= TEXT_BYTES_MAX else b"\0"
            if b"\0" not in data:
                yield path, data.decode(errors="replace")


def new_versions(folder: Path, known: dict[str, Page]) -> Iterator[Page]:
    """The pages that are not as they were, or gone; each gets the number that it had."""
    found = dict.fromkeys(known, "") | dict(texts(folder))
    for path, text in sorted(found.items()):
        before = known.get(path)
        if before is None and len(known) >= PAGES_MAX:
            raise SystemExit(
                f"{path}: the index holds {PAGES_MAX} pages; give the others a folder and --data of their own"
            )
        if before is None or before.text != text:
            number = len(known) if before is None else before.number
            known[path] = Page(number, 0 if before is None else before.version + 1, path, text)
            yield known[path]


async def run(folder: Path, data: Path, find: list[str]) -> int:
    """Bring the index up to date, and compare it."""
    async with Engine.open(data) as engine:
        index = Indexing(engine)
        known = {entry.value.path: entry.value async for entry in index.pages.read()}
        async with index.pipeline.run(engine, checkpoint_s=0.1) as running:
            for count, page in enumerate(new_versions(folder, known), 1):
                await index.pages.append(page, id=f"{page.number}.{page.version}")
                if count % PAGES_AT_ONCE == 0:
                    await running.until(await index.pages.end())
                    print(f"{count} pages indexed", flush=True)
            await running.until(await index.pages.end())
            view: Index = {}
            async for word, postings in running.items(index.update):
                if postings.pages:
                    view[str(word)] = dict(postings.pages)
        changes = [entry.value async for entry in index.changes.read()]
        is_same = view == built_at_once(known.values()) == built_of(changes)
    print(f"{len(known)} pages, {len(view)} words, {len(changes)} changes")
    paths = {page.number: page.path for page in known.values()}
    for word in find:
        for number, places in view.get(word.lower(), {}).items():
            print(f"{word}: {paths[number]}: words {', '.join(str(place_of(each).position) for each in places)}")
    print("the same as built at once" if is_same else "NOT the same as built at once")
    return 0 if is_same else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.inverted_index", description="Index a folder of text.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=Path("index.data"), help="the engine's folder (index.data)")
    parser.add_argument("--find", nargs="+", default=[], metavar="WORD", help="print where these words are")
    options = parser.parse_args(arguments)
    return asyncio.run(run(options.folder, options.data, options.find))


if __name__ == "__main__":
    sys.exit(main())

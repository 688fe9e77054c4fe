"""The inverted index: what changes, that it is the index that is built at once, and a process that is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from examples.inverted_index.__main__ import main
from examples.inverted_index.index import (
    Change,
    Content,
    Indexing,
    Page,
    Postings,
    built_at_once,
    built_of,
    update,
    words,
)
from examples.inverted_index.positions import Place, place_of
from outbox.engine.engine import Engine
from outbox.streams.pipeline.operators import Emitted

ROOT = Path(__file__).resolve().parents[2]


def at(page: int, position: int, version: int = 0) -> int:
    return Place(page, position, version).packed()


def changes_of(pages: list[Page]) -> list[Any]:
    """What the operators put out for these pages, without a pipeline."""
    contents: dict[int, Content] = {}
    postings: dict[str, Postings] = {}
    changes: Emitted[Any] = Emitted()
    for page in pages:
        made: Emitted[Any] = Emitted()
        words(contents.setdefault(page.number, Content()), page, made)
        for word in made:
            update(postings.setdefault(word.text, Postings()), word, changes)
    return [*changes]


async def released(engine: Engine) -> tuple[list[Page], list[Any]]:
    index = Indexing(engine)
    pages = [entry.value async for entry in index.pages.read()]
    return pages, [entry.value async for entry in index.changes.read()]


@pytest.mark.parametrize("place", [Place(0, 0, 0), Place((1 << 24) - 1, (1 << 20) - 1, 255, 4095), Place(5, 4, 3, 2)])
def test_a_place_is_one_number_of_64_bits(place: Place) -> None:
    assert place_of(place.packed()) == place and 0 <= place.packed() < 1 << 64


def test_a_new_version_removes_what_the_one_before_had() -> None:
    pages = [Page(7, 0, "p", "A b a"), Page(8, 0, "q", "b"), Page(7, 1, "p", "b c")]
    assert changes_of(pages) == [
        Change("ADD", "a", (at(7, 0), at(7, 2))),
        Change("ADD", "b", (at(7, 1),)),
        Change("ADD", "b", (at(8, 0),)),
        Change("REMOVE", "b", (at(7, 1),), 1),
        Change("ADD", "b", (at(7, 0, 1),)),
        Change("ADD", "c", (at(7, 1, 1),)),
        Change("REMOVE", "a", (Place(7, 0, 0, 2).packed(),), 2),
    ]


def test_a_word_that_is_there_more_often_than_a_range_holds_is_removed_in_pieces() -> None:
    pages = [Page(0, 0, "p", "a " * 9_000), Page(0, 1, "p", "b")]
    changes = changes_of(pages)
    assert [each.range for each in changes if each.kind == "REMOVE"] == [4_095, 4_095, 810]
    assert built_of(changes) == built_at_once(pages) == {"b": {0: (at(0, 0, 1),)}}


def is_index_of(changes: list[Any], pages: list[Page]) -> bool:
    try:
        return built_of(changes) == built_at_once(pages)
    except ValueError:
        return False


def test_a_change_that_is_missing_or_there_twice_is_found() -> None:
    pages = [Page(0, 0, "p", "a b"), Page(0, 1, "p", "a")]
    changes = changes_of(pages)
    assert is_index_of(changes, pages)
    for index in range(len(changes)):
        assert not is_index_of([*changes[: index + 1], *changes[index:]], pages)
        assert not is_index_of([*changes[:index], *changes[index + 1 :]], pages)


async def test_versions_through_restarts_are_the_index_that_is_built_at_once(tmp_path: Path) -> None:
    random, pages = Random(3), []
    for number in range(60):
        path, text = random.randrange(6), " ".join(random.choices("abcdefgh", k=random.randrange(9)))
        pages.append(Page(path, number, f"{path}", text))
    for begin in range(0, len(pages), 15):
        async with Engine.open(tmp_path) as engine:
            index = Indexing(engine)
            async with index.pipeline.run(engine, checkpoint_s=0.01, replicas=2) as running:
                for page in pages[begin : begin + 15]:
                    await index.pages.append(page, id=f"{page.version}")
                    await running.until(await index.pages.end())
                view = {word: dict(found.pages) async for word, found in running.items(index.update) if found.pages}
            done, changes = await released(engine)
            assert view == built_at_once(done) == built_of(changes)
    assert changes == changes_of(pages)


def write_pages(folder: Path, count: int, seed: int) -> None:
    random = Random(seed)
    folder.mkdir(exist_ok=True)
    for number in range(count):
        words = (f"w{min(random.randrange(300), random.randrange(300))}" for _ in range(200))
        (folder / f"{number:03}.txt").write_text(" ".join(words))


def released_in(data: Path) -> tuple[list[Page], list[Any]]:
    async def read() -> tuple[list[Page], list[Any]]:
        async with Engine.open(data) as engine:
            return await released(engine)

    return asyncio.run(read())


def test_a_process_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, data = tmp_path / "text", tmp_path / "data"
    command = [sys.executable, "-m", "examples.inverted_index", str(folder), "--data", str(data)]
    for seed, kill_after in ((1, 3), (2, 5)):  # new pages, then new versions of them
        write_pages(folder, 120, seed)
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(kill_after):
                assert "pages indexed" in process.stdout.readline()
            process.kill()
        pages, changes = released_in(data)
        assert 120 * (seed - 1) < len(pages) < 120 * seed and changes  # it was in the middle
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and "the same as built at once" in done.stdout, done.stdout + done.stderr
    pages, changes = released_in(data)
    assert len(pages) == 240 and changes == changes_of(pages)


def test_files_that_change_or_go_are_new_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = tmp_path / "text", tmp_path / "data"
    folder.mkdir()
    (folder / "one.txt").write_text("a fox and a dog")
    (folder / "two.txt").write_text("a fox")
    (folder / "three.bin").write_bytes(b"fox\0")
    arguments = [str(folder), "--data", str(data), "--find", "Fox"]
    assert main(arguments) == 0
    assert "2 pages, 4 words, 6 changes\nFox: one.txt: words 1\nFox: two.txt: words 1\n" in capsys.readouterr().out
    (folder / "one.txt").write_text("the fox")
    (folder / "two.txt").unlink()
    assert main(arguments) == 0
    assert "2 pages, 2 words, 14 changes\nFox: one.txt: words 1\n" in capsys.readouterr().out

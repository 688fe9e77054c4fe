"""What the pages point to is there: files, functions, tests, headings, options of commands."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from outbox.emulator.bus.entities_file import parse_entities
from outbox.ops.cli.parser import make_parser
from spark_jobs import consume, feed, package, pipeline, reconcile, submit, sweep, take_over
from tests.docs.blocks import ROOT
from tests.docs.figures import TABLES, Table

GUIDE = ROOT / "CONTRIBUTING.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    GUIDE,
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *sorted((ROOT / "docs/protocol").glob("*.md")),
    *sorted((ROOT / "docs/reference").glob("*.md")),
    ROOT / "docs/benchmarks/README.md",
    ROOT / "infra/README.md",
    ROOT / "infra/synapse/README.md",
]
_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_TEST = re.compile(r"\btest_\w+")
_PLACE = re.compile(r"\b((?:outbox|spark_jobs|tools|tests|function_app)/[\w/]*\w\.py)(?:::([\w.]+))?")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TARGET = re.compile(r"`make ([\w-]+)")
_PATH = re.compile(r"`((?:\.?\w[\w.-]*/)[\w./*-]*|[\w-]+\.(?:py|md|toml|txt|lock))`")
_COMMAND = re.compile(r"^(?:\$ )?((?:outbox|python -m spark_jobs\.\w+) .*(?:\\\n.*)*)", re.MULTILINE)
_ENDS = ("|", "<", ">", "&&", ";", "&", "--")
"""Where a command's own arguments end, beside what redirects its errors."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def names_in(path: Path) -> frozenset[str]:
    """The functions and classes of a file, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{part.name}" for part in inner}
    return frozenset(found)


@cache
def every_test() -> frozenset[str]:
    """Every test and test file of the project."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    return frozenset(file.stem for file in files).union(*map(names_in, files))


@pages
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    assert set(_TEST.findall(prose(page))) - every_test() == set()


@pages
def test_every_file_and_function_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text() if page.parent.name == "protocol" else prose(page)  # whose pictures name files too
    for path, name in _PLACE.findall(text):
        assert (ROOT / path).is_file(), path
        assert not name or name in names_in(ROOT / path), f"{path}::{name}"


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_every_how_to_page_stands_in_one_group_of_the_index() -> None:
    listed = re.findall(r"^\| \[.+?\]\(how-to/([\w-]+)\.md\) \| \S", prose(ROOT / "docs/README.md"), re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in (ROOT / "docs/how-to").glob("*.md"))


def test_the_glossary_has_each_word_once_in_order() -> None:
    words = [
        word.lower() for word in re.findall(r"^\| \*\*(.+?)\*\* \|", prose(ROOT / "docs/glossary.md"), re.MULTILINE)
    ]
    assert words == sorted(set(words)) and len(words) > 100


@pages
def test_every_target_that_a_page_names_is_one_of_make(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(_TARGET.findall(prose(page))) - targets == set()


def test_every_path_that_the_guide_for_changes_names_exists() -> None:
    paths = set(_PATH.findall(prose(GUIDE)))
    assert len(paths) > 50 and {path for path in paths if not any(ROOT.glob(path)) and not beside(path)} == set()


def beside(path: str) -> bool:
    """Whether a name without a folder is a file beside one that the guide names."""
    return "/" not in path and any((ROOT / known).with_name(path).exists() for known in _PATH.findall(prose(GUIDE)))


@pages
def test_every_command_that_a_page_shows_has_these_options(page: Path) -> None:
    jobs = {
        f"spark_jobs.{job.__name__.rpartition('.')[2]}": job.parser
        for job in (consume, feed, package, pipeline, reconcile, submit, sweep, take_over)
    }
    for block in _BLOCK.findall(page.read_text()):
        for text in _COMMAND.findall(block) if block.startswith(("```sh", "```console")) else ():
            words = shlex.split(text.replace("\\\n", " "), comments=True)
            parser, start = (make_parser(), 1) if words[0] == "outbox" else (jobs[words[2]](), 3)
            ends = (index for index, word in enumerate(words) if word in _ENDS or word.startswith("2>"))
            end = next(ends, len(words))
            parser.parse_args(words[start:end])  # exits, and so fails, on what it does not know


def test_the_entities_file_that_the_page_shows_is_read() -> None:
    [text] = re.findall(r"```json\n(.*?)```", (ROOT / "docs/emulator-compatibility.md").read_text(), re.DOTALL)
    names = [settings.name for settings in parse_entities(text)]
    subscriptions = ["notices/Subscriptions/audit", "notices/Subscriptions/mail"]
    assert names == ["orders", "lines", *subscriptions, "notices", "notices/Subscriptions/mail"]  # its rules


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_figures_of_a_page_are_those_that_were_published(table: Table) -> None:
    text = table.page.read_text()
    assert table.put(text) == text, "run `python -m tests.docs.figures`"


def test_a_name_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("see `test_that_nobody_wrote`, `make haste` and `outbox/worker.py::Wrker`\n\n[x](missing.md)\n")
    for check in (
        test_every_target_that_a_page_names_is_one_of_make,
        test_every_test_that_a_page_names_exists,
        test_every_file_and_function_that_a_page_names_exists,
        test_every_link_leads_somewhere,
    ):
        with pytest.raises(AssertionError):
            check(page)

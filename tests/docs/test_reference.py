"""The reference is what the sources say now, and what they say is enough for a reader."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache

import griffe
import pytest

from spark_jobs.draining.received import ROW
from spark_jobs.feeding.plan import CONFLICT
from spark_jobs.reading import rows
from tests.docs.blocks import ROOT
from tools import reference, reference_jobs

UNITS = re.compile(
    r"(_s|_ms|_bytes|_ru|_count|_max|_share|_id|_port)$|^(seconds|minutes|hours|days|port|limit|seed|workers|version)$"
)
"""How a number says what it counts in its own name; any other number is explained in a docstring."""

Public = tuple[str, griffe.Object, griffe.Class | None]


@cache
def package() -> griffe.Module:
    """The package as its sources are, read once and not by whoever only collects tests."""
    return reference.load()


@cache
def objects() -> list[Public]:
    """Every public object."""
    return list(public())


def public() -> Iterator[Public]:
    """Every public object: its name, itself, and the class that it is a member of."""
    for page in reference.PAGES.values():
        for name, item in reference.public(package(), page):
            yield name, item, None
            if isinstance(item, griffe.Class):
                yield from ((f"{name}.{own}", member, item) for own, member in reference.members(item))


def said(item: griffe.Object, owner: griffe.Class | None) -> str:
    """The docstrings that a reader of an object sees."""
    return "\n".join(x.docstring.value for x in (item, owner) if x is not None and x.docstring)


def raised(item: griffe.Object) -> set[str]:
    """The classes of what a function raises by itself, not in a function within it."""
    if not isinstance(item, griffe.Function):
        return set()
    [function] = ast.parse(_dedented(item.source)).body
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found.add(ast.unparse(node.exc.func))
        waiting += ast.iter_child_nodes(node)
    return found


def _dedented(source: str) -> str:
    lines = source.splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


def unsaid(item: griffe.Object, owner: griffe.Class | None) -> list[str]:
    """The parameters that are numbers and of which neither their names nor a docstring say what they count."""
    if not isinstance(item, griffe.Function | griffe.Class):
        return []
    given = [p for p in item.parameters if re.fullmatch(r"(int|float)( \| None)?", str(p.annotation))]
    text = said(item, owner)
    return [p.name for p in given if not UNITS.search(p.name) and not re.search(rf"\b{p.name}\b", text)]


def test_the_committed_pages_are_what_the_sources_say() -> None:
    made = reference.pages()
    assert {path.name for path in reference.FOLDER.iterdir()} == made.keys(), "run `python -m tools.reference`"
    for name, text in made.items():
        assert (reference.FOLDER / name).read_text() == text, f"{name}: run `python -m tools.reference`"


@pytest.mark.parametrize(
    "page", sorted(path.name for path in reference.FOLDER.glob("*.md") if path.name != "README.md")
)
def test_every_name_imports_from_where_its_page_says(page: str) -> None:
    text = (reference.FOLDER / page).read_text()
    [title] = re.findall(r"^# ([\w.]+)", text, re.MULTILINE)
    listed = re.findall(r"^\| \[([\w.]+)\]\(#", text, re.MULTILINE)
    written = re.findall(r"^`from ([\w.]+) import (\w+)`$", text, re.MULTILINE)
    assert [(name.rpartition(".")[0] or title, name.rpartition(".")[2]) for name in listed] == written
    assert [name for module, name in written if not hasattr(importlib.import_module(module), name)] == []


def test_every_public_name_has_a_docstring() -> None:
    assert [item.path for _, item, _ in objects() if not said(item, None).strip()] == []


def test_docstrings_say_what_is_raised() -> None:
    missing = {x.path: [error for error in raised(x) if error not in said(x, None)] for _, x, _ in objects()}
    assert {path: errors for path, errors in missing.items() if errors} == {}


def test_every_number_says_what_it_counts() -> None:
    missing = {item.path: unsaid(item, owner) for _, item, owner in objects()}
    assert {path: names for path, names in missing.items() if names} == {}


def test_the_page_of_the_jobs_has_every_column_and_every_reason() -> None:
    judging = (ROOT / "spark_jobs/reading/judging.py").read_text()
    reasons = {CONFLICT, rows.MALFORMED, rows.ENCODING, rows.TYPE, rows.SIZE, *re.findall(r'"([a-z-]+): ', judging)}
    assert list(reference_jobs.COLUMNS) == ROW.names and set(reference_jobs.REASONS) == reasons


def test_a_name_that_says_nothing_is_noticed() -> None:
    with griffe.temporary_visited_module("def wait(pause: float):\n    raise ValueError('no')\n") as page:
        wait = page["wait"]
        assert (said(wait, None), raised(wait), unsaid(wait, None)) == ("", {"ValueError"}, ["pause"])


def test_members_that_are_left_out_are_there() -> None:
    for path, names in {**reference.SHOWN, **reference.INNER}.items():
        known = package()[path.removeprefix("outbox.")].all_members
        assert set(names) <= known.keys(), f"tools/reference.py names members of {path} that are gone"

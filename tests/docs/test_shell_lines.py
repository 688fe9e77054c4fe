"""The shell lines of the pages run as typed, as far as that can be seen without running them.

Blocks of kind `console` are run by `test_pages.py`, and options are parsed by `test_references.py`.  Here: what `pip`
installs is a folder or a known package with an extra that exists; modules, targets of `make`, scripts and files exist.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

CLONE = "outbox-clone"
"""How the pages call the folder of a clone; a page that names it says that it is one."""
FOLDERS = ("docs", "examples", "function_app", "infra", "local", "outbox", "spark_jobs", "tests", "tools")
TEMPLATE = ROOT / "outbox/ops/template"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))
_BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(pip install [^`]+|python -m [^`]+)`")
_SAVED = re.compile(r"^# (\w+\.py)$", re.MULTILINE)
_PROJECT = re.compile(r"(?P<path>\.{1,2}(?:/[\w.-]+)*)(?:\[(?P<extras>[\w,]+)\])?")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a page, each as its words, without what redirects them."""
    for block in [*_BLOCK.findall(text), *(" ".join(line.split()) for line in _INLINE.findall(text))]:
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars="&|;<>()")
            words.commenters = "#"
            words.whitespace_split = True
            command: list[str] = []
            for word in [*words, ";"]:
                if set(word) <= set("&|;()"):
                    if command:
                        yield command
                    command = []
                else:
                    command.append(word)


@cache
def packages() -> tuple[frozenset[str], frozenset[str]]:
    """The names of all that this project depends on, and its extras."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = settings["project"]["optional-dependencies"], settings["dependency-groups"]
    needed = [*settings["project"]["dependencies"]]
    needed += [each for some in (*extras.values(), *groups.values()) for each in some if isinstance(each, str)]
    return frozenset(re.split(r"[\[<>=!~; ]", each)[0].lower() for each in needed), frozenset(extras)


def wrong_in(command: list[str], text: str) -> str:
    """What does not run of a command; empty where nothing is seen."""
    program, *words = command
    python = Path(program).name in ("python", "python3")
    if program == "pip" and words[:1] == ["install"]:
        return next(filter(None, (_not_installed(word, text) for word in words[1:] if not word.startswith("-"))), "")
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return next((f"make {word}" for word in words if "=" not in word and word not in targets), "")
    if python and words[:1] == ["-m"] and importlib.util.find_spec(words[1]) is None:
        return f"no module {words[1]}"
    if python and words[0].endswith(".py") and words[0] not in _SAVED.findall(text) and not (ROOT / words[0]).is_file():
        return f"no script {words[0]}"
    made = words[-1:] if program in ("cp", "mv") else []
    named = [word for word in words if word.partition("/")[0] in FOLDERS and "/" in word and word not in made]
    return next((f"no file {word}" for word in named if not (ROOT / word).exists()), "")


def _not_installed(word: str, text: str) -> str:
    names, extras = packages()
    project = _PROJECT.fullmatch(word)
    if project is not None:
        unknown = {*(project["extras"] or "").split(",")} - extras - {""}
        is_clone = project["path"] == "." or (Path(project["path"]).name == CLONE and "clone" in text)
        return "" if is_clone and not unknown else f"pip install {word}"
    if word.endswith(".txt"):
        return "" if (ROOT / word).is_file() or (TEMPLATE / f"{word}.txt").is_file() else f"no file {word}"
    return "" if re.split(r"[\[<>=!~; ]", word)[0].lower() in names else f"pip install {word}: it is on no index"


@pages
def test_the_shell_lines_of_a_page_run_as_typed(page: Path) -> None:
    text = page.read_text()
    assert [f"{shlex.join(each)}: {wrong}" for each in commands(text) if (wrong := wrong_in(each, text))] == []


@pytest.mark.parametrize(
    "line",
    [
        *("pip install './outbox[azure]'", "pip install 'outbox-azure[azure]'", "pip install '.[nothing]'"),
        *("cd x && make haste", "python -m tools.nothing", "python nothing.py", "spark-submit spark_jobs/nothing.py"),
        "pip install -r nothing.txt",
    ],
)
def test_a_line_that_does_not_run_is_noticed(line: str) -> None:
    text = f"a clone\n\n```sh\n{line}   # a comment\n```\n"
    assert any(wrong_in(each, text) for each in commands(text))

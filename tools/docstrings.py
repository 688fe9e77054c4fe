"""A lint for the first sentences of docstrings: `python tools/docstrings.py [PATH ...]` lists those to mend.

A first sentence begins with a verb or a noun, has at most 20 words, and says the noun in place of a riddle about it.
`make check` fails where a package has findings; one may be listed in `LEFT` with the number it may still have.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
READ = ("outbox", "spark_jobs", "function_app")
WORDS_MAX = 20
RIDDLES = re.compile(r"\b(what (?:is|are|was|were)|so many|those that|looked at|as it is)\b", re.IGNORECASE)
STARTS = re.compile(r"(What|Who|Which|Those|So|As)\b")
SENTENCE_END = re.compile(r"(?<=[.:?!])\s+(?=[A-Z`(])")
LEFT: dict[str, int] = {}
"""Findings that a package may still have, by its path (`outbox/engine`); one that is not listed has none."""


class Finding(NamedTuple):
    """A first sentence to mend."""

    file: str
    line: int
    why: str
    sentence: str

    @property
    def package(self) -> str:
        """The folder below the top one, `outbox/engine`; of a module beside them the top folder alone."""
        return "/".join(self.file.split("/")[:-1][:2])


def first_sentence(docstring: str) -> str:
    """The text up to the first end of a sentence, on one line."""
    return SENTENCE_END.split(" ".join(docstring.strip().split("\n\n")[0].split()), maxsplit=1)[0]


def faults_of(sentence: str) -> list[str]:
    """Every rule that a first sentence breaks."""
    found = []
    if (words := len(sentence.split())) > WORDS_MAX:
        found.append(f"{words} words")
    if started := STARTS.match(sentence):
        found.append(f"begins with {started[1]}")
    found += [f"says {riddle.lower()}" for riddle in RIDDLES.findall(sentence)]
    return found


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring: of modules, classes, functions, and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, statement in zip([None, *body], body, strict=False):
            is_first = before is None and documented
            if (is_first or isinstance(before, ast.Assign | ast.AnnAssign)) and (text := _text(statement)):
                yield statement.lineno, text


def _text(statement: ast.stmt) -> str:
    """The text of a statement that is one alone."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def findings(paths: list[Path], root: Path = ROOT) -> Iterator[Finding]:
    """The sentences to mend in Python files and folders of them, by file and line."""
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, text in docstrings(ast.parse(file.read_text(encoding="utf-8"))):
                sentence = first_sentence(text)
                if why := faults_of(sentence):
                    yield Finding(file.relative_to(root).as_posix(), line, ", ".join(why), sentence)


def exceeded(found: Counter[str], left: dict[str, int]) -> list[str]:
    """One line for each package with more findings than it may have."""
    return [
        f"{package}: {count} first sentences to mend, at most {left.get(package, 0)} may be left"
        for package, count in sorted(found.items())
        if count > left.get(package, 0)
    ]


def main() -> int:
    if len(sys.argv) > 1:
        for finding in findings([Path(path).resolve() for path in sys.argv[1:]]):
            print(f"{finding.file}:{finding.line}: {finding.why}: {finding.sentence}")
        return 0
    found = Counter(finding.package for finding in findings([ROOT / folder for folder in READ]))
    lines = exceeded(found, LEFT)
    if lines:
        print("\n".join(lines))
        print("`python tools/docstrings.py FOLDER` lists them")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

"""Name the emulators' own tests that a change cannot reach, as options of pytest: `python tools/spared_tests.py BASE`.

A test is reached by every module that it imports, at whatever distance, also where only a text names it, and by the
conftest files above it.  A page counts where one of these names it.  A change of anything else (the lock, the workflow,
data) reaches all tests.  Pull requests alone leave out what is not reached; `.ci/run` and the main branch run all.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN = ("tests/unit/emulator", "tests/unit/amqp", "tests/wire/servicebus", "tests/wire/cosmos", "tests/wire/blobs")
TOPS = ("outbox", "outbox_bench", "function_app", "spark_jobs", "benchmarks", "tests", "tools")
PAGES = ("docs/", "examples/", "infra/", "local/")
"""Folders whose texts reach a test only by name; so do the pages at the top."""
SHARED = "tests/conftest.py"
"""A change of it reaches all tests; what it imports only chooses among those that are not the emulators'."""
GIT_S = 60
_MODULE = re.compile(rf"\b(?:{'|'.join(TOPS)})(?:\.\w+)+")


def main(base: str) -> int:
    changed = subprocess.run(
        ["git", "diff", "--name-only", "--no-renames", "-z", f"{base}...HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=GIT_S,
        check=True,
    ).stdout
    spared = Sources(ROOT).spared(filter(None, changed.split("\0")))
    print(" ".join(f"--ignore={name}" for name in spared))
    return 0


class Sources:
    """The Python files of a tree, and what each of them names."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._named: dict[str, tuple[set[str], str]] = {}

    def spared(self, changed: Iterable[str]) -> list[str]:
        """The emulators' own tests that none of the changed files reaches."""
        files = set(changed)
        pages = {name for name in files if name.startswith(PAGES) or (name.endswith(".md") and "/" not in name)}
        if SHARED in files or any(not name.endswith(".py") for name in files - pages):
            return []
        tests = [f.relative_to(self._root).as_posix() for own in OWN for f in (self._root / own).glob("test_*.py")]
        return sorted(test for test in tests if not self._reaches(test, files - pages, pages))

    def _reaches(self, test: str, changed: set[str], pages: set[str]) -> bool:
        seen, left = set[str](), [test, *self._conftests(test)]
        texts = list[str]()
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                targets, text = self.named(name)
                texts.append(text)
                left += targets if name != SHARED else ()
        return bool(seen & changed) or any(Path(page).name in text for page in pages for text in texts)

    def _conftests(self, test: str) -> list[str]:
        above = [f"{parent.as_posix()}/conftest.py" for parent in Path(test).parents][:-1]
        return [name for name in above if (self._root / name).is_file()]

    def named(self, name: str) -> tuple[set[str], str]:
        """The files that a file imports or names as modules, and all texts in it."""
        if name not in self._named:
            tree = _RunTime().visit(ast.parse((self._root / name).read_text()))
            values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            texts = "\n".join(value for value in values if isinstance(value, str))
            targets = {file for module in self._modules(tree, texts) for file in self._files(module)}
            self._named[name] = targets, texts
        return self._named[name]

    def _modules(self, tree: ast.Module, texts: str) -> Iterator[str]:
        if not _lazy(tree):  # the front of a package names what each name of it brings, to whoever imports that
            yield from _MODULE.findall(texts)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                front = self._fronts.get(node.module, {})
                for alias in node.names:
                    yield front.get(alias.name, f"{node.module}.{alias.name}")
            elif isinstance(node, ast.List | ast.Tuple | ast.Call):
                words = node.args if isinstance(node, ast.Call) else node.elts
                given = [str(word.value) if isinstance(word, ast.Constant) else "" for word in words]
                yield from (f"{module}.__main__" for flag, module in pairwise(given) if flag == "-m")

    def _files(self, module: str) -> Iterator[str]:
        """The file of a module, or of the nearest that holds the name, and the packages above it."""
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            for name in (f"{path}.py", f"{path}/__init__.py"):
                if (self._root / name).is_file():
                    yield name

    @cached_property
    def _fronts(self) -> dict[str, dict[str, str]]:
        """Of each package that imports names when they are first used: where each comes from."""
        found = {}
        for file in (self._root / "outbox").rglob("__init__.py"):
            module = ".".join(file.relative_to(self._root).parent.parts)
            found[module] = _lazy(ast.parse(file.read_text()))
        return found


class _RunTime(ast.NodeTransformer):
    """Takes out what is imported for types alone."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if is_for_types else self.generic_visit(node)


def _lazy(tree: ast.Module) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAZY":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

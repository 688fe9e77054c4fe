"""The shape of the code: who may import whom, how long a file may be, who may look at the environment."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.commands import ran
from tools.arrows import FLOORS, circle, imports_of
from tools.statements import packages

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("outbox", "function_app", "spark_jobs")
FILE_LINES_MAX = 600
REASON_FOR_LENGTH = "One file because"
FUNCTION_LINES_MAX = 60
ENTRY_POINTS = ("outbox/ops/", "outbox/__main__.py", "function_app/", "spark_jobs/")
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv"}
HEIRS = {"outbox.worker.Worker": "outbox.client.Client"}
"""The class that inherits method bodies from another of ours for good: to applications a worker is a client."""
SCOPE_LINES_MAX = 450
SCOPE_METHODS_MAX = 30
SCOPE_NAMES_MAX = 50
ITEM_SCOPE_NAMES_MAX = 62
"""Item scope has three steps more, and two stores."""
GUESTS = {
    "DispatchLedger": "dispatch_ledger",
    "Fitting": "overflow",
    "refuse_unfit": "overflow",
    "LoadedStates": "loaded_states",
    "Marks": "marks",
    "Recovery": "recovery",
    "may_be_stale": "stale_edits",
}
"""What scopes call of the files that only save work, or are beside the steps of an attempt; by what they import."""
GUEST_CALLS_MAX = 2
STEPS = {("item_scope.py", "marks")}
"""Of which scope a guest is a step of its own: in item scope marks clear pointers, which is step 9."""
GATHERS = {"__init__", "remembered", "finish"}
"""The methods of a scope that go over all of its parts."""
STATEMENTS_MAX = {
    "outbox": 3_903,
    "outbox/azure": 3_450,
    "outbox/emulator": 9_822,
    "outbox/engine": 5_134,
    "outbox/ops": 8_688,
    "outbox/registration": 339,
    "outbox/runtime": 6_168,
    "outbox/streams": 6_916,
    "outbox/testing": 590,
    "outbox/verify": 9_718,
}
"""The budget of each package, by `tools.statements.packages`; `outbox` is what stands beside the packages."""
LOOKED_AT = (*(ast.Import, ast.ImportFrom, ast.Attribute), *(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
"""The kinds of nodes that are asked for in every file."""
UNSAFE_DECODERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """The trees, a million objects, go with the last of these tests; until then no collection goes through them."""
    gc.disable()
    yield
    read.cache_clear()
    gc.enable()


def files() -> list[Path]:
    return sorted(file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py"))


@cache
def read(file: Path) -> tuple[ast.Module, tuple[ast.AST, ...]]:
    """A file's tree, and those of its nodes that these tests ask for; most of their time goes into this."""
    tree = ast.parse(file.read_text())
    return tree, nodes(tree)


def parsed() -> list[tuple[str, ast.Module]]:
    return [(file.relative_to(ROOT).as_posix(), read(file)[0]) for file in files()]


def walked() -> list[tuple[str, tuple[ast.AST, ...]]]:
    return [(file.relative_to(ROOT).as_posix(), read(file)[1]) for file in files()]


def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, LOOKED_AT))


def environment_reads(found_in: Iterable[ast.AST]) -> list[int]:
    """The lines that reach for the process environment by `os.environ`, `os.getenv` or an import of either."""
    found = []
    for node in found_in:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr in ENVIRONMENT:
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [node.lineno for alias in node.names if alias.name in ENVIRONMENT]
    return found


def imported(found_in: Iterable[ast.AST]) -> set[str]:
    """The top-level names of all modules that a file imports."""
    names = set()
    for node in found_in:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


def arrows(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the arrows of a copy of the tree in a process of its own, because import-linter looks at sys.path."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]; from pathlib import Path; from tools import arrows; "
        "kept, text = arrows.check(Path(sys.argv[1]), Path(sys.argv[1]) / 'build'); print(text); sys.exit(not kept)"
    )
    return ran([sys.executable, "-P", "-c", code, root, ROOT], root)


def test_imports_follow_the_arrows() -> None:
    found = arrows(ROOT)
    assert found.returncode == 0, found.stdout + found.stderr


def tree(root: Path, imports: dict[str, list[str]]) -> None:
    """A package `outbox` of these modules, each of which imports what stands beside it."""
    for name, targets in imports.items():
        file = root / "outbox" / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        (root / "outbox/__init__.py").touch()
        (file.parent / "__init__.py").touch()
        file.write_text("".join(f"import {target}\n" for target in targets))


def test_an_import_from_any_floor_above_is_found(tmp_path: Path) -> None:
    floors = [floor[0] for floor in FLOORS]
    wrong = {name: [f"outbox.{above}" for above in floors[:at]] for at, name in enumerate(floors)}
    tree(tmp_path, wrong)
    found = arrows(tmp_path)
    assert found.returncode == 1
    missing = [(n, t) for n, targets in wrong.items() for t in targets if f"outbox.{n} -> {t} " not in found.stdout]
    assert not missing


BESIDE = [
    ("azure.cosmos.store", "outbox.runtime.work"),
    ("azure.servicebus.links", "outbox.client"),
    ("azure.usage", "outbox.engine.state"),
    ("azure.new_adapter", "outbox.app"),
    ("azure.connecting", "outbox.azure.functions.sites"),
    ("azure.cosmos.store", "outbox.azure.servicebus.links"),
    ("azure.servicebus.bus", "outbox.azure.connecting"),
    ("azure.blobs.store", "outbox.azure.cosmos.store"),
    ("engine.backend.bus", "outbox.runtime.work"),
    ("engine.core", "outbox.worker"),
    ("emulator.serve", "outbox.runtime.work"),
    ("emulator.bus.peer", "outbox.ports"),
    ("emulator.amqp.link", "outbox.emulator.bus.peer"),
    ("emulator.cosmos.store", "outbox.emulator.amqp.link"),
    ("emulator.cosmos.query.plan", "outbox.emulator.cosmos.store"),
    ("verify.history", "outbox.lineage"),
    ("verify.recorded.flow", "outbox.verify.explorer"),
    ("runtime.work", "azure.cosmos"),
    ("spark", "pyspark"),
    ("ops.cli", "spark_jobs.common"),
]


def test_an_import_of_what_stands_beside_is_found(tmp_path: Path) -> None:
    """All in one tree: none of them points up, so each is found by a rule of its own."""
    wrong: dict[str, list[str]] = {target.removeprefix("outbox."): [] for _, target in BESIDE if "outbox." in target}
    for source, target in BESIDE:
        wrong.setdefault(source, []).append(target)
    tree(tmp_path, wrong)
    found = arrows(tmp_path)
    assert found.returncode == 1
    said = [(s, target if "outbox." in target else target.partition(".")[0]) for s, target in BESIDE]
    assert [(s, target) for s, target in said if f"outbox.{s} -> {target} " not in found.stdout] == [], found.stdout
    assert "every module is on a floor, and imports point down KEPT" in found.stdout, found.stdout


def test_a_module_without_a_floor_is_found(tmp_path: Path) -> None:
    tree(tmp_path, {"new_module": [], "client": ["outbox.new_module"]})
    found = arrows(tmp_path)
    assert found.returncode == 1
    assert "outbox.new_module" in found.stdout, found.stdout + found.stderr


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(imports_of(ROOT)) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    tree(tmp_path, {"a": ["outbox.b.c"], "b.c": ["outbox.d"], "d": ["outbox.a"]})
    assert set(circle(imports_of(tmp_path))) == {"outbox.a", "outbox.b.c", "outbox.d"}


@pytest.mark.parametrize("hidden", ["if TYPE_CHECKING:\n    import outbox.a", "def f():\n    from outbox.a import A"])
def test_a_circle_that_is_hidden_is_found(hidden: str, tmp_path: Path) -> None:
    tree(tmp_path, {"a": ["outbox.b"], "b": []})
    (tmp_path / "outbox/b.py").write_text(f"{hidden}\n")
    assert set(circle(imports_of(tmp_path))) == {"outbox.a", "outbox.b"}


def test_a_file_longer_than_one_can_review_says_why() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files()}
    explained = {name for name, tree in parsed() if REASON_FOR_LENGTH in (ast.get_docstring(tree) or "")}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES_MAX and name not in explained} == {}


def classes(root: Path) -> dict[str, tuple[ast.ClassDef, list[str]]]:
    """Every class of the package by its dotted name, with the dotted names of its bases as far as they are ours."""
    found: dict[str, tuple[ast.ClassDef, list[str]]] = {}
    for file in sorted((root / "outbox").rglob("*.py")):
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        tree, found_in = read(file)
        names = {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
        for node in found_in:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in found_in:
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
                ours = [names.get((parts := base.partition("."))[0], base) + parts[1] + parts[2] for base in bases]
                found[f"{module}.{node.name}"] = node, ours
    return found


def heirs(root: Path) -> dict[str, str]:
    """The classes that inherit a method's body from another of ours, and from which; errors may."""
    known = classes(root)

    def ancestors(name: str) -> list[str]:
        return [up for base in known[name][1] for up in ([base, *ancestors(base)] if base in known else [base])]

    def has_bodies(name: str) -> bool:
        node, bases = known[name]
        return "typing.Protocol" not in bases and any(
            isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in node.body
        )

    found: dict[str, str] = {}
    for name in known:
        above = ancestors(name)
        is_error = any(up.endswith(("Exception", "Error")) for up in above if up not in known)
        nearest = next((up for up in above if up in known and has_bodies(up)), None)
        if nearest is not None and not is_error:
            found[name] = nearest
    return found


def test_no_class_inherits_method_bodies_from_another_of_ours() -> None:
    assert heirs(ROOT) == HEIRS


@pytest.mark.parametrize(
    ("base", "heir", "is_found"),
    [
        ("class A:\n    def f(self): ...", "from outbox.a import A\nclass B(A): ...", True),
        ("class A:\n    async def f(self): ...", "from outbox.a import A\nclass M(A): ...\nclass B(M[int]): ...", True),
        ("class A:\n    def f(self): ...", "from outbox import a\nclass B(a.A): ...", True),
        ("class A:\n    x: int", "from outbox.a import A\nclass B(A): ...", False),
        ("class A(Exception):\n    def f(self): ...", "from outbox.a import A\nclass B(A): ...", False),
        (
            "from typing import Protocol\nclass A(Protocol):\n    def f(self): ...",
            "from outbox.a import A\nclass B(A): ...",
            False,
        ),
    ],
)
def test_an_inherited_body_is_found(base: str, heir: str, is_found: bool, tmp_path: Path) -> None:
    tree(tmp_path, {"a": [], "b": []})
    (tmp_path / "outbox/a.py").write_text(f"{base}\n")
    (tmp_path / "outbox/b.py").write_text(f"{heir}\n")
    assert ("outbox.b.B" in heirs(tmp_path)) == is_found


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1
        for name, found_in in walked()
        for node in found_in
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert long == {}


def scopes(root: Path) -> dict[str, ast.Module]:
    return {file.name: read(file)[0] for file in sorted((root / "outbox/runtime").glob("*_scope.py"))}


def methods(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return [n for kind in kinds for n in kind.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def guest_calls(tree: ast.Module) -> dict[str, list[str]]:
    """The calls of each guest in the methods of a scope, as text, by the guest's file."""
    held = {
        ast.unparse(node.targets[0]): GUESTS[call.func.id]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for call in ast.walk(node.value)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in GUESTS
    }
    found: dict[str, list[str]] = {}
    for method in methods(tree):
        for node in ast.walk(method) if method.name not in GATHERS else ():
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                guest = GUESTS.get(name) or held.get(name.rpartition(".")[0])
                if guest is not None:
                    found.setdefault(guest, []).append(name)
    return found


def test_a_scope_can_be_reviewed_in_one_pass() -> None:
    for name, tree in scopes(ROOT).items():
        lines = len((ROOT / "outbox/runtime" / name).read_text().splitlines())
        names = sum(
            len(node.names)
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
        )
        names_max = ITEM_SCOPE_NAMES_MAX if name == "item_scope.py" else SCOPE_NAMES_MAX
        assert lines <= SCOPE_LINES_MAX and len(methods(tree)) <= SCOPE_METHODS_MAX and names <= names_max, name


def test_a_scope_calls_each_of_its_guests_at_most_twice() -> None:
    calls = {name: guest_calls(tree) for name, tree in scopes(ROOT).items()}
    assert set(calls["partition_scope.py"]) == set(GUESTS.values()), "a guest that no step calls"
    often = {(name, guest) for name, of in calls.items() for guest, found in of.items() if len(found) > GUEST_CALLS_MAX}
    assert often <= STEPS


def test_a_third_call_of_a_guest_is_found() -> None:
    text = (
        "class Scope:\n    def __init__(self):\n        self.marks = Marks(1) if 1 else None\n"
        "    def once(self):\n        self.marks.add(may_be_stale(1))\n        self.marks.add(self.marks.take())\n"
        "    def finish(self):\n        self.marks.write()\n"
    )
    found = guest_calls(ast.parse(text))
    assert found == {"marks": ["self.marks.add", "self.marks.add", "self.marks.take"], "stale_edits": ["may_be_stale"]}


def over_budget(found: Mapping[str, int], budget: Mapping[str, int]) -> dict[str, str]:
    """The packages with more statements than their budget, and the way out."""
    return {
        name: f"{count:,} statements, {budget.get(name, 0):,} in STATEMENTS_MAX: take as many away elsewhere in the "
        "package, or raise the figure in a commit whose body says why"
        for name, count in found.items()
        if count > budget.get(name, 0)
    }


def test_every_package_keeps_to_its_budget_of_statements() -> None:
    assert over_budget(packages(), STATEMENTS_MAX) == {}


def test_a_statement_over_the_budget_and_a_package_without_one_are_found(tmp_path: Path) -> None:
    tree(tmp_path, {"engine.core": ["outbox.codec", "outbox.errors"], "codec": ["msgspec"], "new.core": ["msgspec"]})
    assert over_budget(packages(tmp_path), {"outbox": 1, "outbox/engine": 2, "outbox/new": 1}) == {}
    assert set(over_budget(packages(tmp_path), {"outbox": 0, "outbox/engine": 1})) == set(packages(tmp_path))


def test_every_module_says_what_it_decides() -> None:
    silent = [name for name, tree in parsed() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_only_entry_points_read_the_environment() -> None:
    reads = {name: environment_reads(found_in) for name, found_in in walked() if not name.startswith(ENTRY_POINTS)}
    assert {name: lines for name, lines in reads.items() if lines} == {}


@pytest.mark.parametrize("text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"])
def test_a_look_at_the_environment_is_found(text: str) -> None:
    assert environment_reads(nodes(ast.parse(text)))


def test_nothing_is_unpickled() -> None:
    assert {name for name, found_in in walked() if imported(found_in) & UNSAFE_DECODERS} == set()


def test_what_the_wheel_measures_with_imports_nothing_of_a_checkout() -> None:
    outside = {"benchmarks", "examples", "function_app", "spark_jobs", "tests", "tools"}
    found = {
        file.name: imported(ast.walk(ast.parse(file.read_text()))) for file in (ROOT / "outbox_bench").rglob("*.py")
    }
    assert {name: names & outside for name, names in found.items() if names & outside} == {}


def test_modules_import_modules_and_not_the_package_front() -> None:
    """`from outbox import App` inside the package would hide an arrow from import-linter behind the lazy front."""
    inside = {path.stem for path in (ROOT / "outbox").glob("*") if not path.name.startswith("_")}
    hidden = [
        f"{name}:{node.lineno}"
        for name, found_in in walked()
        if name.startswith("outbox/") and name not in ("outbox/__init__.py", "outbox/__main__.py")
        for node in found_in
        if isinstance(node, ast.ImportFrom) and node.module == "outbox"
        if any(alias.name not in inside for alias in node.names)
    ]
    assert hidden == []


def test_test_folders_cannot_shadow_an_installed_package() -> None:
    folders = [path for path in (ROOT / "tests").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert [path for path in folders if path.name == "azure"] == []
    assert list((ROOT / "tests").rglob("__init__.py")) == []

"""Who may import whom inside `outbox/`: every module stands on a floor, and imports point down.

The contracts are written from the floors and the folder as it is into `build/arrows.ini`, because import-linter refuses
names that do not exist; `python tools/arrows.py` checks them, `python tools/arrows.py outbox.runtime` prints what a
package imports within itself, and `python tools/arrows.py outbox.ops rooms` the same of its folders.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CORE = (  # what a handler and a port are
    ("describe", "name_checks"),
    ("app",),
    ("middleware",),
    ("registration",),
    ("codec",),
    ("aliases", "context"),
    ("guards",),
    ("retries", "spark"),
    ("stored",),
    ("ports",),
    ("engine_commit", "documents"),
    ("cancellation",),
    ("resubmission",),
    ("deliveries", "http"),
    ("lineage",),
    ("encoding", "message"),
    ("errors", "escape", "generators", "log_throttle"),
)
FLOORS = (  # a floor imports only from those below it; what shares a floor may import each other
    ("__main__",),
    ("ops",),
    ("testing",),
    ("verify",),
    ("azure",),
    ("emulator",),
    ("engine",),
    ("worker",),
    ("asgi", "otel"),
    ("http_entry",),
    ("client",),
    ("streams",),
    ("metrics",),
    ("runtime",),
    *CORE,
)
HOSTS = ("azure.functions",)
"""What of `azure` is a host, like the worker; all else is adapters."""
SERVICES = ("azure.cosmos", "azure.servicebus", "azure.blobs")
BELOW_SERVICES = ("azure.transport", "azure.unsent", "azure.usage")
SDKS = ("azure", "pyspark")
EXPORT = "outbox.ops.streams.export"
"""The one module that imports from `spark_jobs`: the verb's file, which is imported where the verb is given."""
BELOW_ADAPTERS = (
    "stored",
    "ports",
    "engine_commit",
    "documents",
    "deliveries",
    "resubmission",
    "http",
    "lineage",
    "message",
    "errors",
    "log_throttle",
    "escape",
)
BELOW_EMULATOR = ("engine", "message", "errors", "lineage", "log_throttle", "escape")
SHARED_BY_EMULATORS = tuple(f"emulator.{name}" for name in ("connections", "dialect", "faults", "http", "xml"))
JUDGE = tuple(  # judges recorded histories
    f"verify.{name}"
    for name in (
        *("history", "guarantees"),
        *("recorded.events", "recorded.verdict", "recorded.linear", "recorded.flow", "recorded.commits"),
        *("recorded.logs", "recorded.definitions"),
    )
)
BELOW_JUDGE = ("message", "errors", "verify", "verify.recorded", *JUDGE)


@dataclass(frozen=True, slots=True)
class Rule:
    """`sources` import nothing of ours but `allowed` and each other, and no `sdks`."""

    title: str
    sources: tuple[str, ...]
    allowed: tuple[str, ...]


def main() -> int:
    if sys.argv[1:]:
        print(picture(Path.cwd(), sys.argv[1], rooms=sys.argv[2:] == ["rooms"]))
        return 0
    kept, text = check(ROOT, ROOT / "build")
    print("arrows: kept" if kept else text)
    return 0 if kept else 1


def check(root: Path, scratch: Path) -> tuple[bool, str]:
    """Check the `outbox` package in `root`, which must be importable; gives the verdict and import-linter's text."""
    from importlinter.cli import lint_imports

    scratch.mkdir(exist_ok=True)
    page = scratch / "arrows.ini"
    page.write_text(contracts(root))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = lint_imports(config_filename=str(page), cache_dir=None, no_cache=True)
    return code == 0, said.getvalue()


def contracts(root: Path) -> str:
    """The configuration of import-linter for the modules that exist under `root`."""
    there = modules(root)
    sections = ["[importlinter]\nroot_package = outbox\ninclude_external_packages = True\n", floors(there)]
    forbidden = [(rule.title, rule.sources, others(there, rule)) for rule in rules(there)]
    ours = tuple(name for name in there if not is_in(name, "outbox.azure"))
    forbidden.append(("Azure's SDKs only in outbox.azure", ours, SDKS))
    others_than_export = tuple(name for name in there if name != EXPORT)
    forbidden.append(("an export alone writes by what Spark jobs write with", others_than_export, ("spark_jobs",)))
    for number, (title, sources, targets) in enumerate(forbidden):
        if sources and targets:
            sections.append(
                f"[importlinter:contract:forbidden-{number}]\nname = {title}\ntype = forbidden\n"
                f"allow_indirect_imports = True\nas_packages = False\n"
                f"source_modules ={lines(sources)}\nforbidden_modules ={lines(targets)}\n"
            )
    return "\n".join(sections)


def modules(root: Path) -> tuple[str, ...]:
    """The dotted names of every module and package below `outbox`, sorted."""
    names = set()
    for file in (root / "outbox").rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return tuple(sorted(names - {"outbox"}))


def floors(there: Iterable[str]) -> str:
    """Every module of the package on its floor; one that has none breaks the contract."""
    found = [" : ".join(name for name in floor if f"outbox.{name}" in there) for floor in FLOORS]
    return (
        "[importlinter:contract:floors]\nname = every module is on a floor, and imports point down\n"
        f"type = layers\ncontainers = outbox\nexhaustive = True\nlayers ={lines(filter(None, found))}\n"
    )


def rules(there: Iterable[str]) -> list[Rule]:
    """The arrows that the floors do not show: what stands beside the runtime and does not know it."""
    azure = [name for name in there if is_in(name, "outbox.azure")]
    adapters = [name for name in azure if not any(is_in(name, host) for host in outbox(HOSTS))]
    engine = [name for name in there if is_in(name, "outbox.engine")]
    emulator = [name for name in there if is_in(name, "outbox.emulator")]
    return [
        Rule("Azure's adapters meet the runtime only in ports", tuple(adapters), outbox(BELOW_ADAPTERS)),
        *(
            Rule(
                f"{service} knows no other service of Azure, and nothing that stands on all of them",
                tuple(name for name in azure if is_in(name, f"outbox.{service}")),
                outbox((*BELOW_ADAPTERS, *BELOW_SERVICES)),
            )
            for service in SERVICES
        ),
        Rule("the engine meets the runtime only in ports", tuple(engine), outbox(BELOW_ADAPTERS)),
        Rule("the emulator stands on the engine alone", tuple(emulator), outbox(BELOW_EMULATOR)),
        Rule(
            "AMQP knows no server",
            tuple(name for name in emulator if is_in(name, "outbox.emulator.amqp")),
            outbox(BELOW_EMULATOR),
        ),
        Rule(
            "Cosmos DB's emulator knows nothing of Service Bus's",
            tuple(name for name in emulator if is_in(name, "outbox.emulator.cosmos")),
            outbox((*BELOW_EMULATOR, *SHARED_BY_EMULATORS)),
        ),
        Rule(
            "Blob Storage's emulator knows nothing of the others",
            tuple(name for name in emulator if is_in(name, "outbox.emulator.blobs")),
            outbox((*BELOW_EMULATOR, *SHARED_BY_EMULATORS)),
        ),
        Rule(
            "queries are compiled without a look at the store",
            tuple(name for name in emulator if is_in(name, "outbox.emulator.cosmos.query")),
            outbox(("emulator.cosmos.patch", "emulator.cosmos.wire", "errors")),
        ),
        Rule(
            "recorded histories are judged with nothing but messages, so that Spark can ship the judge",
            tuple(name for name in outbox(JUDGE) if name in there),
            outbox(BELOW_JUDGE),
        ),
    ]


def others(there: Iterable[str], rule: Rule) -> tuple[str, ...]:
    """The modules that a rule forbids: all but its sources, what it allows, and what is inside of that."""
    packages = [name for name in rule.allowed if name not in outbox(BELOW_JUDGE)]
    inside = tuple(f"{name}." for name in packages)
    return tuple(name for name in there if name not in {*rule.sources, *rule.allowed} and not name.startswith(inside))


def is_in(name: str, package: str) -> bool:
    """Whether a module is a package or something in it."""
    return name == package or name.startswith(f"{package}.")


def imports_of(root: Path) -> dict[str, set[str]]:
    """What each module imports, for its types only and within functions too, as far as it is ours."""
    names, found = {"outbox", *modules(root)}, dict[str, set[str]]()
    for file in (root / "outbox").rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        targets = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                targets |= {f"{node.module}.{alias.name}" for alias in node.names}
        ours = {target if target in names else target.rpartition(".")[0] for target in targets}
        found[name] = ours & names - {"outbox", name}
    return found


def circle(imports: dict[str, set[str]]) -> list[str]:
    """A circle of modules that import each other; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def layers(imports: dict[str, set[str]]) -> list[list[str]]:
    """Modules by the longest chain of imports below them, the lowest first; there must be no circle."""
    depth = dict[str, int]()
    for name in TopologicalSorter(imports).static_order():
        depth[name] = 1 + max((depth[target] for target in imports[name]), default=-1)
    return [sorted(name for name in depth if depth[name] == level) for level in range(max(depth.values()) + 1)]


def picture(root: Path, package: str, *, rooms: bool = False) -> str:
    """The imports of a package within itself: how many files, arrows and layers, and the layers from the top.

    A folder's `__init__` counts where it imports something.  With `rooms` each folder counts as one.
    """
    inside = f"{package}."
    imports = {
        name: {target for target in targets if target.startswith(inside)}
        for name, targets in imports_of(root).items()
        if name.startswith(inside) and (targets or not (root / name.replace(".", "/")).is_dir())
    }
    if rooms:
        imports = by_room(imports, inside)
    found = layers(imports)
    rows = [
        textwrap.fill(
            ", ".join(name.removeprefix(inside) for name in layer),
            width=110,
            initial_indent=f"{level:3}  ",
            subsequent_indent=" " * 5,
            break_on_hyphens=False,
        )
        for level, layer in reversed(list(enumerate(found, 1)))
    ]
    arrows = sum(map(len, imports.values()))
    kind = "rooms" if rooms else "files"
    return "\n".join([f"{package}: {len(imports)} {kind}, {arrows} arrows, {len(found)} layers", *rows])


def by_room(imports: dict[str, set[str]], inside: str) -> dict[str, set[str]]:
    """The imports between the folders of a package, and files beside them."""

    def room(name: str) -> str:
        return inside + name.removeprefix(inside).partition(".")[0]

    found: dict[str, set[str]] = {}
    for name, targets in imports.items():
        found.setdefault(room(name), set()).update({room(target) for target in targets} - {room(name)})
    return found


def outbox(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"outbox.{name}" for name in names)


def lines(names: Iterable[str]) -> str:
    return "".join(f"\n    {name}" for name in names)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())

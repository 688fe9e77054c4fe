"""Who may import whom inside `outbox/`: the diagram, and its check by import-linter.

The diagram names everything that the layout plans.  import-linter refuses names that do not exist, so the contracts
are written from the diagram and the folder as it is, into `build/arrows.ini`; `python tools/arrows.py` checks them.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LAYERS = (  # a line imports only from the lines below it; what shares a line may import each other
    ("testing",),
    ("worker",),
    ("runtime",),
    ("codec", "app", "context"),
    ("ports",),
    ("documents",),
    ("lineage",),
    ("message",),
    ("errors",),
)
ADAPTERS = ("azure.blobs", "azure.cosmos", "azure.servicebus", "engine.adapters", "engine.journal")
HEART = ("runtime", "worker", "testing", "app", "context")
SDKS = ("azure", "pyspark")
JUDGE = tuple(  # judges recorded histories
    f"verify.{name}"
    for name in (
        *("history", "guarantees"),
        *("histories.events", "histories.findings", "histories.linear", "histories.flow", "histories.commits"),
        *("histories.pending", "histories.versions", "histories.words", "histories.theorem1"),
        *("histories.serializable", "histories.attempts"),
    )
)


@dataclass(frozen=True, slots=True)
class Forbidden:
    """`sources` must not import `targets`, and unless `direct` not through others either."""

    title: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    direct: bool = False


def main() -> int:
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
    sections = ["[importlinter]\nroot_package = outbox\ninclude_external_packages = True\n", layers(there)]
    for number, rule in enumerate(rules(there)):
        sources = [name for name in rule.sources if name in there]
        targets = [name for name in rule.targets if name in there or name in SDKS]
        if sources and targets:
            sections.append(
                f"[importlinter:contract:forbidden-{number}]\nname = {rule.title}\ntype = forbidden\n"
                f"allow_indirect_imports = {rule.direct}\n"
                f"source_modules ={lines(sources)}\nforbidden_modules ={lines(targets)}\n"
            )
    return "\n".join(sections)


def modules(root: Path) -> frozenset[str]:
    """The dotted names of every module and package below `outbox`."""
    package = root / "outbox"
    names = set()
    for file in package.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return frozenset(names - {"outbox"})


def layers(there: frozenset[str]) -> str:
    floors = [" : ".join(f"outbox.{name}" for name in floor if f"outbox.{name}" in there) for floor in LAYERS]
    return (
        "[importlinter:contract:layers]\nname = errors, message, lineage, ports, runtime, worker, testing\n"
        f"type = layers\nlayers ={lines(filter(None, floors))}\n"
    )


def rules(there: frozenset[str]) -> list[Forbidden]:
    """The arrows that the layers do not cover."""
    first = tuple(sorted({".".join(name.split(".")[:2]) for name in there}))
    verifiers = tuple(sorted(name for name in there if name.startswith("outbox.verify.")))
    return [
        Forbidden("adapters meet the runtime only in ports", outbox(ADAPTERS), outbox(HEART)),
        Forbidden("the runtime knows no adapter", outbox(("runtime",)), outbox(("azure", "engine", "emulator"))),
        Forbidden("the engine knows nothing above it", outbox(("engine",)), outbox((*HEART, "emulator", "ops"))),
        Forbidden(
            "the emulator stands on the engine alone",
            outbox(("emulator",)),
            without(first, outbox(("emulator", "engine", "message", "errors", "lineage", "seldom"))),
            direct=True,  # the engine itself may use the ports' values
        ),
        Forbidden(
            "recorded histories are judged with nothing but messages, so that Spark can ship the judge",
            outbox(JUDGE),
            without((*first, *verifiers), outbox(("message", "errors", "verify", "verify.histories", *JUDGE))),
        ),
        Forbidden("Azure SDKs only in outbox.azure", without(first, outbox(("azure",))), SDKS),
    ]


def outbox(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"outbox.{name}" for name in names)


def without(names: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    left_out = set(allowed)
    return tuple(name for name in names if name not in left_out)


def lines(names: Iterable[str]) -> str:
    return "".join(f"\n    {name}" for name in names)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())

"""Run one exploration with one fault planted in the package's source, and print what was found as JSON.

    python -m tests.simulation.run_mutant NAME

The fault is planted while the module is imported; no file changes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.simulation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


class Planted(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module with its text changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = mutant.file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(ROOT / self._mutant.file))

    def get_filename(self, fullname: str) -> str:
        return str(ROOT / self._mutant.file)

    def get_data(self, path: str) -> bytes:
        return planted((ROOT / self._mutant.file).read_text(), self._mutant).encode()

    def path_stats(self, path: str) -> Any:
        raise OSError("never cached")


def planted(text: str, mutant: Mutant) -> str:
    """A module's text with the fault in it."""
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name}: {mutant.file} holds {text.count(old)} times: {old!r}; update the mutant")
        text = text.replace(old, new)
    return text


def main(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    if mutant.edits:
        sys.meta_path.insert(0, Planted(mutant))
    from outbox.verify.search import search
    from tests.simulation.mutant_apps import scenario

    options = dict(mutant.options)
    live = options.pop("live", False)
    report = search(scenario(mutant.scope, mutant.app, **options), live=live)
    found = [{"promise": a.promise, "steps": len(a.trace.steps), "text": a.trace.text} for a in report.anomalies]
    print(json.dumps({"anomalies": found, "states": report.states, "cpu_s": report.cpu_s, "text": report.text}))


if __name__ == "__main__":
    main(sys.argv[1])

"""Plant a fault while the module that it is in is imported; no file changes.

What was imported before without the fault is forgotten first: each process that does so has a package of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.simulation.planting import Mutant

ROOT = Path(__file__).resolve().parents[2]
OWN = ("outbox", "function_app", "spark_jobs", "tests", "tools")


def plant(mutant: Mutant, known: Collection[str] = ()) -> None:
    """Forget what has been imported from this tree but the modules `known`, and plant a fault as it comes anew."""
    for name in set(sys.modules).difference(known):
        package, _, last = name.rpartition(".")
        if name.partition(".")[0] in OWN:
            del sys.modules[name]
            if package in sys.modules:
                vars(sys.modules[package]).pop(last, None)  # else `from package import last` gets the old one
    late = module_of(mutant) in sys.modules
    assert not late, f"{mutant.name}: {mutant.file} is imported already, without the fault"
    if mutant.edits:
        sys.meta_path.insert(0, Planter(mutant))


class Planter(importlib.abc.MetaPathFinder):
    """Finds the one module whose text is to be changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = module_of(mutant)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_loader(name, Planted(self._mutant))  # with its file, as any other module


class Planted(importlib.abc.SourceLoader):
    """Loads a module with its text changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def get_filename(self, fullname: str) -> str:
        return str(ROOT / self._mutant.file)

    def get_data(self, path: str) -> bytes:
        return planted((ROOT / self._mutant.file).read_text(), self._mutant).encode()

    def path_stats(self, path: str) -> Any:
        raise OSError("never cached")


def module_of(mutant: Mutant) -> str:
    """The module that a fault is planted in."""
    return mutant.file.removesuffix(".py").replace("/", ".")


def planted(text: str, mutant: Mutant) -> str:
    """A module's text with the fault in it."""
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name}: {mutant.file} holds {text.count(old)} times: {old!r}; update the mutant")
        text = text.replace(old, new)
    return text

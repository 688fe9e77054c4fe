"""All the Bicep files below a folder, and what is known of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.infra_check.syntax import BicepFile, Declaration, parse
from tools.infra_check.values import Values, plain_type

FOLDER = "infra"
MAIN = "infra/main.bicep"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource, the values of its body (one for each round of a loop) and its full type without the version."""

    file: BicepFile
    declared: Declaration
    type: str
    version: str
    bodies: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """The templates of a folder."""

    root: Path
    files: Mapping[str, BicepFile]

    @staticmethod
    def read(root: Path) -> Project:
        """Read every template below `infra/`."""
        found = [parse(path, root) for path in sorted((root / FOLDER).rglob("*.bicep"))]
        return Project(root, {file.path: file for file in found})

    def module(self, file: BicepFile, declared: Declaration) -> BicepFile | None:
        """The file that a module declaration names."""
        place = ((self.root / file.path).parent / declared.type).resolve()
        try:
            return self.files.get(place.relative_to(self.root.resolve()).as_posix())
        except ValueError:
            return None

    def values(self, file: BicepFile, given: Mapping[str, Any] | None = None) -> Values:
        """The values of a file, with some of its parameters known."""
        types = {}
        for declared in file.of("module"):
            target = self.module(file, declared)
            outputs = target.of("output") if target is not None else []
            types[declared.name] = {output.name: plain_type(output.type) for output in outputs}
        return Values(file, self.root, types, given or {})

    def resources(self, values: Values) -> list[Resource]:
        """The resources of a file, nested ones under their full types."""
        file, found, types = values.file, [], dict[str, tuple[str, str]]()
        for declared in file.of("resource"):
            kind, _, version = declared.type.partition("@")
            if declared.outer in types:
                outer_kind, outer_version = types[declared.outer]
                kind, version = f"{outer_kind}/{kind}", version or outer_version
            types[declared.name] = kind, version
            body = values.of(declared.value) if declared.value is not None else None
            found.append(Resource(file, declared, kind, version, tuple(body) if isinstance(body, list) else (body,)))
        return found

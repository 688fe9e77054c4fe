"""`outbox new`: a project that runs as it stands, from the files in `template/`.

A project has handlers, tests, an exploration and a Functions app.  It is written to a temporary folder and then
renamed, so that no half-made project is left, and no existing file is overwritten.

The template's files end in `.txt`, so that no tool treats them as code; `dot` stands before a leading dot.  `$name` in
them is the project's name, `$package` its Python package; a dollar sign is `$$`.
"""

from __future__ import annotations

import errno
import keyword
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from string import Template

from outbox.errors import Refused

NAME_LENGTH_MAX = 40
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_TAKEN = frozenset(("azure", "conftest", "function_app", "infra", "local", "outbox", "tests"))
"""Names with another meaning in a project."""


@dataclass(frozen=True, slots=True)
class Project:
    """A written project: the folder's name, the package in it, the paths of all files."""

    name: str
    package: str
    paths: tuple[str, ...]


def new_project(name: str, folder: Path) -> Project:
    """Write the project `name` into a folder of that name below `folder`.

    Raises:
        Refused: the name cannot be a project's, or the folder exists.
        OSError: it cannot be written.
    """
    package = package_of(name)
    target = folder / name
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise Refused(f"{target} is there already and is left as it is; choose another name, or move it away")
    pages = {
        str(path).replace("package/", f"{package}/", 1): Template(text).substitute(name=name, package=package)
        for path, text in _pages(files("outbox.ops") / "template", PurePosixPath())
    }
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as scratch:
        made = Path(scratch) / name
        for path, text in pages.items():
            place = made / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        try:
            made.rename(target)  # onto nothing, or onto an empty folder
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise Refused(f"{target} was made by another process meanwhile and is left as it is") from error
            raise
    return Project(name, package, tuple(sorted(pages)))


def package_of(name: str) -> str:
    """The Python package of a project.

    Raises:
        Refused: the name cannot be a package; the text says why.
    """
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise Refused(
            f"{name[:80]!r} cannot be a project's name; use 1 to {NAME_LENGTH_MAX} of a-z, 0-9, - and _, a letter first"
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in _TAKEN:
        raise Refused(f"{name!r} means something else in a project; choose another name")
    if package in sys.stdlib_module_names or _is_installed(package):
        raise Refused(f"{name!r} would hide the module {package!r}, which is installed; choose another name")
    return package


def _pages(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    for entry in folder.iterdir():
        place = below / re.sub(r"^dot(?=\.)", "", entry.name.removesuffix(".txt"))
        if entry.is_dir():
            yield from _pages(entry, place)
        elif entry.name.endswith(".txt"):
            yield place, entry.read_text("utf-8")


def _is_installed(package: str) -> bool:
    found = find_spec(package)
    return found is not None and found.origin is not None  # a folder without an origin may be the project's own

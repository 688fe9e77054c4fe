"""Count the statements of `outbox/`, and those that a Functions deployment carries: `python -m tools.statements`.

A statement is an `ast.stmt` (a docstring is one). A deployment carries every folder of `outbox/` that `.funcignore`
does not leave out.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REST = "the rest"


def left_out(root: Path = ROOT) -> tuple[str, ...]:
    """The folders of `outbox/` that no deployment carries."""
    lines = (root / ".funcignore").read_text().splitlines()
    return tuple(sorted(line.removeprefix("outbox/") for line in lines if line.startswith("outbox/")))


def packages(root: Path = ROOT) -> Counter[str]:
    """Count the statements of each package of `outbox/`; modules beside the packages are `outbox`."""
    found = Counter[str]()
    for file in (root / "outbox").rglob("*.py"):
        package = "/".join(file.relative_to(root).parts[:-1][:2])
        found[package] += sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(file.read_text())))
    return found


def statements(root: Path = ROOT) -> Counter[str]:
    """Count the statements of each folder that is left out, and of all else under `REST`."""
    found, folders = Counter[str](), left_out(root)
    for package, count in packages(root).items():
        folder = package.rpartition("/")[2]
        found[folder if folder in folders else REST] += count
    return found


def main() -> None:
    found = statements()
    print(f"{found.total():,} statements; a deployment carries {found[REST]:,}")
    for folder in left_out():
        print(f"outbox/{folder}: {found[folder]:,}")


if __name__ == "__main__":
    main()

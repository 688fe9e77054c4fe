"""A release: `check TAG` that all names of its version agree, `dist` builds and tries it, `notes` says what it brings.

The version stands in pyproject.toml, and nowhere else: the command prints what was installed, the site and the index
page read it there.  A release is the tag `v` and that version, with a dated section of CHANGELOG.md.

`dist` needs no environment of this clone: what builds and checks is installed from tools/release.lock, with hashes,
into build/release-venv.  Standard library only.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

from tools.site.markdown import Link, with_targets

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "release.lock"
DIST = ROOT / "dist"
WORK = ROOT / "build"
STEP_S = 600
_SECTION = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>.+)\n(?P<text>(?:(?!## ).*\n?)*)", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
PROGRAM = """
import asyncio
from dataclasses import dataclass
from outbox import App, Engine, Worker

app = App("tried")


@dataclass
class Order:
    article: str
    pieces: int


@dataclass
class Stock:
    pieces: int = 100


@app.handler("orders", key="article")
def take(order: Order, stock: Stock) -> None:
    stock.pieces -= order.pieces


async def main() -> None:
    async with Engine.open("tried.data") as engine, Worker(app, engine) as worker:
        for _ in range(2):
            await worker.send("orders", Order("nails", 3), id="o1")
        await worker.wait_idle(timeout_s=10)
        print(await worker.state(Stock, "nails"))


asyncio.run(main())
"""
PRINTED = "Stock(pieces=97)\n"


class NotReleasable(Exception):
    """The tree is not one to release; the text says what to change."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command says; the exit code."""
    options = make_parser().parse_args(arguments)
    try:
        options.work(options)
    except NotReleasable as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The parser, with the work of each command."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="whether a tag is the one of this tree")
    check.add_argument("tag")
    check.set_defaults(work=lambda options: print(check_tag(ROOT, options.tag)))
    notes = commands.add_parser("notes", help="the section of CHANGELOG.md, with links into a forge")
    notes.add_argument("address", help="of the repository")
    notes.set_defaults(work=lambda options: print(notes_of(ROOT, options.address), end=""))
    dist = commands.add_parser("dist", help="build, check and try both files")
    dist.set_defaults(work=lambda options: make_dist())
    return parser


def version_of(root: Path) -> str:
    """The version in pyproject.toml."""
    page: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return str(page["project"]["version"])


def check_tag(root: Path, tag: str) -> str:
    """The version, if this is its tag and CHANGELOG.md says when it came.

    Raises:
        NotReleasable: the tag is another one, or the changelog has no dated section.
    """
    version = version_of(root)
    if tag != f"v{version}":
        raise NotReleasable(f"the tag is {tag}, the version {version}; tag v{version}, or change pyproject.toml first")
    date = section(root, version)["date"]
    if not _DATE.fullmatch(date):
        raise NotReleasable(f"CHANGELOG.md calls {version} {date!r}; put the day there, as in 2026-01-31")
    return version


def notes_of(root: Path, address: str) -> str:
    """What CHANGELOG.md says of this version; links lead to its files on the forge."""
    version = version_of(root)

    def whole(link: Link) -> str:
        kind = "raw" if link.is_image else "blob"
        path = link.path_from("CHANGELOG.md") + link.anchor
        return link.target if link.is_outside else f"{address.rstrip('/')}/{kind}/v{version}/{path}"

    return with_targets(section(root, version)["text"].strip() + "\n", whole)


def section(root: Path, version: str) -> re.Match[str]:
    """The first section of CHANGELOG.md, which must be that of a version."""
    found = _SECTION.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if found is None or found["version"] != version:
        raise NotReleasable(
            f"the first section of CHANGELOG.md is not that of {version}; write `## [{version}] - DATE`"
        )
    return found


def make_dist() -> None:
    """Build both files into dist, check them, and run the wheel where nothing else is installed.

    Raises:
        NotReleasable: a step failed; what it printed is above.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    tools = environment(WORK / "release-venv", "--require-hashes", "-r", str(LOCK))
    run(tools, "-m", "build", "--no-isolation", "--outdir", str(DIST))  # the wheel is built from the sdist
    files = sorted(map(str, DIST.iterdir()))
    run(tools, "-m", "twine", "check", "--strict", *files)
    run(tools, "-m", "check_wheel_contents", *(name for name in files if name.endswith(".whl")))
    try_wheel(next(DIST.glob("*.whl")))
    print(f"release: {', '.join(Path(name).name for name in files)} in dist, checked and tried")


def try_wheel(wheel: Path) -> None:
    """Install a wheel into an empty environment, ask for its version and run a program there.

    Raises:
        NotReleasable: either prints something else than it should.
    """
    python = environment(WORK / "tried-venv", str(wheel))
    folder = WORK / "tried"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for command, wanted in (
        ([str(python.with_name("outbox")), "--version"], f"outbox {version_of(ROOT)}\n"),
        ([str(python), "-I", "-c", PROGRAM], PRINTED),
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=STEP_S, check=False)
        if (done.returncode, done.stdout) != (0, wanted):
            raise NotReleasable(f"{wheel.name} prints {done.stdout!r} where {wanted!r} is due; {done.stderr}")


def environment(folder: Path, *wanted: str) -> Path:
    """Create a fresh environment with these packages; the path of its Python."""
    venv.create(folder, clear=True, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
    return python


def run(python: Path, *words: str) -> None:
    """Run a step in the clone.

    Raises:
        NotReleasable: it failed.
    """
    if subprocess.run([str(python), *words], cwd=ROOT, timeout=STEP_S, check=False).returncode:
        raise NotReleasable(f"`{' '.join(words[:3])}` failed")


if __name__ == "__main__":
    sys.exit(main())

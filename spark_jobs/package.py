"""Make what a Spark pool needs of this code, by one command: `python -m spark_jobs.package`, or `make spark-package`.

    build/spark/outbox-jobs.zip     outbox and spark_jobs, for --py-files (pyFiles of a batch or job definition)
    build/spark/submitted.py        the main definition, which every job is started through
    build/spark/outbox_azure-*.whl  the same as a workspace package for notebooks
    build/spark/requirements.txt    what the pool must have installed

A wheel in --py-files is ignored by PySpark, which takes .zip, .egg and .jar only; so the jobs go as a zip.  The same
source gives the same bytes: an unchanged zip need not be uploaded again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "spark"
ZIP_NAME = "outbox-jobs.zip"
BUILD_S = 120
LEFT_OUT = ("outbox/emulator/", "outbox/verify/")
"""The packages that no job imports."""
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say


def files() -> Iterator[tuple[str, Path]]:
    """The files of the zip: name and path, in order."""
    every = [path for folder in ("outbox", "spark_jobs") for path in (ROOT / folder).rglob("*")]
    for path in sorted(path for path in every if path.suffix in (".py", ".properties", ".typed")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(LEFT_OUT):
            yield name, path


def make_zip(output: Path) -> Path:
    """The zip of the code."""
    target = output / ZIP_NAME
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, path in files():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(entry, path.read_bytes())
    return target


def make_wheel(output: Path) -> Path:
    """The wheel of the library, by the project's own build back end.

    Raises:
        RuntimeError: it could not be built.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    wheels = sorted(output.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if done.returncode or not wheels:
        raise RuntimeError(f"the wheel was not built; `make setup` installs what that needs:\n{done.stderr[-1_000:]}")
    return wheels[-1]


def package(output: Path = OUTPUT, *, wheel: bool = True) -> list[Path]:
    """Make everything; the files."""
    output.mkdir(parents=True, exist_ok=True)
    made = [make_zip(output)]
    for name in ("submitted.py", "requirements.txt"):
        made.append(Path(shutil.copyfile(ROOT / "spark_jobs" / name, output / name)))
    return [*made, make_wheel(output)] if wheel else made


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.package", description="Make what a Spark pool needs of this code.")
    found.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR")
    found.add_argument("--no-wheel", action="store_true", help="the zip only, without a build back end")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    arguments = parser().parse_args(argv)
    try:
        made = package(arguments.output.absolute(), wheel=not arguments.no_wheel)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"package: {error}", file=sys.stderr, flush=True)
        return 1
    for path in made:
        print(f"{path.stat().st_size:>9,}  {path}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python -m tools.site: make the documentation in build/site, with every warning an error."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from tools.site.navigation import SiteError
from tools.site.sources import write_sources

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "site"
WORK = ROOT / "build" / "site-work"


def main() -> int:
    """Write the sources and let Sphinx make pages of them; the exit code."""
    try:
        from sphinx.cmd.build import main as sphinx_build
    except ImportError:
        print("site: Sphinx is not installed; run `make docs`, which installs the group `docs`", file=sys.stderr)
        return 2
    started = time.monotonic()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        count = write_sources(ROOT, WORK / "pages")
    except SiteError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    rules = ["-q", "-W", "--keep-going", "-n", "-j", "2"]
    folders = ["-c", str(Path(__file__).parent), "-d", str(WORK / "doctrees"), str(WORK / "pages"), str(OUTPUT)]
    if code := int(sphinx_build([*rules, *folders])):
        return code
    print(f"{count} pages in {time.monotonic() - started:.0f} s: {OUTPUT.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())

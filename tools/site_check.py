"""python -m tools.site_check: look at every page of build/site in a browser, narrow and wide, with and without scripts.

Reported: a page that scrolls sideways, asks another host for anything, misses a file, has no heading or navigation,
whose scripts fail, or that is out of sight in the navigation; and a search that does not find its page first.
`--pictures FOLDER` also keeps a picture of one page of each group, light and dark.  `make docs-check` makes the site,
installs Playwright and calls this; a Chromium or Chrome must be there.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SITE = Path(__file__).resolve().parents[1] / "build" / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIDEWAYS = """Math.max(...["html", "body", ".main", ".content"].map(name => {
    const part = document.querySelector(name);
    return part ? part.scrollWidth - part.clientWidth : 0;
}))"""
UNSEEN = """(() => {
    const current = document.querySelector(".sidebar-tree .current-page > .reference");
    const room = document.querySelector(".sidebar-scroll").getBoundingClientRect();
    const at = current?.getBoundingClientRect();
    return Boolean(current) && !(at.height > 0 && at.top >= room.top && at.bottom <= room.bottom);
})()"""
SEARCHES = {"lineage": "", "dead letter": "retries-and-dead-letters", "dead letters": "retries-and-dead-letters"}
"""What is asked, and in which page's address the first answer is; empty where a page that has the word will do."""
WIDTHS = (390, 1280)
HEIGHT = 900
LINKS_MIN = 40
"""So many pages the navigation has at least."""
SEARCH_MS = 10_000
PICTURED = (
    *("index", "quickstart", "how-to/write-a-handler", "how-to/test-a-handler", "how-to/run-on-azure", "how-to/cost"),
    *("how-to/operate", "how-to/spark", "protocol/index", "reference/outbox", "streams", "pages", "benchmarks/w1.txt"),
)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on a free port of this machine, while it is open."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def started(browser: str) -> Iterator[Any]:
    """A browser that runs until the end of the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=list(FLAGS))
        try:
            yield running
        finally:
            running.close()


def faults(browser: Any, address: str, names: list[str], *, with_scripts: bool) -> Iterator[str]:
    """What is wrong with pages, one line each."""
    context = browser.new_context(java_script_enabled=with_scripts, viewport={"width": WIDTHS[0], "height": HEIGHT})
    page = context.new_page()
    found: list[str] = []
    page.on("request", lambda request: found.extend(strangers(request.url, address)))
    page.on("response", lambda response: found.extend([f"misses {response.url}"] * (response.status >= 400)))
    page.on("pageerror", lambda error: found.append(f"script fails: {error}"))
    for name in names:
        page.goto(address + name, wait_until="load")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            if (over := sideways(page)) > 0:
                found.append(f"scrolls {over} pixels sideways at {width}")
        is_plain = name == "search.html" or page.locator("h1").first.is_visible()
        if not is_plain or page.locator(".sidebar-tree a").count() < LINKS_MIN:
            found.append("has no heading or no navigation")
        if with_scripts and page.evaluate(UNSEEN):
            found.append("is out of sight in the navigation")
        yield from (f"{name}: {fault}" for fault in found)
        found.clear()
    context.close()


def strangers(url: str, address: str) -> list[str]:
    """The fault of a request that leaves the site."""
    return [] if url.startswith((address, "data:")) else [f"asks {url}"]


def sideways(page: Any) -> int:
    """By how many pixels a page, or its text beside the navigation, is wider than the room it has."""
    return int(page.evaluate(SIDEWAYS))  # the browser answers this also where scripts of the page are off


def found_by_search(browser: Any, address: str, word: str, wanted: str) -> Iterator[str]:
    """What is wrong with the first answer to a search."""
    page = browser.new_page()
    page.goto(f"{address}search.html?q={word}")
    try:
        page.locator("#search-results li a").first.click(timeout=SEARCH_MS)
        if wanted not in page.url or (not wanted and word not in page.locator("article").inner_text().lower()):
            yield f"search.html: {word} finds first {page.url}, which is not about it"
    except Exception as error:  # Playwright's own, which is not installed where only types are checked
        yield f"search.html: finds nothing for {word}: {str(error).splitlines()[0]}"
    page.close()


def take_pictures(browser: Any, address: str, folder: Path) -> None:
    """Keep a picture of one page of each group, in both colours and widths."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 1400})
            page = context.new_page()
            for name in PICTURED:
                page.goto(f"{address}{name}.html", wait_until="load")
                page.screenshot(path=folder / f"{name.replace('/', '-')}-{scheme}-{width}.png")
            context.close()


def main() -> int:
    """Look at all pages; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.site_check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="keep pictures of some pages there")
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    names = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    if program is None or not names:
        print("site_check: needs a browser (apt-get install chromium) and the site (make docs-check)", file=sys.stderr)
        return 2
    wrong: list[str] = []
    with served(SITE) as address, started(program) as browser:
        for with_scripts in (False, True):
            wrong += faults(browser, address, names, with_scripts=with_scripts)
        for word, wanted in SEARCHES.items():
            wrong += found_by_search(browser, address, word, wanted)
        if options.pictures:
            take_pictures(browser, address, options.pictures)
    print("\n".join([*wrong, f"{len(names)} pages, {len(wrong)} faults"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

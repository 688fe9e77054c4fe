"""What the site is made of: which files become pages, where each stands, and how its links turn with it.

Every page of docs/ is one, and all that is reached from there by links: other Markdown, a text file as it is in a
block, a folder as the list of its texts.  So each link of a page leads to a page, also while this repository has no
public address.  README.md is the first page; docs/ has its pages at the top of the site.
"""

from __future__ import annotations

import posixpath
import shutil
from pathlib import Path

from tools.site.markdown import Link, links, with_targets
from tools.site.navigation import HOME, INDEX, Entry, Navigation, SiteError, navigation, toctree

ALL_PAGES = Entry(INDEX, "All pages")
"""The index itself, in the navigation after what it names first."""
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml"}
UNLISTED = "---\norphan: true\n---\n\n"
"""What such a page begins with, because links are enough to find it."""


def read_pages(root: Path) -> dict[str, str]:
    """The texts of README.md, of all Markdown in docs/, and of all that they link to; by path, and "" for pictures.

    Raises:
        SiteError: a link leads nowhere.
    """
    wanted = [HOME, *sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))]
    texts: dict[str, str] = {}
    while wanted:
        page = wanted.pop(0)
        if page in texts:
            continue
        texts[page] = text_of(root, page)
        if (root / page).is_dir():
            wanted += [f"{page}/{name}" for name in listed(root / page)]
        elif page.endswith(".md"):
            wanted += [target_in(root, page, link) for link in links(texts[page]) if not link.is_outside]
    return texts


def target_in(root: Path, page: str, link: Link) -> str:
    """The path of what a link of a page leads to."""
    path = link.path_from(page)
    if path.startswith("..") or not (root / path).exists():
        raise SiteError(f"{page}: ({link.target}) leads to no file of this repository; mend the link")
    return path


def text_of(root: Path, path: str) -> str:
    """The text of a file; empty of a folder and of a picture."""
    return "" if is_picture(path) or (root / path).is_dir() else (root / path).read_text(encoding="utf-8")


def is_picture(path: str) -> bool:
    """Whether a file is copied, because pages show it."""
    return path.endswith((".svg", ".png"))


def listed(folder: Path) -> list[str]:
    """The names of the texts that the page of a folder lists."""
    return sorted(path.name for path in folder.glob("*.txt"))


def place(root: Path, path: str) -> str:
    """Where a file of the repository stands among the site's sources."""
    if path == HOME:
        return "index.md"
    if path == INDEX:
        return "pages.md"
    there = path.removeprefix("docs/")
    if (root / path).is_dir():
        return f"{there}/index.md"
    if posixpath.basename(path) == HOME:
        return f"{posixpath.dirname(there)}/index.md"
    return there if path.endswith(".md") or is_picture(path) else f"{there}.md"


def document(root: Path, path: str) -> str:
    """The name that Sphinx has for a page, from the top of the site."""
    return "/" + place(root, path).removesuffix(".md")


def moved(root: Path, page: str, text: str) -> str:
    """A page's text with links that fit where it and its targets stand."""
    here = posixpath.dirname(place(root, page))

    def turned(link: Link) -> str:
        if link.is_outside or link.target.startswith("#"):
            return link.target
        return posixpath.relpath(place(root, link.path_from(page)), here or ".") + link.anchor

    return with_targets(text, turned)


def file_page(path: str, text: str) -> str:
    """A file as a page, its text in one block."""
    fence = "`" * 3
    while fence in text:
        fence += "`"
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"{UNLISTED}# `{path}`\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def folder_page(root: Path, path: str) -> str:
    """A folder as a page: its texts, each with its first line."""
    rows = []
    for name in listed(root / path):
        first = (root / path / name).read_text(encoding="utf-8").partition("\n")[0].replace("|", "\\|")
        rows.append(f"| [`{name}`]({name}.md) | {first.replace('`', '')} |")
    return UNLISTED + "\n".join([f"# `{path}`", "", "| file | its first line |", "|---|---|", *rows, ""])


def write_sources(root: Path, output: Path) -> int:
    """Write the sources for Sphinx into an empty folder; how many pages there are.

    Raises:
        SiteError: a link leads nowhere, or a page is in no group.
    """
    texts = read_pages(root)
    placed = navigation({page: text for page, text in texts.items() if page.endswith(".md")})
    for page, text in texts.items():
        file = output / place(root, page)
        file.parent.mkdir(parents=True, exist_ok=True)
        if is_picture(page):
            shutil.copyfile(root / page, file)
        else:
            file.write_text(source(root, page, text, placed), encoding="utf-8")
    return sum(not is_picture(page) for page in texts)


def source(root: Path, page: str, text: str, placed: Navigation) -> str:
    """What Sphinx reads for one page."""
    if (root / page).is_dir():
        return folder_page(root, page) + tree(root, [Entry(f"{page}/{name}") for name in listed(root / page)])
    if not page.endswith(".md"):
        return file_page(page, text)
    found = moved(root, page, text)
    if page == HOME:
        first, *others = placed.groups
        found += tree(root, [*first.entries, ALL_PAGES], first.title)
        return found + "".join(tree(root, group.entries, group.title) for group in others)
    return found + tree(root, placed.below.get(page, ()))


def tree(root: Path, entries: list[Entry] | tuple[Entry, ...], caption: str = "") -> str:
    """A part of the navigation, empty without entries."""
    return toctree(caption, [(document(root, entry.page), entry.title) for entry in entries]) if entries else ""

"""What a page has beyond the theme's: groups that fold, the way to it, a description, pictures that open.

An extension of Sphinx.  It changes finished HTML, because that is where the theme leaves its navigation; nothing here
needs scripts in the reader's browser.
"""

from __future__ import annotations

import html
import re
from typing import Any

DESCRIPTION_MAX = 160
_GROUP = re.compile(
    r'<p class="caption" role="heading"><span class="caption-text">(?P<title>[^<]*)</span></p>\n?'
    r'(?P<pages><ul.*?</ul>)(?=\s*(?:<p class="caption"|$))',
    re.DOTALL,
)
_PICTURE = re.compile(r'<img [^>]*?src="(?P<file>[^"]+\.svg)"[^>]*>')


def folded(tree: str) -> str:
    """The navigation with each group in a block that folds; open is that of the current page, or else the first."""
    opened = group_of(tree)

    def fold(group: re.Match[str]) -> str:
        is_open = group["title"] == opened if opened else group.start() == first
        shown = " open" if is_open else ""
        title = f'<summary class="caption"><span class="caption-text">{group["title"]}</span></summary>'
        return f"<details{shown}>{title}{group['pages']}</details>"

    tree = tree.strip()
    found = _GROUP.search(tree)
    first = found.start() if found else 0
    return _GROUP.sub(fold, tree)


def group_of(tree: str) -> str:
    """The title of the group that holds the current page, as HTML; empty of a page in none."""
    return next((found["title"] for found in _GROUP.finditer(tree.strip()) if _is_current(found["pages"])), "")


def opening(body: str) -> str:
    """A page's HTML with each picture a link to its file, where a browser shows it in full size."""
    return _PICTURE.sub(lambda found: f'<a class="picture" href="{found["file"]}">{found[0]}</a>', body)


def described(text: str) -> str:
    """The first words of a text, at most as many as a search engine or a chat shows."""
    words = " ".join(text.split())
    return words if len(words) <= DESCRIPTION_MAX else words[:DESCRIPTION_MAX].rpartition(" ")[0].rstrip(",;:") + " …"


def head(title: str, description: str) -> str:
    """The lines of a page's head that name and describe it elsewhere."""
    lines = [
        ("property", "og:type", "article"),
        ("property", "og:site_name", "outbox"),
        ("property", "og:title", title),
    ]
    if description:
        lines += [("name", "description", description), ("property", "og:description", description)]
    return "".join(f'<meta {kind}="{name}" content="{html.escape(value)}">\n' for kind, name, value in lines)


def _is_current(pages: str) -> bool:
    return 'class="current' in pages


def _complete(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put all of it into what the theme's templates read; Sphinx calls this for each page."""
    tree = context["furo_navigation_tree"]
    context["group"] = group_of(tree)
    context["folder"] = name.partition("/")[0] if "/" in name else ""
    context["furo_navigation_tree"] = folded(tree)
    if doctree is not None:
        context["body"] = opening(context["body"])
        title = html.unescape(re.sub(r"<[^>]+>", "", context["title"]))
        context["metatags"] = context.get("metatags", "") + head(title, described(_first_words(doctree)))


def _first_words(doctree: Any) -> str:
    """The first paragraph that stands by itself, neither in a table nor around a picture."""
    parts = (node for section in doctree.findall() if _kind(section) == "section" for node in section.children)
    return next((text for node in parts if _kind(node) == "paragraph" and (text := node.astext().strip())), "")


def _kind(node: Any) -> str:
    return str(getattr(node, "tagname", ""))


def setup(app: Any) -> dict[str, bool]:
    """Take part in every page, after the theme."""
    app.connect("html-page-context", _complete, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The site's sources: every page has its place in the navigation, and every link of a page leads to one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tools.site.markdown import Link, links, with_targets
from tools.site.navigation import INDEX, Entry, Group, SiteError, groups, navigation
from tools.site.page import DESCRIPTION_MAX, described, folded, group_of, head, opening
from tools.site.sources import file_page, place, read_pages, write_sources

BUILD_S = 110
INDEX_TEXT = """# Documentation

To start: the [quickstart](quickstart.md), [elsewhere](https://a.example).

## How to write

| page | about |
|---|---|
| [Sagas](how-to/saga.md) | steps; [why](why.md) |
| [Again](why.md#part) | named above |

## Look up

- [The protocol](protocol/README.md): its rules; [the
  way](protocol/way.md)
- [Changes](../CHANGELOG.md)
"""
TEXTS = {
    "README.md": "# outbox\n\n[all](docs/README.md)\n",
    "docs/README.md": INDEX_TEXT,
    "docs/quickstart.md": "# Quickstart\n\n[first](../README.md) [saga](how-to/saga.md#one)\n",
    "docs/how-to/saga.md": "# Sagas\n\n## One\n\n![drawn](../a.svg) [figures](../figures/w1.txt), [all](../figures)\n",
    "docs/why.md": "# Why\n\n## Part\n",
    "docs/protocol/README.md": "# The protocol\n\n[item](item.md), [up](../why.md)\n[the way](way.md)\n",
    "docs/protocol/way.md": "# The way\n",
    "docs/protocol/item.md": "# Item\n",
    "CHANGELOG.md": "# Changes\n",
}
FILES = {"docs/a.svg": "<svg/>", "docs/figures/w1.txt": "W1 | `fast`\n```\n", "docs/figures/w1.json": "{}"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in (TEXTS | FILES).items():
        file = tmp_path / "repository" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "repository"


def test_links_stand_outside_code() -> None:
    text = (
        "[a\nb](x.md#c) `[no](n.md)` ``` [n`o](n.md) ```\n\n- ![p](p.svg)\n\n```text\n[no](n.md)\n\n[no](n.md)\n```\n"
    )
    text += "| [`t[0]`](t.md) |\n"
    assert list(links(text)) == [
        Link("a b", "x.md#c"),
        Link("p", "p.svg", is_image=True, opens=True),
        Link("`t[0]`", "t.md", opens=True),
    ]
    assert with_targets(text, lambda link: f"<{link.target}>") == text.replace("x.md#c", "<x.md#c>").replace(
        "p.svg", "<p.svg>"
    ).replace("t.md", "<t.md>")


def test_the_groups_are_the_headings_and_a_row_is_named_by_the_link_it_begins_with() -> None:
    assert groups(INDEX_TEXT) == (
        Group("", (Entry("docs/quickstart.md"),)),
        Group("How to write", (Entry("docs/how-to/saga.md", "Sagas"), Entry("docs/why.md"))),
        Group(
            "Look up",
            (
                Entry("docs/protocol/README.md", "The protocol"),
                Entry("docs/protocol/way.md"),
                Entry("CHANGELOG.md", "Changes"),
            ),
        ),
    )


def test_the_pages_of_a_folder_stand_below_its_readme_in_its_order() -> None:
    found = navigation(TEXTS)
    assert found.below == {"docs/protocol/README.md": (Entry("docs/protocol/item.md"), Entry("docs/protocol/way.md"))}
    assert [entry.page for entry in found.groups[-1].entries] == ["docs/protocol/README.md", "CHANGELOG.md"]


def test_a_page_in_no_group_is_refused_with_the_cure() -> None:
    with pytest.raises(SiteError, match=r"in no group: docs/lost\.md; link each from docs/README\.md"):
        navigation(TEXTS | {"docs/lost.md": "# Lost\n"})


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("README.md", "index.md"),
        ("docs/README.md", "pages.md"),
        ("docs/how-to/saga.md", "how-to/saga.md"),
        ("docs/protocol/README.md", "protocol/index.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("docs/a.svg", "a.svg"),
        ("docs/figures", "figures/index.md"),
        ("docs/figures/w1.txt", "figures/w1.txt.md"),
    ],
)
def test_where_a_file_stands(repository: Path, path: str, where: str) -> None:
    assert place(repository, path) == where


def test_links_turn_with_their_page_and_what_they_lead_to_comes_along(repository: Path, tmp_path: Path) -> None:
    assert write_sources(repository, tmp_path / "pages") == len(TEXTS) + 2  # a folder, and the text in it
    read = {file.relative_to(tmp_path / "pages").as_posix(): file for file in (tmp_path / "pages").rglob("*.*")}
    assert "[first](index.md) [saga](how-to/saga.md#one)" in read["quickstart.md"].read_text()
    assert "[figures](../figures/w1.txt.md), [all](../figures/index.md)" in read["how-to/saga.md"].read_text()
    assert "| [`w1.txt`](w1.txt.md) | W1 \\| fast |" in read["figures/index.md"].read_text()
    first = read["index.md"].read_text()
    assert first.startswith("# outbox\n\n[all](pages.md)\n") and "Sagas </how-to/saga>" in first
    assert "\n/protocol/item\n/protocol/way\n" in read["protocol/index.md"].read_text()
    assert "a.svg" in read


def test_a_link_that_leads_nowhere_is_refused_with_its_page(repository: Path) -> None:
    (repository / "docs/why.md").write_text("[gone](gone.md)")
    with pytest.raises(SiteError, match=r"docs/why\.md: \(gone\.md\) leads to no file"):
        read_pages(repository)


def test_a_file_with_a_fence_stays_in_its_block() -> None:
    assert file_page("a/b.json", "```\n").endswith("# `a/b.json`\n\n````json\n```\n````\n")


def test_every_page_of_this_repository_stands_once_in_the_navigation(tmp_path: Path) -> None:
    texts = read_pages(ROOT)
    found = navigation({page: text for page, text in texts.items() if page.endswith(".md")})
    entries = [*found.below.values(), *(group.entries for group in found.groups)]
    counts = Counter(entry.page for each in entries for entry in each)
    assert set(counts.values()) == {1} and len(counts) > 60
    headings = re.findall(r"^## (.+)$", (ROOT / INDEX).read_text(), re.MULTILINE)
    assert [group.title for group in found.groups if group.title] == headings
    write_sources(ROOT, tmp_path)
    for page in tmp_path.rglob("*.md"):
        for link in links(page.read_text()):
            if not link.is_outside and not link.target.startswith("#"):
                assert (page.parent / link.target.partition("#")[0]).is_file(), f"{page}: {link.target}"


TREE = """<ul{home}><li><a href="a.html">A</a></li></ul>
<p class="caption" role="heading"><span class="caption-text">Decide</span></p>
<ul><li><a href="b.html">B</a></li></ul>
<p class="caption" role="heading"><span class="caption-text">Look up</span></p>
<ul{there}><li><a href="c.html">C</a><ul><li><a href="d.html">D</a></li></ul></li></ul>
"""
CURRENT = ' class="current"'


@pytest.mark.parametrize(
    ("home", "there", "group", "opened"), [("", CURRENT, "Look up", "Look up"), (CURRENT, "", "", "Decide")]
)
def test_a_group_folds_unless_it_holds_the_current_page(home: str, there: str, group: str, opened: str) -> None:
    tree = TREE.format(home=home, there=there)
    made = folded(tree)
    assert group_of(tree) == group and made.count("<details") == 2 and made.count("<a ") == 4
    assert re.findall(r"<details open>.*?<span[^>]*>([^<]*)<", made) == [opened]
    assert made.endswith("</ul></li></ul></details>")


def test_a_page_is_described_by_its_first_words_and_a_picture_opens() -> None:
    text = described("one word, " * 40)
    assert len(text) <= DESCRIPTION_MAX + 2 and text.endswith("word …") and described("so\nshort") == "so short"
    made = head('A "title"', "a < b")
    assert 'name="description" content="a &lt; b"' in made and 'content="A &quot;title&quot;"' in made
    assert "description" not in head("A", "")
    assert opening('<p><img alt="b" src="b.svg" /></p>') == (
        '<p><a class="picture" href="b.svg"><img alt="b" src="b.svg" /></a></p>'
    )


needs_sphinx = pytest.mark.skipif(find_spec("furo") is None, reason="Sphinx is not installed; `make docs` installs it")


@needs_sphinx
def test_the_site_of_this_repository_is_made_without_a_warning() -> None:
    command = [sys.executable, "-m", "tools.site"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    page = (ROOT / "build/site/how-to/write-a-handler.html").read_text()
    assert 'name="description"' in page and re.search(r'<p class="way">\s*<span>How to write</span>', page)
    assert page.count("<details open>") == 1 and (ROOT / "build/site/_static/favicon.svg").is_file()


@needs_sphinx
def test_a_link_to_a_section_that_is_not_there_fails_the_build(repository: Path, tmp_path: Path) -> None:
    def build() -> subprocess.CompletedProcess[str]:
        write_sources(repository, tmp_path / "pages")
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "-E", "-c", str(ROOT / "tools/site")]
        folders = [str(tmp_path / "pages"), str(tmp_path / "site")]
        return subprocess.run([*command, *folders], capture_output=True, text=True, timeout=BUILD_S, check=False)

    done = build()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/protocol/item.html").is_file()
    (repository / "docs/why.md").write_text("# Why\n\n## Part\n\n[gone](how-to/saga.md#two)\n")
    done = build()
    assert done.returncode != 0 and "'two'" in done.stderr

"""The drawings that are made from text: as their scripts draw them, shown on a page, and true to what they draw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

import pytest

import outbox.ports
from outbox.engine.engine import Engine
from outbox.streams import Inputs, OrderedLog, Processor, Step
from outbox.streams.replica import Progress
from tests.docs.blocks import ROOT
from tools.pictures import architecture, engine_scope, item_scope, log, partition_scope
from tools.pictures.catalogue import PICTURES, Picture
from tools.pictures.drawing import COLOURS, DARK, LIGHT, SHAPES, Drawing, entries
from tools.pictures.plan import Plan
from tools.pictures.steps import Steps

SVG = "{http://www.w3.org/2000/svg}"
WIDTH_MAX = 920
SCOPES = {
    "engine": (engine_scope, "commit"),
    "partition": (partition_scope, "batch"),
    "item": (item_scope, "swap"),
}
pictures = pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.PLACE)
scopes = pytest.mark.parametrize("scope", SCOPES)


@pictures
def test_a_picture_is_what_its_script_draws(picture: Picture) -> None:
    assert (ROOT / picture.PLACE).read_text() == picture.draw(), "run `python -m tools.pictures`"


@pictures
def test_a_picture_is_shown_on_a_page(picture: Picture) -> None:
    place = ROOT / picture.PLACE
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [page for page in pages for link in re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", page.read_text())
             if (page.parent / link).resolve() == place]  # fmt: skip
    assert shown


@pictures
def test_a_picture_is_whole_xml_for_readers_and_for_a_light_and_a_dark_screen(picture: Picture) -> None:
    drawn = ElementTree.fromstring(picture.draw())
    title, described, style = (drawn.findtext(f"{SVG}{name}") or "" for name in ("title", "desc", "style"))
    assert title and len(described) > len(title) and int(drawn.attrib["width"]) <= WIDTH_MAX
    assert all(element.text and element.text in described for element in drawn.iter(f"{SVG}text"))
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    used = {name for names in re.findall(r'class="([^"]+)"', picture.draw()) for name in names.split()}
    assert used == rules(light) and used - SHAPES.keys() == rules(dark)


def rules(style: str) -> set[str]:
    return set(re.findall(r"^\.([a-z][\w-]*) ", style, re.MULTILINE))


def test_every_colour_has_a_light_and_a_dark_value() -> None:
    named = {part.split(": ")[1] for rule in COLOURS.values() for part in rule.split("; ")}
    assert LIGHT.keys() == DARK.keys() and LIGHT.keys() <= named


@pytest.mark.parametrize(
    ("kind", "room", "why"), [("text", 70, "has no room in 70 pixels"), ("name", 0, "add a class such as `text`")]
)
def test_a_text_without_room_or_colour_is_refused(kind: str, room: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Drawing("a title", 400).text("eleven more", 0, 0, kind, room)


def test_a_text_that_leaves_the_drawing_is_refused() -> None:
    with pytest.raises(ValueError, match="has no room in 20 pixels"):
        Drawing("a title", 400).text("eleven more", 390, 0, "text middle")


def test_an_arrow_that_is_none_and_a_class_that_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match="'worker-store' is no arrow"):
        Steps("A title", ("worker",), "1 load worker-store: a text", "", ("load",), "a crash here").draw()
    with pytest.raises(ValueError, match=r"no class is called \['bos'\]"):
        Plan("A title", 400, 400, "bos 10 60 100 40: a name").draw()


# A protocol is drawn as its page has it


def table(page: str, section: str) -> Iterator[list[str]]:
    """The rows of the first table of a page's section, without its head."""
    text = (ROOT / "docs/protocol" / page).read_text().partition(f"\n## {section}")[2]
    lines = text.partition("\n|")[2].partition("\n\n")[0].splitlines()[2:]
    return ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)


def steps_of_page(scope: str) -> list[tuple[str, str]]:
    """The number and the name of each step; engine scope numbers none."""
    rows = table(f"{scope}.md", "The steps")
    found = [("", row[0]) if scope == "engine" else (row[0], row[1]) for row in rows]
    return [(number or "-", name) for number, name in found if name not in ("follow", "recover")]


@scopes
def test_the_steps_of_a_scope_are_those_of_its_page(scope: str) -> None:
    drawn = [entry.words[:2] for entry in entries(SCOPES[scope][0].PICTURE.steps)]
    assert [step for step in drawn if step != ("-", "receive")] == steps_of_page(scope)


@scopes
def test_the_numbers_of_a_scope_are_those_of_its_file(scope: str) -> None:
    text = (ROOT / f"outbox/runtime/{scope}_scope.py").read_text()
    numbered = re.findall(r"^    (\d)  ", text.split('"""')[1], re.MULTILINE)
    drawn = [entry.words[0] for entry in entries(SCOPES[scope][0].PICTURE.steps)]
    assert [number for number in drawn if number != "-"] == numbered


@pytest.mark.parametrize("scope", ["partition", "item"])
def test_a_crash_leads_where_the_page_says(scope: str) -> None:
    """Each row of the page's table is within one note of the picture, and no note is without a row."""
    names = [name for _, name in steps_of_page(scope)]
    numbers = {number: name for number, name in steps_of_page(scope) if number != "-"}
    groups = [(names.index(first) if first in names else 0, names.index(last)) for first, last in noted(scope)]
    drawn = [entry.words[1] for entry in entries(SCOPES[scope][0].PICTURE.steps)]
    spans = [(drawn.index(first), drawn.index(last)) for first, last in noted(scope)]
    assert [spans[0][0], spans[-1][1]] == [0, len(drawn) - 1]
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))
    met = set[int]()
    for row in table(f"{scope}.md", "Crashes"):
        said = re.findall(r"\d|" + "|".join(names), row[0])
        places = [names.index(numbers.get(word, word)) for word in said]
        [group] = [group for group in groups if group[0] <= min(places) and max(places) <= group[1]]
        met.add(groups.index(group))
    assert met == set(range(len(groups)))


def noted(scope: str) -> list[tuple[str, str]]:
    return [(entry.words[0], entry.words[1]) for entry in entries(SCOPES[scope][0].PICTURE.notes)]


def test_a_crash_in_engine_scope_leads_where_the_page_says() -> None:
    rows = [row[0] for row in table("engine.md", "Crashes and lost answers")]
    assert rows[:3] == ["crash before the commit", "crash after the commit, before its sync", "crash after the commit"]
    assert noted("engine") == [("claim", "settle"), ("commit", "commit"), ("gate", "gate")]
    answers = [" ".join(entry.words) for entry in entries(engine_scope.PICTURE.answers)]
    assert answers[1:] == [row.removesuffix(" outcome") for row in rows[3:]]


def test_the_answers_of_a_store_are_those_of_its_page() -> None:
    answers = [" ".join(entry.words) for entry in entries(partition_scope.PICTURE.answers)]
    text = (ROOT / "docs/protocol/partition.md").read_text()
    assert answers == re.findall(
        r"^\| (\w[\w ]*) \|", text.partition("| answer |")[2].partition("\n\n")[0], re.MULTILINE
    )
    item = (ROOT / "docs/protocol/item.md").read_text()
    found = [" ".join(entry.words) for entry in entries(item_scope.PICTURE.answers)]
    assert re.search(r"The swap has three answers: " + r"[^;]*; ".join(found), " ".join(item.split()))


# What else is drawn is there


@dataclass
class Total:
    count: int = 0


def copy(total: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        step.emit("out", entry.value)


async def test_two_replicas_do_what_their_picture_says() -> None:
    async with Engine.in_memory() as engine:
        given, out = OrderedLog("in", engine, type=int), OrderedLog("out", engine, type=int)
        made = Processor("copy", copy, state=Total, register=engine, inputs={"in": given}, outputs={"out": out})
        a, b, again = made.replica(), made.replica(), made.replica()
        await given.append(7, id="i")
        before = [await a.look_or_begin(), await b.look_or_begin()]
        assert [await a.step(), await b.step()] == [Progress.WON, Progress.LOST]  # 1 to 4
        kept = await again.look()
        assert before[0] and kept and kept.register.serial == before[0].register.serial + 1  # "the register says"
        assert (
            len(kept.register.outs) == 1 and [entry async for entry in out.read()] == []
        )  # 5: a is never heard of again
        assert await b.step() is Progress.WON and len([entry async for entry in out.read()]) == 1  # 6
        assert await again.step() is Progress.LOST  # 7: it appended by what it had read before b did
        assert [entry.value async for entry in out.read()] == [7]


def test_the_architecture_names_ports_that_are_there() -> None:
    named = {line for entry in entries(architecture.PICTURE.words) if "code" in entry.words[0] for line in entry.lines}
    assert named == {"Journal", "StateStore", "MessageBus", "BlobStore"}
    assert named <= vars(outbox.ports).keys()


def test_the_record_of_the_log_has_the_fields_of_its_page() -> None:
    text = (ROOT / "docs/engine.md").read_text()
    [inside] = re.findall(r"FE FD \| stuffed\( (.+) \) \| FE FD", text)
    fields = [part.split()[0] for part in inside.split(" | ")]
    drawn = [entry.lines[0] for entry in entries(log.PICTURE.boxes) if entry.words[0] == "strip-box"]
    assert drawn[drawn.index("FE FD") :] == ["FE FD", *fields, "FE FD"]

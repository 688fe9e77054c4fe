"""The first screen of the README: its picture, and how much of the code a deployment carries."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.docs.blocks import ROOT
from tools import picture, statements

README = (ROOT / "README.md").read_text()
WORD_COUNT_MAX = 1_100
SHARE_OFF_MAX = 0.05
"""The README rounds, and is not written anew for each commit."""


def test_the_picture_is_what_its_script_draws() -> None:
    assert picture.PLACE.read_text() == picture.draw(), "run `python -m tools.picture`"
    assert f"]({picture.PLACE.relative_to(ROOT)})" in README


def test_the_picture_is_whole_xml_for_a_light_and_a_dark_screen() -> None:
    drawn = ElementTree.fromstring(picture.draw())
    texts = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {step.words[0] for step in picture.entries(picture.STEPS)} <= texts
    used = {name for names in re.findall(r'class="([^"]+)"', picture.draw()) for name in names.split()}
    assert used == set(re.findall(r"\.([a-z][\w-]*)", picture.STYLE))
    light, _, dark = picture.STYLE.partition("@media (prefers-color-scheme: dark)")
    kinds = {line.partition(" {")[0] for line in light.splitlines() if "fill:" in line or "stroke:" in line}
    assert kinds == {line.partition(" {")[0] for line in dark.splitlines() if line.endswith("}") and "{" in line}


def test_a_text_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="has no room in 70 pixels"):
        picture.text("eleven more", 0, 0, "name", 70)


def test_the_readme_says_how_much_a_deployment_carries() -> None:
    found = statements.statements()
    told = re.findall(r"([\d,]+) of the ([\d,]+) statements", " ".join(README.split()))
    carried, total = (int(figure.replace(",", "")) for figure in told[0])
    assert len(told) == 1 and statements.left_out() == ("emulator", "ops", "verify")
    assert abs(carried - found[statements.REST]) < SHARE_OFF_MAX * found[statements.REST], "python -m tools.statements"
    assert abs(total - found.total()) < SHARE_OFF_MAX * found.total(), "python -m tools.statements"


def test_the_readme_stays_a_page() -> None:
    assert len(README.split()) <= WORD_COUNT_MAX

"""The first screen of the README: how much of the code a deployment carries."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT
from tools import statements

README = (ROOT / "README.md").read_text()
WORD_COUNT_MAX = 1_100
SHARE_OFF_MAX = 0.05
"""The README rounds, and is not written anew for each commit."""


def test_the_readme_says_how_much_a_deployment_carries() -> None:
    found = statements.statements()
    told = re.findall(r"([\d,]+) of the ([\d,]+) statements", " ".join(README.split()))
    carried, total = (int(figure.replace(",", "")) for figure in told[0])
    assert len(told) == 1 and statements.left_out() == ("emulator", "ops", "verify")
    assert abs(carried - found[statements.REST]) < SHARE_OFF_MAX * found[statements.REST], "python -m tools.statements"
    assert abs(total - found.total()) < SHARE_OFF_MAX * found.total(), "python -m tools.statements"


def test_the_readme_stays_a_page() -> None:
    assert len(README.split()) <= WORD_COUNT_MAX

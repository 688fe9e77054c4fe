"""The page that lays settings side by side says what the files say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tools.infra_check.agreements import Site
from tools.infra_check.code import read_code
from tools.infra_check.deployment import FUNCTIONS
from tools.infra_check.project import Project

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "settings.md"
_NAME = re.compile(r"`([A-Z][A-Za-z_]{4,})`")


def rows() -> Iterator[tuple[list[str], list[str]]]:
    """The settings of each row, and what its three columns say."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = _NAME.findall(cells[0])
        if len(cells) == 4 and names and line.startswith("| `"):
            yield names, cells[1:]


def files() -> list[set[str]]:
    """The settings of the three places."""
    local = [json.loads((ROOT / path).read_text())["Values"] for path in LOCAL]
    site = Site.of(Project.read(ROOT), read_code())
    return [*map(set, local), set(site.bodies(FUNCTIONS, "Microsoft.Web/sites/config")[0]["properties"])]


LOCAL = ("local.settings.json.example", "local/local.settings.official.json")


def test_every_setting_of_the_three_places_has_a_row() -> None:
    reported = {name for names, _ in rows() for name in names}
    assert set().union(*files()) <= reported


def test_a_cell_says_not_set_where_nothing_is_set() -> None:
    for names, cells in rows():
        if names == ["OUTBOX_SPARK"]:
            continue  # on Azure only with a pool
        for cell, settings in zip(cells, files(), strict=True):
            assert cell.startswith("not set") is settings.isdisjoint(names), (names, cell)

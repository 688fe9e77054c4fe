"""The drawings of the pages are of the figures that are published, and the list of figures has all of them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks import run
from benchmarks.charts import CHARTS, FOLDER, ON_DARK, Chart
from outbox_bench import w1
from tests.docs.figures import LIST, dated

PAGE = LIST.read_text()
ROWS = {row[0]: row for row in re.findall(r"^\| \[([\w-]+)\]\(\1\.txt\) \|(.*)\|$", PAGE, re.MULTILINE)}
charts = pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)


@charts
def test_a_drawing_is_of_the_published_figures(chart: Chart) -> None:
    assert len(chart.rows()) >= 3
    assert f"rows {chart.digest()}" in chart.path.read_text(), "run `make charts`"


@charts
def test_a_drawing_has_colours_for_a_dark_screen(chart: Chart) -> None:
    drawn = chart.path.read_text()
    ElementTree.fromstring(drawn)
    used = set(
        re.findall(r"(?:fill|stroke): (#\w{6})(?=[;\"])", drawn.replace("] { fill", "").replace("] { stroke", ""))
    )
    ruled = set(re.findall(r'\[style\*="fill: (#\w{6})"\]', drawn))
    assert used <= ruled == set(ON_DARK)


def test_every_drawing_is_shown_and_no_other_is_there() -> None:
    shown = re.findall(r"^!\[[^\]]+\]\(([\w-]+\.svg)\)\n\n\S", PAGE, re.MULTILINE)
    assert sorted(shown) == sorted(chart.name for chart in CHARTS) == sorted(path.name for path in FOLDER.glob("*.svg"))


def test_every_published_file_is_listed_with_its_day_and_its_commit() -> None:
    assert sorted(ROWS) == sorted(path.stem for path in FOLDER.glob("*.txt"))
    assert {path.stem for path in FOLDER.glob("*.json")} <= ROWS.keys()
    assert dated(PAGE) == PAGE, "run `python -m tests.docs.figures`"


def test_every_part_of_the_list_can_be_run() -> None:
    systems = {entrant[0].SYSTEM for entrant in w1.entrants(run.SYSTEMS)}
    listed = {name for names in re.findall(r'"--only ([\w -]+)"', PAGE) for name in names.split()}
    assert listed <= systems | set(run.PARTS)
    assert set(run.PARTS) - listed == {run.LATENCY, run.STREAMS}  # of which a target of `make` measures more

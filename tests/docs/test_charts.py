"""The drawings of the pages are of the figures that are published."""

from __future__ import annotations

import pytest

from benchmarks.charts import CHARTS, Chart
from tests.docs.blocks import ROOT


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_drawing_is_of_the_published_figures(chart: Chart) -> None:
    assert len(chart.rows()) >= 3
    assert f"rows {chart.digest()}" in chart.path.read_text(), "run `make charts`"


def test_every_drawing_is_shown_on_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert [chart.name for chart in CHARTS if f"benchmarks/{chart.name})" not in pages] == []

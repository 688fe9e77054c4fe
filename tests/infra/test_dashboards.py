"""The dashboards show every metric that the code counts, by the names that it publishes, and nothing else."""

from __future__ import annotations

import json
import re

import pytest

from outbox.azure.usage import Usage
from outbox.guards import Breaker
from outbox.metrics import CRITICAL_TIME, METRICS, prometheus
from outbox.ops.shared.meter import host_metrics
from outbox.ops.values.status import Handling, QueueStatus, Status
from outbox.runtime.counts import Counts, Depth, PipelineFigures, SourceCounts
from tools import dashboards


def test_the_committed_files_are_what_the_table_of_metrics_makes() -> None:
    made = dashboards.files()
    assert {path.name for path in dashboards.FOLDER.iterdir()} == made.keys(), "run `python -m tools.dashboards`"
    for name, text in made.items():
        assert (dashboards.FOLDER / name).read_text() == text, f"{name}: run `python -m tools.dashboards`"
        json.loads(text)


def test_every_metric_has_a_chart_and_every_chart_a_metric() -> None:
    known = {metric.name for metric in METRICS} | set(dashboards.OF_HOST) | {CRITICAL_TIME}
    assert {panel.metric for panel in dashboards.PANELS} == known


def test_every_name_in_a_query_is_one_that_a_host_publishes() -> None:
    queue = QueueStatus(active=1, scheduled=0, deferred=0, dead_letters=0, oldest_s=1.0)
    text = host_metrics("app", Counts({"q": SourceCounts(1)}), Status({"q": queue}, 0, Handling(1, 1.0, 1.0)))
    published = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)) | set(
        re.findall(r"^(\w+)\{", text, re.MULTILINE)
    )
    for panel in dashboards.PANELS:
        names = set(re.findall(r"outbox_\w+", dashboards.promql(panel)))
        assert names and names <= published, panel


@pytest.mark.parametrize("panel", dashboards.PANELS, ids=lambda panel: panel.title)
def test_a_chart_is_split_by_labels_that_its_samples_have(panel: dashboards.Panel) -> None:
    counts = Counts({"q": SourceCounts(applied=1)})
    counts.sources["q"].refused["too-old"] += 1
    counts.depths["q"], counts.lags["log/0.0", "reader"] = Depth(1.0, {"active": 1}), 3
    counts.pipelines["index"] = PipelineFigures(1, 1, 1, "0.0", 1, {"changes": 1})
    counts.usage = Usage()
    counts.usage.note("batch", 10.0, failed=True, reason="throttled")
    counts.guard(Breaker("there"))
    name = re.findall(r"outbox_\w+", dashboards.promql(panel))[0]
    lines = [line for line in prometheus("app", counts).splitlines() if line.startswith(f"{name}{{")]
    if panel.metric not in dashboards.OF_HOST:
        assert any(all(f'{label}="' in line for label in panel.by) for line in lines), (panel, lines)

"""The dashboards in infra/dashboards, made from the table of metrics: `python -m tools.dashboards` writes them.

`grafana.json` reads Prometheus, as a host's control endpoint or an OpenTelemetry collector serves it; `workbook.json`
reads the customMetrics of Application Insights, where Azure Monitor's distribution puts them.  Nothing of them was
opened in Grafana or Azure; tests hold them equal to what this makes, and this to the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from outbox.metrics import CRITICAL_TIME, LABELS, METRICS, prometheus_name
from outbox.ops.shared.meter import BLOCKED, LATENCY

FOLDER = Path(__file__).resolve().parent.parent / "infra" / "dashboards"
OF_PROCESS = {metric.name: metric for metric in METRICS}
OF_HOST = {metric.name: metric for metric in (BLOCKED, LATENCY)}
"""What only the host of a folder serves."""


class Panel(NamedTuple):
    """One chart: its title, its metric, and by which labels it is split."""

    title: str
    metric: str
    by: tuple[str, ...]
    unit: str = "short"
    over: str = ""
    """The metric that it is divided by, where it is a ratio of two counters."""


PANELS = (
    Panel("Messages a second", "outbox.messages", ("queue", "outcome"), "ops"),
    Panel("Refused a second", "outbox.messages", ("queue", "reason"), "ops"),
    Panel("Failed attempts a second", "outbox.attempts.failed", ("queue",), "ops"),
    Panel("Rescheduled a second", "outbox.attempts.rescheduled", ("queue",), "ops"),
    Panel("Age at the commit", CRITICAL_TIME, ("queue",), "s"),
    Panel("Waiting", "outbox.queue.messages", ("queue", "state")),
    Panel("Oldest waiting", "outbox.queue.oldest", ("queue",), "s"),
    Panel("Behind the end of a log", "outbox.log.lag", ("row", "reader")),
    Panel("Not left a pipeline yet", "outbox.pipeline.lag", ("pipeline",)),
    Panel("Watermark of a pipeline", "outbox.pipeline.watermark", ("pipeline",)),
    Panel("Age of a pipeline's checkpoint", "outbox.pipeline.checkpoint", ("pipeline",), "s"),
    Panel("Items of the last bundle", "outbox.pipeline.bundle", ("pipeline", "log")),
    Panel("Blocked keys", "outbox.queue.blocked_keys", ("queue",)),
    Panel("Claim to commit", "outbox.handling", ("quantile",), "s"),
    Panel("Breakers and rates", "outbox.guard.state", ("guard",)),
    Panel("Rescheduled by breakers and rates a second", "outbox.guard.rescheduled", ("guard",), "ops"),
    Panel("Sent a second", "outbox.sent", (), "ops"),
    Panel("Failed sends a second", "outbox.sends.failed", (), "ops"),
    Panel("Lost commits a second", "outbox.commits.lost", (), "ops"),
    Panel("Unknown commits a second", "outbox.commits.unknown", (), "ops"),
    Panel("Pending documents", "outbox.pending", ()),
    Panel("Oldest pending", "outbox.pending.oldest", (), "s"),
    Panel("Finished by sweeps a second", "outbox.swept", (), "ops"),
    Panel("Requests a second", "outbox.requests", ("operation",), "reqps"),
    Panel("Failed requests a second", "outbox.requests.failed", ("operation", "reason"), "reqps"),
    Panel("Requests a message", "outbox.requests", (), over="outbox.messages"),
    Panel("Request units a message", "outbox.request_units", (), over="outbox.messages"),
    Panel("Request units a second", "outbox.request_units", ("operation",)),
    Panel("Fullest partition", "outbox.partition.share", (), "percentunit"),
)


def promql(panel: Panel) -> str:
    """The query of a panel in Prometheus' language."""
    labels = ", ".join(panel.by)
    if panel.over:
        ends = prometheus_name(OF_PROCESS[panel.over])
        over = f'sum by ({labels}) (rate({ends}{{app=~"$app"}}[5m]))'
        return f"{promql(panel._replace(over=''))} / {over}"
    if panel.metric == CRITICAL_TIME:
        name = f"{CRITICAL_TIME.replace('.', '_')}_seconds_bucket"
        return f'histogram_quantile(0.99, sum by (le, {labels}) (rate({name}{{app=~"$app"}}[5m])))'
    metric = OF_PROCESS.get(panel.metric) or OF_HOST[panel.metric]
    chosen = f'{prometheus_name(metric)}{{app=~"$app"{", reason!=" + repr("") if "reason" in panel.by else ""}}}'
    chosen = chosen.replace("'", '"')
    if metric.kind == "counter":
        return f"sum by ({labels}) (rate({chosen}[5m]))"
    return f"max by ({labels}) ({chosen})"


def grafana() -> dict[str, Any]:
    """A dashboard for Grafana 10 and later."""
    panels = [
        {
            "id": at + 1,
            "title": panel.title,
            "type": "timeseries",
            "gridPos": {"x": 8 * (at % 3), "y": 8 * (at // 3), "w": 8, "h": 8},
            "datasource": {"type": "prometheus", "uid": "${source}"},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": "A",
                    "expr": promql(panel),
                    "legendFormat": " ".join(f"{{{{{label}}}}}" for label in panel.by) or panel.title,
                }
            ],
        }
        for at, panel in enumerate(PANELS)
    ]
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "app",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${source}"},
            "query": f"label_values({prometheus_name(METRICS[0])}, app)",
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "title": "outbox",
        "uid": "outbox",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


_DIMENSIONS = {label: attribute for attribute, label in LABELS.items()}


def kusto(panel: Panel) -> str:
    """The query of a panel over Application Insights' customMetrics; a counter arrives as what came since the last."""
    by = "".join(f", {name} = tostring(customDimensions['{_DIMENSIONS[name]}'])" for name in panel.by)
    if panel.over:
        return (
            f"customMetrics | where name in ('{panel.metric}', '{panel.over}') "
            f"| summarize above = sumif(valueSum, name == '{panel.metric}'), "
            f"below = sumif(valueSum, name == '{panel.over}') by bin(timestamp, 5m) "
            "| where below > 0 | project timestamp, ratio = above / below | render timechart"
        )
    total = "avg(value)" if panel.metric == CRITICAL_TIME else "max(value)"
    if panel.metric in OF_PROCESS and OF_PROCESS[panel.metric].kind == "counter":
        total = "sum(valueSum) / 60"
    chosen = " and isnotempty(tostring(customDimensions['error.type']))" if "reason" in panel.by else ""
    quantile = " and customDimensions['quantile'] == '0.99'" if panel.metric == CRITICAL_TIME else ""
    return (
        f"customMetrics | where name == '{panel.metric}'{chosen}{quantile} "
        f"| summarize {total} by bin(timestamp, 1m){by} | render timechart"
    )


def workbook() -> dict[str, Any]:
    """A workbook for Azure Monitor."""
    items = [
        {
            "type": 3,
            "name": panel.title,
            "customWidth": "33",
            "content": {
                "version": "KqlItem/1.0",
                "title": panel.title,
                "query": kusto(panel),
                "size": 1,
                "timeContext": {"durationMs": 10_800_000},
                "queryType": 0,
                "resourceType": "microsoft.insights/components",
            },
        }
        for panel in PANELS
        if panel.metric not in OF_HOST
    ]
    return {"version": "Notebook/1.0", "items": items, "isLocked": False}


def files() -> dict[str, str]:
    """The files of the folder, by name."""
    made = {"grafana.json": grafana(), "workbook.json": workbook()}
    return {name: json.dumps(content, indent=1) + "\n" for name, content in made.items()}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)
    print(f"dashboards: {len(PANELS)} charts in infra/dashboards")
    return 0


if __name__ == "__main__":
    sys.exit(main())

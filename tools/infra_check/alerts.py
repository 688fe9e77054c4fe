"""The alerts on what the code counts: their metrics, attributes and sums against the code's own table of metrics.

A query that names a metric which nobody publishes finds nothing and raises no alarm, so each name is looked up: the
metric's in `outbox.metrics.METRICS`, an attribute's among its labels, and what is added up follows from the kind of the
metric.  A counter arrives as what came since the last export, so its `Sum` counts; of a gauge its `Max` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outbox.metrics import LABELS, METRICS, OUTCOME, REASON, STATES
from tools.infra_check.agreements import MODULES, Site, at
from tools.infra_check.syntax import Finding

PATH = f"{MODULES}/alerts.bicep"
KINDS = {metric.name: metric.kind for metric in METRICS}
SUMMED = {"counter": ("Sum", "Total"), "gauge": ("Max", "Maximum")}
"""By the kind of a metric: the column of AppMetrics that has its value, and how an alert's window adds values up."""
WATCHED = {
    "outbox.commits.unknown",
    "outbox.guard.state",
    "outbox.messages",
    "outbox.partition.share",
    "outbox.pending.oldest",
    "outbox.queue.oldest",
    "outbox.requests.failed",
}
"""What somebody should hear of."""
VALUES = {OUTCOME: ("refused",), REASON: ("throttled",)}


@dataclass(frozen=True, slots=True)
class CodeAlert:
    """An alert on a metric of the code, as its template has it."""

    name: str
    metric: str
    column: str
    aggregation: Any
    threshold: Any
    wanted: tuple[tuple[str, str], ...]
    """The attributes that a sample must have, with their values."""
    split: tuple[str, ...]
    """The attributes by which it is told apart."""


def code_alerts(site: Site) -> list[CodeAlert]:
    """The alerts whose query reads metrics of the code."""
    found = []
    for body in site.bodies(PATH, "Microsoft.Insights/scheduledQueryRules"):
        rules = at(body, "properties", "criteria", "allOf") or [{}]
        query = str(at(rules[0], "query"))
        if not query.startswith("AppMetrics"):
            continue
        named = re.search(r'Name == "([^"]*)"', query)
        column = re.search(r"value = (\w+)", query)
        found.append(
            CodeAlert(
                str(at(body, "properties", "displayName")),
                named[1] if named else "",
                column[1] if column else "",
                at(rules[0], "timeAggregation"),
                at(rules[0], "threshold"),
                tuple(re.findall(r'tostring\(Properties\["([^"]*)"\]\) == "([^"]*)"', query)),
                tuple(re.findall(r'= tostring\(Properties\["([^"]*)"\]\)', query)),
            )
        )
    return found


def check_code_alerts(site: Site) -> Iterator[Finding]:
    """Each by what the code publishes, and one for everything that somebody should hear of."""
    alerts = code_alerts(site)
    for alert in alerts:
        yield from _check(alert)
    for missing in sorted(WATCHED - {alert.metric for alert in alerts}):
        yield Finding(PATH, 1, f"no alert watches {missing}")


def _check(alert: CodeAlert) -> Iterator[Finding]:
    if alert.metric not in KINDS:
        yield Finding(PATH, 1, f"{alert.name} asks for {alert.metric!r}, which the code does not publish")
        return
    column, aggregation = SUMMED[KINDS[alert.metric]]
    if (alert.column, alert.aggregation) != (column, aggregation):
        kind = KINDS[alert.metric]
        yield Finding(PATH, 1, f"{alert.name}: {alert.metric} is a {kind}, read by {column} and {aggregation}")
    for attribute in (*(name for name, _ in alert.wanted), *alert.split):
        if attribute not in LABELS:
            yield Finding(PATH, 1, f"{alert.name} asks for the attribute {attribute!r}, which no sample has")
    for attribute, value in alert.wanted:
        if value not in VALUES.get(attribute, (value,)):
            yield Finding(PATH, 1, f"{alert.name}: {attribute} is never {value!r}")
    if alert.metric == "outbox.guard.state" and alert.threshold != STATES.index("open") - 1:
        yield Finding(PATH, 1, f"{alert.name}: a breaker is open from {STATES.index('open')} on")

"""The alerts find the lines that a Functions host writes, and name a command that there is."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import azure.functions as func
import pytest

from function_app.logs import FieldsFormatter, show_fields
from outbox import App, Engine, Reject
from outbox.azure.functions import blueprint
from outbox.azure.functions.processor import KEPT, Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.azure.usage import Usage
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import Refused
from outbox.guards import Breaker
from outbox.metrics import METRICS
from outbox.ops.cli.parser import make_parser
from outbox.runtime.counts import Counts, Depth
from tests.functions.triggered import triggered
from tools.infra_check.agreements import Site
from tools.infra_check.alerts import CodeAlert, code_alerts
from tools.infra_check.code import read_code
from tools.infra_check.project import Project

ROOT = Path(__file__).resolve().parents[2]
ALERTS = (ROOT / "infra/modules/alerts.bicep").read_text()


@dataclass
class Order:
    id: str = ""


class WorkersHandler(logging.Handler):
    """What the Functions worker puts on the root logger: it hands on the text of a record, formatted."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def logged(name: str) -> tuple[logging.Logger, WorkersHandler]:
    logger, handler = logging.Logger(name), WorkersHandler()
    logger.addHandler(handler)
    show_fields(logger)
    return logger, handler


def test_the_query_of_the_alert_finds_the_age_in_the_sweepers_line() -> None:
    query = re.search(r"query: '(AppTraces[^']*oldest_s[^']*)'", ALERTS)
    assert query is not None
    start = re.search(r'startswith "([^"]+)"', query[1])
    field = re.search(r'extract\("([^"]+)", 1', query[1])
    assert start is not None and field is not None
    logger, handler = logged("outbox.functions")
    logger.info("swept", extra={"unfinished": 3, "finished": 2, "oldest_s": 71.5})
    found = re.search(field[1], handler.lines[0])
    assert handler.lines[0].startswith(start[1]) and found is not None and float(found[1]) == 71.5


def test_the_alert_on_missing_sweeps_looks_for_the_timers_function() -> None:
    query = re.search(r"name: 'not-swept'.*?query: '([^']*)'", ALERTS, re.DOTALL)
    name = re.search(r'OperationName == "([^"]+)"', query[1]) if query is not None else None
    made = func.FunctionApp()
    backend = NarrowEngine(Engine.in_memory(), "partition")
    made.register_functions(blueprint(App("idle"), FunctionsSettings(lambda: backend)))
    (timer,) = [one for one in made.get_functions() if "timer" in str(one.get_trigger()).lower()]
    assert name is not None and name[1] == timer.get_function_name()


async def test_the_query_of_the_alert_on_refusals_finds_the_count_in_the_timers_line() -> None:
    query = re.search(r"query: '(AppTraces[^']*count=[^']*)'", ALERTS)
    assert query is not None
    start = re.search(r'startswith "([^"]+)"', query[1])
    field = re.search(r'extract\("([^"]+)", 1', query[1])
    assert start is not None and field is not None and start[1] == KEPT
    app = App("refusing")

    @app.handler("orders")
    def refuse(order: Order) -> None:
        raise Reject("no")

    async with Engine.in_memory() as engine:
        backend = NarrowEngine(engine, "partition")
        processor = Processor(app, backend, FunctionsSettings(lambda: backend))
        await processor.open()
        _, handler = logged("outbox.functions")
        logging.getLogger("outbox.functions").addHandler(handler)
        try:
            await processor.sweep()
            assert not any(line.startswith(start[1]) for line in handler.lines)
            for id in ("a", "b"):
                await processor.message("orders", triggered(id, b"{}", "Order"))
            await processor.sweep()
            (line,) = [line for line in handler.lines if line.startswith(start[1])]
            found = re.search(field[1], line)
            assert found is not None and float(found[1]) == 2 and "queue=orders" in line
            for id in ("a", "b"):
                await processor.client.discard("orders", id)
            handler.lines.clear()
            await processor.sweep()
            assert not any(line.startswith(start[1]) for line in handler.lines)
        finally:
            logging.getLogger("outbox.functions").removeHandler(handler)


@pytest.mark.parametrize("name", ["dead-letters", "refused"])
def test_the_command_that_an_alert_names_is_one(name: str) -> None:
    text = re.search(rf"name: '{name}'\n    description: '[^;]*; outbox ([^']*) shows why'", ALERTS)
    assert text is not None
    options = make_parser().parse_args(text[1].split())
    assert (options.action, options.cosmos, options.servicebus) == ("dead-letters list", "ENDPOINT", "HOST")


SITE = Site.of(Project.read(ROOT), read_code())
CODE_ALERTS = {alert.name: alert for alert in code_alerts(SITE)}


def raised(alert: CodeAlert, counts: Counts) -> bool:
    """Whether the samples of a process raise an alert, summed up as Azure Monitor would."""
    (metric,) = [metric for metric in METRICS if metric.name == alert.metric]
    values = [value for labels, value in metric.read(counts) if dict(alert.wanted).items() <= labels.items()]
    scale = 100 if alert.metric == "outbox.partition.share" else 1
    limit = alert.threshold if isinstance(alert.threshold, int) else 600
    return bool(values) and (sum(values) if alert.aggregation == "Total" else max(values)) * scale > limit


def well(counts: Counts) -> None:
    """What a process counts on a good day."""
    orders = counts.of("orders")
    orders.applied, orders.duplicates, counts.unknown = 1_000, 20, 3
    counts.depths["orders"], counts.oldest_pending_s, counts.fullest_share = Depth(5.0), 70.0, 0.4
    counts.usage = Usage()
    counts.usage.note("batch", 10.0)
    for _ in range(60):
        counts.usage.note("batch", 10.0, failed=True, reason="conflict")
    counts.guard(Breaker("there"))


def refused(counts: Counts) -> None:
    counts.of("orders").refused["rejected"] += 1


def broken(counts: Counts) -> None:
    guard: Any = counts.guard(Breaker("other", least=1))
    guard._rest_s(0)
    guard._note(0, ConnectionError())


def throttled(counts: Counts) -> None:
    for _ in range(51):
        cast("Usage", counts.usage).note("batch", failed=True, reason="throttled")


def unsent(counts: Counts) -> None:
    counts.oldest_pending_s = 700.0


def unread(counts: Counts) -> None:
    counts.depths["orders"] = Depth(1_000.0)


def unknown(counts: Counts) -> None:
    counts.unknown += 30


def filled(counts: Counts) -> None:
    counts.fullest_share = 0.85


WRONG: dict[str, Callable[[Counts], None]] = {
    "dead-letters-rising": refused,
    "pending-oldest": unsent,
    "waiting-oldest": unread,
    "unknown-outcomes": unknown,
    "breaker-open": broken,
    "partition-fill": filled,
    "throttled": throttled,
}


@pytest.mark.parametrize("name", WRONG)
def test_an_alert_on_what_the_code_counts_is_raised_by_its_samples_and_by_no_others(name: str) -> None:
    assert CODE_ALERTS.keys() == WRONG.keys()
    counts = Counts()
    well(counts)
    assert [one for one, alert in CODE_ALERTS.items() if raised(alert, counts)] == []
    WRONG[name](counts)
    assert [one for one, alert in CODE_ALERTS.items() if raised(alert, counts)] == [name]


@pytest.mark.parametrize("name", WRONG)
def test_a_command_that_an_alert_on_counts_names_is_one(name: str) -> None:
    text = re.search(rf"name: '{name}'\n    description: '([^']*)'", ALERTS)
    assert text is not None
    for command in re.findall(r"outbox ((?:queue|pending|dead-letters) [^;']*?) (?:shows|says) why", text[1]):
        assert make_parser().parse_args(command.split()).action in {"queue peek", "pending list", "dead-letters list"}


def test_an_error_keeps_its_traceback_and_other_libraries_their_lines() -> None:
    logger, handler = logged("outbox.functions")
    try:
        raise Refused("no")
    except Refused:
        logger.exception("the backend cannot be used", extra={"app": "bank"})
    assert handler.lines[0].startswith("the backend cannot be used app=bank\nTraceback")
    for name in ("azure.core", "outboxes"):
        logger, handler = logged(name)
        logger.info("request", extra={"key": "secret"})
        assert handler.lines == ["request"]


def test_no_field_begins_a_line_of_its_own() -> None:
    logger, handler = logged("outbox.functions")
    logger.error("message dead-lettered", extra={"id": "m1\nswept oldest_s=0", "queue": "\x1b[2J"})
    assert "\n" not in handler.lines[0] and "\x1b" not in handler.lines[0]


def test_a_handler_keeps_its_form() -> None:
    logger, handler = logging.Logger("outbox"), WorkersHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    show_fields(logger)
    logger.info("swept", extra={"oldest_s": 1.0})
    assert handler.lines == ["INFO swept oldest_s=1.0"] and isinstance(handler.formatter, FieldsFormatter)


def test_a_formatter_of_another_kind_is_kept() -> None:
    class Own(logging.Formatter):
        pass

    logger, handler, own = logging.Logger("outbox"), WorkersHandler(), Own()
    handler.setFormatter(own)
    logger.addHandler(handler)
    show_fields(logger)
    assert handler.formatter is own

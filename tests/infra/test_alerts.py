"""The alert on old work finds the line that a Functions host writes."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from function_app.logs import FieldsFormatter, show_fields
from outbox.errors import Refused

ROOT = Path(__file__).resolve().parents[2]


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
    query = re.search(r"query: '(AppTraces[^']*oldest_s[^']*)'", (ROOT / "infra/modules/alerts.bicep").read_text())
    assert query is not None
    start = re.search(r'startswith "([^"]+)"', query[1])
    field = re.search(r'extract\("([^"]+)", 1', query[1])
    assert start is not None and field is not None
    logger, handler = logged("outbox.functions")
    logger.info("swept", extra={"unfinished": 3, "finished": 2, "oldest_s": 71.5})
    found = re.search(field[1], handler.lines[0])
    assert handler.lines[0].startswith(start[1]) and found is not None and float(found[1]) == 71.5


def test_an_error_keeps_its_traceback_and_other_libraries_their_lines() -> None:
    logger, handler = logged("outbox.functions")
    try:
        raise Refused("no")
    except Refused:
        logger.exception("the backend cannot be used", extra={"app": "bank"})
    assert handler.lines[0].startswith("the backend cannot be used app=bank\nTraceback")
    logger, handler = logged("azure.core")
    logger.info("request", extra={"key": "secret"})
    assert handler.lines == ["request"]


def test_a_handler_keeps_its_form() -> None:
    logger, handler = logging.Logger("outbox"), WorkersHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    show_fields(logger)
    logger.info("swept", extra={"oldest_s": 1.0})
    assert handler.lines == ["INFO swept oldest_s=1.0"] and isinstance(handler.formatter, FieldsFormatter)

"""Log lines with their fields: `swept unfinished=3 finished=2 oldest_s=71.5`.

A Functions host takes the text of a line and nothing else, so what stands in `extra=` would not reach Application
Insights, where alerts look for it (infra/modules/alerts.bicep).
"""

from __future__ import annotations

import logging

from outbox.escape import printable

OURS = "outbox"
_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """A line of the library with its fields behind it; other lines stay unchanged."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        line = super().formatMessage(record)
        if record.name.split(".")[0] != OURS:
            return line
        fields = [f"{name}={printable(str(value))}" for name, value in record.__dict__.items() if name not in _ORDINARY]
        return " ".join([line, *fields])


def show_fields(logger: logging.Logger) -> None:
    """Let a logger's handlers show fields, each in its own form; a formatter of another kind is kept."""
    for handler in logger.handlers:
        known = handler.formatter
        if known is None:
            handler.setFormatter(FieldsFormatter())
        elif type(known) is logging.Formatter:
            handler.setFormatter(FieldsFormatter(known._fmt, known.datefmt))

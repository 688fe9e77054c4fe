"""The reference page of the Spark jobs: options from their parsers, columns of a ledger, reasons of the quarantine.

`tools.reference` writes it with the others.  Parsers are made for this, so PySpark is imported; no session is started.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module

NAME = "spark"
TITLE = "spark_jobs"
ABOUT = "Options of the Spark jobs, columns of a ledger, reasons of the quarantine."
JOBS = ("feed", "consume", "reconcile", "take_over", "sweep", "pipeline", "submit")
EXIT_CODES = (
    "Exit codes of all: 0 done; 1 refused, not finished, or (`reconcile`, `sweep`) something is wrong; 2 usage. "
    "A report goes to standard output, progress to standard error."
)
COLUMNS = {
    "message_id": "the identity: the sender's, else the broker's id, else the place in the queue; each is there once",
    "type": "the wire type, empty where the sender names none",
    "correlation_id": "the identity of the message that began the chain; its own where it began it",
    "causation_id": "the identity of the message whose handler sent it",
    "traceparent": "the trace, as W3C has it",
    "created_ms": "when the sender says that it was created, in milliseconds since 1970; null where it does not say",
    "enqueued_ms": "when the broker took it, in milliseconds since 1970",
    "sequence_number": "its number in the queue",
    "delivery_count": "how often it was delivered before",
    "session_id": "its session, empty where it has none",
    "body": "the body as a text; null where it is no UTF-8",
    "raw": "the body's bytes where it is no UTF-8, else null",
    "properties": "a JSON object of the properties without a column; null without any",
    "fingerprint": "a digest of type and body",
}
REASONS = {
    "malformed-row": "no row of the format: quotes, number of fields, JSON; line feeds in quotes without `--multiline`",
    "bad-encoding": "bytes that are not of `--encoding`",
    "wrong-type": "a value that is none of its column's type, or that the type would change, as 1.239 a decimal(10,2)",
    "missing-id": "an id column is empty or missing",
    "bad-id": "an id that is neither a string, an integer nor a boolean",
    "long-id": "an id of more than 1,024 characters",
    "bad-created": "a `--created` value that is no time, or in milliseconds one before 2001, as seconds are",
    "missing-session": "the `--session` column is empty",
    "bad-session": "a session that is neither a string, an integer nor a boolean",
    "long-session": "a session of more than 128 characters",
    "bad-order": "an `--order` value that is no 64-bit integer",
    "undecodable": "`--app`: the handler's type does not take the body, or its key cannot be taken",
    "conflicting-duplicates": "rows of one id that differ; none of them is sent",
    "oversize": "a body over `--body-bytes-max`, a row over 16 MiB, or a message that the queue finds too large",
}


def page(made: str) -> str:
    """The text of the page."""
    lines = [f"# {TITLE}", "", made, "", f"{ABOUT} How they are used: [Spark at both ends](../how-to/spark.md).", ""]
    lines += [EXIT_CODES]
    for job in JOBS:
        parser: argparse.ArgumentParser = import_module(f"spark_jobs.{job}").parser()
        lines += ["", f"## {job}", "", f"`python -m spark_jobs.{job}`: {parser.description}", ""]
        lines += ["| option | default | |", "|---|---|---|", *map(row, options(parser))]
    lines += ["", "## Columns of a ledger", "", "| column | |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in COLUMNS.items()]
    lines += ["", "## Reasons of the quarantine", "", "| reason | |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in REASONS.items()]
    return "\n".join(lines) + "\n"


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options of a parser that its help shows."""
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and action.dest != "help":
            yield action


def row(action: argparse.Action) -> str:
    """An option, its default where the help does not say it, and its help."""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices:
        metavar = ", ".join(map(str, action.choices))
    takes = "" if action.nargs == 0 else f" {metavar}"
    name = f"`{action.option_strings[-1]}{takes}`" if action.option_strings else f"`{metavar}`"
    told = (action.help or "").partition("; default: ")
    is_flag = action.default in (None, "", False) or action.default == []
    default = "required" if action.required and action.option_strings else told[2]
    if not default and not is_flag:
        default = f"`{action.default:g}`" if isinstance(action.default, float) else f"`{action.default}`"
    text = told[0]
    if text.startswith("default: "):
        text, default = "", text.removeprefix("default: ")
    return f"| {escaped(name)} | {escaped(default)} | {escaped(text)} |"


def escaped(text: str) -> str:
    """A text as a cell of a table."""
    return re.sub(r"\s+", " ", text.replace("|", "\\|"))

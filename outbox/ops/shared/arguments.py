"""The arguments that many commands take: where to look, which message, how to answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from outbox.ops.shared.kinds import number, page, queue, span

Argument = tuple[tuple[str, ...], dict[str, Any]]
"""The names and settings of one `add_argument`."""

Options = argparse.Namespace


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its help, its arguments (None for a group of commands) and its work.

    It may be `at` an application on Azure (`azure`) or in a store of ordered logs (`streams`), in place of a folder.
    """

    help: str
    arguments: tuple[Argument, ...] | None = None
    work: Callable[[Options], None] | None = None
    at: Literal["", "azure", "streams"] = ""
    key_kind: bool = False
    """Whether a key may be said to be an integer or a UUID."""
    left_out: str = ""
    """Of a group: the verb that is meant where none of its verbs is given."""


Commands = Mapping[str, Command]
"""Commands by their name, a group before its verbs."""


def argument(*names: str, **how: Any) -> Argument:
    """An argument as `add_argument` takes it."""
    return names, how


def data(*, required: bool = True) -> Argument:
    """The folder of an engine."""
    text = "the engine's folder; its host answers if one runs, else its log is opened"
    return argument("--data", required=required, type=Path, metavar="FOLDER", help=text)


AZURE_OPTIONS = {
    "cosmos": (
        ("OUTBOX_COSMOS", "OUTBOX_COSMOS__accountEndpoint"),
        "",
        "Cosmos DB: its endpoint, or a connection string",
    ),
    "servicebus": (
        ("OUTBOX_SERVICEBUS", "OUTBOX_SERVICEBUS__fullyQualifiedNamespace"),
        "",
        "Service Bus: its host name, or a connection string",
    ),
    "blobs": (("OUTBOX_BLOBS", "OUTBOX_BLOBS__blobServiceUri"), "", "Blob Storage with the large bodies"),
    "database": (("OUTBOX_DATABASE",), "bank", "the database"),
    "container": (("OUTBOX_CONTAINER",), "outbox", "the container of records and states"),
    "states": (("OUTBOX_STATES",), "", "the separate container of states, if there is one"),
}
"""Options that name an application on Azure: their environment variables, the default, and the help text."""

JSON = argument("--json", action="store_true", help="answer in JSON")
ACCEPT_CLOCK = argument(
    "--accept-clock",
    nargs="?",
    type=span,
    default=timedelta(0),
    const=timedelta(0),
    metavar="DAYS",
    help="confirm a wall clock so far ahead of the log, as 400d; the refusal says the figure",
)
ANSWER = (JSON, ACCEPT_CLOCK)
QUEUE = argument("queue", metavar="QUEUE", type=queue)
AFTER = argument("--after", type=number, default=0, metavar="NUMBER", help="behind the message of this number")
PAGE = (
    argument("--limit", type=page, default=20, metavar="N", help="at most so many (20; up to 1000)"),
    AFTER,
)

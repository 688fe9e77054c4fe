"""Arguments and options that many commands share, and the way to an answer.

Where to look, which message, how to answer: the types of arguments.  The admin of a folder, or of what lies on Azure,
is asked, and its answer printed.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from outbox.ops.values.requests import A, Admin, Request

T = TypeVar("T")
PAGE_COUNT_MAX = 1_000
DEPTH_MAX = 50


class Usage(Exception):
    """Arguments that contradict each other."""


def ask(options: Options, asked: Request[A]) -> A:
    """The answer of the folder, of the application on Azure or of ordered logs there, by the options."""
    return talk(options, lambda admin: admin.ask(asked))


def talk(options: Options, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Connect an admin for what the options name, and ask it several things."""

    async def talked() -> T:
        async with connected(options) as admin:
            return await work(admin)

    import asyncio  # here, because the help of the command line needs none

    return asyncio.run(talked())


def connected(options: Options) -> AbstractAsyncContextManager[Admin]:
    """The admin of what the options name."""
    return cast(AbstractAsyncContextManager[Admin], options.connect(options))


def answer(options: Options, value: Any, line: str) -> None:
    """Print an answer: JSON where asked for, else its text."""
    print(msgspec.json.encode(value).decode() if options.json else line)


def with_folder(options: Options, text: str) -> str:
    """A text whose commands name the folder that was asked, so that they run as they are pasted.

    The option stands before the arguments, because where those end the text does not say.  On Azure nothing is added:
    an address may be a connection string.
    """
    folder = getattr(options, "data", None)
    if folder is None:
        return text
    option = f"--data {shlex.quote(str(folder))}"
    taking = re.compile(rf"\boutbox (?:{'|'.join(map(re.escape, sorted(options.taking)))})\b(?! --data)")
    return taking.sub(lambda found: f"{found[0]} {option}", text).replace("--data FOLDER", option)


def and_whether_hosted(options: Options, shown: str) -> str:
    """A text, and a line below it where no process has the folder, so that nothing in it is handled."""
    from outbox.ops.shared.control_file import is_held

    if options.data is None or is_held(options.data):
        return shown
    run = f"`outbox run APP --data {shlex.quote(str(options.data))}`"
    return f"{shown}\nno host runs on this folder: nothing is handled until {run} does"


def check_app_name(name: str, what: str = "APP", example: str = "bank:app") -> None:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise Usage(f"{what} {name!r} is not of the form module:attribute, as in {example}")


def queue(text: str) -> str:
    """A queue, or a subscription as `topic/Subscriptions/name`, however that word is written."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a queue is empty; `outbox status` lists them")
    topic, *name = re.split("/subscriptions/", text, maxsplit=1, flags=re.IGNORECASE)
    return "/Subscriptions/".join([topic, *name])


def identity(text: str) -> str:
    """An id, a key, or the beginning of one."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty, which stands for nothing; a list shows what there is")
    return text


N = TypeVar("N", int, float)


def _number(kind: type[N], least: float, most: float, why: str) -> Callable[[str], N]:
    """The type of an argument that is a number from `least` to `most`; `why` completes the refusal of any other."""

    def parsed(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' if kind is int else ''}number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} {why}")
        return value

    return parsed


count = _number(int, 1, math.inf, "is below 1")
page = _number(int, 1, PAGE_COUNT_MAX, f"is not 1 to {PAGE_COUNT_MAX}; look on with --after")
depth = _number(int, 1, DEPTH_MAX, f"is not 1 to {DEPTH_MAX}; trace the last message that is shown")
number = _number(int, 0, (1 << 62) - 1, "is no number of a message")
port = _number(int, 0, 65_535, "is not a port; use 0 to 65535")
seconds = _number(float, 0, 1e11, "is not a time in seconds since 1970")
interval = _number(float, 0.001, 1e9, "is no time; give seconds, 0.001 or more")
rate = _number(float, 0.01, 10_000, "is no rate; give 0.01 to 10000 a second")
share = _number(float, 0, 1, "is no share; give 0 to 1, as 0.01 for one in a hundred")


def port_or_none(text: str) -> int | None:
    """A port, 0 for any free one, or `none` for no endpoint."""
    return None if text == "none" else port(text)


def instant(text: str) -> float:
    """A time as commands print it, in seconds since 1970; one without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no time; write it as 2026-01-31T12:00:00Z") from None
    value = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    if not 0 <= value <= 1e11:
        raise argparse.ArgumentTypeError(f"{text} is not in the years from 1970 to 5138")
    return value


_UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


def duration(text: str, *, s_max: float = 1e9) -> float:
    """Seconds, from a number and its unit."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit_s = _UNITS_S.get(text[len(number) :])
    if unit_s is None or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no duration; write it as 90s, 15min, 12h or 7d")
    if float(number) * unit_s > s_max:
        raise argparse.ArgumentTypeError(f"{text} is longer than {s_max / 3.16e7:.0f} years")
    return float(number) * unit_s


def span(text: str) -> timedelta:
    """The same as a `timedelta`, up to some centuries; argparse names the kind of value after this."""
    return timedelta(seconds=duration(text, s_max=1e10))


def position(text: str) -> str:
    """A place in an ordered log: the index of a cell, and of an entry within it."""
    index, dot, offset = text.partition(".")
    if not all(part.isascii() and part.isdigit() for part in (index, *([offset] if dot else []))):
        raise argparse.ArgumentTypeError(f"{text} is no position; write it as index.offset, as 17.0")
    if len(index) > 15 or len(offset) > 6:
        raise argparse.ArgumentTypeError(f"{text} is behind every position")
    return text


def row(text: str) -> str:
    """A row of an ordered log: its writer shard and its reader shard."""
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is no row; write it as writer.reader, as 0.0")
    return text


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

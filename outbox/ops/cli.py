"""The command line: its commands and arguments as a table, and the exit codes.

0 done, 1 refused (one line on stderr says why and what to do), 2 usage, 130 interrupted by Ctrl-C.  Built on argparse
and without slow imports, so that `outbox --help` prints at once; `commands` does the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from outbox.errors import OutboxError
from outbox.printable import printable
from outbox.runtime.failures.redacting import redacted

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
PAGE_COUNT_MAX = 1_000
DISTRIBUTION = "outbox-azure"
"""The distribution's name; on PyPI `outbox` is another project."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if hasattr(options, "data") and hasattr(options, "cosmos"):
        _place(options)
    elif getattr(options, "azure", False):
        _read_environment(options)
    from outbox.ops import asking, commands

    try:
        commands.run(options)
        sys.stdout.flush()
    except asking.Usage as error:
        options.parser.error(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return REFUSED
    except (OutboxError, OSError) as error:
        return _refuse(str(error))
    except LookupError as error:
        if type(error) is not LookupError:
            raise
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _refuse(text: str) -> int:
    print(f"outbox: {printable(redacted(' '.join(text.split())))}", file=sys.stderr)
    return REFUSED


def _place(options: argparse.Namespace) -> None:
    """Decide where a command looks: in a folder, or on Azure by options or the environment.

    The environment is read only without a folder, so that a variable left in a shell redirects no command.
    """
    named = [name for name in (*_AZURE_OPTIONS, "blob_states") if getattr(options, name, "")]
    if options.data is not None:
        if named:
            options.parser.error(f"--data and --{named[0].replace('_', '-')} name two places; keep one")
        return
    if hasattr(options, "blob_states"):
        _place_streams(options)
        return
    _read_environment(options)
    missing = [name for name in ("cosmos", "servicebus") if not getattr(options, name)]
    if len(missing) == 2:
        options.parser.error("say where to look: --data FOLDER, or --cosmos ADDRESS --servicebus ADDRESS")
    if missing:
        variable = _AZURE_OPTIONS[missing[0]][0][0]
        options.parser.error(f"--{missing[0]} is missing; give it, or set {variable}")


def _place_streams(options: argparse.Namespace) -> None:
    """Decide where a command for ordered logs looks: in Cosmos DB, or in a container of blobs.

    Cosmos DB, if it is named, by the environment too, unless --blob-states says otherwise; else the blobs.
    """
    if options.cosmos and options.blob_states:
        options.parser.error("--cosmos and --blob-states name two places; keep one")
    _read_environment(options)
    if options.blob_states and not options.blobs:
        options.parser.error("--blobs is missing: the account with the container of --blob-states; or set OUTBOX_BLOBS")
    if not options.cosmos and not options.blobs:
        options.parser.error("say where to look: --data FOLDER, --cosmos ADDRESS, or --blobs ADDRESS")
    if not options.cosmos:
        options.blob_states = options.blob_states or BLOB_STATES


def _read_environment(options: argparse.Namespace) -> None:
    """Take what the options do not say of an application on Azure from the environment."""
    for name, (variables, default, _) in _AZURE_OPTIONS.items():
        if hasattr(options, name):
            found = next((os.environ[variable] for variable in variables if os.environ.get(variable)), default)
            setattr(options, name, getattr(options, name) or found)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors repeat no secret of the command line."""

    def error(self, message: str) -> NoReturn:
        super().error(redacted(message))


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="outbox",
        description="Message handlers that act exactly once: run them, feed them, look after them.",
        epilog="Exit code 0: done, 1: refused, 2: usage.  `outbox COMMAND --help` tells more.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version, and leave")
    groups = {"": parser.add_subparsers(dest="command", metavar="COMMAND", required=True)}
    for name, (text, arguments) in _COMMANDS.items():
        group, _, verb = name.rpartition(" ")
        command = groups[group].add_parser(verb, help=text, description=text, allow_abbrev=False)
        command.set_defaults(action=name, parser=command)
        if arguments is None:
            groups[name] = command.add_subparsers(dest="verb", metavar="VERB", required=True)
        for names, how in arguments or ():
            command.add_argument(*names, **how)
        if name == "state":
            _add_key_kind(command)
        if name in _ON_AZURE:
            _add_place(command)
        if name in _STREAMS:
            _add_place(command).add_argument("--blob-states", metavar="NAME", default="", help=_BLOB_STATES_HELP)
    return parser


class _Version(argparse.Action):
    """Print the installed version.  Looked up only when it is asked for: that reads what is installed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version(DISTRIBUTION)
        except PackageNotFoundError:
            found = f"of a folder, not installed ({Path(__file__).resolve().parents[2]})"
        print(f"outbox {found}")
        parser.exit()


def _add_key_kind(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--int", dest="kind", action="store_const", const="int", help="the key is an integer")
    kind.add_argument("--uuid", dest="kind", action="store_const", const="uuid", help="the key is a UUID")
    parser.set_defaults(kind="text")


def _add_place(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Let a command look in a folder or on Azure."""
    for names, how in (_data(required=False), *_ANSWER):
        parser.add_argument(*names, **how)
    azure = parser.add_argument_group(
        "on Azure, or on emulators",
        "in place of --data; plain addresses are used with your identity (DefaultAzureCredential)",
    )
    for name, (variables, default, text) in _AZURE_OPTIONS.items():
        known = f" ({default})" if default else ""
        metavar = "ADDRESS" if name in ("cosmos", "servicebus", "blobs") else "NAME"
        azure.add_argument(f"--{name}", metavar=metavar, default="", help=f"{text}{known}; or {variables[0]}")
    return azure


def count(text: str) -> int:
    """A number of at least one; argparse names these functions where a value does not fit."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def page(text: str) -> int:
    """How many of many to show."""
    value = int(text)
    if not 1 <= value <= PAGE_COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not 1 to {PAGE_COUNT_MAX}; look on with --after")
    return value


def number(text: str) -> int:
    """The number of a message in its queue."""
    value = int(text)
    if not 0 <= value < 1 << 62:
        raise argparse.ArgumentTypeError(f"{text} is no number of a message")
    return value


def port(text: str) -> int:
    """A port, or 0 for any free one."""
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; use 0 to 65535")
    return value


def port_or_none(text: str) -> int | None:
    """A port, 0 for any free one, or `none` for no endpoint."""
    return None if text == "none" else port(text)


def seconds(text: str) -> float:
    """A time in seconds since 1970."""
    value = float(text)
    if not 0 <= value <= 1e11:
        raise argparse.ArgumentTypeError(f"{text} is not a time in seconds since 1970")
    return value


def rate(text: str) -> float:
    """How many a second."""
    value = float(text)
    if not 0.01 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is no rate; give 0.01 to 10000 a second")
    return value


_UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


def duration(text: str) -> float:
    """Seconds, from a number and its unit."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit_s = _UNITS_S.get(text[len(number) :])
    if unit_s is None or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no duration; write it as 90s, 15min, 12h or 7d")
    if float(number) * unit_s > 1e9:
        raise argparse.ArgumentTypeError(f"{text} is longer than thirty years")
    return float(number) * unit_s


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


# The commands

_Argument = tuple[tuple[str, ...], dict[str, Any]]


def _argument(*names: str, **how: Any) -> _Argument:
    """The names and settings of one `add_argument`."""
    return names, how


def _data(*, required: bool = True) -> _Argument:
    text = "the engine's folder; its host answers if one runs, else its log is opened"
    return _argument("--data", required=required, type=Path, metavar="FOLDER", help=text)


_AZURE_OPTIONS = {
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

_JSON = _argument("--json", action="store_true", help="answer in JSON")
_ACCEPT_CLOCK = _argument("--accept-clock", action="store_true", help="confirm a wall clock far ahead of the log")
_ANSWER = (_JSON, _ACCEPT_CLOCK)
_QUEUE = _argument("queue", metavar="QUEUE")
_PAGE = (
    _argument("--limit", type=page, default=20, metavar="N", help="at most so many (20; up to 1000)"),
    _argument("--after", type=number, default=0, metavar="NUMBER", help="behind the message of this number"),
)
_STATES = ("waiting", "retrying", "blocked", "in-hand", "scheduled", "deferred")
_LOG = _argument("name", metavar="NAME", help="the log's name")
_WHICH = (
    _argument("--reason", default="", help="only those of this reason, such as failed or too-old"),
    _argument("--type", default="", help="only messages of this wire type"),
    _argument("--text", default="", help="only those with this text in their description, stack or body"),
    _argument("--older", type=duration, metavar="AGE", help="only those enqueued longer ago, as 7d, 12h, 15min or 90s"),
    _argument("--newer", type=duration, metavar="AGE", help="only those enqueued since"),
    _argument("--limit", type=count, metavar="N", help="at most so many, the oldest first"),
)
_ID_OR_ALL = (
    _argument("id", metavar="ID", nargs="?"),
    _argument("--all", action="store_true", help="all of the queue's, instead of one ID"),
    *_WHICH,
    _argument("--rate", type=rate, metavar="N", help="at most so many a second"),
)
_HOST = (
    _argument(
        "--amqp-port",
        type=port_or_none,
        default=5672,
        metavar="PORT",
        help="port of the Service Bus endpoint (5672; 0: any free one; none: no endpoint)",
    ),
    _argument(
        "--cosmos-port",
        type=port,
        metavar="PORT",
        help="also serve Cosmos DB, on this port (8081 is what its clients expect; 0: any free one)",
    ),
    _argument(
        "--blob-port",
        type=port,
        metavar="PORT",
        help="also serve Blob Storage, on this port (10000 is Azurite's; 0: any free one)",
    ),
    _argument("--entities", type=Path, metavar="FILE", help="queues and topics in the official emulator's JSON"),
    _argument(
        "--sync", default="every", metavar="POLICY", help="every (default), every_n:COUNT, interval:SECONDS or never"
    ),
    _ACCEPT_CLOCK,
)

_ON_AZURE = frozenset(
    (
        "status",
        "doctor",
        "state",
        "queue peek",
        "message show",
        "schedule list",
        "schedule cancel",
        "pending list",
        "pending explain",
        "pending finish",
        "dead-letters list",
        "dead-letters show",
        "dead-letters resubmit",
        "dead-letters discard",
    )
)
"""The commands that take a folder or an application on Azure."""

_STREAMS = frozenset(("stream list", "stream read", "stream unregister", "stream trim"))
"""The commands for ordered logs, which take a folder, a container of Cosmos DB or a container of blobs."""

BLOB_STATES = "outbox-states"
_BLOB_STATES_HELP = (
    f"the container of ordered logs in the account of --blobs, instead of Cosmos DB ({BLOB_STATES} where neither "
    "--cosmos nor OUTBOX_COSMOS is given); they need no --servicebus"
)

_COMMANDS: dict[str, tuple[str, tuple[_Argument, ...] | None]] = {
    "new": (
        "Write a project that runs as it stands: handlers, tests, a Functions app.",
        (_argument("name", metavar="NAME", help="its name, and that of the folder to make here"), _JSON),
    ),
    "run": (
        "Run an application: durable engine, workers, Service Bus endpoint on loopback.",
        (
            _argument(
                "app", metavar="APP", help="the application as module:attribute; the current folder is importable"
            ),
            _argument("--data", required=True, type=Path, metavar="FOLDER", help="the engine's folder"),
            _argument("--workers", type=count, default=1, metavar="N", help="workers in this process (1)"),
            _argument("--concurrency", type=count, default=64, metavar="N", help="messages in hand a worker (64)"),
            _argument("--threads", type=count, default=16, metavar="N", help="blocking handlers at a time (16)"),
            _argument("--history", type=Path, metavar="FILE", help="record what the workers do, for `outbox audit`"),
            _argument(
                "--http", type=port, metavar="PORT", help="serve the HTTP entries on this port of loopback (0: any)"
            ),
            _argument(
                "--new-key",
                action="store_true",
                help="make a new access key for the folder's endpoints; clients need the new connection string",
            ),
            _argument(
                "--http-name",
                action="append",
                default=[],
                metavar="NAME",
                help="a name of the HTTP entries besides loopback's, as behind a proxy; may be repeated",
            ),
            *_HOST,
        ),
    ),
    "emulator": (
        "Serve Service Bus, and on request Cosmos DB and Blob Storage, on loopback without an application.",
        (_argument("--data", type=Path, metavar="FOLDER", help="the engine's folder (none: in memory)"), *_HOST),
    ),
    "describe": (
        "Print an application's queues, topics and messages as AsyncAPI, or its HTTP entries as OpenAPI.",
        (
            _argument("app", metavar="APP", help="the application as module:attribute"),
            _argument("--http", action="store_true", help="its HTTP entries, as OpenAPI"),
        ),
    ),
    "send": (
        "Send a message, or one for each line of stdin.",
        (
            _argument("queue", metavar="QUEUE", help="a queue or topic"),
            _argument("body", metavar="JSON", help='the message, or - for lines of {"id": ..., "body": ...} on stdin'),
            _argument("--type", default="", help="the wire type; a queue with one type needs none"),
            _argument("--id", help="its identity (default: a fresh one); a duplicate has no further effect"),
            _argument("--created", type=seconds, metavar="SECONDS", help="its time, since 1970 (default: now)"),
            _argument("--key", "--session", dest="key", default="", help="its key, where the queue is ordered by key"),
            _argument("--correlation-id", default="", metavar="ID"),
            _argument(
                "--app",
                metavar="APP",
                help="check the message by this application's types (module:attribute); a host does so by its own",
            ),
            _argument("--id-field", metavar="NAME", help="with -: lines are bodies, and this field is the identity"),
            _argument("--key-field", metavar="NAME", help="with --id-field: this field is the key"),
            _data(),
            *_ANSWER,
        ),
    ),
    "status": ("Count messages and dead letters of every queue.", ()),
    "doctor": ("Look for what is wrong or soon will be, and name the cure; exit code 1 where there is an error.", ()),
    "state": (
        "Show the state of a key.",
        (_argument("type", metavar="TYPE", help="the state's name"), _argument("key", metavar="KEY")),
    ),
    "export": (
        "Write all states of one instant as JSON lines.",
        (
            _argument("--type", default="", help="only states of this name"),
            _argument("--output", type=Path, metavar="FILE", help="where to (default: stdout)"),
            _data(),
            *_ANSWER,
        ),
    ),
    "queue": ("Look into a queue.", None),
    "queue peek": (
        "Show what a queue holds, and why each message waits: for a worker, for its next try, behind a dead letter.",
        (
            _QUEUE,
            _argument("--state", choices=_STATES, help="only messages in this state"),
            _argument("--key", default="", help="only messages of this key (session)"),
            *_PAGE,
        ),
    ),
    "message": ("Find a message.", None),
    "message show": (
        "Show where a message is, in a queue or among dead letters, why it is there, and its body.",
        (
            _argument("id", metavar="ID", help="its identity, or the beginning of it: four characters or more"),
            _argument("--queue", default="", metavar="QUEUE", help="look into this queue only"),
        ),
    ),
    "schedule": ("List or cancel what is not due yet.", None),
    "schedule list": ("List what is scheduled in a queue, and when it is due.", (_QUEUE, *_PAGE)),
    "schedule cancel": (
        "Cancel a scheduled message: it is gone, and nothing remembers it.",
        (_QUEUE, _argument("id", metavar="ID", help="its identity, or the beginning of it: four characters or more")),
    ),
    "pending": ("List or finish what was committed and whose outputs are not known to have left.", None),
    "pending list": (
        "List transactions whose outputs are not known to have left, and why.",
        (_argument("--tx", metavar="TX", help="one of them, or those that begin so"),),
    ),
    "pending explain": ("Show all that is known of one.", (_argument("tx", metavar="TX", help="or its beginning"),)),
    "pending finish": (
        "Send what is pending once more, now, and say what stands in the way.",
        (
            _argument("tx", metavar="TX", nargs="?"),
            _argument("--all", action="store_true", help="everything, instead of one TX"),
        ),
    ),
    "dead-letters": ("List, show, resubmit or discard refused messages.", None),
    "dead-letters list": (
        "List the dead letters of a queue, or of all queues, oldest first.",
        (
            _argument("queue", metavar="QUEUE", nargs="?"),
            *_WHICH,
            _argument("--group", action="store_true", help="one line for all that went wrong alike"),
        ),
    ),
    "dead-letters show": ("Show a dead letter with its body.", (_QUEUE, _argument("id", metavar="ID"))),
    "dead-letters resubmit": (
        "Run a dead letter again, as a new attempt; of many, up to the first that comes back.",
        (_QUEUE, *_ID_OR_ALL, _argument("--body", metavar="FILE", help="edit one: another body, JSON (-: from stdin)")),
    ),
    "dead-letters discard": ("Delete a dead letter.", (_QUEUE, *_ID_OR_ALL)),
    "stream": ("List, read or trim ordered logs, and forget their readers.", None),
    "stream list": (
        "List the ordered logs: rows, floors, ends, and how far behind readers and writers are.",
        (),
    ),
    "stream read": (
        "Print the entries of an ordered log as JSON lines, as they are stored.",
        (
            _LOG,
            _argument("--since", type=position, metavar="I.O", help="from this position on (the floor)"),
            _argument("--limit", type=count, default=0, metavar="N", help="at most so many entries (all)"),
            _argument("--row", type=row, metavar="W.R", help="one row, of writer and reader shard"),
        ),
    ),
    "stream unregister": (
        "Forget a reader or writer that is gone for good: trims wait for it no longer, and take what it has not read.",
        (_LOG, _argument("who", metavar="WHO", help="as `stream list` shows it, such as processor/averages")),
    ),
    "stream trim": (
        "Drop what no registered reader or writer of an ordered log needs any more.",
        (
            _LOG,
            _argument(
                "--min-age",
                type=duration,
                metavar="AGE",
                help="only what is older, as 7d, 12h, 15min or 90s; needed where no reader is registered",
            ),
            _argument(
                "--margin",
                type=duration,
                default=86_400.0,
                metavar="TIME",
                help="how long tombstones last; not below the log's own margin (1d)",
            ),
        ),
    ),
    "log": ("Look at, compact or salvage a folder's log.", None),
    "log inspect": ("Read every segment and print what is in it; change nothing.", (_data(), *_ANSWER)),
    "log compact": (
        "Snapshot the state and drop the log before it.",
        (
            _argument(
                "--sealed",
                action="store_true",
                help="read the sealed segments beside a running host, and leave the host alone",
            ),
            _data(),
            *_ANSWER,
        ),
    ),
    "log salvage": (
        "Copy what is left of a log that an open refuses into a fresh folder.",
        (
            _argument("--into", required=True, type=Path, metavar="FOLDER", help="an empty or new folder"),
            _data(),
            *_ANSWER,
        ),
    ),
    "audit": (
        "Judge a history that `run --history` recorded: which promises hold, and the first event that breaks one.",
        (
            _argument("history", metavar="FILE", type=Path),
            _argument("--alone", action="store_true", help="no other client takes messages from the app's queues"),
            _JSON,
        ),
    ),
    "bench": (
        "Measure this machine, beside hand-written SQLite; or with --azure an account of Cosmos DB and a namespace.",
        (
            _argument("--messages", type=count, metavar="N", help="for each measurement (5000; with --azure 300)"),
            _argument("--repeats", type=count, default=1, metavar="N"),
            _argument("--azure", action="store_true", help="measure there, with a database and queues of its own"),
            _argument(
                "--cosmos", metavar="CONNECTION", default="", help="Cosmos DB's connection string; or OUTBOX_COSMOS"
            ),
            _argument("--servicebus", metavar="CONNECTION", default="", help="the namespace's; or OUTBOX_SERVICEBUS"),
            _argument(
                "--ru-max",
                type=count,
                default=250_000,
                metavar="N",
                help="how many request units to spend at most (250000)",
            ),
            _argument(
                "--output",
                type=Path,
                metavar="FOLDER",
                help="with --azure: also write azure-account.json and .txt there",
            ),
        ),
    ),
}

"""The command line: what may be asked and how, and which exit code an outcome has.

0 done, 1 refused (one line on stderr says why and what to do), 2 usage, 130 interrupted by Ctrl-C.  Built on argparse
and free of everything that takes long to import, so that `outbox --help` is there at once; `commands` does the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from outbox.errors import OutboxError
from outbox.runtime.failures.redacting import redacted
from outbox.seldom import printable

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
DISTRIBUTION = "outbox-azure"
"""What is installed to get this; the name `outbox` belongs to somebody else on PyPI."""

_APP_HELP = "the application as module:attribute; the current folder is importable"
_CLOCK_HELP = "confirm a wall clock far ahead of the log"
_DATA_HELP = "the engine's folder; a host that holds it is asked, else its log is opened"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if hasattr(options, "cosmos"):
        _place(options)
    from outbox.ops import commands

    try:
        commands.run(options)
        sys.stdout.flush()
    except commands.Usage as error:
        options.parser.error(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
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
    """Settle where a command is to look: in a folder, or on Azure as options or the environment say.

    The environment is asked only where no folder is named, so that a setting left in a shell moves no command.
    """
    named = [name for name in _AZURE_OPTIONS if getattr(options, name)]
    if options.data is not None:
        if named:
            options.parser.error(f"--data and --{named[0]} name two places; keep one")
        return
    for name, (variables, default, _) in _AZURE_OPTIONS.items():
        found = next((os.environ[variable] for variable in variables if os.environ.get(variable)), default)
        setattr(options, name, getattr(options, name) or found)
    missing = [name for name in ("cosmos", "servicebus") if not getattr(options, name)]
    if len(missing) == 2:
        options.parser.error("say where to look: --data FOLDER, or --cosmos ADDRESS --servicebus ADDRESS")
    if missing:
        variable = _AZURE_OPTIONS[missing[0]][0][0]
        options.parser.error(f"--{missing[0]} is missing; give it, or set {variable}")


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints repeat no secret of the command line."""

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
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_new(commands)
    _add_run(commands)
    _add_emulator(commands)
    _add_send(commands)
    _add_status(commands)
    _add_state(commands)
    _add_export(commands)
    _add_dead_letters(commands)
    _add_log(commands)
    _add_audit(commands)
    _add_bench(commands)
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


_Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


def _add(commands: _Commands[_Parser], name: str, text: str) -> _Parser:
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(action=name, parser=parser)
    return parser


def _add_data(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("--data", required=required, type=Path, metavar="FOLDER", help=_DATA_HELP)
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.add_argument("--accept-clock", action="store_true", help=_CLOCK_HELP)


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
    "blobs": (("OUTBOX_BLOBS", "OUTBOX_BLOBS__blobServiceUri"), "", "Blob Storage, where large bodies lie"),
    "database": (("OUTBOX_DATABASE",), "bank", "the database"),
    "container": (("OUTBOX_CONTAINER",), "outbox", "the container of records and states"),
    "states": (("OUTBOX_STATES",), "", "the container in which only states lie, if there is one"),
}
"""Options that name an application on Azure: the variables that stand in for them, the default, and what they are."""


def _add_place(parser: argparse.ArgumentParser) -> None:
    """Let a command look in a folder or on Azure."""
    _add_data(parser, required=False)
    azure = parser.add_argument_group(
        "on Azure, or on emulators",
        "in place of --data; an address is asked with your identity (DefaultAzureCredential)",
    )
    for name, (variables, default, text) in _AZURE_OPTIONS.items():
        known = f" ({default})" if default else ""
        metavar = "ADDRESS" if name in ("cosmos", "servicebus", "blobs") else "NAME"
        azure.add_argument(f"--{name}", metavar=metavar, default="", help=f"{text}{known}; or {variables[0]}")


def _add_new(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "new", "Write a project that runs as it stands: handlers, tests, a Functions app.")
    parser.add_argument("name", metavar="NAME", help="its name, and that of the folder to make here")
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def _add_run(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "run", "Run an application: durable engine, workers, Service Bus endpoint on loopback.")
    parser.add_argument("app", metavar="APP", help=_APP_HELP)
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER", help="the engine's folder")
    parser.add_argument("--workers", type=count, default=1, metavar="N", help="workers in this process (1)")
    parser.add_argument("--concurrency", type=count, default=64, metavar="N", help="messages in hand a worker (64)")
    parser.add_argument("--threads", type=count, default=16, metavar="N", help="blocking handlers at a time (16)")
    parser.add_argument("--history", type=Path, metavar="FILE", help="record what the workers do, for `outbox audit`")
    parser.add_argument(
        "--http", type=port, metavar="PORT", help="serve the HTTP entries on this port of loopback (0: any)"
    )
    key_help = "make a new access key for the folder's endpoints; clients need the new connection string"
    parser.add_argument("--new-key", action="store_true", help=key_help)
    names = "a name that the HTTP entries go by besides loopback's, as behind a proxy; may be repeated"
    parser.add_argument("--http-name", action="append", default=[], metavar="NAME", help=names)
    _add_host(parser)


def _add_emulator(commands: _Commands[_Parser]) -> None:
    parser = _add(
        commands, "emulator", "Serve Service Bus, and on request Cosmos DB, on loopback without an application."
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="the engine's folder (none: in memory)")
    _add_host(parser)


def _add_host(parser: argparse.ArgumentParser) -> None:
    amqp_help = "port of the Service Bus endpoint (5672; 0: any free one; none: no endpoint)"
    parser.add_argument("--amqp-port", type=port_or_none, default=5672, metavar="PORT", help=amqp_help)
    cosmos_help = "also serve Cosmos DB, on this port (8081 is what its clients expect; 0: any free one)"
    parser.add_argument("--cosmos-port", type=port, metavar="PORT", help=cosmos_help)
    parser.add_argument(
        "--entities", type=Path, metavar="FILE", help="queues and topics in the official emulator's JSON"
    )
    parser.add_argument(
        "--sync", default="every", metavar="POLICY", help="every (default), every_n:COUNT, interval:SECONDS or never"
    )
    parser.add_argument("--accept-clock", action="store_true", help=_CLOCK_HELP)


def _add_send(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "send", "Send a message, or one for each line of stdin.")
    parser.add_argument("queue", metavar="QUEUE", help="a queue or topic")
    parser.add_argument("body", metavar="JSON", help='the message, or - for lines of {"id": ..., "body": ...} on stdin')
    parser.add_argument("--type", default="", help="the wire type; a queue with one type needs none")
    parser.add_argument("--id", help="its identity (default: a fresh one); sent again it has no further effect")
    parser.add_argument("--created", type=seconds, metavar="SECONDS", help="its time, since 1970 (default: now)")
    parser.add_argument("--key", "--session", dest="key", default="", help="its key, where the queue is ordered by key")
    parser.add_argument("--correlation-id", default="", metavar="ID")
    app_help = "check the message by this application's types (module:attribute); a host that runs one does so itself"
    parser.add_argument("--app", metavar="APP", help=app_help)
    parser.add_argument("--id-field", metavar="NAME", help="with -: lines are bodies, and this field is the identity")
    parser.add_argument("--key-field", metavar="NAME", help="with --id-field: this field is the key")
    _add_data(parser)


def _add_status(commands: _Commands[_Parser]) -> None:
    _add_place(_add(commands, "status", "Count messages and dead letters of every queue."))


def _add_state(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "state", "Show the state of a key.")
    parser.add_argument("type", metavar="TYPE", help="the state's name")
    parser.add_argument("key", metavar="KEY")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--int", dest="kind", action="store_const", const="int", help="the key is an integer")
    kind.add_argument("--uuid", dest="kind", action="store_const", const="uuid", help="the key is a UUID")
    parser.set_defaults(kind="text")
    _add_place(parser)


def _add_export(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "export", "Write all states of one instant as JSON lines.")
    parser.add_argument("--type", default="", help="only states of this name")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to (default: stdout)")
    _add_data(parser)


def _add_dead_letters(commands: _Commands[_Parser]) -> None:
    parent = _add(commands, "dead-letters", "List, show, resubmit or discard refused messages.")
    verbs = parent.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, text in (
        ("list", "List the dead letters of a queue, oldest first."),
        ("show", "Show a dead letter with its body."),
        ("resubmit", "Run a dead letter again, as a new attempt."),
        ("discard", "Delete a dead letter."),
    ):
        parser = _add(verbs, verb, text)
        parser.set_defaults(action=f"dead-letters {verb}")
        parser.add_argument("queue", metavar="QUEUE")
        if verb == "show":
            parser.add_argument("id", metavar="ID")
        elif verb != "list":
            parser.add_argument("id", metavar="ID", nargs="?")
            parser.add_argument("--all", action="store_true", help="all of the queue's, instead of one ID")
        _add_place(parser)


def _add_log(commands: _Commands[_Parser]) -> None:
    parent = _add(commands, "log", "Look at, compact or salvage a folder's log.")
    verbs = parent.add_subparsers(dest="verb", metavar="VERB", required=True)
    inspect = _add(verbs, "inspect", "Read every segment and tell what is there; change nothing.")
    compact = _add(verbs, "compact", "Snapshot the state and drop the log before it.")
    compact.add_argument(
        "--sealed", action="store_true", help="read the sealed segments beside a running host, and leave the host alone"
    )
    salvage = _add(verbs, "salvage", "Copy what is left of a log that an open refuses into a fresh folder.")
    salvage.add_argument("--into", required=True, type=Path, metavar="FOLDER", help="an empty or new folder")
    for verb, parser in (("inspect", inspect), ("compact", compact), ("salvage", salvage)):
        parser.set_defaults(action=f"log {verb}")
        _add_data(parser)


def _add_audit(commands: _Commands[_Parser]) -> None:
    text = "Judge a history that `run --history` recorded: which promises hold, and the first event that breaks one."
    parser = _add(commands, "audit", text)
    parser.add_argument("history", type=Path, metavar="FILE")
    parser.add_argument("--alone", action="store_true", help="nobody else takes messages from the application's queues")
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def _add_bench(commands: _Commands[_Parser]) -> None:
    parser = _add(commands, "bench", "Measure this machine: the same work here and in hand-written SQLite.")
    parser.add_argument("--messages", type=count, default=5_000, metavar="N")
    parser.add_argument("--repeats", type=count, default=1, metavar="N")


def count(text: str) -> int:
    """A number of at least one; argparse names these functions where a value does not fit."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
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

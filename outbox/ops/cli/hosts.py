"""The commands that make, run or describe an application, and completion for a shell.

A script for completion is made from the parser of the command line itself.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from outbox.errors import OutboxError, Refused
from outbox.escape import printable
from outbox.ops.shared.asking import (
    ACCEPT_CLOCK,
    JSON,
    Command,
    Commands,
    Options,
    Usage,
    answer,
    argument,
    check_app_name,
    count,
    port,
    port_or_none,
    share,
)

_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
FOLDER_NAMES = frozenset(("FOLDER",))


class LogFormatter(logging.Formatter):
    """A log line with its fields: `claim failed error=...`; our own errors are logged without a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OutboxError):
            record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None, "error": error})
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        fields = [f"{name}={printable(str(value))}" for name, value in record.__dict__.items() if name not in _ORDINARY]
        return " ".join([printable(super().formatMessage(record)), *fields])  # a peer chooses names of queues too


# Projects


def new(options: Options) -> None:
    from outbox.ops.cli.new import new_project

    made = new_project(options.name, Path.cwd())
    run = f"outbox run {made.package}.handlers:app --data {made.name}.data"
    steps = (f"cd {made.name}", "pip install -r requirements-dev.txt", "python -m pytest", run)
    text = "\n".join([f"{made.name}: {len(made.paths)} files; next:", "", *(f"    {step}" for step in steps)])
    answer(options, {"folder": made.name, "package": made.package, "files": made.paths}, text)


def completion(options: Options) -> None:
    script = completion_script(options.whole, options.shell)
    answer(options, {"shell": options.shell, "script": script}, script)


# Hosts


def run_app(options: Options) -> None:
    """Serve an application; stdout gets one line, whatever the application prints."""
    check_app_name(options.app)
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        log_to_stderr()
        _check_sync(options.sync)
        from outbox.ops.host.endpoints import EndpointSettings
        from outbox.ops.shared.loading import load_app

        _serve(
            options,
            out,
            app=load_app(options.app),
            worker_count=options.workers,
            concurrency=options.concurrency,
            thread_count=options.threads,
            history=options.history,
            replace_key=options.new_key,
            endpoints=EndpointSettings(
                options.amqp_port,
                options.cosmos_port,
                options.blob_port,
                options.http,
                tuple(options.http_name),
                options.metrics_port,
            ),
            sampled=options.telemetry,
        )


def emulate(options: Options) -> None:
    log_to_stderr()
    _check_sync(options.sync)
    from outbox.ops.host.endpoints import EndpointSettings

    endpoints = EndpointSettings(options.amqp_port, options.cosmos_port, options.blob_port)
    if not endpoints.ports:
        raise Usage("an emulator of nothing: leave out --amqp-port none, or give --cosmos-port or --blob-port")
    _serve(options, sys.stdout, endpoints=endpoints)


def _serve(options: Options, out: Any, **more: Any) -> None:
    import asyncio

    from outbox.ops.host.host import HostSettings, serve

    settings = HostSettings(
        folder=options.data,
        entities=options.entities,
        sync=options.sync,
        accept_clock=options.accept_clock,
        new=options.new,
        **more,
    )
    asyncio.run(serve(settings, lambda line: print(line, file=out, flush=True)))


def _check_sync(policy: str) -> None:
    from outbox.engine.core import SyncPolicy

    try:
        SyncPolicy.parse(policy)
    except ValueError as error:
        raise Usage(str(error)) from error


def log_to_stderr() -> None:
    """Log to stderr, each line with its fields."""
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def describe(options: Options) -> None:
    """Print what an application takes and sends, as a document for tools."""
    from outbox.describe import asyncapi, openapi
    from outbox.ops.shared.loading import load_app

    check_app_name(options.app)
    with redirect_stdout(sys.stderr):
        app = load_app(options.app)
    made = openapi(app) if options.http else asyncapi(app)
    print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())


# The commands

_HOST = (
    argument(
        "--amqp-port",
        type=port_or_none,
        default=5672,
        metavar="PORT",
        help="port of the Service Bus endpoint (5672; 0: any free one; none: no endpoint)",
    ),
    argument(
        "--cosmos-port",
        type=port,
        metavar="PORT",
        help="also serve Cosmos DB, on this port (8081 is what its clients expect; 0: any free one)",
    ),
    argument(
        "--blob-port",
        type=port,
        metavar="PORT",
        help="also serve Blob Storage, on this port (10000 is Azurite's; 0: any free one)",
    ),
    argument("--entities", type=Path, metavar="FILE", help="queues and topics in the official emulator's JSON"),
    argument(
        "--sync", default="every", metavar="POLICY", help="every (default), every_n:COUNT, interval:SECONDS or never"
    ),
    ACCEPT_CLOCK,
    argument(
        "--new",
        action="store_true",
        help="begin a log in a folder that has lost its own; what is left is renamed, and a log is never replaced",
    ),
)

COMMANDS: Commands = {
    "new": Command(
        "Write a project that runs as it stands: handlers, tests, a Functions app.",
        (argument("name", metavar="NAME", help="its name, and that of the folder to make here"), JSON),
        new,
    ),
    "run": Command(
        "Run an application: durable engine, workers, Service Bus endpoint on loopback.",
        (
            argument(
                "app", metavar="APP", help="the application as module:attribute; the current folder is importable"
            ),
            argument("--data", required=True, type=Path, metavar="FOLDER", help="the engine's folder"),
            argument("--workers", type=count, default=1, metavar="N", help="workers in this process (1)"),
            argument("--concurrency", type=count, default=64, metavar="N", help="messages in hand a worker (64)"),
            argument("--threads", type=count, default=16, metavar="N", help="blocking handlers at a time (16)"),
            argument("--history", type=Path, metavar="FILE", help="record what the workers do, for `outbox audit`"),
            argument(
                "--http", type=port, metavar="PORT", help="serve the HTTP entries on this port of loopback (0: any)"
            ),
            argument(
                "--metrics-port", type=port, metavar="PORT", help="serve /metrics to Prometheus, on loopback (0: any)"
            ),
            argument(
                "--telemetry",
                type=share,
                metavar="SHARE",
                help="trace this share of the messages (0 to 1) through OpenTelemetry, and publish metrics by it",
            ),
            argument(
                "--new-key",
                action="store_true",
                help="make a new access key for the folder's endpoints; clients need the new connection string",
            ),
            argument(
                "--http-name",
                action="append",
                default=[],
                metavar="NAME",
                help="a name of the HTTP entries besides loopback's, as behind a proxy; may be repeated",
            ),
            *_HOST,
        ),
        run_app,
    ),
    "emulator": Command(
        "Serve Service Bus, and on request Cosmos DB and Blob Storage, on loopback without an application.",
        (argument("--data", type=Path, metavar="FOLDER", help="the engine's folder (left out: in memory)"), *_HOST),
        emulate,
    ),
    "completion": Command(
        "Print the script with which a shell completes commands and options.",
        (argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"), JSON),
        completion,
    ),
    "describe": Command(
        "Print an application's queues, topics and messages as AsyncAPI, or its HTTP entries as OpenAPI.",
        (
            argument("app", metavar="APP", help="the application as module:attribute"),
            argument("--http", action="store_true", help="its HTTP entries, as OpenAPI"),
        ),
        describe,
    ),
}


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script for `bash`, `zsh` or `fish`; where an argument is a path, the shell completes names of files.

    Raises:
        Refused: the package that writes such scripts is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed; pip install outbox-azure[completion]") from error
    for action in _actions(parser):
        if action.type is Path:
            by_name: Any = action
            by_name.complete = shtab.DIRECTORY if action.metavar in FOLDER_NAMES else shtab.FILE
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Every argument of every command."""
    found: list[argparse.Action] = []
    waiting = [parser]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            else:
                found.append(action)
    return found

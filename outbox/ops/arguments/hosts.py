"""The commands that make, run or describe an application, and completion for a shell."""

from __future__ import annotations

from pathlib import Path

from outbox.ops.arguments.kinds import count, port, port_or_none, share
from outbox.ops.arguments.shared import ACCEPT_CLOCK, JSON, Commands, argument

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
    "new": (
        "Write a project that runs as it stands: handlers, tests, a Functions app.",
        (argument("name", metavar="NAME", help="its name, and that of the folder to make here"), JSON),
    ),
    "run": (
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
    ),
    "emulator": (
        "Serve Service Bus, and on request Cosmos DB and Blob Storage, on loopback without an application.",
        (argument("--data", type=Path, metavar="FOLDER", help="the engine's folder (left out: in memory)"), *_HOST),
    ),
    "completion": (
        "Print the script with which a shell completes commands and options.",
        (argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"), JSON),
    ),
    "describe": (
        "Print an application's queues, topics and messages as AsyncAPI, or its HTTP entries as OpenAPI.",
        (
            argument("app", metavar="APP", help="the application as module:attribute"),
            argument("--http", action="store_true", help="its HTTP entries, as OpenAPI"),
        ),
    ),
}

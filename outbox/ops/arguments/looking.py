"""The commands that send a message, look at all queues, or export states."""

from __future__ import annotations

from pathlib import Path

from outbox.ops.arguments.kinds import duration, instant, queue, seconds
from outbox.ops.arguments.shared import ANSWER, Commands, argument, data

COMMANDS: Commands = {
    "send": (
        "Send a message, or one for each line of stdin.",
        (
            argument("queue", metavar="QUEUE", type=queue, help="a queue or topic"),
            argument("body", metavar="JSON", help='the message, or - for lines of {"id": ..., "body": ...} on stdin'),
            argument("--type", default="", help="the wire type; a queue with one type needs none"),
            argument("--id", help="its identity (default: a fresh one); a duplicate has no further effect"),
            argument(
                "--created",
                type=seconds,
                metavar="SECONDS",
                help="its time, since 1970 (default: now, or when it is due)",
            ),
            argument(
                "--at", type=instant, metavar="TIME", help="when it is due, as 2026-01-31T12:00:00Z (default: now)"
            ),
            argument(
                "--in", dest="in_s", type=duration, metavar="DURATION", help="how long until it is due, as 90s or 15min"
            ),
            argument("--key", "--session", dest="key", default="", help="its key, where the queue is ordered by key"),
            argument("--correlation-id", default="", metavar="ID"),
            argument(
                "--app",
                metavar="APP",
                help="check the message by this application's types (module:attribute); a host does so by its own",
            ),
            argument("--id-field", metavar="NAME", help="with -: lines are bodies, and this field is the identity"),
            argument("--key-field", metavar="NAME", help="with --id-field: this field is the key"),
        ),
    ),
    "status": ("Count messages and dead letters of every queue.", ()),
    "metrics": (
        "Print the metrics of a folder's host in Prometheus' text format.",
        (data(), *ANSWER),
    ),
    "doctor": ("Look for what is wrong or soon will be, and name the cure; exit code 1 where there is an error.", ()),
    "export": (
        "Write all states of one instant as JSON lines.",
        (
            argument("--type", default="", help="only states of this name"),
            argument("--output", type=Path, metavar="FILE", help="where to (default: stdout)"),
            data(),
            *ANSWER,
        ),
    ),
}

ON_AZURE = frozenset(("send", "status", "doctor"))

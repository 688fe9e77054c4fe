"""The commands that judge a history, or measure."""

from __future__ import annotations

from pathlib import Path

from outbox.ops.arguments.kinds import count
from outbox.ops.arguments.shared import JSON, Commands, argument

COMMANDS: Commands = {
    "audit": (
        "Judge a history that `run --history` recorded: which promises hold, and the first event that breaks one.",
        (
            argument("history", metavar="FILE", type=Path),
            argument("--alone", action="store_true", help="no other client takes messages from the app's queues"),
            JSON,
        ),
    ),
    "bench": (
        "Measure this machine, beside hand-written SQLite; or with --azure an account of Cosmos DB and a namespace.",
        (
            argument("--messages", type=count, metavar="N", help="for each measurement (5000; with --azure 300)"),
            argument("--repeats", type=count, default=1, metavar="N"),
            argument("--azure", action="store_true", help="measure there, with a database and queues of its own"),
            argument(
                "--cosmos", metavar="CONNECTION", default="", help="Cosmos DB's connection string; or OUTBOX_COSMOS"
            ),
            argument("--servicebus", metavar="CONNECTION", default="", help="the namespace's; or OUTBOX_SERVICEBUS"),
            argument(
                "--ru-max",
                type=count,
                default=250_000,
                metavar="N",
                help="how many request units to spend at most (250000)",
            ),
            argument(
                "--output",
                type=Path,
                metavar="FOLDER",
                help="with --azure: also write azure-account.json and .txt there",
            ),
        ),
    ),
}

"""The commands for ordered logs, which take a folder, a container of Cosmos DB or a container of blobs."""

from __future__ import annotations

from outbox.ops.arguments.kinds import count, duration, position, row
from outbox.ops.arguments.shared import Commands, argument

_LOG = argument("name", metavar="NAME", help="the log's name")

BLOB_STATES = "outbox-states"
BLOB_STATES_HELP = (
    f"the container of ordered logs in the account of --blobs, instead of Cosmos DB ({BLOB_STATES} where neither "
    "--cosmos nor OUTBOX_COSMOS is given); they need no --servicebus"
)

COMMANDS: Commands = {
    "stream": ("List, read or trim ordered logs, and forget their readers.", None),
    "stream list": (
        "List the ordered logs: rows, floors, ends, and how far behind readers and writers are.",
        (),
    ),
    "stream read": (
        "Print the entries of an ordered log as JSON lines, as they are stored.",
        (
            _LOG,
            argument("--since", type=position, metavar="I.O", help="from this position on (the floor)"),
            argument("--limit", type=count, default=0, metavar="N", help="at most so many entries (all)"),
            argument("--row", type=row, metavar="W.R", help="one row, of writer and reader shard"),
        ),
    ),
    "stream unregister": (
        "Forget a reader or writer that is gone for good: trims wait for it no longer, and take what it has not read.",
        (_LOG, argument("who", metavar="WHO", help="as `stream list` shows it, such as processor/averages")),
    ),
    "stream trim": (
        "Drop what no registered reader or writer of an ordered log needs any more.",
        (
            _LOG,
            argument(
                "--min-age",
                type=duration,
                metavar="AGE",
                help="only what is older, as 7d, 12h, 15min or 90s; needed where no reader is registered",
            ),
            argument(
                "--margin",
                type=duration,
                default=86_400.0,
                metavar="TIME",
                help="how long tombstones last; not below the log's own margin (1d)",
            ),
        ),
    ),
}

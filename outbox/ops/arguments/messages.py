"""The commands on messages: what a queue holds, what is scheduled or pending, and dead letters."""

from __future__ import annotations

from pathlib import Path

from outbox.ops.arguments.kinds import count, depth, duration, identity, number, page, queue, rate
from outbox.ops.arguments.shared import AFTER, PAGE, QUEUE, Commands, argument

_STATES = ("waiting", "retrying", "blocked", "in-hand", "scheduled", "deferred")
_WHICH = (
    argument("--reason", default="", help="only those of this reason, such as failed or too-old"),
    argument("--type", default="", help="only messages of this wire type"),
    argument("--handler", default="", metavar="NAME", help="only messages that this handler takes"),
    argument("--exception", default="", metavar="CLASS", help="only those that failed with it, as KeyError"),
    argument("--text", default="", help="only those with this text in their reason, description, stack or body"),
    argument("--older", type=duration, metavar="AGE", help="only those enqueued longer ago, as 7d, 12h, 15min or 90s"),
    argument("--newer", type=duration, metavar="AGE", help="only those enqueued since"),
    argument("--limit", type=count, metavar="N", help="at most so many, the oldest first"),
)
_SEQUENCE = argument(
    "--sequence",
    type=number,
    default=0,
    metavar="NUMBER",
    help="of an id's several dead letters the one of this number",
)
_ID_OR_ALL = (
    argument("id", type=identity, metavar="ID", nargs="?"),
    argument("--all", action="store_true", help="all of the queue's, instead of one ID"),
    _SEQUENCE,
    *_WHICH,
    argument("--rate", type=rate, metavar="N", help="at most so many a second"),
)

COMMANDS: Commands = {
    "queue": ("Look into a queue, pause it, or resume it.", None),
    "queue peek": (
        "Show what a queue holds, and why each message waits: for a worker, for its next try, behind a dead letter.",
        (
            QUEUE,
            argument("--state", choices=_STATES, help="only messages in this state"),
            argument("--key", default="", help="only messages of this key (session)"),
            *PAGE,
        ),
    ),
    "queue pause": (
        "Let workers and receivers take nothing from a queue until it is resumed; what is sent to it waits.",
        (QUEUE,),
    ),
    "queue resume": ("Let a paused queue go on.", (QUEUE,)),
    "message": ("Find a message, its causes and its effects.", None),
    "message show": (
        "Show where a message is, in a queue or among dead letters, why it is there, and its body.",
        (
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            argument("--queue", metavar="QUEUE", type=queue, help="look into this queue only"),
            AFTER,
        ),
    ),
    "message trace": (
        "Show the causes and effects of a message over all hops, and where each of them is.",
        (
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            argument("--key", default="", help="the key of its handler, to find a record where the message is gone"),
            argument("--history", type=Path, metavar="FILE", help="a history that `outbox run` has recorded"),
            argument("--depth", type=depth, default=10, metavar="N", help="at most so many hops each way (10)"),
            argument("--width", type=page, default=20, metavar="N", help="at most so many effects of each (20)"),
        ),
    ),
    "schedule": ("List or cancel what is not due yet, or let it be due.", None),
    "schedule list": (
        "List what is scheduled in a queue, or in all queues, by the time when it is due.",
        (argument("queue", metavar="QUEUE", nargs="?", type=queue), *PAGE),
    ),
    "schedule cancel": (
        "Cancel a scheduled message: it is gone, and nothing remembers it.",
        (
            QUEUE,
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            AFTER,
        ),
    ),
    "schedule now": (
        "Let a scheduled message, or one that waits for its next try, be taken now.",
        (
            QUEUE,
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            AFTER,
        ),
    ),
    "pending": ("List or finish what was committed and whose outputs are not known to have left.", None),
    "pending list": (
        "List transactions whose outputs are not known to have left, and why.",
        (argument("--tx", type=identity, metavar="TX", help="one of them, or those that begin so"),),
    ),
    "pending explain": (
        "Show all that is known of one.",
        (argument("tx", type=identity, metavar="TX", help="or its beginning"),),
    ),
    "pending finish": (
        "Send what is pending once more, now, and say what stands in the way.",
        (
            argument("tx", type=identity, metavar="TX", nargs="?"),
            argument("--all", action="store_true", help="everything, instead of one TX"),
        ),
    ),
    "blocked": ("List keys that a dead letter blocks, or let one go on.", None),
    "blocked list": (
        "List the keys that a dead letter blocks, by which, since when, and how many messages wait.",
        (argument("queue", metavar="QUEUE", nargs="?", type=queue),),
    ),
    "blocked unblock": (
        "Let a key go on: by discarding the dead letter that blocks it, or by resubmitting that.",
        (
            QUEUE,
            argument(
                "key", type=identity, metavar="KEY", help="the key, or the beginning of it: four characters or more"
            ),
            argument("--by", choices=("discard", "resubmit"), required=True, help="what to do with the dead letter"),
        ),
    ),
    "dead-letters": ("List, show, resubmit or discard refused messages.", None),
    "dead-letters list": (
        "List the dead letters of a queue, or of all queues, oldest first.",
        (
            argument("queue", metavar="QUEUE", nargs="?", type=queue),
            *_WHICH,
            argument("--group", action="store_true", help="one line for all that went wrong alike"),
            argument("--discarded", action="store_true", help="those that were discarded and can be restored"),
        ),
    ),
    "dead-letters show": (
        "Show a dead letter with its body.",
        (QUEUE, argument("id", type=identity, metavar="ID"), _SEQUENCE),
    ),
    "dead-letters resubmit": (
        "Run a dead letter again; by a filter or --rate up to the first that comes back, else without a look back.",
        (QUEUE, *_ID_OR_ALL, argument("--body", metavar="FILE", help="edit one: another body, JSON (-: from stdin)")),
    ),
    "dead-letters discard": (
        "Discard a dead letter; for as long as retention it can be restored.",
        (QUEUE, *_ID_OR_ALL, argument("--for-good", action="store_true", help="delete it: it cannot be restored")),
    ),
    "dead-letters restore": (
        "Take a discard back: it is a dead letter again. A key that has gone on is not blocked again.",
        (
            QUEUE,
            argument("id", type=identity, metavar="ID", nargs="?"),
            argument("--all", action="store_true", help="all of them"),
        ),
    ),
}

ON_AZURE = frozenset(name for name, (_, arguments) in COMMANDS.items() if arguments is not None)
"""All of them take a folder or an application on Azure."""

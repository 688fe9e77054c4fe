"""The commands on states: show one, copy all of them out, and write them back by If-Match."""

from __future__ import annotations

from pathlib import Path

from outbox.ops.arguments.shared import JSON, Commands, argument

SHOW = "show"
"""The verb that `outbox state TYPE KEY` leaves out."""

COMMANDS: Commands = {
    "state": ("Show the state of a key (`outbox state TYPE KEY`) or its history, export states, or import them.", None),
    "state show": (
        "Show the state of a key; the word `show` may be left out.",
        (argument("type", metavar="TYPE", help="the state's name"), argument("key", metavar="KEY")),
    ),
    "state history": (
        "Show the versions of a state in a recorded history, each with the message that made it.",
        (
            argument("type", metavar="TYPE", help="the state's name"),
            argument("key", metavar="KEY"),
            argument(
                "--history", type=Path, required=True, metavar="FILE", help="a history that `outbox run` has recorded"
            ),
            argument("--app", metavar="APP", help="as MODULE:NAME; tells the messages of one commit apart"),
            JSON,
        ),
    ),
    "state export": (
        "Write states as JSON lines with their versions, as `state import` takes them.",
        (
            argument("type", metavar="TYPE", nargs="?", help="only states of this name"),
            argument("--output", type=Path, metavar="FILE", help="where to (default: stdout)"),
        ),
    ),
    "state import": (
        "Write exported states, each only if it has the version of its line; version 0: only if it does not exist.",
        (
            argument("file", metavar="FILE", type=Path, help="JSON lines, as `state export` writes them"),
            argument("--dry-run", action="store_true", help="say what would be done, and write nothing"),
        ),
    ),
}
ON_AZURE = frozenset(("state show", "state export", "state import"))

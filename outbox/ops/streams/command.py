"""The commands for ordered logs, which take a folder, a container of Cosmos DB or a container of blobs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from outbox.escape import printable
from outbox.ops.shared.asking import (
    Command,
    Commands,
    Options,
    Usage,
    answer,
    argument,
    ask,
    count,
    duration,
    position,
    row,
    talk,
)
from outbox.ops.shared.piped import write_piece
from outbox.ops.shared.text import columns
from outbox.ops.values.streams import WHO_LENGTH_MAX, ListStreams, ReadStream, Streams, TrimStream, Unregister


def streams_text(found: Streams) -> str:
    """Format logs and registers, one line a row, with the lag in cells."""
    parts = []
    if any(log.rows for log in found.logs):
        is_measured = any(row.size_bytes is not msgspec.UNSET for log in found.logs for row in log.rows)
        head = ("log", "row", "floor", "end", "cells", *(("bytes",) if is_measured else ()), "readers", "writers")
        rows = [
            (
                *(log.name, row.row, str(row.floor), str(row.end), str(row.cells)),
                *((str(row.size_bytes),) if is_measured else ()),
                *(_lags(row.readers), _lags(row.writers)),
            )
            for log in found.logs
            for row in log.rows
        ]
        parts.append(columns([head, *rows]))
    if found.processors:
        head = ("processor", "serial", "phase", "failures", "behind")
        rows = [(p.name, str(p.serial), p.phase or "-", str(p.failures), _lags(p.lag)) for p in found.processors]
        parts.append(columns([head, *rows]))
    errors = [(each.name, each.error) for each in found.logs] + [(each.name, each.error) for each in found.processors]
    parts += [printable(f"{name}: {error}") for name, error in errors if error]
    if found.more:
        parts.append("there are more: name one, `outbox stream read NAME`, or ask OrderedLog.status()")
    return "\n".join(parts) or "no ordered logs"


def _lags(lags: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(lags.items())) or "-"


def list_streams(options: Options) -> None:
    found = ask(options, ListStreams())
    answer(options, found, streams_text(found))
    if found.logs or found.processors:
        return
    if options.data is not None:
        where = "--cosmos, or --blobs and --blob-states, in place of --data look in its host's endpoints"
        print(f"outbox: nothing in the engine of {printable(str(options.data))}; {where}", file=sys.stderr)
    else:
        where = options.blob_states or f"{options.database}/{options.container}"
        option = "--blob-states" if options.blob_states else "--database and --container"
        print(f"outbox: nothing in {printable(where)}; {option} may name another place", file=sys.stderr)


def read_stream(options: Options) -> None:
    """Write entries as JSON lines, as they come."""

    asked = ReadStream(options.name, options.row or "", options.since or "", options.limit)

    async def write(admin: Any) -> None:
        async for piece in admin.stream(asked):
            await write_piece(sys.stdout.buffer, piece)
        sys.stdout.buffer.flush()

    _check_log_name(options.name)
    talk(options, write)


def unregister_stream(options: Options) -> None:
    _check_log_name(options.name)
    if not 1 <= len(options.who) <= WHO_LENGTH_MAX:
        raise Usage("WHO is no name of a reader or writer; `outbox stream list` has them")
    done = ask(options, Unregister(options.name, options.who))
    behind = ", ".join(f"row {row} by {count} cells" for row, count in done.behind.items())
    answer(options, done, f"{options.name} has forgotten {printable(options.who)}, which was behind in {behind}")


def trim_stream(options: Options) -> None:
    _check_log_name(options.name)
    if options.margin <= 0:
        raise Usage("--margin is 0; a tombstone lasts for as long as a replica may be paused, 10min or more")
    done = ask(options, TrimStream(options.name, options.min_age, options.margin))
    floors = ", ".join(f"{row} at {floor}" for row, floor in done.floors.items())
    answer(options, done, f"trimmed {done.cells} cells of {options.name}; floors: {floors}")


def _check_log_name(name: str) -> None:
    if not name:
        raise Usage("NAME is empty; `outbox stream list` has the names")


# The commands

_LOG = argument("name", metavar="NAME", help="the log's name")
BLOB_STATES = "outbox-states"
BLOB_STATES_HELP = (
    f"the container of ordered logs in the account of --blobs, instead of Cosmos DB ({BLOB_STATES} where neither "
    "--cosmos nor OUTBOX_COSMOS is given); they need no --servicebus"
)

COMMANDS: Commands = {
    "stream": Command("List, read or trim ordered logs, and forget their readers."),
    "stream list": Command(
        "List the ordered logs: rows, floors, ends, and how far behind readers and writers are.",
        (),
        list_streams,
        at="streams",
    ),
    "stream read": Command(
        "Print the entries of an ordered log as JSON lines, as they are stored.",
        (
            _LOG,
            argument("--since", type=position, metavar="I.O", help="from this position on (the floor)"),
            argument("--limit", type=count, default=0, metavar="N", help="at most so many entries (all)"),
            argument("--row", type=row, metavar="W.R", help="one row, of writer and reader shard"),
        ),
        read_stream,
        at="streams",
    ),
    "stream unregister": Command(
        "Forget a reader or writer that is gone for good: trims wait for it no longer, and take what it has not read.",
        (_LOG, argument("who", metavar="WHO", help="as `stream list` shows it, such as processor/averages")),
        unregister_stream,
        at="streams",
    ),
    "stream trim": Command(
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
        trim_stream,
        at="streams",
    ),
}

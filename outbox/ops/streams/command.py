"""The commands for ordered logs and pipelines, which take a folder, a container of Cosmos DB or one of blobs.

`outbox pipeline run` is with the hosts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from outbox.errors import Refused
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
from outbox.ops.shared.text import columns, indented, utc
from outbox.ops.values.requests import Admin
from outbox.ops.values.streams import (
    WHO_LENGTH_MAX,
    AuditPipeline,
    CheckpointView,
    ListStreams,
    PipelineAudit,
    PipelineView,
    ReadPipelines,
    ReadPipelineState,
    ReadStream,
    Streams,
    TrimStream,
    Unregister,
)


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

    _named(options)
    talk(options, write)


def export_stream(options: Options) -> None:
    """Write what a row has and its table has not, and say how far that is."""
    _named(options)
    try:
        from outbox.ops.streams import export  # its imports come with an extra

        writer = export.writer_to(options.output, options.format)
    except ModuleNotFoundError as error:
        raise Refused(f'{error.name} is not installed; pip install "outbox-azure[spark]"') from error
    done = talk(options, lambda admin: export.export(admin, writer, options.name, options.row or ""))
    which = f"{done.log} {done.row}"
    text = f"exported {done.entries} entries of {which} from {done.begin} to {done.end} in {done.files} files"
    answer(options, done, text if done.files else f"nothing new in {which}: exported up to {done.end}")


def unregister_stream(options: Options) -> None:
    _named(options)
    if not 1 <= len(options.who) <= WHO_LENGTH_MAX:
        raise Usage("WHO is no name of a reader or writer; `outbox stream list` has them")
    done = ask(options, Unregister(options.name, options.who))
    behind = ", ".join(f"row {row} by {count} cells" for row, count in done.behind.items())
    answer(options, done, f"{options.name} has forgotten {printable(options.who)}, which was behind in {behind}")


def trim_stream(options: Options) -> None:
    _named(options)
    if options.margin <= 0:
        raise Usage("--margin is 0; a tombstone lasts for as long as a replica may be paused, 10min or more")
    done = ask(options, TrimStream(options.name, options.min_age, options.margin))
    floors = ", ".join(f"{row} at {floor}" for row, floor in done.floors.items())
    answer(options, done, f"trimmed {done.cells} cells of {options.name}; floors: {floors}")


def _named(options: Options, kind: str = "stream") -> str:
    if not options.name:
        raise Usage(f"NAME is empty; `outbox {kind} list` has the names")
    return str(options.name)


# Pipelines


def pipelines_text(found: Sequence[PipelineView]) -> str:
    """Format pipelines, one line each, with how many entries of the source are behind the checkpoint."""
    head = ("pipeline", "version", "checkpoint", "at", "made", "behind", "not left")
    rows = [
        (each.name, str(each.version), str(each.stands.n), each.stands.c, utc(each.stands.made_ms / 1_000))
        + ((str(each.figures.behind), str(each.figures.lag)) if each.figures else ("-", "-"))
        for each in found
        if each.stands is not None
    ]
    errors = [printable(f"{each.name}: {each.error}") for each in found if each.error]
    return "\n".join([*([columns([head, *rows])] if rows else []), *errors]) or "no pipelines"


def pipeline_text(found: PipelineView) -> str:
    """Format a pipeline: its register, its checkpoints, and how far it is."""
    if found.figures is None or found.stands is None:
        return printable(f"{found.name}: {found.error}")
    figures, before = found.figures, ", ".join(map(str, found.before))
    lines = [
        f"{found.name}: version {found.version}, graph {found.graph}" + (f"; before it {before}" if before else ""),
        f"source {found.source}: {figures.behind} entries behind the checkpoint, {figures.lag} of them have not left",
        f"all below {figures.released} has left"
        + "".join(f"; last bundle in log {sink}: {count} items" for sink, count in figures.bundles.items()),
        _checkpoint("checkpoint", found.stands),
        *(_checkpoint("kept", each) for each in reversed(found.kept)),
    ]
    return "\n".join(map(printable, lines))


def _checkpoint(what: str, known: CheckpointView) -> str:
    sinks = ", ".join(f"log {name} from bundle {at.next} ({at.begin}) on" for name, at in known.sinks.items())
    time = f"time {utc(known.time_ms / 1_000)}, " if known.time_ms else ""
    size = f"{known.parts} parts of {known.size_bytes} bytes"
    return f"{what} {known.n} at {known.c}: made {utc(known.made_ms / 1_000)}, {time}{size}, {sinks}"


def list_pipelines(options: Options) -> None:
    found = ask(options, ReadPipelines())
    answer(options, found, pipelines_text(found))


def status(options: Options) -> None:
    (found,) = ask(options, ReadPipelines(_named(options, "pipeline")))
    answer(options, found, pipeline_text(found))


def get(options: Options) -> None:
    asked = ReadPipelineState(_named(options, "pipeline"), options.operator, options.key, options.kind)
    found = ask(options, asked)
    at = f"{options.operator} {options.key} as of {found.c} of the source, checkpoint {found.n}"
    answer(options, found, f"{printable(at)}\n{indented(bytes(found.value))}")


def audit(options: Options) -> None:
    """Print what an audit finds, of a pipeline or of all.

    Raises:
        Refused: there are findings.
    """
    if bool(options.name) == options.all:
        raise Usage("say which pipeline, or --all")

    async def audited(admin: Admin) -> list[PipelineAudit]:
        names = [each.name for each in await admin.ask(ReadPipelines())] if options.all else [options.name]
        return [await admin.ask(AuditPipeline(name)) for name in names]

    found = talk(options, audited)
    answer(options, found, "\n".join(map(_audited, found)) or "no pipelines")
    count = sum(len(each.findings) for each in found)
    if count:
        raise Refused(
            f"{count} finding{'s' if count > 1 else ''}; restore what is missing from one backup, logs as well"
        )


def _audited(found: PipelineAudit) -> str:
    left = "" if found.left_over is None else f", {len(found.left_over)} parts left over"
    lines = [f"{found.name}: checkpoint {found.n}, {found.parts} parts, {found.bundles} bundles{left}"]
    lines += [f"  {text}" for text in found.findings]
    lines += [f"  left over: {blob}" for blob in found.left_over or ()]
    return "\n".join(map(printable, lines))


# The commands

_NAME = argument("name", metavar="NAME", help="the pipeline's name")
_LOG = argument("name", metavar="NAME", help="the log's name")
_ROW = argument("--row", type=row, metavar="W.R", help="one row, of writer and reader shard")
BLOB_STATES = "outbox-states"
BLOB_STATES_HELP = (
    f"the container of ordered logs in the account of --blobs, instead of Cosmos DB ({BLOB_STATES} where neither "
    "--cosmos nor OUTBOX_COSMOS is given); they need no --servicebus"
)

COMMANDS: Commands = {
    "stream": Command("List, read, export or trim ordered logs, and forget their readers."),
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
            _ROW,
        ),
        read_stream,
        at="streams",
    ),
    "stream export": Command(
        "Write one row of an ordered log as a table, from where the last export ended.",
        (
            _LOG,
            argument(
                "--output",
                required=True,
                metavar="PLACE",
                help="a folder, or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX; az:// and https:// as well",
            ),
            _ROW,
            argument(
                "--format",
                choices=("parquet", "delta"),
                default="parquet",
                help="files that are named by where they begin, or a Delta table (parquet)",
            ),
        ),
        export_stream,
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
    "pipeline": Command("Run pipelines, see how far they are, and look up what they keep."),
    "pipeline list": Command(
        "List the pipelines: version, checkpoint, and how many entries of its source are behind that.",
        (),
        list_pipelines,
        at="streams",
    ),
    "pipeline status": Command(
        "Show a pipeline's register: the checkpoints that may be loaded, and how far it is.",
        (_NAME,),
        status,
        at="streams",
    ),
    "pipeline get": Command(
        "Show the state that an operator keeps for a key, as of the last checkpoint.",
        (
            _NAME,
            argument("operator", metavar="OPERATOR", help="the name of its function"),
            argument("key", metavar="KEY"),
        ),
        get,
        at="streams",
        key_kind=True,
    ),
    "pipeline audit": Command(
        "Check that a pipeline's register, parts, bundles and floors agree; exit code 1 where they do not.",
        (
            argument("name", nargs="?", default="", metavar="NAME", help="the pipeline's name"),
            argument("--all", action="store_true", help="all pipelines"),
        ),
        audit,
        at="streams",
    ),
}

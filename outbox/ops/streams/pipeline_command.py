"""The commands that look at pipelines, wherever they run; `outbox pipeline run` is with the hosts."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops.shared.asking import Command, Commands, Options, Usage, answer, argument, ask, talk
from outbox.ops.shared.text import columns, indented, utc
from outbox.ops.values.requests import Admin
from outbox.ops.values.streams import (
    AuditPipeline,
    CheckpointView,
    PipelineAudit,
    PipelineView,
    ReadPipelines,
    ReadPipelineState,
)


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
    (found,) = ask(options, ReadPipelines(_named(options)))
    answer(options, found, pipeline_text(found))


def get(options: Options) -> None:
    asked = ReadPipelineState(_named(options), options.operator, options.key, options.kind)
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


def _named(options: Options) -> str:
    if not options.name:
        raise Usage("NAME is empty; `outbox pipeline list` has the names")
    return str(options.name)


_NAME = argument("name", metavar="NAME", help="the pipeline's name")

COMMANDS: Commands = {
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

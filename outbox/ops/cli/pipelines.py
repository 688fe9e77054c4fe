"""The command that runs a pipeline."""

from __future__ import annotations

import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path

from outbox.ops.cli.hosts import log_to_stderr
from outbox.ops.shared.asking import (
    Command,
    Commands,
    Options,
    Usage,
    answer,
    argument,
    check_app_name,
    count,
    interval,
    port,
)

RELEASES = ("in-order", "by-epoch", "at-least-once", "at-most-once")


def run(options: Options) -> None:
    """Run replicas of a pipeline; stdout gets one line at the end, whatever the module prints."""
    import asyncio

    check_app_name(options.pipeline, "PIPELINE", "takings:View")
    if options.from_state is not None and not options.from_state.is_dir():
        raise Usage(f"--from-state {options.from_state} is no folder; give the one that a job has had as --state")
    with redirect_stdout(sys.stderr):
        log_to_stderr()
        logging.getLogger("azure").setLevel(logging.WARNING)  # it logs each request
        from outbox.ops.admins.azure import addresses_of, connect_streams
        from outbox.ops.host.pipelines import PipelineSettings, open_folder, run_pipeline

        settings = PipelineSettings(
            options.pipeline,
            options.release,
            options.checkpoint_s,
            options.replicas,
            options.for_s,
            options.until_idle,
            options.metrics_port,
            options.workers,
            options.from_state,
        )
        is_folder = options.data is not None
        opened = (
            open_folder(options.data, options.accept_clock) if is_folder else connect_streams(addresses_of(options))
        )
        name, released = asyncio.run(run_pipeline(settings, opened))
    answer(options, {"name": name, "released": str(released)}, f"{name}: all below {released} of its source has left")


COMMANDS: Commands = {
    "pipeline run": Command(
        "Run replicas of a pipeline until a signal, a time or the end of its source; a last checkpoint is made.",
        (
            argument(
                "pipeline",
                metavar="PIPELINE",
                help="module:name of a class or function that takes the place for its logs, and makes it or an object "
                "with it as .pipeline; or of a Pipeline whose logs have places; the current folder is importable",
            ),
            argument("--release", choices=RELEASES, default=RELEASES[0], help="when outputs leave (in-order)"),
            argument(
                "--checkpoint-s", type=interval, default=1.0, metavar="S", help="seconds between checkpoints (1.0)"
            ),
            argument("--replicas", type=count, default=1, metavar="N", help="replicas in this process (1; up to 64)"),
            argument("--workers", type=count, default=0, metavar="N", help="processes for the operators of each (0)"),
            argument("--for-s", type=interval, metavar="S", help="for so many seconds (until a signal)"),
            argument(
                "--from-state",
                type=Path,
                metavar="FOLDER",
                help="go on where a job on Spark has caught up, with what it wrote into this folder of its --state",
            ),
            argument(
                "--until-idle",
                action="store_true",
                help="until all that the source has has left; with --for-s it is refused if that takes longer",
            ),
            argument(
                "--metrics-port", type=port, metavar="PORT", help="serve /metrics to Prometheus, on loopback (0: any)"
            ),
        ),
        run,
        at="streams",
    ),
}

"""The commands on an engine's folder, `backup`, `restore` and `log`: arguments, work, text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from outbox.ops.shared.asking import ANSWER, JSON, Command, Commands, Options, answer, argument, ask, data
from outbox.ops.values.status import Compact


def backup(options: Options) -> None:
    import asyncio

    from outbox.ops.folder.backup import back_up

    done = asyncio.run(back_up(options.data, options.target))
    torn = f"; {done.cut_bytes} bytes of unsynced tail left out" if done.cut_bytes else ""
    what = f"{done.file_count} files, {done.size_bytes} bytes, up to ordinal {done.ordinal}"
    answer(options, done, f"backed up {options.data} to {done.target}: {what}{torn}")


def restore(options: Options) -> None:
    from outbox.ops.folder.backup import restore as made_of

    done = made_of(options.backup, options.data)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(done.at))
    line = (
        f"restored {done.folder} as it was at {at} (ordinal {done.ordinal}), as a log of its own; what was completed "
        "since is in its queues again, and what came in since is not there: docs/operate says what may come twice"
    )
    answer(options, done, line)


def log_command(options: Options) -> None:
    """Inspect, compact or salvage; `logs` has the parts without a running engine."""
    from outbox.ops.folder import logs

    done: Any
    if options.action == "log compact" and not options.sealed:
        done = ask(options, Compact())
        line = f"{options.data}: snapshot at {done.ordinal}, log {done.before_bytes} -> {done.after_bytes} bytes"
    elif options.action == "log compact":
        done, line = logs.compact_sealed(options.data)
    elif options.action == "log inspect":
        done, line = logs.inspect(options.data)
    else:
        done, line = logs.salvage(options.data, options.into)
    answer(options, done, line)


COMMANDS: Commands = {
    "backup": Command(
        "Copy an engine's folder as of one moment, while its host runs or not.",
        (
            argument("target", metavar="FOLDER_OR_FILE", type=Path, help="a new folder, or a new file ending in .tar"),
            data(),
            JSON,
        ),
        backup,
    ),
    "restore": Command(
        "Make a folder of a backup, as a log of its own.",
        (
            argument("backup", metavar="FOLDER_OR_FILE", type=Path, help="what `outbox backup` has made"),
            argument("--data", required=True, type=Path, metavar="FOLDER", help="the folder to make, empty or new"),
            JSON,
        ),
        restore,
    ),
    "log": Command("Look at, compact or salvage a folder's log."),
    "log inspect": Command(
        "Read every segment and print what is in it; change nothing.", (data(), *ANSWER), log_command
    ),
    "log compact": Command(
        "Snapshot the state and drop the log before it.",
        (
            argument(
                "--sealed",
                action="store_true",
                help="read the sealed segments beside a running host, and leave the host alone",
            ),
            data(),
            *ANSWER,
        ),
        log_command,
    ),
    "log salvage": Command(
        "Copy what is left of a log that an open refuses into a fresh folder.",
        (
            argument("--into", required=True, type=Path, metavar="FOLDER", help="an empty or new folder"),
            data(),
            *ANSWER,
        ),
        log_command,
    ),
}

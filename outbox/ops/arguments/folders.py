"""The commands on an engine's folder."""

from __future__ import annotations

from pathlib import Path

from outbox.ops.arguments.shared import ANSWER, JSON, Commands, argument, data

COMMANDS: Commands = {
    "backup": (
        "Copy an engine's folder as of one moment, while its host runs or not.",
        (
            argument("target", metavar="FOLDER_OR_FILE", type=Path, help="a new folder, or a new file ending in .tar"),
            data(),
            JSON,
        ),
    ),
    "restore": (
        "Make a folder of a backup, as a log of its own.",
        (
            argument("backup", metavar="FOLDER_OR_FILE", type=Path, help="what `outbox backup` has made"),
            argument("--data", required=True, type=Path, metavar="FOLDER", help="the folder to make, empty or new"),
            JSON,
        ),
    ),
    "log": ("Look at, compact or salvage a folder's log.", None),
    "log inspect": ("Read every segment and print what is in it; change nothing.", (data(), *ANSWER)),
    "log compact": (
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
    ),
    "log salvage": (
        "Copy what is left of a log that an open refuses into a fresh folder.",
        (
            argument("--into", required=True, type=Path, metavar="FOLDER", help="an empty or new folder"),
            data(),
            *ANSWER,
        ),
    ),
}

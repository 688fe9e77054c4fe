"""The commands that copy an engine's folder: `outbox backup` and `outbox restore`."""

from __future__ import annotations

import asyncio
import time

from outbox.ops.asking import Options, answer


def backup(options: Options) -> None:
    from outbox.ops.backup import back_up

    done = asyncio.run(back_up(options.data, options.target))
    torn = f"; {done.cut_bytes} bytes of unsynced tail left out" if done.cut_bytes else ""
    what = f"{done.file_count} files, {done.size_bytes} bytes, up to ordinal {done.ordinal}"
    answer(options, done, f"backed up {options.data} to {done.target}: {what}{torn}")


def restore(options: Options) -> None:
    from outbox.ops.backup import restore as made_of

    done = made_of(options.backup, options.data)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(done.at))
    line = (
        f"restored {done.folder} as it was at {at} (ordinal {done.ordinal}), as a log of its own; what was completed "
        "since is in its queues again, and what came in since is not there: docs/operate says what may come twice"
    )
    answer(options, done, line)

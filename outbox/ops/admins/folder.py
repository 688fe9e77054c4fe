"""Connect an admin for a data folder: to the host that holds it, else to the log itself.

The folder's lock decides.  While it is held the host answers, after a few seconds if it is just starting; while it is
free, and no host waits for it, the log is opened here, and the control file of a killed host is removed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from outbox.errors import AlreadyOpen, OutboxError
from outbox.ops.admins.remote import RemoteAdmin
from outbox.ops.shared.control_file import check_folder, is_held, is_wanted, read_control_file, remove_control_file
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import Check

if TYPE_CHECKING:
    from outbox.engine.engine import Engine

WAIT_S = 5.0
AGAIN_WITHIN_S = 30.0
"""How long to wait for a host for which a command closed the log: it opens the log first."""
LOOK_EVERY_S = 0.05


@asynccontextmanager
async def connect_admin(
    folder: Path, *, wait_s: float = WAIT_S, accept_clock: timedelta = timedelta(0)
) -> AsyncIterator[Admin]:
    """An admin for a folder; `accept_clock` confirms how far the clock is ahead of a log that is opened here.

    Raises:
        Refused: it is not an engine's folder.
        AlreadyOpen: a process holds it and does not answer.
    """
    check_folder(folder)
    found = await _look(folder, time.monotonic() + wait_s, accept_clock)
    if isinstance(found, RemoteAdmin):
        yield found
        return
    from outbox.ops.admins.giving_way import GivingWay  # here, because with a host no engine is needed

    async def again() -> RemoteAdmin | Engine:
        return await _look(folder, time.monotonic() + AGAIN_WITHIN_S, accept_clock)

    async with GivingWay(folder, found, again) as admin:
        yield admin


async def _look(folder: Path, deadline_s: float, accept_clock: timedelta) -> RemoteAdmin | Engine:
    while True:
        if not (is_wanted(folder) or is_held(folder)):
            opened = _try_open(folder, accept_clock)
            if opened is not None:
                return opened
        elif (host := read_control_file(folder)) is not None:
            remote = RemoteAdmin(host, folder)
            with suppress(OutboxError):
                await remote.ask(Check())
                return remote
        if time.monotonic() > deadline_s:
            known = f" ({host.where})" if (host := read_control_file(folder)) is not None else ""
            raise AlreadyOpen(
                f"{folder}: a process holds it and does not answer on its control endpoint{known}; if it is starting, "
                "try again, else end that process"
            )
        await asyncio.sleep(LOOK_EVERY_S)


def _try_open(folder: Path, accept_clock: timedelta) -> Engine | None:
    from outbox.engine.engine import Engine

    try:
        engine = Engine.open(folder, compact=False, accept_clock=accept_clock)
    except AlreadyOpen:
        return None
    remove_control_file(folder)
    if engine.log is not None and (cut_bytes := engine.log.recovered.cut_bytes):
        print(f"{folder}: cut {cut_bytes} bytes of unsynced tail", file=sys.stderr)
    return engine

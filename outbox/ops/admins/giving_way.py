"""The admin of a log that a command has open, and that gives way to a host between two answers.

A host that cannot start because a command has the log open says so by a second lock, the file `wanted`.  A command
looks for that a few times a second while it waits for whoever reads its output, for more input or for its pace.  It
then closes the log between two answers, and asks the host from the next one on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType

from outbox.engine.engine import Engine
from outbox.errors import EngineStopped, Refused
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.shared.control_file import is_wanted
from outbox.ops.values.requests import A, Admin, Lines, Request

LOOK_EVERY_S = 0.1


class GivingWay:
    """An admin on a folder's log; `connect` finds who answers after the log was let go."""

    def __init__(self, folder: Path, engine: Engine, connect: Callable[[], Awaitable[Admin | Engine]]) -> None:
        self._folder = folder
        self._engine = engine
        self._connect = connect
        self._held = AsyncExitStack()
        self._admin: Admin | None = None
        self._answering = asyncio.Lock()

    async def __aenter__(self) -> GivingWay:
        await self._take(self._engine)
        self._looking = asyncio.create_task(self._look(), name="looks for a host that waits")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._looking.cancel()
        with suppress(asyncio.CancelledError):
            await self._looking
        await self._held.aclose()

    async def ask(self, asked: Request[A]) -> A:
        async with self._answering:
            return await (await self._current()).ask(asked)

    async def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        """Stream the lines; the log may be closed between two pieces, as between two answers."""
        async with self._answering:
            admin = await self._current()
            pieces = admin.stream(asked)
        while True:
            async with self._answering:
                try:
                    piece = await anext(pieces, b"")
                except EngineStopped as stopped:
                    if admin is self._admin:
                        raise
                    raise Refused(
                        f"{self._folder}: a host waited for it and has it now, so the rest was not read; ask again, "
                        "from where this ends"
                    ) from stopped
            if not piece:
                return
            yield piece

    async def _current(self) -> Admin:
        """Return the current admin: of the log that is open here, or of the process that took over the folder."""
        if self._admin is None:
            found = await self._connect()
            if isinstance(found, Engine):
                await self._take(found)
            else:
                self._admin = found
        assert self._admin is not None, "it was just set"
        return self._admin

    async def _take(self, engine: Engine) -> None:
        self._engine = await self._held.enter_async_context(engine)
        self._admin = EngineAdmin(engine)

    async def _look(self) -> None:
        """Let the log go when a host waits for it, as soon as no answer is under way."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if isinstance(self._admin, EngineAdmin) and is_wanted(self._folder):
                async with self._answering:
                    self._admin = None
                    await self._held.aclose()
                print(f"outbox: {self._folder}: a host waits for it and gets it now; it is asked", file=sys.stderr)


_conforms: type[Admin] = GivingWay

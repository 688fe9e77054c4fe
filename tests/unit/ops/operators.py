"""Operators on an engine: directly, over its control endpoint, and as over a store and a bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.ops.admins.control import serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.admins.remote import RemoteAdmin
from outbox.ops.admins.store import StoreAdmin
from outbox.ops.shared.control_file import ControlFile, read_control_file
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.values.requests import Admin
from outbox.ports import StorePorts


@asynccontextmanager
async def served(admin: Admin, folder: Path) -> AsyncIterator[ControlFile]:
    """The control endpoint of an operator, as the file in its folder names it."""
    async with serve_control(admin, folder):
        file = read_control_file(folder)
        assert file is not None
        yield file


@asynccontextmanager
async def operator(engine: Engine, folder: Path, way: str, **known: Any) -> AsyncIterator[Admin]:
    """An operator on an engine: "direct", or over its control endpoint."""
    direct = EngineAdmin(engine, **known)
    if way == "direct":
        yield direct
        return
    async with served(direct, folder) as file:
        yield RemoteAdmin(file, folder)


def store_site(ports: StorePorts, **bus: Any) -> StoreSite:
    """A store and a bus as an operator has them at hand: of the bus only the parts that are given."""
    return StoreSite(ports, **{"counts": None, "peek": None, "cancel": None, **bus})


def store_admin(engine: Engine, scope: Any = "partition", **bus: Any) -> StoreAdmin:
    """An operator on an engine that is used as a store and a bus."""
    return StoreAdmin(store_site(NarrowEngine(engine, scope).ports(), **bus))


def on_folder(folder: Path, act: Callable[[Engine], Awaitable[object]]) -> None:
    """Let something happen on the engine of a folder, and close it."""

    async def run() -> None:
        async with Engine.open(folder) as engine:
            await act(engine)

    asyncio.run(run())

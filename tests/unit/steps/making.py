"""An application that adds up, its plan, and a message of it: what single steps of the runtime are asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox import App
from outbox.engine.backend.apart import EngineStore
from outbox.engine.engine import Engine
from outbox.message import Message
from outbox.ports import Delivery
from outbox.runtime.start.plan import CompiledApp, compile_app
from outbox.runtime.work import Work
from outbox.testing import START_S, VirtualClock

NOW_MS = round(START_S * 1_000)
INBOX = b"i" * 32


@dataclass
class Add:
    key: str


@dataclass
class Sum:
    n: int = 0


def adding() -> App:
    app = App("steps")

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum) -> None:
        total.n += 1

    return app


PLAN: CompiledApp = compile_app(adding())
(HANDLER,) = adding().handlers


def delivery(body: bytes = b'{"key":"a"}', **fields: Any) -> Delivery:
    message = Message(**{"body": body, "outbox_id": "1", "created_ms": NOW_MS, **fields})
    return Delivery("adds", 1, message, 0, NOW_MS, 0)


def work(**fields: Any) -> Work:
    return Work(delivery(), HANDLER, inbox=INBOX, remembered=True, **fields)


def engine_store() -> EngineStore:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    return EngineStore(engine.core, engine.documents)


async def at_once(seconds: float) -> None:
    """Sleep for no time."""

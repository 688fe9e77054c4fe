"""Blocking handlers under a Functions host: its loop goes on, and no handler outlives what its invocation waits."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.functions.servicebus import ServiceBusMessage

from outbox import App, Context, Engine, Retries
from outbox.azure.functions.processor import Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import HandlingEnded

WITHIN_S = 20.0


@dataclass
class Step:
    key: str
    n: int


@dataclass
class Steps:
    ns: list[int] = field(default_factory=list)


def received(key: str, n: int) -> ServiceBusMessage:
    return ServiceBusMessage(
        body=b'{"key":"%s","n":%d}' % (key.encode(), n),
        trigger_metadata=None,
        application_properties={"outbox-id": f"{key}{n}", "outbox-type": "Step"},
        user_properties={},
        message_id=f"{key}{n}",
        sequence_number=n,
        delivery_count=1,
        enqueued_time_utc=datetime.now(UTC),
    )


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_blocking_handler_past_what_its_invocation_waits_commits_nothing(scope: str) -> None:
    app, go, ended = App("steps", retry=Retries(limit=1)), threading.Event(), list[Any]()
    before = set(threading.enumerate())

    @app.handler("steps", key="key", blocking=True, time_limit_s=600)
    def step(message: Step, steps: Steps, ctx: Context) -> None:
        steps.ns.append(message.n)
        if message.n == 1:
            go.wait(WITHIN_S)
        try:
            ctx.now()
        except HandlingEnded as error:
            ended.append(error)
            raise
        ended.append(None)

    async with Engine.in_memory() as engine:
        backend = NarrowEngine(engine, "partition" if scope == "partition" else "item")
        settings = FunctionsSettings(lambda: backend, attempt_s=2, rest_s=0.2)
        processor = Processor(app, backend, settings, chance=lambda: 0.0)
        await processor.open()
        first = asyncio.create_task(processor.message("steps", received("a", 1)))
        await processor.message("steps", received("b", 2))  # in the same process, beside the one that blocks
        assert not first.done() and await processor.client.state(Steps, "b") == Steps([2])
        await first
        (dead_letter,) = await processor.client.dead_letters("steps")
        assert "had not ended after 1.8 s, its time limit" in dead_letter.description
        await processor.finish()
        go.set()
        async with asyncio.timeout(WITHIN_S):
            while len(ended) < 2 or set(threading.enumerate()) - before:  # noqa: ASYNC110  # no thread says that it ends
                await asyncio.sleep(0.002)
        assert isinstance(ended[1], HandlingEnded) and await processor.client.state(Steps, "a") is None


def test_a_host_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="threads=0"):
        FunctionsSettings(lambda: None, threads=0)  # type: ignore[arg-type,return-value]  # it is never connected

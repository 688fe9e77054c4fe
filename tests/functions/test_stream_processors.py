"""Processors over ordered logs, run by a timer of the Functions app."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import azure.functions as func
import pytest

from outbox import App, Engine
from outbox.azure import functions
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown
from outbox.otel import Telemetry
from outbox.retries import Retries
from outbox.streams import HandlerFailed, Inputs, OrderedLog, Processor, Step
from tests.unit.messages import Number, Total
from tests.unit.streams.making import sum_up


def fail(total: Total, inputs: Inputs, step: Step) -> None:
    raise ValueError("no sum")


class Site:
    """An application with processors, on an engine, as the worker of a Functions host has it."""

    def __init__(self, **settings: Any) -> None:
        self.backend = NarrowEngine(Engine.in_memory(), "item")
        self.numbers: OrderedLog[Number] = OrderedLog("numbers", self.backend, type=Number)
        self.sums: OrderedLog[Number] = OrderedLog("sums", self.backend, type=Number)
        self.app = App("sums")
        self.settings = functions.FunctionsSettings(lambda: self.backend, **settings)

    def processor(self, name: str, handler: Any = sum_up) -> Processor[Total]:
        return Processor(
            name,
            handler,
            state=Total,
            register=self.backend,
            inputs={"numbers": self.numbers},
            outputs={"sums": self.sums},
            retries=Retries(limit=1),
        )

    def functions(self, *processors: Processor[Total]) -> dict[str, Any]:
        made = func.FunctionApp()
        made.register_functions(functions.blueprint(self.app, self.settings, processors=processors))
        return {str(one.get_function_name()): one for one in made.get_functions()}

    async def emitted(self) -> list[int]:
        return [entry.value.n async for entry in self.sums.read()]


def test_one_timer_runs_all_processors_and_there_is_none_without() -> None:
    site = Site(processors_schedule="*/20 * * * * *")
    assert list(site.functions()) == ["sweep"]
    made = site.functions(site.processor("one"), site.processor("two"))
    assert sorted(made) == ["processors", "sweep"]
    trigger = made["processors"].get_trigger()
    assert (trigger.type, trigger.schedule) == ("timerTrigger", "*/20 * * * * *")
    assert Site().settings.processors_schedule == "0 * * * * *"


async def test_a_run_of_processors_lasts_as_long_as_its_setting_says() -> None:
    given, site = list[float](), Site(processors_s=7.0)

    async def run_until_idle(*, seconds: float) -> None:
        given.append(seconds)

    timed: Any = SimpleNamespace(name="timed", run_until_idle=run_until_idle)
    await site.functions(timed)["processors"].get_user_function()(None)
    assert given == [7.0]


async def test_overlapping_runs_of_a_timer_handle_each_entry_once() -> None:
    site = Site(processors_s=5.0)
    for n in (1, 2, 3):
        await site.numbers.append(Number(n), id=f"n{n}")
    run = site.functions(site.processor("sums"))["processors"].get_user_function()
    await asyncio.gather(*(run(None) for _ in range(4)))
    assert await site.emitted() == [1, 3, 6]
    await site.numbers.append(Number(4), id="n4")
    await run(None)
    assert await site.emitted() == [1, 3, 6, 10]


async def test_a_processor_that_fails_fails_the_run_and_keeps_no_other(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(processors_s=5.0)
    await site.numbers.append(Number(1), id="n1")
    run = site.functions(site.processor("bad", fail), site.processor("sums"))["processors"].get_user_function()
    with pytest.raises(HandlerFailed, match="no sum"):
        await run(None)
    assert await site.emitted() == [1]
    assert any(record.getMessage() == "processor stopped" for record in caplog.records)


async def test_how_far_a_processor_is_behind_is_noted_after_its_run() -> None:
    telemetry = Telemetry(App("telemetry"))
    site = Site(processors_s=5.0, telemetry=telemetry)
    for n in (1, 2, 3):
        await site.numbers.append(Number(n), id=f"n{n}")
    run = site.functions(site.processor("bad", fail))["processors"].get_user_function()
    with pytest.raises(HandlerFailed):
        await run(None)
    assert telemetry.counts.lags == {("numbers/0.0", "processor/bad"): 3}
    await site.functions(site.processor("sums"))["processors"].get_user_function()(None)
    assert telemetry.counts.lags[("numbers/0.0", "processor/sums")] == 0


async def test_a_lag_that_cannot_be_asked_is_logged_and_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = Telemetry(App("telemetry"))
    site = Site(processors_s=5.0, telemetry=telemetry)
    gone, sums = site.processor("gone"), site.processor("sums")

    async def lags() -> dict[tuple[str, str], int]:
        raise OutcomeUnknown("the store does not answer")

    monkeypatch.setattr(gone, "lags", lags)
    with caplog.at_level("DEBUG", logger="outbox.functions"):
        await site.functions(gone, sums)["processors"].get_user_function()(None)
    assert telemetry.counts.lags == {("numbers/0.0", "processor/sums"): 0}
    said = [record.getMessage() for record in caplog.records if record.name == "outbox.functions"]
    assert said == ["a processor's lag is not known"]


def test_a_run_without_time_is_refused() -> None:
    with pytest.raises(ValueError, match="processors_s"):
        Site(processors_s=0.0)

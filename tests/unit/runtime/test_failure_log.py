"""What a failing handler leaves behind: a line for each attempt, one for each refusal, a stack with the dead letter."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from outbox import App, Client, Context, Engine, Reject, Retries, Retry
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import PoisonMessage, Refused
from outbox.http_entry import HttpEntry
from outbox.log_throttle import SUBJECT_COUNT_MAX, LogThrottle
from outbox.message import Message
from outbox.ports import Backend, Delivery, Settle
from outbox.runtime.failures.error_text import STACK_LENGTH_MAX, stack_of
from outbox.runtime.failures.failure_log import FailureLog, failure_of
from outbox.runtime.work import Attempt, Later, Work
from outbox.testing import Harness
from outbox.worker import Worker
from tests.unit.messages import Count, deliver, deliver_raw
from tests.unit.runtime.plant import Plant, Task, only, raising

FORGED = "no\n2026-01-01 ERROR outbox: all is lost\x1b[2J password=hunter2"


class Lines(logging.Handler):
    """Everything that is logged under `outbox.failures`."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def events(self, text: str) -> list[Any]:
        return [record for record in self.records if record.getMessage() == text]


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines, log = Lines(), logging.getLogger("outbox.failures")
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(lines)
    yield lines
    log.removeHandler(lines)
    log.setLevel(before)


def backend_of(scope: str) -> Backend:
    engine = Engine.in_memory()
    if scope == "engine":
        return engine
    return NarrowEngine(engine, "partition" if scope == "partition" else "item")


async def run(app: App, scope: str, *messages: Task) -> Client:
    """Handle messages m0, m1, ... in a worker, which logs as in production; the client to ask afterwards."""
    backend = backend_of(scope)
    async with Worker(app, backend) as worker:
        for number, message in enumerate(messages):
            await worker.send("q", message, id=f"m{number}")
        await worker.wait_idle()
    return Client(app, backend)


async def test_each_failed_attempt_is_logged_with_its_traceback_once_a_minute(scope: str, lines: Lines) -> None:
    plant = Plant(raising(ValueError("no such thing")), retry=Retries(limit=3, delays_s=()))
    await run(plant.app, scope, Task("a"))
    first, second, last = failed = lines.events("handler failed")
    assert [(r.id, r.queue, r.handler, r.attempt, r.attempts) for r in failed] == [
        ("m0", "q", "handle", n, 3) for n in (1, 2, 3)
    ]
    assert (first.again_s, second.again_s, hasattr(last, "again_s")) == (0.0, 0.0, False)
    assert {r.levelno for r in failed} == {logging.WARNING}
    assert "in raising.<locals>.act\n    raise error\nValueError: no such thing" in logging.Formatter().format(first)
    assert "plant.py:" in second.line and not second.exc_text and not last.exc_text
    assert not hasattr(first, "tracebacks_left_out")
    assert (second.tracebacks_left_out, last.tracebacks_left_out) == (1, 2)


async def test_a_dead_letter_is_logged_once_as_an_error(scope: str, lines: Lines) -> None:
    plant = Plant(raising(KeyError("x")), retry=Retries(limit=2, delays_s=()))
    await run(plant.app, scope, Task("a"))
    (line,) = lines.events("message dead-lettered")
    assert line.levelno == logging.ERROR
    assert (line.id, line.queue, line.handler, line.reason, line.error) == (
        "m0",
        "q",
        "handle",
        "failed",
        "KeyError: 'x'",
    )


async def test_a_refusal_whose_delivery_cannot_be_settled_is_no_dead_letter_yet(
    scope: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = [1]
    backend = NarrowEngine(Engine.in_memory(), "item" if scope == "item" else "partition")
    ports = backend.ports()
    settle = ports.bus.settle
    monkeypatch.setattr(backend, "ports", lambda: ports)

    async def settled(delivery: Delivery, how: Settle) -> None:
        if how.how == "dead-letter" and refusing:
            refusing.pop()
            await settle(delivery, Settle("release"))  # it is redelivered
            raise Refused("no connection")
        await settle(delivery, how)

    monkeypatch.setattr(ports.bus, "settle", settled)
    plant = Plant(raising(ValueError("no such thing")), retry=Retries(limit=1))
    async with Worker(plant.app, backend) as worker:
        await deliver(worker, "q", Task("a"), id="m0")
        assert [dead_letter.id for dead_letter in await worker.dead_letters("q")] == ["m0"]
    events = [line.getMessage() for line in lines.records]
    unsettled = "message refused, but not dead-lettered yet; it will be redelivered"
    assert events == ["handler failed", unsettled, "message dead-lettered"]


async def test_a_rejection_and_a_body_that_cannot_be_read_are_logged_as_refusals(scope: str, lines: Lines) -> None:
    plant = Plant(raising(Reject("too many")))
    backend = backend_of(scope)
    async with Worker(plant.app, backend) as worker:
        await worker.send("q", Task("a"), id="m0")
        await worker.send_raw("q", b"{", properties={"outbox-id": "m1", "outbox-type": "Task"})
        await worker.send_raw("q", b"{}", properties={"outbox-id": "m2", "outbox-type": "Nobody"})
        await worker.wait_idle()
    found = {(line.id, line.reason) for line in lines.events("message dead-lettered")}
    assert found == {("m0", "too many"), ("m1", "undecodable"), ("m2", "unknown-type")}
    assert lines.events("handler failed") == []


async def test_every_part_of_a_message_that_several_read_logs_its_own_failure(scope: str, lines: Lines) -> None:
    app = App("two", retry=Retries(limit=2, delays_s=()))

    @app.handler("q", key="key")
    def one(task: Task, count: Count) -> None:
        raise ValueError("one")

    @app.handler("q", key="key", name="other")
    def two(task: Task, count: Count) -> None:
        raise ValueError("two")

    await run(app, scope, Task("a"))
    failed = [(line.handler, line.attempt, line.error) for line in lines.events("handler failed")]
    assert sorted(failed) == sorted(
        (name, n, f"ValueError: {text}") for n in (1, 2) for name, text in (("one", "one"), ("other", "two"))
    )
    (refused,) = lines.events("message dead-lettered")
    assert refused.handler == "one, other"


async def test_asking_for_another_delivery_is_no_failure_but_leaves_a_line(scope: str, lines: Lines) -> None:
    plant, asked = Plant(), []

    def act(task: Task, ctx: Context) -> None:
        asked.append(task)
        if len(asked) < 3:
            raise Retry("not yet", after_s=0)

    plant.act = act
    await run(plant.app, scope, Task("a"))
    (line,) = lines.events("handler asked for another delivery")  # once a minute
    assert "not yet" in line.error and line.levelno == logging.INFO and not lines.events("handler failed")


@pytest.mark.parametrize("where", ["at once", "later"])
async def test_what_a_message_says_forges_no_line_and_reports_no_secret(scope: str, lines: Lines, where: str) -> None:
    app = App("forging", retry=Retries(limit=1))

    @app.handler("q", key="key")
    async def handle(task: Task, count: Count) -> None:
        if where == "later":
            await asyncio.sleep(0)
        raise ValueError(task.what) from RuntimeError(task.what)

    backend = backend_of(scope)
    async with Worker(app, backend) as worker:
        await deliver(worker, "q", Task("a", FORGED), id="m\nERROR")
    for record in lines.records:
        first, *rest = logging.Formatter("%(message)s %(id)s %(error)s").format(record).split("\n")
        assert first.isprintable() and "hunter2" not in first + "".join(rest)
        assert not any(line.startswith(("2026", "ERROR")) or "\x1b" in line for line in rest)
    (dead_letter,) = await Client(app, backend).dead_letters("q")
    assert "caused by RuntimeError" in dead_letter.traceback and "hunter2" not in dead_letter.traceback
    assert not any(line.startswith("2026") for line in dead_letter.traceback.splitlines())


async def test_a_dead_letter_has_the_stack_of_the_applications_code(scope: str) -> None:
    plant = Plant(retry=Retries(limit=1))

    def act(task: Task, ctx: Context) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    plant.act = act
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"))
        dead_letter = await only(world)
    assert dead_letter.description == "ValueError: outer"
    head, first, *rest = dead_letter.traceback.split("\n")
    assert head == "Traceback (most recent call last):" and "plant.py" in first
    assert (
        any("caused by KeyError: 'inner'" in line for line in rest)
        and 'raise KeyError("inner")' in dead_letter.traceback
    )
    assert "outbox/runtime" not in dead_letter.traceback


async def test_a_key_function_that_raises_leaves_its_line(scope: str) -> None:
    app = App("keys")

    def key_of(task: Task) -> str:
        return {}[task.what]  # type: ignore[index]  # it is to raise

    @app.handler("q", key=key_of)
    def handle(task: Task, count: Count) -> None: ...

    async with Harness(app) as world:
        await deliver_raw(world, "q", b'{"key": "a"}', properties={"outbox-id": "1", "outbox-type": "Task"})
        dead_letter = await only(world)
        assert dead_letter.reason == "missing-key" and "return {}[task.what]" in dead_letter.traceback


async def test_a_group_of_exceptions_shows_what_is_in_it(scope: str) -> None:
    plant = Plant(retry=Retries(limit=1))

    async def fail() -> None:
        raise OSError("the flap is stuck")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    plant.act = lambda task, ctx: both()
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"))
        dead_letter = await only(world)
    assert 'raise OSError("the flap is stuck")' in dead_letter.traceback


async def test_the_failure_of_a_test_shows_the_handlers_line_and_nothing_is_printed(
    scope: str, lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    plant = Plant(raising(ValueError("no such thing")), retry=Retries(limit=2, delays_s=()))
    with pytest.raises(AssertionError) as caught:
        async with Harness(plant.app) as world:
            await deliver(world, "q", Task("a"), id="t1")
            assert world.dead_letters("q") == []
    (note,) = caught.value.__notes__
    assert "handler failed id=t1" in note and "    raise error" in note and "plant.py" in note
    assert lines.records == [] and capfd.readouterr() == ("", "")


async def test_a_test_that_passes_has_no_note(scope: str) -> None:
    plant = Plant()
    with pytest.raises(RuntimeError) as caught:
        async with Harness(plant.app) as world:
            await deliver(world, "q", Task("a"))
            raise RuntimeError("the test's own")
    assert not hasattr(caught.value, "__notes__")


# Requests


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_failing_request_is_logged_with_its_traceback(scope: str, lines: Lines, method: str) -> None:
    app = App("asked")

    @app.http(method, "/tasks/{key}", key="key")
    async def handle(task: Task, count: Count, ctx: Context) -> None:
        raise ValueError("no such thing")

    async with HttpEntry(app, backend_of(scope)) as entry:
        response = await entry.handle(method, "/tasks/a", {"Idempotency-Key": "k"}, b"")
    (line,) = lines.events("request failed")
    assert response.status == 500 and b"no such thing" not in response.body
    assert (line.levelname, line.handler, line.attempt) == ("WARNING", "handle", 1)
    assert 'raise ValueError("no such thing")' in line.exc_text and not lines.events("request refused")


async def test_a_request_whose_last_try_failed_is_an_error_once(scope: str, lines: Lines) -> None:
    app = App("asked")

    @app.http("POST", "/tasks/{key}", key="key", retries=Retries(limit=2, delays_s=()))
    async def handle(task: Task, count: Count, ctx: Context) -> None:
        raise ValueError("no such thing")

    async with HttpEntry(app, backend_of(scope)) as entry:
        for _ in range(3):
            assert (await entry.handle("POST", "/tasks/a", {"Idempotency-Key": "k"}, b"")).status == 500
    assert [line.attempt for line in lines.events("request failed")] == [1, 2]
    (line,) = lines.events("request refused")
    assert (line.levelname, line.reason, line.error) == ("ERROR", "failed", "ValueError: no such thing")


# Bounds


def deep(count: int) -> None:
    if count:
        deep(count - 1)
    raise ValueError("x" * 5_000)


@pytest.mark.engine_only
async def test_a_stack_is_bounded_and_keeps_both_ends() -> None:
    try:
        deep(500)
    except ValueError as error:
        error.__cause__ = error  # a circle
        stack = stack_of(error)
    assert len(stack) <= STACK_LENGTH_MAX and "frames left out" in stack
    assert "in test_a_stack_is_bounded" in stack.split("\n")[1] and "raise ValueError" in stack


@pytest.mark.engine_only
async def test_what_fails_all_the_time_shows_its_traceback_each_minute() -> None:
    shown, now_ms = list[int](), [0]
    log = FailureLog(
        lambda: now_ms[0], lambda level, event, fields, traceback: shown.append(now_ms[0]) if traceback else None
    )
    later, work = Later(10.0, 1), Work(Delivery("q", 1, Message(body=b"", outbox_id="m0"), 1, 0, 0))
    failure = failure_of(ValueError("no such thing"), later, work, Retries(limit=1_000))
    for second in range(0, 181, 10):
        now_ms[0] = second * 1_000
        log.note([Attempt(work, failure=failure)], later)
    assert shown == [0, 60_000, 120_000, 180_000]


async def test_the_throttle_forgets_the_oldest_subject() -> None:
    now_ms = [0]
    throttle = LogThrottle(60_000, lambda: now_ms[0])
    for number in range(2 * SUBJECT_COUNT_MAX):
        assert throttle.due(f"a.py:{number}") == (True, 0)
    assert len(throttle._due) == SUBJECT_COUNT_MAX
    newest = f"a.py:{2 * SUBJECT_COUNT_MAX - 1}"
    assert throttle.due(newest) == (False, 1)
    for _ in range(2):  # what was left out is told once
        now_ms[0] += 60_000
        assert throttle.due(newest) == (True, 1)
        assert throttle.due(newest) == (False, 1)


async def test_a_subject_that_is_logged_again_is_not_the_oldest() -> None:
    now_ms = [0]
    throttle = LogThrottle(60_000, lambda: now_ms[0])
    for number in range(SUBJECT_COUNT_MAX):
        throttle.due(f"a.py:{number}")
    now_ms[0] += 60_000
    assert throttle.due("a.py:0") == (True, 0)
    assert throttle.due("b.py:1") == (True, 0)
    assert throttle.due("a.py:0") == (False, 1)


def refusals_alive() -> int:
    gc.collect()
    return sum(type(found) is PoisonMessage for found in gc.get_objects())


async def test_no_failed_or_refused_message_is_kept_alive_by_its_traceback(scope: str) -> None:
    plant = Plant(raising(ValueError), retry=Retries(limit=1))
    before = refusals_alive()
    async with Harness(plant.app) as world:
        for number in range(20):
            await world.send("q", Task("a"), id=f"raises-{number}")
            await world.send_raw("q", b"{}", properties={"outbox-id": f"unknown-{number}", "outbox-type": "Nobody"})
            await world.send_raw("q", b"{", properties={"outbox-id": f"broken-{number}", "outbox-type": "Task"})
        await world.wait_idle()
        assert len(world.dead_letters("q")) == 60 and refusals_alive() < before + 20

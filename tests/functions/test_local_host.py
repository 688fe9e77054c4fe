"""The local host does as Azure's does: bodies and metadata, sessions, failures that are never answered, timers."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError, ServiceBusError

from outbox import Engine
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.entities import QueueSettings
from tests.unit.waiting import until
from tools.local_functions import host as hosts
from tools.local_functions import pump
from tools.local_functions.host import FunctionsHost
from tools.local_functions.settings import HostFile, read_host_file, resolved
from tools.local_functions.timers import Schedule
from tools.local_functions.wire import TypedData
from tools.local_functions.workers import Result, make_worker

APP = """
import asyncio
import azure.functions as func

seen = []
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

def note(kind, message):
    seen.append((kind, message.message_id, message.delivery_count, message.session_id, message.get_body()))

@app.service_bus_queue_trigger(arg_name="message", connection="BUS", queue_name="text")
async def as_text(message: func.ServiceBusMessage) -> None:
    note("text", message)

@app.service_bus_queue_trigger(
    arg_name="message", connection="BUS", queue_name="%NAMED%", data_type=func.DataType.BINARY
)
async def as_bytes(message: func.ServiceBusMessage) -> None:
    note("bytes", message)
    if message.get_body() == b"fail" and message.delivery_count < 3:
        raise ValueError("not yet")
    if message.get_body() == b"slow":
        await asyncio.sleep(1.8)
    if message.get_body() == b"cancel":
        raise asyncio.CancelledError
    if message.get_body() == b"return":
        return 5

@app.service_bus_queue_trigger(
    arg_name="message", connection="BUS", queue_name="ordered", data_type=func.DataType.BINARY, is_sessions_enabled=True
)
async def in_order(message: func.ServiceBusMessage) -> None:
    note("began", message)
    await asyncio.sleep(1.8 if message.get_body() == b"slow" else 0.05)
    note("ended", message)

@app.route("things/{name}", methods=["GET", "POST"])
def thing(req: func.HttpRequest) -> func.HttpResponse:
    text = f"{req.method} {req.route_params['name']} {req.params.get('q')} {req.get_body().decode()}"
    return func.HttpResponse(text, status_code=201, headers={"X-Own": "1"})

@app.timer_trigger(arg_name="timer", schedule="0 0 0 1 1 *")
def beat(timer: func.TimerRequest) -> None:
    seen.append(("beat", timer.past_due))

@app.route("slow")
async def slow(req: func.HttpRequest) -> func.HttpResponse:
    await asyncio.sleep(60)
    return func.HttpResponse("late")
"""
numbers = itertools.count(1)


class Site:
    """The application above under the local host, on a bus in this process."""

    def __init__(self, host: FunctionsHost, engine: Engine, client: ServiceBusClient, module: Any) -> None:
        self.host = host
        self.engine = engine
        self.client = client
        self.seen: list[tuple[Any, ...]] = module.seen

    async def send(self, queue: str, *bodies: bytes, **fields: Any) -> None:
        async with self.client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(body, **fields) for body in bodies])

    async def wait(self, queue: str) -> None:
        """Wait until nothing of a queue is left."""
        async with asyncio.timeout(20):
            while self.engine.broker.queue(queue).tasks:  # noqa: ASYNC110  # another task empties it, over TCP
                await asyncio.sleep(0.02)


HAS_RUNTIME = importlib.util.find_spec("azure_functions_runtime") is not None
KINDS = [
    "library",
    pytest.param("runtime", marks=pytest.mark.skipif(not HAS_RUNTIME, reason="azure-functions-runtime: Python 3.13")),
]


@asynccontextmanager
async def site_in(
    folder: Path, patch: pytest.MonkeyPatch, host_json: str = '{"version": "2.0"}', kind: str = "library"
) -> AsyncIterator[Site]:
    name = f"local_app_{next(numbers)}"  # a module is imported once in a process
    (folder / f"{name}.py").write_text(APP)
    (folder / "host.json").write_text(host_json)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine.in_memory())
        for queue in (QueueSettings("text"), QueueSettings("bytes"), QueueSettings("ordered", "per_key")):
            engine.declare(queue)
        bus = await stack.enter_async_context(ServiceBusServer(engine))
        patch.setenv("BUS", bus.connection_string)
        patch.setenv("NAMED", "bytes")
        patch.setenv("PYTHON_SCRIPT_FILE_NAME", f"{name}.py")
        patch.syspath_prepend(str(folder))
        client = ServiceBusClient.from_connection_string(bus.connection_string)
        await stack.enter_async_context(client)
        host = await stack.enter_async_context(FunctionsHost(folder, worker=kind))
        yield Site(host, engine, client, __import__(name))


@pytest.fixture(params=KINDS)
async def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with site_in(tmp_path, monkeypatch, kind=request.param) as site:
        yield site


async def test_a_body_taken_as_text_says_who_it_is_and_one_taken_as_bytes_does_not(site: Site) -> None:
    body = b'{"messageid": "spoofed", "DeliveryCount": 7}'
    await site.send("text", body, message_id="m1")
    await site.send("bytes", body, message_id="m1")
    await asyncio.gather(site.wait("text"), site.wait("bytes"))
    assert sorted(site.seen) == [("bytes", "m1", 1, None, body), ("text", "spoofed", 7, None, body)]


async def test_a_failure_is_redelivered_at_once_and_counts(site: Site) -> None:
    await site.send("bytes", b"fail", message_id="m1")
    await site.wait("bytes")
    assert [count for _, _, count, *_ in site.seen] == [1, 2, 3]


@pytest.mark.parametrize(("renewed", "counts"), [("00:05:00", [1]), ("00:00:00", [1, 2])])
async def test_a_lock_is_renewed_while_its_function_runs_for_as_long_as_the_host_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renewed: str, counts: list[int]
) -> None:
    monkeypatch.setattr(pump, "WAIT_IDLE_S", 0.1)
    host_json = f'{{"version": "2.0", "extensions": {{"serviceBus": {{"maxAutoLockRenewalDuration": "{renewed}"}}}}}}'
    async with site_in(tmp_path, monkeypatch, host_json) as site:
        site.engine.declare(QueueSettings("bytes", lock_s=1.0, max_delivery_count=2))
        site.engine.declare(QueueSettings("ordered", "per_key", lock_s=1.0, max_delivery_count=2))
        await site.send("bytes", b"slow")
        await site.send("ordered", b"slow", session_id="a")
        await asyncio.gather(site.wait("bytes"), site.wait("ordered"))
        for kind in ("bytes", "began"):
            assert [count for noted, _, count, *_ in site.seen if noted == kind] == counts


async def test_so_many_messages_are_handled_at_once_as_the_host_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_json = '{"version": "2.0", "extensions": {"serviceBus": {"maxConcurrentCalls": 2}}}'
    async with site_in(tmp_path, monkeypatch, host_json) as site:
        await site.send("bytes", *[b"slow"] * 4)
        await until(lambda: len(site.seen) == 2)
        await asyncio.sleep(0.2)
        assert len(site.seen) == 2
        await until(lambda: len(site.seen) == 4)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "a function runs on behind its host"


async def test_a_timer_fires_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "after", lambda _, now: now + timedelta(milliseconds=20))
    async with site_in(tmp_path, monkeypatch) as site:
        await until(lambda: site.seen.count(("beat", False)) >= 3)


async def test_a_returned_value_without_a_taker_fails_after_its_effects(site: Site) -> None:
    name = "as_bytes"
    result = await site.host.worker.invoke(name, TypedData(bytes=b"return"), {"UserProperties": TypedData(json="{}")})
    assert not result.ok and "without a $return binding" in result.error and len(site.seen) == 1


async def test_what_is_no_exception_is_never_answered(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    metadata = {"UserProperties": TypedData(json="{}"), "MessageId": TypedData(string="m")}
    result = await site.host.worker.invoke("as_bytes", TypedData(bytes=b"cancel"), metadata)
    assert isinstance(result, Result) and not result.is_answered and "never be answered" in caplog.text


async def test_a_session_is_handled_in_order_one_at_a_time(site: Site) -> None:
    for n in range(4):
        for session in "ab":
            await site.send("ordered", str(n).encode(), session_id=session)
    await site.wait("ordered")
    for session in "ab":
        own = [(kind, body) for kind, _, _, of, body in site.seen if of == session]
        assert own == [(kind, str(n).encode()) for n in range(4) for kind in ("began", "ended")]


async def test_requests_reach_their_function_below_the_prefix(site: Site) -> None:
    answer = await site.host.request("POST", "/api/things/one", body=b"body", query="q=2")
    assert (answer.status, answer.text, answer.headers["X-Own"]) == (201, "POST one 2 body", "1")
    assert (await site.host.request("DELETE", "/api/things/one")).headers["Allow"] == "GET, POST"
    assert (await site.host.request("GET", "/things/one")).status == 404


async def test_a_timer_is_started_by_hand(site: Site) -> None:
    assert (await site.host.tick("beat")).ok and site.seen == [("beat", False)]


async def test_a_function_that_takes_too_long_ends_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = '{"version": "2.0", "functionTimeout": "00:00:01"}'
    async with site_in(tmp_path, monkeypatch, limits) as site:
        assert (await site.host.request("GET", "/api/slow")).status == 500
        with pytest.raises(Exception, match="slow took longer than functionTimeout"):
            await asyncio.wait_for(site.host.wait_failed(), 1)


class Links:
    """A client in place of the SDK's: a receive has what is next of `steps`, ids or errors, and takes 0.6 s."""

    session = None

    def __init__(self, *steps: Any) -> None:
        self.steps, self.told, self.now_s = list(steps), list[str](), 0.0

    def get_queue_receiver(self, path: str, **options: Any) -> Links:
        return self

    async def __aenter__(self) -> Links:
        self.told.append("open")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.told.append("close")

    async def receive_messages(self, count: int, *, max_wait_time: float) -> list[Any]:
        await asyncio.sleep(0)
        self.now_s += 0.6
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, Exception):
            raise step
        until = datetime.now(UTC) - timedelta(hours=1) if step == "late" else None
        return [] if step is None else [SimpleNamespace(message_id=step, locked_until_utc=until)]

    async def renew_message_lock(self, message: Any) -> None:
        self.told.append("renew")
        raise MessageLockLostError

    async def complete_message(self, message: Any) -> None:
        self.told.append(message.message_id)
        if message.message_id == "lost":
            raise ServiceBusError("no answer")

    async def run(self, message: Any) -> Result:
        await asyncio.sleep(0)
        if message.message_id == "endless":
            try:
                await asyncio.sleep(60)
            finally:
                self.told.append("cancelled")
        return Result(True)

    def pumped(self, has_sessions: bool, patch: pytest.MonkeyPatch) -> asyncio.Task[None]:
        patch.setattr(pump, "FAILED_PAUSE_S", 0)
        patch.setattr(pump, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        source = pump.Source("orders", has_sessions, count_max=1)
        return asyncio.create_task(pump.Pump(source, cast(Any, self), self.run, HostFile(session_idle_s=1)).work())


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_a_pump_goes_on_after_a_link_that_failed_and_ends_with_its_function(
    has_sessions: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    links = Links(ServiceBusError("gone"), "a", "late", "lost", "b", "endless")
    pumping = links.pumped(has_sessions, monkeypatch)
    await until(lambda: not links.steps)
    pumping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pumping
    await asyncio.sleep(0)
    assert sorted(links.told[-2:]) == ["cancelled", "close"]
    renewed = [] if has_sessions else ["renew"]
    assert links.told[:-2] == ["open", "close", "open", "a", *renewed, "late", "lost", "b"]
    assert caplog.text.count("gone") == 1


async def test_a_session_is_kept_while_it_is_busy_and_let_go_when_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    links = Links("a", "b", "c", None, None, OperationTimeoutError(), "endless")
    pumping = links.pumped(True, monkeypatch)
    await until(lambda: not links.steps)
    pumping.cancel()
    assert links.told == ["open", "a", "b", "c", "close", "open", "close", "open"] and not caplog.text


@pytest.mark.parametrize(("swallowed_count", "ends"), [(2, True), (9, False)])
async def test_a_host_cancels_until_its_tasks_end_but_not_for_ever(
    swallowed_count: int, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swallow() -> None:
        for _ in range(swallowed_count):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
        await asyncio.sleep(5)

    monkeypatch.setattr(hosts, "CANCEL_AGAIN_S", 0.01)
    monkeypatch.setattr(hosts, "CANCEL_COUNT_MAX", 3)
    host = FunctionsHost(tmp_path)
    host._spawn(swallow(), "orders")
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await host.__aexit__(None, None, None)
    (task,) = host._tasks
    assert task.done() is ends
    while not task.done():  # each takes one cancellation
        task.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("text", "now", "due"),
    [
        ("30 * * * * *", (2026, 1, 1, 0, 0, 31), (2026, 1, 1, 0, 1, 30)),
        ("0 */5 * * * *", (2026, 1, 1, 0, 58, 0), (2026, 1, 1, 1, 0, 0)),
        ("0 0 9-17/4 * * mon-fri", (2026, 1, 2, 17, 0, 0), (2026, 1, 5, 9, 0, 0)),
        ("0 0 0 29 2 *", (2026, 1, 1, 0, 0, 0), (2028, 2, 29, 0, 0, 0)),
        ("*/15 * * * *", (2026, 1, 1, 0, 0, 0), (2026, 1, 1, 0, 15, 0)),
        ("00:00:10", (2026, 1, 1, 0, 0, 0), (2026, 1, 1, 0, 0, 10)),
    ],
)
def test_a_schedule_reports_when_it_is_next(text: str, now: tuple[int, ...], due: tuple[int, ...]) -> None:
    assert Schedule(text).after(datetime(*now, tzinfo=UTC)) == datetime(*due, tzinfo=UTC)  # type: ignore[misc,arg-type]  # six numbers


@pytest.mark.parametrize(
    "text", ["", "* * *", "60 * * * * *", "0 0 0 0 * *", "*/0 * * * * *", "1-70 * * * * *", "x * * * * *"]
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Schedule(text)


def test_a_folder_that_is_no_app_and_a_setting_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no host\.json"):
        read_host_file(tmp_path)
    with pytest.raises(ValueError, match="app setting QUEUE is missing"):
        resolved("%QUEUE%", {})


def test_the_library_serves_where_it_is_asked_for() -> None:
    assert make_worker("library").name == "azure-functions"

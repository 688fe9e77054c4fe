"""A Service Bus in a thread of its own, and the real SDK in both of its shapes.

Opening a sender or receiver costs the SDK half a second, so tests share those of common queues.  Tests are written
once, in blocking calls; `aio` runs the same calls of the asynchronous SDK on a loop in another thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import ModuleType
from typing import Any, TypeVar

import pytest
from azure.servicebus import ServiceBusClient, _servicebus_receiver, _servicebus_sender, _session_browser
from azure.servicebus._pyamqp.aio import _client_async, _connection_async, _session_async
from azure.servicebus._pyamqp.aio._transport_async import AsyncTransportMixin
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio import _servicebus_receiver_async, _servicebus_sender_async, _session_browser_async

from outbox.emulator.amqp.limits import Limits
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.message import Message

T = TypeVar("T")
TIMEOUT_S = 30.0
MODES = ("sync", "aio")


class Impatient:
    """A module whose `sleep` is shorter, for the loops in which the SDK waits every 50 ms for its link to open."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def sleep(self, delay_s: float) -> Any:
        return self._module.sleep(delay_s / 20)


@pytest.fixture(scope="session", autouse=True)
def _impatient_sdk() -> Iterator[None]:
    """Let the SDK look more often whether its links are open; that alone is two thirds of the tests' time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_servicebus_receiver, _servicebus_sender, _session_browser):
            patch.setattr(module, "time", Impatient(time))
        waiting = (_client_async, _connection_async, _session_async)  # for what a link is opened, and closed, by
        for module in (_servicebus_receiver_async, _servicebus_sender_async, _session_browser_async, *waiting):
            patch.setattr(module, "asyncio", Impatient(asyncio))
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    """Let the SDK read root certificates once, not for each connection (50 ms); emulators have no TLS."""
    build: Any = AsyncTransportMixin._build_ssl_opts
    known: dict[str, Any] = {}

    def build_once(self: Any, options: Any) -> Any:
        if repr(options) not in known:
            known[repr(options)] = build(self, options)
        return known[repr(options)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncTransportMixin, "_build_ssl_opts", build_once)
        yield


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Any]) -> Any:
        """Call something in the loop's thread and, if it returns an awaitable, await it there."""

        async def call() -> Any:
            result = work()
            return await result if inspect.isawaitable(result) else result

        future: Future[Any] = asyncio.run_coroutine_threadsafe(call(), self.loop)
        return future.result(TIMEOUT_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()


class Blocking:
    """An object of the asynchronous SDK, called from outside its loop."""

    def __init__(self, target: Any, thread: LoopThread) -> None:
        self._target = target
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        value = self._thread.run(lambda: getattr(self._target, name))
        if not callable(value):
            return self._wrapped(value)

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [arg._target if isinstance(arg, Blocking) else arg for arg in args]
            return self._wrapped(self._thread.run(lambda: value(*plain, **kwargs)))

        return call

    def _wrapped(self, value: Any) -> Any:
        ours = type(value).__module__.startswith("azure.servicebus.aio")
        return Blocking(value, self._thread) if ours else value

    def __enter__(self) -> Any:
        self._thread.run(self._target.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(lambda: self._target.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._thread.run(self._target.__anext__)
            except StopAsyncIteration:
                return


async def until(is_so: Callable[[], object]) -> None:
    """Wait for something that is about to be so."""
    for _ in range(1_000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to be so")


class GatedEngine(Engine):
    """An engine whose gate stays shut until the test opens it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opened = asyncio.Event()
        through = self.core.gate

        async def gate(**options: bool) -> None:
            await self.opened.wait()
            await through(**options)

        self.core.gate = gate  # type: ignore[method-assign]  # for this engine alone


class Bus:
    """An engine with a server in front of it, in a thread."""

    def __init__(self, engine: Callable[[], Engine], **options: Any) -> None:
        self.thread = LoopThread()
        self.engine: Engine
        self.server: ServiceBusServer
        self._options = options
        self.start(engine)

    def start(self, engine: Callable[[], Engine]) -> None:
        async def run() -> None:
            self.engine = await engine().__aenter__()
            self.server = await ServiceBusServer(self.engine, **self._options).__aenter__()

        self.thread.run(run)
        self._options["port"] = self.server.port

    def stop(self) -> None:
        async def run() -> None:
            await self.server.__aexit__(None, None, None)
            await self.engine.__aexit__(None, None, None)

        self.thread.run(run)

    @property
    def connection_string(self) -> str:
        return self.server.connection_string

    def call(self, work: Callable[[Engine], T]) -> T:
        """Use the engine in its own thread."""
        result: T = self.thread.run(lambda: work(self.engine))
        return result

    def declare(self, *settings: QueueSettings | TopicSettings) -> None:
        self.call(lambda engine: engine.declare(*settings))

    def send(self, queue: str, *bodies: str, **fields: Any) -> None:
        """Put messages into a queue without the SDK, where sending is not the point: a sender costs half a second."""
        messages = [Message(body=body.encode(), **fields) for body in bodies]
        self.call(lambda engine: engine.broker.send(queue, messages))

    def bodies(self, path: str) -> list[bytes]:
        """What a queue holds, in order, whatever its state."""
        return self.call(lambda engine: [task.message.body for task in engine.broker.peek(path, 0, 1_000)])


class Sdk:
    """The SDK in one of its shapes against one bus, with handlers that are opened once and closed at the end."""

    def __init__(self, bus: Bus, mode: str, connection_string: str | None = None, **options: Any) -> None:
        self.bus = bus
        self.mode = mode
        self._thread = LoopThread() if mode == "aio" else None
        text = connection_string or bus.connection_string
        settings = {"retry_total": 0, **options}
        self.client: Any
        if self._thread is None:
            self.client = ServiceBusClient.from_connection_string(text, **settings)
        else:
            self.client = Blocking(AsyncServiceBusClient.from_connection_string(text, **settings), self._thread)
        self._open: dict[tuple[Any, ...], Any] = {}

    def run(self, work: Callable[[], Any]) -> Any:
        """Do something on the loop of the asynchronous SDK."""
        assert self._thread is not None, "the synchronous SDK has no loop"
        return self._thread.run(work)

    def sender(self, queue: str = "", *, topic: str = "", shared: bool = True) -> Any:
        """A sender; shared ones stay open."""

        def make() -> Any:
            if topic:
                return self.client.get_topic_sender(topic, keep_alive=0)
            return self.client.get_queue_sender(queue, keep_alive=0)

        return self._handler(("send", queue, topic), make, shared)

    def receiver(self, queue: str, *, shared: bool = True, **options: Any) -> Any:
        """A receiver; shared ones stay open."""

        def make() -> Any:
            return self.client.get_queue_receiver(queue, **{"keep_alive": 0, "prefetch_count": 1, **options})

        return self._handler(("receive", queue, *sorted(options)), make, shared)

    def _handler(self, name: tuple[Any, ...], make: Callable[[], Any], shared: bool) -> Any:
        if not shared:
            return make()
        if name not in self._open:
            self._open[name] = make().__enter__()
        return self._open[name]

    def close(self) -> None:
        for handler in self._open.values():
            handler.__exit__(None, None, None)
        self.client.close()
        if self._thread is not None:
            self._thread.stop()


@pytest.fixture(scope="session")
def bus() -> Iterator[Bus]:
    """One bus for all tests that do not restart it.  Small frames, so that larger messages need several."""
    options = {"limits": Limits(frame_size_max_bytes=64 * 1024), "message_size_max_bytes": 512 * 1024}
    bus = Bus(Engine.in_memory, **options)
    yield bus
    bus.stop()
    bus.thread.stop()


@pytest.fixture(scope="session", params=MODES)
def sdk(bus: Bus, request: pytest.FixtureRequest) -> Iterator[Sdk]:
    """The SDK, synchronous and asynchronous."""
    sdk = Sdk(bus, request.param)
    yield sdk
    sdk.close()


@pytest.fixture
def plain(bus: Bus, sdk: Sdk) -> Iterator[tuple[Any, Any]]:
    """A sender and a receiver of a common queue, empty before and after."""
    queue = f"plain-{sdk.mode}"
    bus.declare(QueueSettings(queue))
    yield sdk.sender(queue), sdk.receiver(queue)
    assert bus.bodies(queue) == []

"""A Cosmos DB emulator in a thread of its own, and the real SDK in both of its shapes.

Tests are written once, in blocking calls; `aio` runs the same calls of the asynchronous SDK on a
loop in another thread.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from azure.core.paging import ItemPaged
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient

from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.engine.engine import Engine
from tests.wire.conftest import LoopThread
from tests.wire.cosmos.asking import with_container

T = TypeVar("T")
MODES = ("sync", "aio")


class Cosmos:
    """An engine with an emulator in front of it, in a thread."""

    def __init__(self, engine: Callable[[], Engine] = Engine.in_memory, **options: Any) -> None:
        self.thread = LoopThread()
        self._options = {"port": 0, **options}
        self.start(engine)

    def start(self, engine: Callable[[], Engine]) -> None:
        async def run() -> None:
            self.engine = await engine().__aenter__()
            self.emulator = await CosmosEmulator(self.engine, **self._options).start()

        self.thread.run(run)
        self._options["port"] = self.emulator.port

    def stop(self) -> None:
        async def run() -> None:
            await self.emulator.stop()
            await self.engine.__aexit__(None, None, None)

        self.thread.run(run)

    def call(self, work: Callable[[CosmosEmulator], T]) -> T:
        """Use the emulator in its own thread."""
        result: T = self.thread.run(lambda: work(self.emulator))
        return result

    def close(self) -> None:
        self.stop()
        self.thread.stop()


class Proxy:
    """An object of the SDK whose methods block, in either shape, and give lists for what can be iterated."""

    def __init__(self, target: Any, sdk: Sdk) -> None:
        self.target = target
        self.mode = sdk.mode
        self._sdk = sdk

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._sdk.run(lambda: value(*args, **kwargs))


class Sdk:
    """The SDK in one of its shapes against one emulator."""

    def __init__(self, cosmos: Cosmos, mode: str, **options: Any) -> None:
        self.cosmos = cosmos
        self.mode = mode
        self._thread = LoopThread() if mode == "aio" else None
        url, key = cosmos.emulator.connection.url, options.pop("key", cosmos.emulator.connection.key)
        if self._thread is None:
            self._raw: Any = CosmosClient(url, key, **options)
        else:
            transport = AioHttpTransport(use_env_settings=False)
            self._raw = self._thread.run(lambda: AsyncCosmosClient(url, key, transport=transport, **options))
            self._thread.run(self._raw.__aenter__)
        self.client = Proxy(self._raw, self)

    def run(self, work: Callable[[], Any]) -> Any:
        """Call something of the SDK, wait for it and take all that it gives."""

        async def collect() -> Any:
            result = work()
            if hasattr(result, "__aiter__"):
                return [item async for item in result]
            return await result if inspect.isawaitable(result) else result

        result = work() if self._thread is None else self._thread.run(collect)
        if isinstance(result, ItemPaged):
            return list(result)
        return (
            Proxy(result, self) if type(result).__module__.startswith("azure.cosmos") and _is_handle(result) else result
        )

    def pages(self, work: Callable[[], Any]) -> list[list[Any]]:
        """The pages of what can be iterated."""

        async def collect() -> list[list[Any]]:
            return [[item async for item in page] async for page in work().by_page()]

        if self._thread is None:
            return [list(page) for page in work().by_page()]
        pages: list[list[Any]] = self._thread.run(collect)
        return pages

    def container(self, name: str, key: str | list[str] = "/pk", **options: Any) -> Any:
        """A fresh container."""
        database = self.client.create_database_if_not_exists(f"db-{self.mode}")
        paths = PartitionKey(path=key, kind="MultiHash") if isinstance(key, list) else PartitionKey(path=key)
        return database.create_container(name, paths, **options)

    def filled(self, items: Sequence[dict[str, Any]], **options: Any) -> Any:
        """A container with these items, for several tests; those may run in any order, and this again."""
        container = self.container(uuid4().hex, **options)
        for item in items:
            container.create_item(item)
        return container

    def close(self) -> None:
        if self._thread is None:
            self._raw.__exit__()
        else:
            self._thread.run(lambda: self._raw.__aexit__(None, None, None))
            self._thread.stop()


def query(items: Any, text: str, parameters: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    """What a query gives, over all partition keys unless one is named."""
    if "partition_key" not in options and items.mode == "sync":
        options["enable_cross_partition_query"] = True
    named = [{"name": name, "value": value} for name, value in (parameters or {}).items()]
    found: list[Any] = items.query_items(text, parameters=named, **options)
    return found


def _is_handle(value: Any) -> bool:
    return type(value).__name__ in ("DatabaseProxy", "ContainerProxy")


@pytest.fixture(scope="session")
def cosmos() -> Iterator[Cosmos]:
    """One emulator for all tests that do not restart it."""
    cosmos = Cosmos()
    yield cosmos
    cosmos.close()


@pytest.fixture(scope="session", params=MODES)
def sdk(cosmos: Cosmos, request: pytest.FixtureRequest) -> Iterator[Sdk]:
    """The SDK, synchronous and asynchronous."""
    sdk = Sdk(cosmos, request.param)
    yield sdk
    sdk.close()


@pytest.fixture
def items(sdk: Sdk, request: pytest.FixtureRequest) -> Any:
    """A container of the test's own."""
    return sdk.container(f"{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
async def emulator() -> AsyncIterator[CosmosEmulator]:
    """An emulator in the test's own loop, with a database `d` and a container `c`."""
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        await with_container(emulator)
        yield emulator

"""The administration client in one of its shapes, for tests."""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.wire.conftest import LoopThread


class Plain(RequestsTransport):  # type: ignore[misc]  # without types
    """HTTP as it is: the Python SDK asks for TLS even from an emulator."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class AsyncPlain(AioHttpTransport):  # type: ignore[misc]  # without types
    """The same for the asynchronous client."""

    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)


class Admin:
    """The administration client in one of its shapes, called in the same way."""

    def __init__(self, connection_string: str, mode: str) -> None:
        self._thread = LoopThread() if mode == "aio" else None
        options: dict[str, Any] = {"retry_total": 0}
        self._client: Any
        if self._thread is None:
            self._client = ServiceBusAdministrationClient.from_connection_string(
                connection_string, transport=Plain(), **options
            )
        else:
            self._client = self._thread.run(
                lambda: AsyncAdministrationClient.from_connection_string(
                    connection_string, transport=AsyncPlain(), **options
                )
            )

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._thread is None:
                found = method(*args, **kwargs)
                return list(found) if name.startswith("list_") else found
            if not name.startswith("list_"):
                return self._thread.run(lambda: method(*args, **kwargs))

            async def all_of() -> list[Any]:
                return [item async for item in method(*args, **kwargs)]

            return self._thread.run(all_of)

        return call

    def end(self) -> None:
        if self._thread is None:
            self._client.close()
        else:
            self._thread.run(self._client.close)
            self._thread.stop()

"""A Service Bus namespace as this package uses it: one client for a process, opened when it is first needed.

The SDK does not send again (`retry_total=0`): whether to is for the runtime, which does so under the same identity.  No
keep-alive task runs beside a link, because closing would wait for it; a link that the service closed for idleness is
opened anew by the next use.
"""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from outbox.ports import SUBSCRIPTIONS

CONFIRM_S = 5.0
"""How long the SDK waits for a settlement's confirmation before it asks the management node."""

READ_S = 0.05
"""How long one read of a plain receiver's socket waits for a frame, by default a fifth of a second.

Of several settlements in flight one may be left in a read that nothing comes for, when all of them are confirmed.  An
idle receiver reads so often; sessions, of which many may be idle, settle in turn and keep the default.
"""

_LINK: dict[str, Any] = {"keep_alive": 0, "timeout": CONFIRM_S}


class ServiceBusNamespace:
    """Where a bus is and who asks: a connection string, or a host name and a credential of azure.identity.aio."""

    def __init__(self, address: str, credential: Any = None) -> None:
        self._address = address
        self._credential = credential
        self._client: ServiceBusClient | None = None
        self._administration: ServiceBusAdministrationClient | None = None

    def __repr__(self) -> str:
        return f"ServiceBusNamespace({self.host!r})"

    @property
    def host(self) -> str:
        """The host name, without any key."""
        if self._credential is not None:
            return self._address
        parts = dict(part.partition("=")[::2] for part in self._address.split(";"))
        return parts.get("Endpoint", "").removeprefix("sb://").rstrip("/")

    @property
    def is_emulator(self) -> bool:
        """Whether it speaks without TLS, as emulators do."""
        return self._credential is None and "usedevelopmentemulator=true" in self._address.lower()

    def client(self) -> ServiceBusClient:
        """The client; it connects with its first link."""
        if self._client is None:
            self._client = self._opened(ServiceBusClient, retry_total=0)
        return self._client

    def sender(self, destination: str) -> ServiceBusSender:
        """A sender, not yet open, to a queue or topic: for a sender they are the same."""
        return self.client().get_queue_sender(destination, **_LINK)

    def receiver(self, path: str, *, prefetch_count: int) -> ServiceBusReceiver:
        """A receiver, not yet open, of a queue or subscription without sessions."""
        return self._receiver(path, prefetch_count=prefetch_count, socket_timeout=READ_S)

    def next_session(self, path: str, *, wait_s: float, prefetch_count: int) -> ServiceBusReceiver:
        """A receiver, not yet open, of whichever session has messages and no receiver within `wait_s`."""
        options = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": wait_s}
        return self._receiver(path, prefetch_count=prefetch_count, **options)

    def peeker(self, path: str) -> ServiceBusReceiver:
        """A receiver, not yet open, that is only to look into a queue or subscription without sessions."""
        return self._receiver(path, prefetch_count=0)

    def browser(self, path: str) -> Any:
        """A link for requests alone, not yet open, to a queue or subscription, as the SDK lists sessions by."""
        topic, slash, subscription = path.partition(SUBSCRIPTIONS)
        client: Any = self.client()
        return client._create_session_browser(topic, subscription if slash else None)

    def dead_letters(self, path: str) -> ServiceBusReceiver:
        """A receiver, not yet open, of the dead letters of a queue or subscription."""
        return self._receiver(path, prefetch_count=1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)

    def _receiver(self, path: str, **options: Any) -> ServiceBusReceiver:
        topic, slash, subscription = path.partition(SUBSCRIPTIONS)
        if slash:
            return self.client().get_subscription_receiver(topic, subscription, **_LINK, **options)
        return self.client().get_queue_receiver(path, **_LINK, **options)

    def administration(self) -> ServiceBusAdministrationClient:
        """The client that makes entities and counts their messages; it needs the right to manage."""
        if self._administration is None:
            kind: type[AioHttpTransport] = PlainHttp if self.is_emulator else AioHttpTransport
            self._administration = self._opened(ServiceBusAdministrationClient, transport=kind(use_env_settings=False))
        return self._administration

    def _opened(self, kind: Any, **options: Any) -> Any:
        if self._credential is None:
            return kind.from_connection_string(self._address, **options)
        return kind(self._address, self._credential, **options)

    async def close(self) -> None:
        """Close the clients; a later use opens them anew."""
        client, self._client = self._client, None
        administration, self._administration = self._administration, None
        if client is not None:
            await client.close()
        if administration is not None:
            await administration.close()


class PlainHttp(AioHttpTransport):  # type: ignore[misc]  # without types
    """HTTP without TLS: the administration client asks for TLS even from an emulator."""

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request as plain HTTP."""
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)

"""A pytest plugin that lets the SDK speak plain AMQP and HTTP to the emulator, however tests make a client."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

HOST = os.environ["BUS_HOST"]


def _without_tls(make: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, fully_qualified_namespace: str, *arguments: Any, **options: Any) -> None:
        if HOST in fully_qualified_namespace:
            options["use_tls"] = False
        make(self, fully_qualified_namespace, *arguments, **options)

    return init


def _plain(url: str) -> str:
    return url.replace(f"https://{HOST}", f"http://{HOST}", 1)


def _sent_plainly(send: Callable[..., Any]) -> Callable[..., Any]:
    def plain(self: Any, request: Any, **options: Any) -> Any:
        request.url = _plain(request.url)
        return send(self, request, **options)

    return plain


for client in (ServiceBusClient, AsyncServiceBusClient):
    client.__init__ = _without_tls(client.__init__)  # type: ignore[method-assign]  # their tests make clients
RequestsTransport.send = _sent_plainly(RequestsTransport.send)
AioHttpTransport.send = _sent_plainly(AioHttpTransport.send)


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """What their configuration asks for; there is no proxy."""

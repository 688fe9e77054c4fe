"""Queues, topics and subscriptions: made where they are not there yet, and asked whether anything waits in them.

Needs the right to manage.  What exists is left as it is, except that a queue which orders by session or does not cannot
be used as the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import QueueRuntimeProperties, SubscriptionRuntimeProperties

from outbox.azure.servicebus_namespace import ServiceBusNamespace
from outbox.errors import OutboxError, OutcomeUnknown, Refused
from outbox.ports import SUBSCRIPTIONS

T = TypeVar("T")

LOCK = timedelta(seconds=60)
DELIVERY_COUNT_MAX = 100
"""Far above the runtime's own count of failures, which is the one that decides."""
CALL_S = 30.0
_LIMITS: dict[str, Any] = {"lock_duration": LOCK, "max_delivery_count": DELIVERY_COUNT_MAX}


class ServiceBusEntities:
    """The entities of a namespace."""

    def __init__(self, namespace: ServiceBusNamespace) -> None:
        self._namespace = namespace

    async def declare(self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]]) -> None:
        """Make queues (name to ordering) and topics (name to subscriptions) where they are not there yet.

        Raises:
            Refused: one is there and orders otherwise, or they cannot be made.
            OutcomeUnknown: nobody can tell.
        """
        for name, ordering in queues.items():
            await self._queue(name, sessions=ordering == "per_key")
        for topic, subscriptions in topics.items():
            await self._topic(topic, subscriptions)

    async def _topic(self, topic: str, subscriptions: Sequence[str]) -> None:
        admin = self._namespace.administration()
        await self._made(f"topic {topic}", partial(admin.create_topic, topic))
        for name in subscriptions:
            make = partial(admin.create_subscription, topic, name, **_LIMITS)
            await self._made(f"subscription {topic}/{name}", make)

    async def _queue(self, name: str, *, sessions: bool) -> None:
        admin = self._namespace.administration()
        if await self._made(f"queue {name}", partial(admin.create_queue, name, requires_session=sessions, **_LIMITS)):
            return
        found = await self._call(f"queue {name}", partial(admin.get_queue, name))
        if bool(found.requires_session) != sessions:
            wanted = "requires sessions" if sessions else "does without sessions"
            raise Refused(f"queue {name} is there and does not do as declared ({wanted}); make another, or delete it")

    async def _made(self, what: str, make: Callable[[], Awaitable[object]]) -> bool:
        """Make an entity; False where it is there already."""
        try:
            await self._call(what, make)
        except Refused as error:
            if isinstance(error.__cause__, ResourceExistsError):
                return False
            raise
        return True

    async def is_idle(self, paths: Sequence[str]) -> bool:
        """Whether nothing in these queues and subscriptions waits or is being handled.

        Raises:
            Refused: they cannot be asked.
            OutcomeUnknown: nobody can tell.
        """
        for path in paths:
            if (await self._counts(path)).active_message_count:
                return False
        return True

    async def is_drained(self, paths: Sequence[str]) -> bool:
        """Whether these queues and subscriptions hold nothing, scheduled messages and dead letters included.

        Raises:
            Refused: they cannot be asked.
            OutcomeUnknown: nobody can tell.
        """
        admin = self._namespace.administration()
        for path in paths:
            topic, slash, _ = path.partition(SUBSCRIPTIONS)
            if (await self._counts(path)).total_message_count:
                return False
            if slash:  # what is scheduled rests with the topic
                ask = partial(admin.get_topic_runtime_properties, topic)
                if (await self._call(topic, ask)).scheduled_message_count:
                    return False
        return True

    async def _counts(self, path: str) -> QueueRuntimeProperties | SubscriptionRuntimeProperties:
        """What the namespace counts in a queue or subscription."""
        admin = self._namespace.administration()
        topic, slash, name = path.partition(SUBSCRIPTIONS)
        if slash:
            return await self._call(path, partial(admin.get_subscription_runtime_properties, topic, name))
        return await self._call(path, partial(admin.get_queue_runtime_properties, path))

    async def _call(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(CALL_S):
                return await call()
        except (AzureError, TimeoutError, OSError) as error:
            raise as_error(error, what) from error


def as_error(error: BaseException, what: str) -> OutboxError:
    """What may be concluded from a failure of the administration client."""
    if isinstance(error, ResourceExistsError):
        return Refused(f"{what}: it is there already")
    if isinstance(error, ResourceNotFoundError):
        return Refused(f"{what}: it is not there; connect(..., create=True) makes it")
    if isinstance(error, HttpResponseError) and error.status_code in (400, 401, 403):
        return Refused(f"{what}: refused ({error.status_code}); look at the name, and at the right to manage")
    return OutcomeUnknown(f"{what}: no answer that tells ({type(error).__name__})")

"""Queues, topics and subscriptions: made where they are not there yet, and asked whether anything waits in them.

Needs the right to manage.  What exists is left as it is; a queue which orders by session or does not cannot be used as
the other, and settings with which the broker would end messages by itself are logged, once.  Without that right
nothing can be looked at, which is logged as well, once.

What an existing queue cannot do without is whether there are sessions.  All else works for a while with other settings:
then the broker dead-letters or drops by itself what this library would have handled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    EntityStatus,
    QueueProperties,
    QueueRuntimeProperties,
    SubscriptionProperties,
    SubscriptionRuntimeProperties,
)

from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.deliveries import SUBSCRIPTIONS, EntityCounts
from outbox.errors import OutboxError, OutcomeUnknown, Refused

T = TypeVar("T")

LOCK = timedelta(seconds=60)
LOCK_MIN = timedelta(seconds=30)
"""The least lock: with a shorter one a busy process loses messages to redelivery, and each delivery counts."""
DELIVERY_COUNT_MAX = 100
"""Far above the runtime's own count of failures, which is the one that decides."""
FOREVER = timedelta(days=3_650)
"""From here on a time means never; the service gives 10,675,199 days for it."""
CALL_S = 30.0
LOOK_S = 5.0
"""The seconds for which the look at existing entities may hold up a start."""
ENTITY_COUNT_MAX = 1_000
LOOK_COUNT_MAX = 8
"""The number of entities read concurrently."""
_LIMITS: dict[str, Any] = {
    "lock_duration": LOCK,
    "max_delivery_count": DELIVERY_COUNT_MAX,
    "dead_lettering_on_message_expiration": True,
}

log = logging.getLogger("outbox.servicebus")


class ServiceBusEntities:
    """The entities of a namespace."""

    def __init__(self, namespace: ServiceBusNamespace) -> None:
        self._namespace = namespace
        self._reported: set[str] = set()
        """Entities whose settings were checked and logged; the empty name: none can be read."""

    async def look(self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]]) -> None:
        """Check the settings of existing entities, as far as the rights go, and log the wrong ones.

        Raises:
            Refused: a queue is there and orders otherwise, or a subscription has sessions.
        """
        wanted = [(name, ordering == "per_key") for name, ordering in queues.items()]
        wanted += [(f"{topic}{SUBSCRIPTIONS}{name}", False) for topic, names in topics.items() for name in names]
        wanted = [(path, sessions) for path, sessions in wanted if path not in self._reported]
        try:
            async with asyncio.timeout(LOOK_S):
                for path, sessions in wanted[:1]:  # without the right one request is enough to see that
                    await self._look_at(path, sessions=sessions)
                for first in range(1, len(wanted), LOOK_COUNT_MAX):
                    some = wanted[first : first + LOOK_COUNT_MAX]
                    looks = [self._look_at(path, sessions=sessions) for path, sessions in some]
                    failed = [error for error in await asyncio.gather(*looks, return_exceptions=True) if error]
                    for error in sorted(failed, key=lambda error: isinstance(error, _CannotLook)):
                        raise error  # a refusal first
        except (_CannotLook, TimeoutError) as error:
            if "" not in self._reported:
                self._reported.add("")
                fields = {"namespace": self._namespace.host, "error": str(error) or "no answer in time"}
                log.info("queue settings cannot be read; max delivery count must be 100", extra=fields)

    async def answers(self) -> None:
        """Ask for the namespace, only to see whether it answers: that this is not allowed is an answer.

        Raises:
            OutcomeUnknown: it does not answer.
        """
        with suppress(Refused):
            await self._call("namespace", self._namespace.administration().get_namespace_properties)

    async def _look_at(self, path: str, *, sessions: bool) -> None:
        try:
            found = await self._settings_of(path)
        except (Refused, OutcomeUnknown) as error:
            if isinstance(error.__cause__, ResourceNotFoundError):
                return  # its first use says so
            if isinstance(error.__cause__, AttributeError):
                raise
            raise _CannotLook(str(error)) from error
        self._judge(path, found, sessions=sessions)

    def _judge(self, path: str, found: QueueProperties | SubscriptionProperties, *, sessions: bool) -> None:
        """Refuse an entity that is of no use, and log wrong settings once.

        Raises:
            Refused: it orders otherwise than declared.
        """
        if wanted := wants_sessions(found, sessions=sessions):
            kind = "subscription" if SUBSCRIPTIONS in path else "queue"
            raise Refused(f"{kind} {path} is there and does not do as declared ({wanted}); make another, or delete it")
        if path in self._reported:
            return
        self._reported.add(path)
        for misfit in misfits(found):
            log.warning("queue settings do not fit", extra={"queue": path, "why": misfit})

    async def declare(self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]]) -> None:
        """Make queues (name to ordering) and topics (name to subscriptions) where they are not there yet.

        Raises:
            Refused: one is there and orders otherwise, or they cannot be made.
            OutcomeUnknown: no answer says whether.
        """
        for name, ordering in queues.items():
            await self._queue(name, sessions=ordering == "per_key")
        for topic, subscriptions in topics.items():
            await self._topic(topic, subscriptions)

    async def _topic(self, topic: str, subscriptions: Sequence[str]) -> None:
        admin = self._namespace.administration()
        await self._made(f"topic {topic}", partial(admin.create_topic, topic))
        for name in subscriptions:
            what = f"subscription {topic}/{name}"
            if not await self._made(what, partial(admin.create_subscription, topic, name, **_LIMITS)):
                found = await self._call(what, partial(admin.get_subscription, topic, name))
                self._judge(f"{topic}{SUBSCRIPTIONS}{name}", found, sessions=False)

    async def _queue(self, name: str, *, sessions: bool) -> None:
        make = partial(self._namespace.administration().create_queue, name, requires_session=sessions, **_LIMITS)
        if not await self._made(f"queue {name}", make):
            self._judge(name, await self._queue_of(name), sessions=sessions)

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
            OutcomeUnknown: no answer says whether.
        """
        for path in paths:
            if (await self._counts(path)).active_message_count:
                return False
        return True

    async def is_drained(self, paths: Sequence[str]) -> bool:
        """Whether these queues and subscriptions hold nothing, scheduled messages and dead letters included.

        Raises:
            Refused: they cannot be asked.
            OutcomeUnknown: no answer says whether.
        """
        admin = self._namespace.administration()
        for path in paths:
            topic, slash, _ = path.partition(SUBSCRIPTIONS)
            if (await self._counts(path)).total_message_count:
                return False
            if slash:  # what is scheduled lies in the topic
                ask = partial(admin.get_topic_runtime_properties, topic)
                if (await self._call(topic, ask)).scheduled_message_count:
                    return False
        return True

    async def is_ordered(self, destination: str) -> bool:
        """Whether a queue takes messages with a session only; False for a topic.

        Raises:
            Refused: it is not there, or the right to manage is missing.
            OutcomeUnknown: no answer says whether.
        """
        try:
            return bool((await self._queue_of(destination)).requires_session)
        except Refused as error:
            if isinstance(error.__cause__, AttributeError):
                return False
            raise

    async def is_paused(self, path: str) -> bool:
        """Whether nothing can be received from a queue or subscription: one request.

        Raises:
            Refused: it cannot be asked: it is not there, or the right to manage is missing.
            OutcomeUnknown: no answer says whether.
        """
        return (await self._settings_of(path)).status in _PAUSED

    async def pause(self, path: str, *, paused: bool) -> bool:
        """Set a queue's or subscription's status to ReceiveDisabled, or to Active; whether that was a change.

        Raises:
            Refused: it is not there, the right to manage is missing, or somebody has disabled sending to it.
            OutcomeUnknown: no answer says whether.
        """
        admin, found = self._namespace.administration(), await self._settings_of(path)
        if wants := _next_status(path, found.status, paused=paused):
            found.status = wants
            if isinstance(found, QueueProperties):
                await self._call(path, partial(admin.update_queue, found))
            else:
                await self._call(path, partial(admin.update_subscription, path.partition(SUBSCRIPTIONS)[0], found))
        return bool(wants)

    async def counts(self) -> dict[str, EntityCounts]:
        """The counts of every queue and subscription of the namespace, up to a thousand, and the paused ones.

        A hundred queues are a request, and as many topics; each topic is one more.

        Raises:
            Refused: they cannot be asked: it takes the right to manage.
            OutcomeUnknown: no answer says whether.
        """
        return await self._call(f"what {self._namespace.host} holds", self._all_counts)

    async def _all_counts(self) -> dict[str, EntityCounts]:
        admin, found = self._namespace.administration(), dict[str, EntityCounts]()
        async for queue in admin.list_queues_runtime_properties():
            found[queue.name] = _counted(queue, queue.scheduled_message_count, queue._internal_qr.status)
            if len(found) >= ENTITY_COUNT_MAX:
                return found
        async for topic in admin.list_topics_runtime_properties():
            async for one in admin.list_subscriptions_runtime_properties(topic.name):
                path = f"{topic.name}{SUBSCRIPTIONS}{one.name}"
                found[path] = _counted(one, 0, one._internal_sd.status)  # what is scheduled lies in the topic
                if len(found) >= ENTITY_COUNT_MAX:
                    return found
        return found

    async def names(self, like: str) -> list[str]:
        """The queues and topics, and of the topic in a path like this, in any case, the subscriptions.

        Empty where there are more than a thousand.

        Raises:
            Refused: they cannot be asked: it takes the right to manage.
            OutcomeUnknown: no answer says what there is.
        """
        return await self._call(f"what {self._namespace.host} holds", partial(self._all_names, like))

    async def _all_names(self, like: str) -> list[str]:
        admin, found, (topic, slash, _) = self._namespace.administration(), list[str](), like.partition(SUBSCRIPTIONS)
        async for queue in admin.list_queues():
            found.append(queue.name)
            if len(found) >= ENTITY_COUNT_MAX:
                return []
        async for each in admin.list_topics():
            found.append(each.name)
            if len(found) >= ENTITY_COUNT_MAX:
                return []
            if slash and each.name.casefold() == topic.casefold():
                async for one in admin.list_subscriptions(each.name):
                    found.append(f"{each.name}{SUBSCRIPTIONS}{one.name}")
        return found

    async def _counts(self, path: str) -> QueueRuntimeProperties | SubscriptionRuntimeProperties:
        """The counts of a queue or subscription by its namespace."""
        admin = self._namespace.administration()
        topic, slash, name = path.partition(SUBSCRIPTIONS)
        if slash:
            return await self._call(path, partial(admin.get_subscription_runtime_properties, topic, name))
        return await self._call(path, partial(admin.get_queue_runtime_properties, path))

    async def _settings_of(self, path: str) -> QueueProperties | SubscriptionProperties:
        """Read the settings of a queue or subscription; raise as `_queue_of` does."""
        topic, slash, name = path.partition(SUBSCRIPTIONS)
        if not slash:
            return await self._queue_of(path)
        return await self._call(path, partial(self._namespace.administration().get_subscription, topic, name))

    async def _queue_of(self, name: str) -> QueueProperties:
        """Read the settings of a queue.

        Raises:
            Refused: it is not there, or is a topic: the SDK fails at reading its description as that of a queue.
            OutcomeUnknown: no answer says whether.
        """
        try:
            return await self._call(f"queue {name}", partial(self._namespace.administration().get_queue, name))
        except AttributeError as error:
            raise Refused(f"{name} is a topic, not a queue; name a subscription: {name}{SUBSCRIPTIONS}NAME") from error

    async def _call(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(CALL_S):
                return await call()
        except (AzureError, TimeoutError, OSError) as error:
            raise as_error(error, what) from error


def _counted(
    found: QueueRuntimeProperties | SubscriptionRuntimeProperties, scheduled: int | None, status: object
) -> EntityCounts:
    """The counts of an entity; the SDK hides its `status`, which came with the same answer, from those who count."""
    waiting, dead = found.active_message_count or 0, found.dead_letter_message_count or 0
    return EntityCounts(waiting, scheduled or 0, dead, status in _PAUSED)


_PAUSED = (EntityStatus.RECEIVE_DISABLED, EntityStatus.DISABLED)


def _next_status(path: str, status: object, *, paused: bool) -> EntityStatus | None:
    """The status to set; None where it is so already.

    Raises:
        Refused: it has another status than these two, which somebody has set.
    """
    if status not in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED):
        raise Refused(f"{path}: its status is {status}, which was set by hand; set it to Active there first")
    wanted = EntityStatus.RECEIVE_DISABLED if paused else EntityStatus.ACTIVE
    return None if status == wanted else wanted


class _CannotLook(Exception):
    """An entity cannot be read."""


def as_error(error: BaseException, what: str) -> OutboxError:
    """Translate a failure of the administration client into the error that says what may be concluded."""
    if isinstance(error, ResourceExistsError):
        return Refused(f"{what}: it is there already")
    if isinstance(error, ResourceNotFoundError):
        return Refused(f"{what}: it is not there; connect(..., create=True) makes it")
    if isinstance(error, HttpResponseError) and error.status_code in (400, 401, 403):
        return Refused(f"{what}: refused ({error.status_code}); look at the name, and at the right to manage")
    return OutcomeUnknown(f"{what}: outcome unknown ({type(error).__name__})")


def misfits(found: QueueProperties | SubscriptionProperties) -> Iterator[str]:
    """The faults of an entity's settings, each with the cure."""
    if (count := found.max_delivery_count) is not None and count < DELIVERY_COUNT_MAX:
        yield (
            f"its max delivery count is {count}: crashes, lost locks and what is read ahead use deliveries up, and "
            f"then the broker dead-letters messages that no handler has refused; set {DELIVERY_COUNT_MAX}"
        )
    if _is_below(found.lock_duration, LOCK_MIN):
        yield (
            f"its locks last {_seconds(found.lock_duration)} s: they run out in a process that is busy, and each time "
            f"counts as a delivery; set {_seconds(LOCK)} s"
        )
    if _is_below(found.default_message_time_to_live, FOREVER) and not found.dead_lettering_on_message_expiration:
        yield (
            f"what it has held for {_seconds(found.default_message_time_to_live)} s is dropped without a trace; set "
            "dead-lettering on expiration, or no time to live"
        )
    if _is_below(found.auto_delete_on_idle, FOREVER):
        yield (
            f"it is deleted with all that it holds after {_seconds(found.auto_delete_on_idle)} s without use; "
            "switch auto-delete off"
        )


def wants_sessions(found: QueueProperties | SubscriptionProperties, *, sessions: bool) -> str:
    """The declared use of sessions that an entity does not meet; empty where it does."""
    if bool(found.requires_session) == sessions:
        return ""
    return "requires sessions" if sessions else "does without sessions"


def _is_below(time: timedelta | str | None, limit: timedelta) -> bool:
    return isinstance(time, timedelta) and time < limit


def _seconds(time: timedelta | str | None) -> str:
    return f"{time.total_seconds():g}" if isinstance(time, timedelta) else "?"

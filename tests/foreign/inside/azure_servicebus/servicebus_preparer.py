"""Stand-ins for the decorators that make queues, topics and subscriptions for a test: in the emulator, by HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient
from devtools_testutils import (  # type: ignore[import-not-found]  # on the path of their process alone
    CONNECTION,
    HOST,
    KEY,
    KEY_NAME,
    Given,
    filled,
    hidden,
)

SERVICEBUS_ENDPOINT_SUFFIX = ""
_numbers = itertools.count()
_cached: dict[tuple[Any, ...], SimpleNamespace] = {}


def _admin() -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(CONNECTION)


def _plain(**given: Any) -> Callable[..., Any]:
    """A decorator that gives a test what needs not be made."""
    return lambda *arguments, **options: lambda test: hidden(filled(test, lambda named: given, lambda: None), *given)


ServiceBusResourceGroupPreparer = CachedServiceBusResourceGroupPreparer = _plain()
ServiceBusNamespacePreparer = CachedServiceBusNamespacePreparer = _plain(
    servicebus_namespace=SimpleNamespace(name=HOST, id=HOST),
    servicebus_namespace_connection_string=CONNECTION,
    servicebus_namespace_key_name=KEY_NAME,
    servicebus_namespace_primary_key=KEY,
)
ServiceBusNamespaceAuthorizationRulePreparer = _plain(servicebus_authorization_rule_connection_string=CONNECTION)


def ServiceBusQueueAuthorizationRulePreparer(*arguments: Any, **options: Any) -> Any:  # noqa: N802  # as tests call it
    """Give the connection string of the queue that was made above."""
    name = "servicebus_queue_authorization_rule_connection_string"

    def give(named: Given) -> Given:
        return {name: f"{CONNECTION};EntityPath={named['servicebus_queue'].name}"}

    return lambda test: hidden(filled(test, give, lambda: None), name)


class _Preparer:
    """A decorator that makes an entity before a test and deletes it behind, unless it is to be shared."""

    is_cached = False
    kind = ""
    settings: tuple[str, ...] = ()

    def __init__(self, name_prefix: str = "", **options: Any) -> None:
        self.options = {name: options[name] for name in self.settings if name in options}
        self.name_prefix = name_prefix
        self.own_name = options.get("parameter_name", f"servicebus_{self.kind}")
        self.topic_name = options.get("servicebus_topic_parameter_name", "servicebus_topic")
        self.is_shared = self.is_cached or options.get("use_cache", False)

    def __call__(self, test: Callable[..., Any]) -> Any:
        made: list[SimpleNamespace] = []

        def give(named: Given) -> Given:
            made.append(self.entity(named))
            return {self.own_name: made[-1]}

        def undo() -> None:
            if made and not self.is_shared:
                self.delete(made.pop())

        return hidden(filled(test, give, undo), self.own_name)

    def entity(self, named: Given) -> SimpleNamespace:
        """The entity, made now or before."""
        topic = named.get(self.topic_name)
        key = (self.kind, self.name_prefix, topic and topic.name, *sorted(self.options.items()))
        if self.is_shared and key in _cached:
            return _cached[key]
        made = SimpleNamespace(name=f"{self.name_prefix}{self.kind}{next(_numbers)}", topic=topic)
        self.create(made)
        if self.is_shared:
            _cached[key] = made
        return made

    def create(self, made: SimpleNamespace) -> None:
        raise NotImplementedError

    def delete(self, made: SimpleNamespace) -> None:
        raise NotImplementedError


class ServiceBusQueuePreparer(_Preparer):
    """Make a queue."""

    kind = "queue"
    settings = (
        "requires_duplicate_detection", "dead_lettering_on_message_expiration", "requires_session", "lock_duration",
    )  # fmt: skip

    def create(self, made: SimpleNamespace) -> None:
        _admin().create_queue(made.name, **{"lock_duration": "PT30S", **self.options})

    def delete(self, made: SimpleNamespace) -> None:
        _admin().delete_queue(made.name)


class ServiceBusTopicPreparer(_Preparer):
    """Make a topic."""

    kind = "topic"

    def create(self, made: SimpleNamespace) -> None:
        _admin().create_topic(made.name)

    def delete(self, made: SimpleNamespace) -> None:
        _admin().delete_topic(made.name)


class ServiceBusSubscriptionPreparer(_Preparer):
    """Make a subscription of the topic that was made above."""

    kind = "subscription"
    settings = ("requires_session", "lock_duration")

    def create(self, made: SimpleNamespace) -> None:
        _admin().create_subscription(made.topic.name, made.name, **{"lock_duration": "PT60S", **self.options})

    def delete(self, made: SimpleNamespace) -> None:
        _admin().delete_subscription(made.topic.name, made.name)


class CachedServiceBusQueuePreparer(ServiceBusQueuePreparer):
    """Make a queue that tests share."""

    is_cached = True


class CachedServiceBusTopicPreparer(ServiceBusTopicPreparer):
    """Make a topic that tests share."""

    is_cached = True


class CachedServiceBusSubscriptionPreparer(ServiceBusSubscriptionPreparer):
    """Make a subscription that tests share."""

    is_cached = True

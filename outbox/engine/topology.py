"""Queues, topics, subscriptions and their rules: declared, changed and deleted while others use them.

A queue that a handler in this process receives from cannot be deleted under it.  Clients from outside can lose theirs:
a wait for it raises, and whoever holds a message of it finds the lock lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from outbox.engine.broker import Broker
from outbox.engine.core import Core, check_name, check_settings
from outbox.engine.entities import QueueSettings, TopicSettings, subscription_path
from outbox.engine.log import records
from outbox.engine.sessions import Sessions
from outbox.engine.state.queues import PAUSED_QUEUES
from outbox.engine.state.rules import DEFAULT_RULE, Rule, RuleSettings, check_rules
from outbox.engine.state.tasks import QUEUE_COUNT_MAX
from outbox.errors import NotRegistrable, Refused, UnknownDestination


class Topology:
    """The entities declared in the engine."""

    def __init__(self, core: Core, broker: Broker, sessions: Sessions) -> None:
        self._core = core
        self._state = core.state
        self._broker = broker
        self._sessions = sessions

    def declare(self, *settings: QueueSettings | TopicSettings | RuleSettings) -> None:
        """Make queues, topics, and rules of subscriptions that are there; an unchanged declaration costs nothing.

        What one call names twice is taken as if it were named by two calls, queues before topics.

        Raises:
            NotRegistrable: a queue's ordering would change, or a name or setting cannot be one.
        """
        queues: list[QueueSettings] = []
        topics: list[TopicSettings] = []
        for item in settings:
            if isinstance(item, QueueSettings):
                check_settings(item)
                self._check_spelling(item.name, queues)
                self._declare_queue(item, queues)
        for item in settings:
            if isinstance(item, TopicSettings):
                check_settings(item)
                self._check_spelling(item.name, (*queues, *topics))
                self._declare_topic(item, queues, topics)
        if queues or topics:
            fresh = len({queue.name for queue in queues} - self._state.paths.keys())
            if len(self._state.queues) + 2 * (fresh - len(self._state.free)) > QUEUE_COUNT_MAX:
                raise NotRegistrable(f"{fresh} more queues are above {QUEUE_COUNT_MAX // 2} in all; delete some first")
            self._core.do(records.Declared(queues, topics))
        for item in settings:
            if isinstance(item, RuleSettings):
                self.set_rules(item.name, item.rules)

    def _check_spelling(self, name: str, others: Sequence[QueueSettings | TopicSettings]) -> None:
        """Refuse a name that differs from another in case only: to Service Bus and its clients both are one."""
        if name in self._state.paths or name in self._state.topics:
            return
        lower = name.lower()
        known = (*self._state.paths, *self._state.topics, *(other.name for other in others))
        taken = next((other for other in known if other != name and other.lower() == lower), None)
        if taken is not None:
            raise NotRegistrable(f"{name!r} differs from {taken!r} in case only, and Service Bus takes both for one")

    def _known(self, path: str, queues: Sequence[QueueSettings]) -> QueueSettings | None:
        """A queue as it will be behind these declarations, if it will be there."""
        found = self._state.paths.get(path)
        known = None if found is None else found.settings
        return next((queue for queue in reversed(queues) if queue.name == path), known)

    def _declare_queue(self, item: QueueSettings, queues: list[QueueSettings]) -> None:
        known = self._known(item.name, queues)
        if item.name in self._state.topics:
            raise NotRegistrable(f"{item.name!r} is a topic already; give the queue another name")
        if known is not None and known.ordering != item.ordering:
            raise NotRegistrable(
                f"queue {item.name!r} is {known.ordering} and cannot become {item.ordering}; drain it and use "
                "a new name"
            )
        if known != item:
            queues.append(item)

    def _declare_topic(self, item: TopicSettings, queues: list[QueueSettings], topics: list[TopicSettings]) -> None:
        if self._known(item.name, queues) is not None:
            raise NotRegistrable(f"{item.name!r} is a queue already; give the topic another name")
        known = self._state.topics.get(item.name)
        if known is None or not set(item.subscriptions) <= set(known.subscriptions):
            for name in item.subscriptions:
                check_name(name)
                path = subscription_path(item.name, name)
                if self._known(path, queues) is None:
                    self._check_spelling(path, queues)
                    queues.append(QueueSettings(path))
            topics.append(item)

    def pause(self, path: str, *, paused: bool = True) -> bool:
        """Let a queue or subscription hand out nothing, or (False) go on; whether that was a change.

        What is in hand is settled as ever, and what is sent to it waits.  It is a document, so a declaration changes
        nothing of it.

        Raises:
            UnknownDestination: there is none.
        """
        queue = self._state.paths.get(path)
        if queue is None or not queue.is_primary:
            raise UnknownDestination(f"queue or subscription {path!r} does not exist; check the spelling")
        if queue.is_paused == paused:
            return False
        change = records.Modify(documents=[records.DocWrite(PAUSED_QUEUES, path, b"true")])
        if not paused:
            version = self._state.documents.spaces[PAUSED_QUEUES][path].version
            change = records.Modify(document_deletes=[records.DocRef(PAUSED_QUEUES, path, version)])
        self._core.do(records.Modified(self._core.now_ms(), change))
        self._broker.wake()
        return True

    @property
    def queues(self) -> Mapping[str, QueueSettings]:
        """The queues and subscriptions by path, without dead-letter sub-queues."""
        return {queue.path: queue.settings for queue in self._state.queues if queue.is_primary}

    @property
    def topics(self) -> Mapping[str, TopicSettings]:
        """The topics by name."""
        return MappingProxyType(self._state.topics)

    # Rules

    def rules(self, path: str) -> dict[str, Rule]:
        """The rules of a subscription by name; one that was never given any has a default rule that takes everything.

        Raises:
            UnknownDestination: there is no such subscription.
        """
        self._subscription(path)
        found = self._state.rules.get(path)
        return {DEFAULT_RULE: Rule()} if found is None else dict(found)

    def set_rules(self, path: str, rules: Sequence[Rule]) -> None:
        """Let a subscription take what these rules take, from the next message on; without any it takes nothing.

        Raises:
            UnknownDestination: there is no such subscription.
            NotRegistrable: a rule cannot be one.
        """
        self._subscription(path)
        check_rules(path, rules)
        if list(self.rules(path).values()) != list(rules):
            self._core.do(records.Ruled(path, list(rules)))

    def _subscription(self, path: str) -> None:
        topics = self._state.topics.values()
        if not any(path == subscription_path(topic.name, name) for topic in topics for name in topic.subscriptions):
            raise UnknownDestination(f"subscription {path!r} does not exist; declare it, or check the spelling")

    # Delete

    def delete(self, path: str) -> None:
        """Delete a queue, a subscription, or a topic with its subscriptions, and every message in it.

        Raises:
            UnknownDestination: there is none.
            Refused: a handler in this process receives from it.
        """
        topic = self._state.topics.get(path)
        queue = self._state.paths.get(path)
        if topic is None and (queue is None or not queue.is_primary):
            raise UnknownDestination(f"queue, subscription or topic {path!r} does not exist; check the spelling")
        gone = [path] if topic is None else [subscription_path(path, name) for name in topic.subscriptions]
        for name in gone:
            if name in self._broker.served:
                raise Refused(f"a handler of this host receives from {name!r}; take it out of the app and start again")
        numbers = {self._broker.queue(name).number for name in gone}
        paths = {self._state.queues[at].path for number in numbers for at in (number, number + 1)}
        self._core.do(records.Deleted(path))
        self._sessions.drop(numbers)
        for name in paths:
            self._broker.dismiss(name, UnknownDestination(f"{name!r} was deleted while you waited; declare it again"))

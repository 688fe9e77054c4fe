"""The rules of a subscription, by which it takes messages of a topic.

A subscription takes a message if one of its rules does, once however many do.  A correlation filter takes a message
when every condition that it names is equal: system properties as text, the sender's own properties with their type.
Without a word about rules a subscription takes everything; with an empty set of them it takes nothing.

An AMQP client's message has system properties that the engine keeps only as bytes; whoever sends it hands them in
(`facts`), and what was decided is logged, so that a replay decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from outbox.errors import NotRegistrable
from outbox.message import Message, Scalar, properties_of

if TYPE_CHECKING:
    from outbox.engine.state.queues import Queue

DEFAULT_RULE = "$Default"
RULE_COUNT_MAX = 100
RULE_NAME_LENGTH_MAX = 50
CONDITION_COUNT_MAX = 64
TEXT_LENGTH_MAX = 1_024

Kind = Literal["true", "false", "correlation"]
Facts = Mapping[str, str]
"""System properties of one message by the names in `SYSTEM`; one that is not set is absent."""

SYSTEM = (
    "correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type",
)  # fmt: skip


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """One rule of a subscription; only a `correlation` rule has conditions."""

    name: str = DEFAULT_RULE
    kind: Kind = "true"
    system: dict[str, str] = {}
    properties: dict[str, Scalar] = {}

    def takes(self, facts: Facts, properties: Mapping[str, Scalar]) -> bool:
        """Whether a message with these system and own properties passes."""
        if self.kind != "correlation":
            return self.kind == "true"
        return all(facts.get(name) == wanted for name, wanted in self.system.items()) and all(
            name in properties and _equal(properties[name], wanted) for name, wanted in self.properties.items()
        )


class RuleSettings(msgspec.Struct, frozen=True, array_like=True):
    """The rules that a subscription is to have, to be declared behind its topic."""

    name: str
    """The subscription's path."""
    rules: tuple[Rule, ...]


Rules = dict[str, dict[str, Rule]]
"""Rules by name, by the path of their subscription."""


def _equal(value: Scalar, wanted: Scalar) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def check_rules(path: str, rules: Collection[Rule]) -> None:
    """Refuse rules that no subscription may have.

    Raises:
        NotRegistrable: the text names the rule and the cure.
    """
    if len(rules) > RULE_COUNT_MAX:
        raise NotRegistrable(f"{path} has {len(rules)} rules, above {RULE_COUNT_MAX}; use fewer, broader ones")
    if len({rule.name for rule in rules}) < len(rules):
        raise NotRegistrable(f"{path} has two rules of one name; give each its own")
    for rule in rules:
        _check_rule(f"rule {rule.name!r} of {path}", rule)


def _check_rule(where: str, rule: Rule) -> None:
    if not rule.name or len(rule.name) > RULE_NAME_LENGTH_MAX or "/" in rule.name:
        raise NotRegistrable(f"{where}: use a name of 1 to {RULE_NAME_LENGTH_MAX} characters without '/'")
    if rule.kind not in get_args(Kind):
        raise NotRegistrable(f"{where}: {rule.kind!r} is no kind of filter; use correlation, true or false")
    count = len(rule.system) + len(rule.properties)
    if (rule.kind == "correlation") != bool(count) or count > CONDITION_COUNT_MAX:
        raise NotRegistrable(f"{where}: a correlation filter has 1 to {CONDITION_COUNT_MAX} conditions, no other any")
    for name in rule.system:
        if name not in SYSTEM:
            raise NotRegistrable(f"{where}: {name!r} is no system property; use {', '.join(SYSTEM)}")
    for text in (*rule.system.values(), *rule.properties, *rule.properties.values()):
        if isinstance(text, str) and len(text) > TEXT_LENGTH_MAX:
            raise NotRegistrable(f"{where}: a text of more than {TEXT_LENGTH_MAX} characters; shorten it")


def facts_of(message: Message) -> Facts:
    """The system properties of a message of the runtime's own, as an AMQP client would see them."""
    found = {
        "correlation_id": message.correlation_id,
        "message_id": message.broker_id,
        "reply_to": message.reply_to,
        "session_id": message.session_id,
    }
    return {name: text for name, text in found.items() if text}


def admits(rules: Rules, path: str, message: Message, facts: Facts | None = None) -> bool:
    """Whether a subscription takes a message."""
    own = rules.get(path)
    if own is None:
        return True
    facts = facts_of(message) if facts is None else facts
    properties = properties_of(message)
    return any(rule.takes(facts, properties) for rule in own.values())


def routed(
    rules: Rules, routes: Iterable[Queue], messages: Sequence[Message], facts: Sequence[Facts] = ()
) -> list[tuple[int, list[int]]]:
    """Route messages: the number of each queue that takes any, with the indexes of those messages."""
    parts = []
    for queue in routes:
        taken = [
            index
            for index, message in enumerate(messages)
            if admits(rules, queue.path, message, facts[index] if facts else None)
        ]
        if taken:
            parts.append((queue.number, taken))
    return parts

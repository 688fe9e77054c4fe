"""Rules of subscriptions as clients and files name them, and the system properties of messages from the wire.

Correlation, true and false filters are the engine's own rules.  A filter in SQL is refused, but for the two expressions
that every tool writes for "everything" and "nothing"; so is an action, which would change the message.
"""

from __future__ import annotations

from collections.abc import Mapping

from outbox.emulator.amqp.messages import text_of
from outbox.emulator.amqp.sections import PROPERTIES, read_fields, sections
from outbox.engine.state.rules import SYSTEM, Facts, Rule, facts_of
from outbox.errors import NotRegistrable
from outbox.message import Message, Scalar

SYSTEM_NAMES: Mapping[str, str] = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
"""The service's names of what a correlation filter compares, in the order in which it writes them."""
assert tuple(SYSTEM_NAMES.values()) == SYSTEM

_FIELDS = {
    "message_id": 0,
    "to": 2,
    "label": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": 6,
    "session_id": 10,
    "reply_to_session_id": 12,
}
"""Where they stand in a message's properties section."""


def wire_facts(message: Message) -> Facts:
    """The system properties of a message as its client sent them; without a client, those of its fields."""
    if not message.wire:
        return facts_of(message)
    for code, start, end in sections(message.wire):
        if code == PROPERTIES:
            fields = read_fields(message.wire, start, end)
            found = {name: text_of(fields[at]) for name, at in _FIELDS.items() if at < len(fields)}
            return {name: text for name, text in found.items() if text}
    return {}


def correlation_rule(name: str, system: Mapping[str, str], properties: Mapping[str, Scalar]) -> Rule:
    """A rule of a correlation filter with the service's names of system properties."""
    return Rule(name, "correlation", {SYSTEM_NAMES[key]: value for key, value in system.items()}, dict(properties))


def sql_rule(where: str, name: str, expression: object) -> Rule:
    """The rule of a filter in SQL, if it is one of the two that need none.

    Raises:
        NotRegistrable: it is another.
    """
    text = expression.replace(" ", "").upper() if isinstance(expression, str) else ""
    if text in ("1=1", "TRUE"):
        return Rule(name, "true")
    if text in ("1=0", "FALSE"):
        return Rule(name, "false")
    raise NotRegistrable(
        f"{where} filters by SQL, which is not supported; use a CorrelationFilter (the rules of a subscription are "
        "alternatives, the conditions of one rule must all hold), or let the handler decide"
    )


def refuse_action(where: str) -> NotRegistrable:
    """The refusal of a rule that would change messages."""
    return NotRegistrable(f"{where} has an action, which is not supported; let a handler change the message")

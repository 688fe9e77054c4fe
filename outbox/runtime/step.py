"""One message: who handles it, under which key and identity, and what a failure of it means.

Shared by the commit protocols; no I/O, no clock.  A message becomes a `Unit`: its delivery and one `Work` for each
handler that it goes to, or the reason why nobody can handle it.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from outbox.app import Handler
from outbox.codec import DECODE_ERRORS
from outbox.errors import FormatTooNew, PoisonMessage
from outbox.lineage import Key, fingerprint, inbox_key, state_id
from outbox.message import Message
from outbox.ports import Delivery
from outbox.retries import Reject, Retries, Retry
from outbox.runtime.plan import REASON_LENGTH_MAX, Plan, Route, Source

GIVE_BACK_DELAY_S = 5.0
"""How long a message rests that this code cannot handle yet."""


class Work:
    """One handler's part in a message."""

    __slots__ = ("_fingerprint", "_inbox", "delivery", "handler", "key", "remembered", "state_id", "value")

    def __init__(
        self, delivery: Delivery, handler: Handler, value: Any, key: Key | None, *, shared: bool = False
    ) -> None:
        self.delivery = delivery
        self.remembered = shared or delivery.from_outside or delivery.message.attempt > 0
        """Whether a marker remembers it.  A message that a commit of this log made, read by one handler, needs none:
        its task is consumed by the very record that applies it."""
        self.handler = handler
        self.value = value
        self.key = key
        self.state_id = None if handler.state is None or key is None else state_id(handler.state.name, key)
        self._inbox: bytes | None = None
        self._fingerprint: bytes | None = None

    @property
    def inbox(self) -> bytes:
        """The inbox key: (app, handler, state type, key, identity)."""
        if self._inbox is None:
            self._inbox = inbox_key(self.handler.prefix, self.key, self.delivery.message.identity)
        return self._inbox

    @property
    def fingerprint(self) -> bytes:
        """The digest of what was sent under that identity."""
        if self._fingerprint is None:
            message = self.delivery.message
            self._fingerprint = fingerprint(message.body, message.type)
        return self._fingerprint

    @property
    def delivery_count(self) -> int:
        """Which delivery this is, from 1."""
        return 1 + self.delivery.failures + self.delivery.delivery_count


class Unit:
    """A delivery and what is to be done with it: its works, or why it is refused."""

    __slots__ = ("delivery", "in_order", "lane", "refusal", "refused_work", "stops_key", "works")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.works: tuple[Work, ...] = ()
        self.refusal: PoisonMessage | None = None
        self.refused_work: Work | None = None
        self.lane: str | None = None
        """Messages of one lane are handled one after the other."""
        self.in_order = False
        """Whether nothing of its lane may overtake it."""
        self.stops_key = False
        """Whether its dead letter stops its lane."""


def admit(plan: Plan, delivery: Delivery, now_ms: int) -> Unit:
    """Decide who handles a message, or why nobody can."""
    unit = Unit(delivery)
    source = plan.sources[delivery.queue]
    if source.ordered:
        unit.in_order, unit.lane = True, f"{source.path}\0{delivery.message.session_id}"
    try:
        if not delivery.message.identity:
            delivery = unit.delivery = _identified(source, delivery)
        created_ms = delivery.message.created_ms or delivery.enqueued_ms
        if created_ms > now_ms + plan.clock_skew_ms and created_ms > delivery.enqueued_ms + plan.clock_skew_ms:
            raise PoisonMessage(
                "from-the-future", f"created {created_ms} ms, now {now_ms} ms; correct the sender's clock"
            )
        route = _route(source, delivery.message)
        unit.stops_key = source.ordered and any(h.on_dead_letter == "stop_key" for h in route.handlers)
        unit.works = _works(unit, route, delivery)
        if not source.ordered and len(unit.works) == 1:
            unit.lane = unit.works[0].state_id
    except PoisonMessage as poison:
        unit.refusal = poison
    return unit


def _identified(source: Source, delivery: Delivery) -> Delivery:
    if not source.takes_sequence_number:
        raise PoisonMessage(
            "no-identity",
            "the message has neither an outbox-id property nor a message id; set one, or declare the queue with "
            'identity="sequence-number"',
        )
    message = msgspec.structs.replace(delivery.message, outbox_id=f"sequence-{delivery.sequence}")
    return msgspec.structs.replace(delivery, message=message)


def _route(source: Source, message: Message) -> Route:
    route = source.routes.get(message.type) if message.type else source.only
    if route is None:
        known = ", ".join(sorted(source.routes))
        raise PoisonMessage("unknown-type", f"type {message.type!r} has no handler on {source.path}; known are {known}")
    return route


def _works(unit: Unit, route: Route, delivery: Delivery) -> tuple[Work, ...]:
    try:
        value = route.decode(delivery.message.body)
    except DECODE_ERRORS as error:
        unit.refused_work = Work(delivery, route.handlers[0], None, None)
        raise PoisonMessage("undecodable", f"not a {route.wire_type}: {error}"[:REASON_LENGTH_MAX]) from None
    if len(route.handlers) == 1:
        handler = route.handlers[0]
        return (Work(delivery, handler, value, None if handler.key is None else _key(unit, handler, value)),)
    values = [value, *(route.decode(delivery.message.body) for _ in route.handlers[1:])]
    return tuple(
        Work(delivery, handler, own, None if handler.key is None else _key(unit, handler, own), shared=True)
        for handler, own in zip(route.handlers, values, strict=True)
    )


def _key(unit: Unit, handler: Handler, value: Any) -> Key:
    assert handler.key is not None
    try:
        key = handler.key(value)
    except Exception as error:
        key, problem = None, f"the key function of {handler.name} raised {error!r}"
    else:
        problem = f"the message has no key for {handler.name}"
    if isinstance(key, str) and key:
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    if isinstance(key, UUID):
        return UUID(int=key.int)
    unit.refused_work = Work(unit.delivery, handler, None, None)
    if key is not None and key != "":
        problem = f"the key for {handler.name} is a {type(key).__name__}; a key is a str, int or UUID"
    raise PoisonMessage("missing-key", problem)


def failure_text(error: BaseException) -> str:
    """The last line of a traceback and where it was raised, cut to a bounded length."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].name}, line {frames[-1].lineno})" if frames else ""
    return (last + where)[:REASON_LENGTH_MAX]


@dataclass(frozen=True, slots=True)
class Later:
    """A delivery that is given back: for how long, and how many failures it has had."""

    delay_s: float
    failures: int


Outcome = PoisonMessage | Later | None
"""What became of one handling: refused, to be tried again, or (None) applied."""


def judge(error: Exception, delivery: Delivery, retries: Retries) -> PoisonMessage | Later:
    """What an error that a handling raised means: a refusal, another try, or the last failure."""
    match error:
        case FormatTooNew():
            return Later(GIVE_BACK_DELAY_S, delivery.failures)
        case Retry():
            return Later(error.after_s, delivery.failures)
        case Reject():
            return PoisonMessage((str(error) or "rejected")[:REASON_LENGTH_MAX], "rejected by the handler")
        case PoisonMessage():
            return error
    failures = delivery.failures + 1
    if failures < retries.limit:
        return Later(retries.delay_s(failures), failures)
    return PoisonMessage("failed", failure_text(error))


def refusal_of_all(unit: Unit, outcomes: Sequence[Outcome]) -> PoisonMessage | None:
    """One refusal for a message that several handlers read, naming those that refused it."""
    refused = [(w.handler.name, o) for w, o in zip(unit.works, outcomes, strict=True) if isinstance(o, PoisonMessage)]
    if not refused:
        return None
    if len(unit.works) == 1:
        return refused[0][1]
    reasons = {poison.reason for _, poison in refused}
    text = "; ".join(f"{name}: {poison.reason}: {poison.description}" for name, poison in refused)
    return PoisonMessage(reasons.pop() if len(reasons) == 1 else "rejected", text[:REASON_LENGTH_MAX])

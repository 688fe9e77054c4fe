"""One message: who handles it, under which key and identity, and what a failure of it means.

Shared by the commit protocols; no I/O, no clock.  A message becomes a `Work` for each handler that it goes to, or one
that holds the reason why nobody can handle it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from outbox.app import Handler
from outbox.deliveries import sequence_identity, told_apart
from outbox.errors import FormatTooNew, PoisonMessage
from outbox.lineage import TEXT_TAGS, Key, as_key, fingerprint, inbox_key, state_id
from outbox.message import Message, excess, is_slight
from outbox.ports import Delivery, Version
from outbox.retries import DELAY_S_MAX, Reject, Retries, Retry
from outbox.runtime.plan import REASON_LENGTH_MAX, Plan, Route, Source
from outbox.runtime.telling import FAILURES, described, failure_text, told, written
from outbox.runtime.verdict import REJECTED, Stored, Verdict, judged
from outbox.stored import Record

GIVE_BACK_DELAY_S = 5.0
"""How long a message rests that this code cannot handle yet."""


@dataclass(frozen=True, slots=True)
class Later:
    """A delivery that is given back: for how long, how many failures it has had, and why, where no handler ran."""

    delay_s: float
    failures: int
    text: str = ""


class Work(msgspec.Struct, gc=False):
    """One handler's part in a message, or the whole of a message that nobody can handle.

    Works of one `lane` are handled one after the other; `in_order` says that nothing of the lane may overtake it,
    `stops_key` that its dead letter stops the lane.  A message that several handlers read has its other parts in
    `others`.  A message that a commit of this very log made, read by one handler, and that was neither given back nor
    handed to an outside receiver, is not `remembered` by a marker: its task is consumed by the record that applies it.
    """

    delivery: Delivery
    handler: Handler | None = None
    value: Any = None
    key: Key | None = None
    state_id: str | None = None
    lane: str | None = None
    remembered: bool = False
    inbox: bytes = b""
    """The inbox key: (app, handler, state type, key, identity)."""
    fingerprint: bytes = b""
    """The digest of what was sent under that identity."""
    in_order: bool = False
    stops_key: bool = False
    refusal: PoisonMessage | Later | None = None
    """Why nobody can handle it, for good or for now."""
    judged_on: Version | None = None
    """The version of the state that was refused over; None: it is refused over any."""
    others: tuple[Work, ...] = ()
    whole: Any = None
    """What its parts have in common, while a message that several handlers read is under way."""
    is_given_back: bool = False
    was_run: bool = False
    """Whether its handler has had `value` already, and may have changed it."""
    is_stopper: bool = False
    """Whether its session stands still behind it, and goes on when it is applied."""
    found: Record | None = None
    """What is on record for it and may be replaced: it was refused under an earlier attempt, or waits."""
    replaces: Version = ""
    """The version of that record; empty: its record is to be created."""
    caller: str = ""
    """Who sent it, where it is an HTTP request and somebody asked."""
    record: Record | None = None
    """What is on record for it, as soon as it is known to be."""
    on_record: Callable[[], None] | None = None
    """Told then: whoever waits for a reply need not wait until outputs have left."""
    failure: Any = None
    """What the last attempt raised, as a `failure_log.Failure`; None where it raised nothing to log."""

    def refuse_over(self, version: Version, refusal: PoisonMessage) -> None:
        """Learn why it cannot be handled over a state of this version; the next attempt records it."""
        self.refusal, self.judged_on = refusal, version

    def meet(self, version: Version) -> None:
        """Learn which state it has come to: what it was refused over another says nothing of this one."""
        if self.judged_on is not None and self.judged_on != version:
            self.refusal = self.judged_on = None

    def know(self, record: Record) -> None:
        """Learn what is on record for it, and say so."""
        self.record = record
        if self.on_record is not None:
            self.on_record()

    @property
    def created_ms(self) -> int:
        """When it was created; of a message that does not say, when it arrived."""
        return self.delivery.message.created_ms or self.delivery.enqueued_ms

    def verdict(self, record: Stored | None, *, is_past_retention: bool = False) -> Verdict:
        """The verdict on it with this on record; who does not say how old it is leaves the age fence to the attempt."""
        attempt = self.delivery.message.attempt
        return judged(record, fingerprint=self.fingerprint, attempt=attempt, is_past_retention=is_past_retention)

    @property
    def stays_in_place(self) -> bool:
        """Whether it cannot be put off as a copy: nothing may overtake it, or a copy would reach others too."""
        return self.in_order or "/Subscriptions/" in self.delivery.queue

    @property
    def delivery_count(self) -> int:
        """Which delivery this is, from 1."""
        return 1 + self.delivery.failures + self.delivery.delivery_count


def admit(plan: Plan, deliveries: Sequence[Delivery], now_ms: int) -> list[Work]:
    """Decide for each message who handles it under which key, or why nobody can.

    The plain case stands here, written out, because it is most of what a message costs before its handler runs: an
    identity, one handler with a text as key, a body that decodes.  Whatever is not plain is admitted with care instead,
    from its beginning; where both can tell they come to the same `Work`.
    """
    works: list[Work] = []
    sources, latest_ms = plan.sources, now_ms + plan.clock_skew_ms
    queue: str | None = None
    kind, is_plain = "", False
    for delivery in deliveries:
        message = delivery.message
        if delivery.queue != queue or message.type != kind:  # mostly a batch has one of each
            queue, kind = delivery.queue, message.type
            source = sources[queue]
            route = source.routes.get(kind) if kind else source.only
            is_plain = route is not None and route.key is not None
            if route is not None and route.key is not None:
                decode, key_of, places, handler = route.decode, route.key, route.places, route.handlers[0]
                version = route.version
        identity = message.outbox_id or message.message_id
        inbox = None
        schema = 1 if message.properties is None else message.schema
        if (
            is_plain
            and identity
            and message.created_ms <= latest_ms
            and schema == version
            and (not delivery.from_outside or is_slight(message) or not excess(message))
        ):
            try:
                value = decode(message.body)
                key = key_of(value)
                if type(key) is str:
                    place = places.get(key) or places.make(key)
                    name = identity.encode()
                    inbox = sha256(place.prefix + TEXT_TAGS[len(name)] + name).digest()
            except FAILURES:  # the body, the key function, or a key or an identity that is not plain
                inbox = None
        if inbox is None:
            works.append(_admit_with_care(plan, source, delivery, now_ms))
            continue
        remembered = delivery.from_outside or message.attempt > 0
        digest = (delivery.fingerprint or fingerprint(message.body, message.type)) if remembered else b""
        id = place.state_id
        work = Work(delivery, handler, value, key, id, id, remembered, inbox, digest)
        if source.ordered:
            _put_in_order(work, source)
        works.append(work)
    return works


def _put_in_order(work: Work, source: Source) -> None:
    """Say that nothing of its session may overtake a message."""
    work.in_order, work.lane = True, _session_lane(source, work.delivery.message)
    work.stops_key = work.handler is not None and work.handler.on_dead_letter == "stop_key"


def _part(source: Source, route: Route, handler: Handler, delivery: Delivery, identity: str, *, shared: bool) -> Work:
    """One handler's part in a message: its value decoded, its key taken, its identity computed."""
    message = delivery.message
    key: Key | None = None
    id: str | None = None
    value: Any = None
    refusal: PoisonMessage | None = None
    try:
        value = route.read(message.body, message.schema)
    except PoisonMessage as poison:
        refusal = _fit(poison)
    except FAILURES as error:  # a validator may raise anything
        text = told(f"not a {route.wire_type}: {written(error)}")
        refusal = PoisonMessage("undecodable", described(text, error))
    if handler.key is not None and refusal is None:
        try:
            key = handler.key(value)
            if type(key) is not str or not key:
                key = _checked_key(handler, key)
            if handler.state is not None:
                id = state_id(handler.state.name, key)
            inbox = inbox_key(handler.prefix, key, identity)
        except PoisonMessage as poison:
            key, refusal = None, _fit(poison)
        except FAILURES as error:  # the key function's own, or a key that cannot be written down
            text = f"the key for {handler.name} cannot be taken: {written(error, repr)}"
            key, id, refusal = None, None, PoisonMessage("missing-key", described(told(text), error))
    if key is None:
        inbox = inbox_key(handler.prefix, None, identity)
    remembered = shared or delivery.from_outside or message.attempt > 0 or refusal is not None
    digest = (delivery.fingerprint or fingerprint(message.body, message.type)) if remembered else b""
    work = Work(delivery, handler, value, key, id, id, remembered, inbox, digest)
    if refusal is not None:
        work.refusal = refusal
    if source.ordered:
        _put_in_order(work, source)
    return work


def _session_lane(source: Source, message: Message) -> str:
    return f"{source.path}\0{message.session_id}"


def _admit_with_care(plan: Plan, source: Source, delivery: Delivery, now_ms: int) -> Work:
    """Admit a message not of the plain kind: without an identity, ahead of time, unknown, or read by several."""
    try:
        if not delivery.message.identity:
            delivery = _identified(source, delivery)
        message = delivery.message
        if not message.identity.isascii():
            _check_text(message.identity)
        if too_much := excess(message):
            raise PoisonMessage("oversize", too_much)
        _check_not_ahead(plan, delivery, now_ms)
        route = source.routes.get(message.type) if message.type else source.only
        if route is None:
            known = ", ".join(sorted(source.routes))
            raise PoisonMessage("unknown-type", f"{message.type!r} has no handler on {source.path}; known are {known}")
        if message.schema > route.version:  # a newer worker will come for it
            text = f"schema {message.schema} of {route.wire_type} is newer than {route.version}, the newest known here"
            return unhandled(plan, delivery, Later(GIVE_BACK_DELAY_S, delivery.failures, text))
    except PoisonMessage as poison:
        return unhandled(plan, delivery, poison)
    shared = len(route.handlers) > 1
    first, *others = [_part(source, route, h, delivery, message.identity, shared=shared) for h in route.handlers]
    first.others = tuple(others)
    stops_key = first.stops_key or any(other.stops_key for other in others)
    for part in (first, *others):
        part.stops_key = stops_key  # whichever of them refuses it
    if shared and not source.ordered:
        first.lane = None
    return first


def value_again(plan: Plan, work: Work) -> Any:
    """The message of a work as it was sent: an earlier attempt may have changed its own."""
    message = work.delivery.message
    source = plan.sources.get(work.delivery.queue)
    if source is None:  # a request
        assert work.handler is not None, "a request has a handler"
        return plan.app.codec(work.handler.binding.messages[0]).decode(message.body)
    route = source.routes.get(message.type) or source.only
    assert route is not None, "it was decoded before"
    return route.read(message.body, message.schema)


def unhandled(plan: Plan, delivery: Delivery, refusal: PoisonMessage | Later) -> Work:
    """A message that goes to no handler, for good or for now; in an ordered queue it keeps its place.

    There its dead letter stops its key if that of a handler would that it is for, or might be for.
    """
    if isinstance(refusal, PoisonMessage):  # without the traceback, whose frames hold the work: that circle would stay
        refusal = PoisonMessage(refusal.reason, refusal.description)
    source = plan.sources[delivery.queue]
    if not source.ordered:
        return Work(delivery, refusal=refusal)
    route = source.routes.get(delivery.message.type)
    routes = source.routes.values() if route is None else [route]
    stops_key = any(handler.on_dead_letter == "stop_key" for route in routes for handler in route.handlers)
    lane = _session_lane(source, delivery.message)
    return Work(delivery, lane=lane, in_order=True, stops_key=stops_key, refusal=refusal)


def _checked_key(handler: Handler, key: Any) -> Key:
    """A key that is not plainly a text: an int, a UUID, an empty one."""
    try:
        return as_key(key)
    except ValueError as error:
        raise PoisonMessage("missing-key", f"handler {handler.name}: {error}") from error


def _identified(source: Source, delivery: Delivery) -> Delivery:
    if not source.takes_sequence_number:
        raise PoisonMessage(
            "no-identity",
            "the message has neither an outbox-id property nor a message id; set one, or declare the queue with "
            'identity="sequence-number"',
        )
    message = msgspec.structs.replace(delivery.message, outbox_id=sequence_identity(delivery.sequence))
    return msgspec.structs.replace(delivery, message=message)


def _check_text(identity: str) -> None:
    """Refuse an identity that no wire or log can carry: half of a surrogate pair."""
    try:
        identity.encode()
    except UnicodeEncodeError as error:
        raise PoisonMessage("no-identity", told(f"the identity is not valid text: {error}")) from error


def _check_not_ahead(plan: Plan, delivery: Delivery, now_ms: int) -> None:
    """Refuse a creation time that lies ahead; that of a scheduled message is its due time, which has come."""
    ahead_ms = delivery.message.created_ms - max(now_ms, delivery.enqueued_ms)
    if ahead_ms > plan.clock_skew_ms:
        raise PoisonMessage("from-the-future", f"its creation time is {ahead_ms} ms ahead; correct the sender's clock")


Outcome = PoisonMessage | Later | None
"""What became of one handling: refused, to be tried again, or (None) applied."""


def judge(error: BaseException, delivery: Delivery, retries: Retries) -> PoisonMessage | Later:
    """What an error that a handling raised means: a refusal, another try, or the last failure."""
    try:
        meant = _meant(error, delivery)
    except BaseException:  # its class is the application's, and need not be as it was made
        meant = None
    if meant is not None:
        return meant
    failures = delivery.failures + 1
    if failures < retries.limit:
        return Later(retries.delay_s(failures), failures)
    return PoisonMessage("failed", described(failure_text(error), error))


def _meant(error: BaseException, delivery: Delivery) -> PoisonMessage | Later | None:
    """What an error says itself about its message; None if it is only a failure."""
    match error:
        case FormatTooNew():
            return Later(GIVE_BACK_DELAY_S, delivery.failures)
        case Retry():
            after_s = float(error.after_s)
            return Later(after_s, delivery.failures) if 0 <= after_s <= DELAY_S_MAX else None
        case Reject():
            return PoisonMessage(told(written(error)) or "rejected", REJECTED)
        case PoisonMessage():
            refusal = _fit(error)
            return PoisonMessage(refusal.reason, described(refusal.description, error))
    return None


def _fit(poison: PoisonMessage) -> PoisonMessage:
    """A refusal that an application may have made, with texts that can be stored."""
    return PoisonMessage(told(written(poison.reason)), told(written(poison.description)))


def refusal_of_all(works: Sequence[Work], outcomes: Sequence[Outcome]) -> PoisonMessage | None:
    """One refusal for a message that several handlers read, naming those that refused it."""
    refused = [(work, o) for work, o in zip(works, outcomes, strict=True) if isinstance(o, PoisonMessage)]
    if not refused or len(works) == 1:
        return refused[0][1] if refused else None
    reasons = {poison.reason for _, poison in refused}
    apart = [(work.handler.name if work.handler else "?", p.reason, *told_apart(p.description)) for work, p in refused]
    text = "; ".join(f"{name}: {reason}: {text}" for name, reason, text, _ in apart)[:REASON_LENGTH_MAX]
    stacks = [stack for _, _, _, stack in apart if stack]
    return PoisonMessage(reasons.pop() if len(reasons) == 1 else "rejected", "\n".join([text, *stacks[:1]]))

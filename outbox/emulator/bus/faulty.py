"""Faults on the bus: their effect on an attach, a send, a delivery, a settlement or a management request.

Decides nothing about when: the registry of `outbox.emulator.faults` does, and is asked only where there are rules.  The
operations are `attach`, `send`, `receive` (a delivery), `settle` and `manage/NAME` (`manage/renew-lock`); `where` is
the entity's path, the key is the identity of a message (those of a batch together), the client is its container id,
which the SDK makes of `client_identifier`.

*Theory of operation.*  What a fault leaves out is only ever an answer, or everything; what takes effect does so by the
ordinary code.  A fault that delays leaves a task behind that lives as long as its connection, so that a client that
goes away takes its delayed requests with it, as one whose packets were on their way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from outbox.emulator.amqp.errors import DETACH_FORCED, NOT_ALLOWED, SERVER_BUSY, LinkFault, OperationFault
from outbox.emulator.amqp.events import Settled
from outbox.emulator.amqp.link import Delivery, Link
from outbox.emulator.amqp.messages import decode_transfer
from outbox.emulator.amqp.performatives import ACCEPTED, MODIFIED
from outbox.emulator.bus.links import Receiver, Sender
from outbox.emulator.bus.management import Management
from outbox.emulator.bus.requests import Replies, Request
from outbox.emulator.bus.transport import Transport
from outbox.emulator.faults import FaultRule
from outbox.engine.entities import Settlement
from outbox.engine.log.records import Modify, TaskInsert
from outbox.engine.state.tasks import Claim
from outbox.errors import LockLost, UnknownDestination

ATTACH = frozenset(("refused", "throttled", "reset", "pause"))
SEND = frozenset(("lost-reply", "refused", "throttled", "delay", "reset", "detach", "pause"))
RECEIVE = frozenset(("lock-expiry", "duplicate", "reorder", "delay", "reset", "detach", "pause"))
SETTLE = frozenset(("lost-disposition", "wrong-disposition", "lock-expiry", "delay", "reset", "detach", "pause"))
MANAGE = frozenset(("lost-reply", "refused", "throttled", "delay", "reset", "detach", "pause"))
KINDS = ATTACH | SEND | RECEIVE | SETTLE | MANAGE

REORDER_WITHIN_S = 1.0
"""How long a message waits for a later one to overtake it, unless the rule says."""
ASIDE_COUNT_MAX = 1_000


def describe(rule: FaultRule) -> str:
    """The text of a fault, for the client."""
    wait = f"; try again in {rule.retry_after_s:g} s" if rule.retry_after_s else ""
    return f"an installed fault rule ({rule.kind}) refuses this{wait}"


def ask(transport: Transport, operation: str, kinds: frozenset[str], where: str, key: str = "") -> FaultRule | None:
    """The fault due for an operation of a client; a pause begins here and leaves the operation alone."""
    rule = transport.faults.ask(operation, kinds=kinds, where=where, key=key, client=transport.client)
    if rule is None or rule.kind != "pause":
        return rule
    transport.pause(rule.delay_s)
    return None


def on_attach(transport: Transport, link: Link, path: str) -> bool:
    """Let an attach go wrong; whether nothing more is to be done about it.

    Raises: LinkFault.
    """
    rule = ask(transport, "attach", ATTACH, path)
    if rule is None:
        return False
    if rule.kind == "reset":
        transport.abort()
        return True
    raise LinkFault(_condition(rule), describe(rule))


def _condition(rule: FaultRule) -> str:
    return SERVER_BUSY if rule.kind == "throttled" else NOT_ALLOWED


def on_send(transport: Transport, sender: Sender, event: Delivery) -> None:
    """Do what a client's send asks for, or what a rule makes of it."""
    rule = ask(transport, "send", SEND, sender.path, _identities(event))
    session = event.link.session
    match rule:
        case FaultRule(kind="lost-reply"):
            sender.on_delivery(event._replace(settled=True))
        case FaultRule(kind="refused" | "throttled"):
            session.reject(event.delivery_id, _condition(rule), describe(rule))
        case _:
            _carry_out(transport, event.link, rule, lambda: sender.on_delivery(event))


def _carry_out(transport: Transport, link: Link, rule: FaultRule | None, work: Callable[[], object]) -> None:
    """Do the `work` asked for on a link: at once, late, or never, because a fault ends link or connection."""
    match rule:
        case FaultRule(kind="delay"):
            transport.call_later(rule.delay_s, work)
        case FaultRule(kind="reset"):
            transport.abort()
        case FaultRule(kind="detach"):
            link.detach(DETACH_FORCED, "an installed fault rule (detach) closed this link; open another")
        case _:
            work()


def _identities(event: Delivery) -> str:
    try:
        return " ".join(item.message.identity for item in decode_transfer(event.payload, event.message_format))
    except OperationFault:
        return ""  # it is refused for what it is


def on_request(transport: Transport, manage: Management, event: Delivery, path: str, replies: Replies) -> None:
    """Do what a management request asks for, or what a rule makes of it.

    Raises: OperationFault.
    """
    name = Request.decode(event.payload).properties.get("operation")
    operation = f"manage/{name.removeprefix('com.microsoft:') if isinstance(name, str) else ''}"
    rule = ask(transport, operation, MANAGE, path)
    match rule:
        case FaultRule(kind="lost-reply"):
            manage.on_request(event.link, path, event.payload, None)
        case FaultRule(kind="refused" | "throttled"):
            fault = OperationFault(_condition(rule), describe(rule))
            manage.on_request(event.link, path, event.payload, replies, refusal=fault)
        case _:
            _carry_out(transport, event.link, rule, lambda: manage.on_request(event.link, path, event.payload, replies))


def on_claims(receiver: Receiver, claims: list[Claim]) -> list[Claim]:
    """The claimed messages that go out now, in order; what rules make of the others is done or under way."""
    transport, out = receiver.transport, list[Claim]()
    for at, claim in enumerate(claims):
        rule = ask(transport, "receive", RECEIVE, receiver.path, claim.message.identity)
        kind = None if rule is None else rule.kind
        if kind in ("reset", "detach"):
            for unsent in claims[at:]:
                transport.engine.broker.settle(unsent.token, Settlement.RELEASE)
            if kind == "reset":
                transport.abort()
                return []
            transport.call_later(
                0, lambda: receiver.link.detach(DETACH_FORCED, "an installed fault rule (detach) closed this")
            )
            return out
        if rule is not None and kind in ("reorder", "delay") and len(receiver.aside) < ASIDE_COUNT_MAX:
            wait_s = rule.delay_s or REORDER_WITHIN_S
            receiver.put_aside(claim, wait_s, until_overtaken=kind == "reorder")
            continue
        out.append(claim)
        if kind == "duplicate":
            transport.engine.documents.modify(Modify(inserts=[TaskInsert(receiver.path, claim.message)]))
        elif rule is not None and kind == "lock-expiry":
            work = partial(expire, receiver, claim.sequence)
            if rule.delay_s:
                transport.call_later(rule.delay_s, work)
            else:
                receiver.once_sent.append(work)  # in the same turn: no client is so fast
    return out


def expire(receiver: Receiver, sequence: int) -> None:
    """Let the lock on a message run out, or that on its session."""
    engine = receiver.transport.engine
    try:
        if receiver.lock is None:
            engine.broker.lapse_lock(receiver.path, sequence)
        else:
            engine.sessions.release(receiver.lock.token)
            receiver.holds_session()
    except (LockLost, UnknownDestination):
        return  # it is over already
    engine.broker.wake()


def on_settled(receiver: Receiver, event: Settled, delivery_id: int, tag: bytes) -> None:
    """Do what a settlement asks for, or what a rule makes of it."""
    transport = receiver.transport
    try:
        task = transport.engine.broker.locked(tag)[1]
        key, sequence = task.message.identity, task.sequence
    except LockLost:
        key, sequence = "", 0
    rule = ask(transport, "settle", SETTLE, receiver.path, key)
    match None if rule is None else rule.kind:
        case "lost-disposition":
            receiver.settle(event._replace(settled=True), delivery_id, tag)
        case "wrong-disposition":
            receiver.settle(event._replace(settled=True), delivery_id, tag)
            event.session.confirm(delivery_id, MODIFIED if event.outcome.code == ACCEPTED else ACCEPTED)
        case "lock-expiry":
            expire(receiver, sequence)
            receiver.settle(event, delivery_id, tag)
        case _:
            _carry_out(transport, receiver.link, rule, lambda: receiver.settle(event, delivery_id, tag))

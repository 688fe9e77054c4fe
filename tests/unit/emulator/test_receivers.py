"""What becomes of claims and sessions of a receiver that ends or is blocked, without a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox.emulator.amqp.limits import Limits, Pool
from outbox.emulator.amqp.states import LinkState
from outbox.emulator.bus import faulty
from outbox.emulator.bus.receivers import Receiver, Wanted, accept_session
from outbox.emulator.bus.transport import Endpoint, Transport, Writer
from outbox.emulator.faults import FaultRule, Faults
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.log_throttle import LogThrottle
from outbox.message import Message


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine.in_memory()
    found.declare(QueueSettings("plain"), QueueSettings("keyed", ordering="per_key"))
    yield found
    found.close()


def transport_of(engine: Engine, *rules: FaultRule, on_room: Any = lambda: None) -> Transport:
    throttle = LogThrottle(60_000, engine.now_ms)
    endpoint = Endpoint(engine, Limits(), Pool(), None, Faults(rules), "", True, throttle)
    return Transport(endpoint, Writer(engine), on_room=on_room, on_failed=lambda: None)


@pytest.mark.parametrize("kind", ["reset", "detach"])
async def test_a_connection_that_breaks_under_a_delivery_keeps_no_claim(engine: Engine, kind: Any) -> None:
    transport = transport_of(engine, FaultRule(kind=kind, operation="receive", after=1))
    receiver = Receiver(transport, cast(Any, SimpleNamespace(detach=lambda *_: None)), "plain", divert=faulty.on_claims)
    engine.broker.send("plain", [Message(body=b"%d" % n) for n in range(3)])
    out = faulty.on_claims(receiver, engine.broker.claim("plain", 3))
    assert [claim.message.body for claim in out] == ([] if kind == "reset" else [b"0"])
    free = [claim.message.body for claim in engine.broker.claim("plain", 3)]
    assert {b"1", b"2"} <= set(free)
    transport.cancel_all()


@pytest.mark.parametrize("release", [True, False])
async def test_only_a_client_that_closes_its_session_releases_it(engine: Engine, release: bool) -> None:
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    lock = engine.sessions.accept("keyed", "s")
    receiver = Receiver(transport_of(engine), cast(Any, None), "keyed", lock, divert=faulty.on_claims)
    receiver.close(release=release)
    assert (engine.sessions.accept("keyed", "s") is not None) is release


async def test_what_was_not_sent_for_want_of_room_is_sent_once_there_is_some(engine: Engine) -> None:
    pumped = list[str]()
    transport = transport_of(engine, on_room=lambda: pumped.append("pumped"))
    wire: Any = SimpleNamespace(
        get_extra_info=lambda _: None, is_closing=lambda: False, write=lambda _: None, get_write_buffer_size=lambda: 0
    )
    transport.open(wire)
    transport.write(b"answers", last=False)
    await asyncio.sleep(0)
    assert pumped == []
    transport.blocked = True
    transport.write(b"answers", last=False)
    await asyncio.sleep(0)
    assert pumped == ["pumped"] and not transport.blocked


async def test_a_link_that_goes_while_it_waits_for_a_session_locks_none(engine: Engine) -> None:
    transport, granted = transport_of(engine), list[Any]()
    link = cast(Any, SimpleNamespace(state=LinkState.PENDING, attach=SimpleNamespace(properties={})))

    def receive(*given: Any) -> Receiver:
        granted.append(given)
        return cast("Receiver", None)

    accept_session(transport, link, "keyed", Wanted(None), receive)
    await asyncio.sleep(0)  # it waits
    link.state = LinkState.DETACHED
    engine.broker.send("keyed", [Message(body=b"1", session_id="s")])
    await asyncio.sleep(0.05)
    assert granted == [] and engine.sessions.accept("keyed", None) is not None
    transport.cancel_all()

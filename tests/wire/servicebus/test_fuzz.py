"""Nonsense from outside: mutated AMQP streams, administration XML and HTTP never crash, hang or fill the server.

About 2,000 of each here; `make soak` sends 10,000.
"""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from outbox.emulator.amqp.limits import Limits
from outbox.emulator.amqp.types import binary, described, map_, string, symbol
from outbox.emulator.bus import atom
from outbox.emulator.bus.administration import Administration
from outbox.emulator.bus.peer import Peer
from outbox.emulator.faults import FaultRule, Faults
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.engine.state.rules import Rule, RuleSettings
from tests.unit.amqp import amqp_client as client
from tests.unit.amqp.test_amqp_connection import mutated
from tests.wire.servicebus.test_server import request

COUNTS = [2_000, pytest.param(10_000, marks=pytest.mark.soak)]
GROWTH_MAX_BYTES = 24 << 20
"""What a server may hold more after any number of them: what they validly sent is drained as they go."""
ANSWER_WITHIN_S = 2.0
"""In CPU seconds: a busy machine says nothing about the server."""


class Sink(asyncio.Transport):
    """A transport that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def busy_script() -> bytes:
    """A client that sends, receives, settles and asks, all in one stream."""
    filters = map_([symbol("com.microsoft:session-filter"), string("s")])
    return b"".join(
        [
            client.opening(),
            client.attach("$cbs", 0, receiver=False),
            client.attach("$cbs", 1, receiver=True),
            client.attach("q", 2, receiver=False),
            client.attach("q", 3, receiver=True),
            client.attach("q/$management", 4, receiver=False),
            client.attach("q/$management", 5, receiver=True),
            client.attach("keyed", 6, receiver=True, filters=filters),
            client.flow(5, 10),
            client.flow(3, 10),
            client.transfer(2, 0, client.BODY),
            client.transfer(2, 1, described(0x75, binary(client.BODY)), message_format=0x80013700),
            client.transfer(4, 2, request("peek-message", map_(()))),
            client.disposition(0, 0, b"\x00\x53\x24\x45"),
            client.disposition(1, 1, b"\x00\x53\x25\xc0\x02\x01\x40"),
            client.detach(3),
            client.CLOSE,
        ]
    )


def entities(engine: Engine) -> None:
    engine.declare(
        QueueSettings("q"), QueueSettings("keyed", ordering="per_key"), TopicSettings("t", ("s",)),
        RuleSettings("t/Subscriptions/s", (Rule("r", "correlation", {"label": "x"}),)),
    )  # fmt: skip


def drain(engine: Engine) -> None:
    """Take out what the nonsense validly sent."""
    for queue in engine.state.queues:
        for task in list(queue.tasks.values()):
            engine.state.remove(queue, task)


def calm() -> Faults:
    """Rules of every kind that is decided at once, so that nonsense meets them too."""
    kinds: list[Any] = ["lost-reply", "refused", "throttled", "detach", "reset", "duplicate", "lost-disposition",
                        "wrong-disposition"]  # fmt: skip
    return Faults([FaultRule(kind=kind, count=None, probability=0.05, seed=at) for at, kind in enumerate(kinds)])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", [None, calm], ids=["plain", "faulty"])
@pytest.mark.parametrize("count", COUNTS)
async def test_mutated_streams_never_break_the_broker(
    caplog: pytest.LogCaptureFixture, count: int, faults: Any
) -> None:
    chance = random.Random(11)
    original = busy_script()
    async with Engine.in_memory() as engine:
        entities(engine)
        server = ServiceBusServer(engine, limits=Limits(frame_size_max_bytes=1 << 16), faults=faults and faults())
        tracemalloc.start()
        try:
            for number in range(count):
                peer, sink = Peer(server._endpoint, server._peers, server._writer), Sink()
                peer.connection_made(sink)
                data = mutated(chance, original) if number else original
                started_s = time.process_time()
                for at in range(0, len(data), 211):
                    if not sink.closed:
                        peer.data_received(data[at : at + 211])
                assert time.process_time() - started_s < ANSWER_WITHIN_S, data
                if number % 50 == 0:
                    await asyncio.sleep(0)
                    drain(engine)
                peer.connection_lost(None)
                assert not server._peers
                assert not peer.receivers
            assert tracemalloc.get_traced_memory()[0] < GROWTH_MAX_BYTES
        finally:
            tracemalloc.stop()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# The administration client's XML and HTTP


def bodies() -> list[bytes]:
    """Entries as clients send them."""
    queue = atom.leaves([("LockDuration", "PT30S"), ("RequiresSession", "false"), ("UserMetadata", "x")])
    rule = (
        '<Filter i:type="CorrelationFilter"><Label>x</Label><Properties><KeyValueOfstringanyType><Key>k</Key>'
        f'<Value i:type="d:int" xmlns:d="{atom.SCHEMA}">5</Value></KeyValueOfstringanyType></Properties></Filter>'
    )
    described = [("QueueDescription", queue), ("TopicDescription", ""), ("SubscriptionDescription", queue),
                 ("RuleDescription", rule)]  # fmt: skip
    return [
        atom.entry("http://x/y", "y", atom.description(name, inner), created_ms=0, updated_ms=0).encode()
        for name, inner in described
    ]


PATHS = ("/q", "/new", "/t", "/t/Subscriptions/s", "/t/subscriptions/s/rules/r", "/t/subscriptions/s/rules",
         "/$Resources/queues", "/$namespaceinfo", "/a%2Fb")  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", COUNTS)
def test_mutated_administration_is_answered_and_changes_nothing_else(count: int) -> None:
    chance, seen = random.Random(12), set()
    known = bodies()
    for number in range(count):
        if number % 100 == 0:
            engine = Engine.in_memory()
            entities(engine)
            administration = Administration(engine, "http://localhost")
        body, path = chance.choice(known), chance.choice(PATHS)
        body = mutated(chance, body) if number % 3 else body
        path = mutated(chance, path.ljust(60, "x").encode()).decode("latin-1") if number % 5 == 0 else path
        started_s = time.process_time()
        reply = administration.answer(
            chance.choice(("GET", "PUT", "PUT", "PUT", "DELETE", "PATCH")), path, chance.choice(("", "$skip=1&$top=x")),
            body, update=chance.random() < 0.5,
        )  # fmt: skip
        assert time.process_time() - started_s < ANSWER_WITHIN_S
        seen.add(reply.status)
        if reply.body:
            assert isinstance(reply.body, bytes)
            atom.parse(reply.body)  # whatever is told is well-formed
        assert len(engine.state.queues) < 250
    assert seen == {200, 201, 400, 404, 405, 409}


BOMBS = {
    "entities": b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>',
    "outside": b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>',
    "depth": b"<a>" * 100_000,
    "elements": b"<x>" + b"<a/>" * 60_000 + b"</x>",
    "size": b"<x>" + b" " * (1 << 20) + b"</x>",
    "attributes": b"<x " + b" ".join(b"a%d='1'" % at for at in range(20_000)) + b"/>",
    "references": b"<x>" + b"&#65;" * 50_000 + b"</x>",
    "nothing": b"",
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_xml_that_would_expand_is_refused_at_once(name: str) -> None:
    started_s = time.process_time()
    tracemalloc.start()
    try:
        with suppress(ValueError):
            atom.content(BOMBS[name], "QueueDescription")
            pytest.fail("it was taken")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - started_s < 1

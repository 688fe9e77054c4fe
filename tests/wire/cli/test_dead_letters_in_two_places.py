"""Dead letters of one queue on the bus and in the store, of one id or without any, by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from outbox.engine.entities import QueueSettings, Settlement
from outbox.message import Message
from outbox.ports import DeadLetterEntry
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from tests.wire.cli.planted import Run, Site, running


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()

    async def open_() -> None:
        await (await site.backend("outbox-partition")).operations.declare({}, {})

    try:
        site.thread.run(open_)
        yield site
    finally:
        site.close()


@pytest.fixture
def run(site: Site, capsys: pytest.CaptureFixture[str]) -> Run:
    return running(site, capsys)


def on_the_bus(site: Site, queue: str, *messages: Message, reason: str = "no") -> None:
    """Have a receiver dead-letter these messages."""

    def plant() -> None:
        site.engine.declare(QueueSettings(queue))
        broker = site.engine.broker
        for message in messages:
            broker.send(queue, [message])
            [claim] = broker.claim(queue, 1)
            broker.settle(claim.token, Settlement.DEAD_LETTER, reason=reason)

    site.thread.run(plant)


def in_the_store(site: Site, queue: str, *messages: Message, reason: str = "no") -> None:
    """Have a Functions host store these messages, as they are refused."""

    async def plant() -> None:
        ports = (await site.backend("outbox-partition")).ports()
        letters = StoredDeadLetters(ports.store, ports.blobs)
        for number, message in enumerate(messages, 7_000):
            await letters.put(DeadLetterEntry(queue, number, message, reason, "", 1, 1_700_000_000_000 + number))

    site.thread.run(plant)


def made(id: str, body: bytes = b'{"key": "a"}', attempt: int = 0) -> Message:
    return Message(body=body, type="Order", outbox_id=id, attempt=attempt)


def waiting(site: Site, queue: str) -> list[tuple[str, int]]:
    """The ids and attempts of what a queue holds."""
    tasks = site.thread.run(lambda: site.engine.broker.peek(queue, 0, 1_000))
    return [(task.message.identity, task.message.attempt) for task in tasks]


@pytest.mark.parametrize(("on_bus", "stored"), [(0, 5), (5, 0)])
@pytest.mark.parametrize("newest", ["bus", "store"])
def test_a_resubmission_is_above_every_copy_wherever_it_lies(
    site: Site, run: Run, on_bus: int, stored: int, newest: str
) -> None:
    queue = f"orders-{on_bus}-{newest}"
    on_the_bus(site, queue, made("x1", attempt=on_bus), made("x1", b'{"key": "another"}'))
    in_the_store(site, queue, made("x1", attempt=stored))
    letters = site.thread.run(lambda: site.engine.broker.peek(f"{queue}/$DeadLetterQueue", 0, 9))
    words = ["--sequence", str(letters[0].sequence)] if newest == "bus" else ["--sequence", number_in_store(run, queue)]
    assert run("dead-letters", "resubmit", queue, "x1", *words)[0] == 0
    assert waiting(site, queue) == [("x1", 6)]
    assert run("dead-letters", "list", queue)[1].count("x1") == 1  # that of another body


def number_in_store(run: Run, queue: str) -> str:
    """The number of the only stored dead letter: it is made of a time."""
    lines = [line.split() for line in run("dead-letters", "list", queue)[1].splitlines()]
    return next(number for line in lines for number in line if number.isdigit() and len(number) > 12)


def test_a_message_without_an_id_is_named_by_its_number(site: Site, run: Run) -> None:
    bare = Message(body=b'{"key": "a"}', type="Order")
    on_the_bus(site, "bare", *[bare] * 4)
    on_the_bus(site, "bare", bare, reason="no-identity")
    in_the_store(site, "bare", bare)
    site.thread.run(lambda: site.engine.broker.send("bare", [bare]))
    [waits] = [task.sequence for task in site.thread.run(lambda: site.engine.broker.peek("bare", 0, 9))]
    listed = [each["id"] for each in json.loads(run("dead-letters", "list", "bare", "--json")[1])]
    dead = [id for id in listed if id != "sequence-7000"]
    assert len(dead) == 5 and all(id.startswith("sequence-") for id in dead)
    code, said = run("message", "show", f"sequence-{waits}", "--queue", "bare")
    assert code == 0 and f"sequence-{waits} in bare: waiting" in said
    for id in dead:
        code, said = run("message", "show", id, "--queue", "bare")
        assert code == 0 and f"{id} in the dead letters of bare" in said
        code, said = run("dead-letters", "show", "bare", id)
        assert code == 0 and (f"discard bare {id}" in said or f"resubmit bare {id}" in said)
    assert run("dead-letters", "discard", "bare", dead[0]) == (0, "discarded 1 of bare\n")
    assert run("dead-letters", "restore", "bare", dead[0]) == (0, "restored 1 of bare\n")
    assert run("dead-letters", "discard", "bare", dead[4], "--for-good") == (0, "discarded 1 of bare\n")
    assert run("dead-letters", "resubmit", "bare", dead[1]) == (0, "resubmitted 1 of bare\n")
    assert (dead[1], 1) in waiting(site, "bare")
    assert run("dead-letters", "resubmit", "bare", "sequence-7000") == (0, "resubmitted 1 of bare\n")  # of the store
    assert ("sequence-7000", 1) in waiting(site, "bare")

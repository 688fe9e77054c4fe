"""Dead letters that lie in the store: kept once, listed beside the bus's, resubmitted and discarded like those."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Client, Engine, Reject
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import Refused
from outbox.lineage import Key
from outbox.message import Message
from outbox.ports import Delivery, StorePorts
from outbox.resubmission import edited
from outbox.runtime.delivery import stored_dead_letters
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.store_operations import StoreOperations
from outbox.testing import START_S, VirtualClock
from outbox.worker import Worker


@dataclass
class Note:
    id: str
    amount: int = 0


@dataclass
class Sum:
    total: int = 0


def made() -> App:
    app = App("letters")

    @app.handler("notes", key="id")
    def add(note: Note, sum: Sum) -> None:
        if note.amount < 0:
            raise Reject("negative")
        sum.total += note.amount

    return app


@dataclass
class Place:
    app: App
    backend: NarrowEngine
    client: Client
    letters: StoredDeadLetters
    ports: StorePorts
    engine: Engine
    clock: VirtualClock

    async def keep(
        self,
        id: str,
        sequence: int,
        amount: int = 1,
        *,
        padding: str = "",
        enqueued_ms: int = 5,
        attempt: int = 0,
        has_time: bool = True,
        failures: int = 1,
    ) -> None:
        body = b'{"id":"%s","amount":%d}' % (id.encode(), amount) + padding.encode()
        now_ms = self.ports.operations.now_ms() if has_time else 0
        message = Message(body=body, outbox_id=id, type="Note", created_ms=now_ms, attempt=attempt, failures=failures)
        delivery = Delivery("notes", sequence, message, 1, enqueued_ms, 10, delivery_count=2, failures=failures)
        await self.letters.keep(delivery, "failed", "boom")

    async def state(self, key: Key) -> Any:
        return await self.client.state(Sum, key)

    async def work(self) -> None:
        async with Worker(self.app, self.backend) as worker:
            await worker.wait_idle(timeout_s=5)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        app, backend = made(), NarrowEngine(engine, "partition")
        ports = backend.ports()
        client = Client(app, backend)
        await client.declare()
        yield Place(app, backend, client, StoredDeadLetters(ports.store, ports.blobs), ports, engine, clock)


async def test_a_dead_letter_that_is_kept_twice_is_one(place: Place) -> None:
    await place.keep("a", 7)
    await place.keep("a", 7)
    (dead_letter,) = await place.client.dead_letters("notes")
    assert (dead_letter.id, dead_letter.message, dead_letter.delivery_count) == ("a", Note("a", 1), 4)
    assert (dead_letter.reason, dead_letter.description) == ("failed", "boom")


async def test_a_dead_letter_of_a_queue_made_anew_is_another_one(place: Place) -> None:
    await place.keep("a", 1, amount=1, enqueued_ms=5)
    await place.keep("b", 1, amount=2, enqueued_ms=9)  # the broker counts from 1 again
    await place.client.resubmit("notes", "b")
    assert [dead_letter.id for dead_letter in await place.client.dead_letters("notes")] == ["a"]
    await place.work()
    assert await place.state("b") == Sum(2) and await place.state("a") is None


async def test_dead_letters_whose_numbers_meet_are_all_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_dead_letters, "_DIGEST_BITS", 0)  # all of one millisecond ask for one number
    for n in (*range(8), *range(8)):
        await place.keep(f"m{n}", n)
    kept = await place.client.dead_letters("notes")
    assert sorted(dead_letter.id for dead_letter in kept) == [f"m{n}" for n in range(8)]
    with pytest.raises(Refused, match="notes/8 cannot be stored"):
        await place.keep("m8", 8)


async def test_dead_letters_of_the_store_and_the_bus_are_one_list_oldest_first(place: Place) -> None:
    async with Worker(place.app, place.backend) as worker:
        await worker.send("notes", Note("b", -1), id="b")
        await worker.wait_idle(timeout_s=5)
    await place.keep("a", 1, enqueued_ms=1 << 42)
    await place.keep("c", 9)
    assert [dead_letter.id for dead_letter in await place.client.dead_letters("notes")] == ["c", "b", "a"]
    for id in "abc":
        await place.client.discard("notes", id)
    assert await place.client.dead_letters("notes") == []


async def test_a_resubmitted_dead_letter_runs_once_and_its_copies_go(place: Place) -> None:
    await place.keep("a", 7, amount=5)
    await place.keep("a", 8, amount=5)
    await place.client.resubmit("notes", "a")
    assert await place.client.dead_letters("notes") == []
    await place.work()
    assert await place.state("a") == Sum(5)


async def test_a_resubmission_keeps_its_first_time(place: Place) -> None:
    first_ms = place.ports.operations.now_ms() - 5_000
    await place.keep("a", 7, enqueued_ms=first_ms, has_time=False)
    await place.keep("b", 8)
    (_, with_time) = sorted(await place.letters.list("notes"), key=lambda dead_letter: dead_letter.message.identity)
    place.clock.seconds += 60
    for id in ("a", "b"):
        await place.client.resubmit("notes", id)
    tasks = place.engine.broker.queue("notes").tasks.values()
    times = {task.message.identity: task.message.created_ms for task in tasks}
    assert times == {"a": first_ms, "b": with_time.message.created_ms} and times["b"] < place.ports.operations.now_ms()


async def test_a_resubmitted_dead_letter_has_not_failed_yet(place: Place) -> None:
    await place.keep("a", 7, failures=2)
    await place.client.resubmit("notes", "a")
    (task,) = place.engine.broker.queue("notes").tasks.values()
    assert (task.message.identity, task.message.attempt, task.message.failures) == ("a", 1, 0)


async def test_a_dead_letter_of_a_subscription_goes_to_its_topic(place: Place) -> None:
    message, sent = Message(body=b"{}", outbox_id="a", type="Note"), list[str]()
    await place.letters.keep(Delivery("news/Subscriptions/one", 7, message, 1, 5, 10), "failed", "boom")
    (dead_letter,) = await place.letters.list("news/Subscriptions/one")

    async def send(outputs: Any) -> None:
        sent.extend(output.destination for output in outputs)

    await place.letters.resubmit("news/Subscriptions/one", dead_letter.sequence, send, attempt=1)
    assert sent == ["news"]  # a subscription cannot be sent to


async def test_a_dead_letter_that_another_client_moves_first_is_not_discarded_twice(place: Place) -> None:
    await place.keep("a", 7)
    operations = StoreOperations(place.ports)
    (dead_letter,) = await operations.dead_letters("notes")
    await operations.discard("notes", dead_letter.sequence)
    with pytest.raises(LookupError, match="moved meanwhile"):
        await operations.discard_found(dead_letter)
    assert await operations.dead_letters("notes") == []


async def test_a_resubmission_that_is_repeated_after_a_crash_has_no_further_effect(place: Place) -> None:
    await place.keep("a", 7, amount=5)
    sent = []

    async def send_and_die(outputs: Any) -> None:
        sent.extend(outputs)
        await place.ports.bus.send(outputs)
        raise ConnectionError

    for _ in range(2):
        (dead_letter,) = await place.letters.list("notes")
        with pytest.raises(ConnectionError):
            await place.letters.resubmit("notes", dead_letter.sequence, send_and_die, attempt=1)
    await place.work()
    assert await place.state("a") == Sum(5)
    assert {output.message.message_id for output in sent} == {f"a~{dead_letter.sequence}-1"}


async def test_an_edit_after_a_crash_is_no_duplicate_of_what_was_sent_before(place: Place) -> None:
    await place.keep("a", 7, amount=5)
    sent = []

    async def send_and_die(outputs: Any) -> None:
        sent.extend(outputs)
        raise ConnectionError

    (dead_letter,) = await place.letters.list("notes")
    bodies = [None, b'{"id":"a","amount":6}', b'{"id":"a","amount":7}', b'{"id":"a","amount":7}']
    for body in bodies:
        edit = None if body is None else edited(dead_letter.message, body)
        with pytest.raises(ConnectionError):
            await place.letters.resubmit("notes", dead_letter.sequence, send_and_die, attempt=1, edit=edit)
    names = [output.message.message_id for output in sent]
    assert len(set(names)) == 3 and names[2] == names[3], "a broker that drops duplicates would drop an edit"
    assert {output.message.identity for output in sent} == {"a"} and sent[1].message.body == bodies[1]


async def test_a_large_body_goes_to_a_blob_and_comes_back(place: Place) -> None:
    await place.keep("a", 7, amount=123_456_789, padding=200_000 * " ")
    (kept,) = await place.letters.list("notes")
    assert kept.message.body == b"" and kept.message.claim.startswith("claims/")
    (dead_letter,) = await place.client.dead_letters("notes")
    assert dead_letter.message == Note("a", 123_456_789)


async def test_a_missing_dead_letter_is_named_by_its_id(place: Place) -> None:
    with pytest.raises(LookupError, match="notes has no dead letter 3"):
        await StoreOperations(place.ports).discard("notes", 3)
    with pytest.raises(LookupError, match="notes has no dead letter 3"):
        await place.letters.resubmit("notes", 3, place.ports.bus.send, attempt=1)


async def test_stored_dead_letters_are_not_swept(place: Place) -> None:
    await place.keep("a", 7)
    assert [document.key.partition async for document in place.ports.store.unfinished()] == []


async def test_a_dead_letter_that_came_since_is_no_copy_of_what_is_resubmitted(place: Place) -> None:
    await place.keep("a", 7)
    await place.keep("a", 9, attempt=1, enqueued_ms=9)  # what was resubmitted meanwhile was refused again
    first, second = await place.letters.list("notes")
    await place.letters.resubmit("notes", first.sequence, place.ports.bus.send, attempt=1)
    assert [dead_letter.sequence for dead_letter in await place.letters.list("notes")] == [second.sequence]
    await place.client.resubmit("notes", "a")  # the newest, as an attempt that nothing has decided about
    assert await place.letters.list("notes") == []
    await place.work()
    assert await place.state("a") == Sum(1)


async def test_a_resubmitted_dead_letter_begins_its_chain_and_its_failures_anew(place: Place) -> None:
    now_ms = place.ports.operations.now_ms()
    message = Message(body=b'{"id":"a","amount":5}', outbox_id="a", type="Note", created_ms=now_ms, hops=64, failures=4)
    await place.letters.keep(Delivery("notes", 7, message, 1, 5, 10), "cycle", "too long")
    await place.client.resubmit("notes", "a")
    (again,) = await place.ports.bus.receive("notes", count_max=1, wait_s=1)
    assert (again.message.attempt, again.message.hops, again.message.failures) == (1, 0, 0)

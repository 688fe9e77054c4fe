"""States in a store of their own: nothing but states ever lies there, and nothing is looked for in the wrong one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from outbox import App, Engine, Reject, Worker
from outbox.client import Client
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.store_scopes import ItemStore, NarrowEngine
from outbox.errors import NotRegistrable
from outbox.message import Message
from outbox.ports import Create, Delivery, StorePorts
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.store_operations import operations_over
from outbox.stored import Record, Staged, encode, staged_key
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import deliver
from tests.unit.runtime.purse import Pay
from tests.unit.stores.http_site import post, serving, settled
from tests.unit.stores.store_site import Add, Mute, Step, Sum, Trail, adding, swept
from tests.unit.stores.test_order_of_blocked_sessions import Site as Steps
from tests.unit.waiting import until


class Apart:
    """States in an engine of their own; queues and everything else of the protocol in another."""

    def __init__(self, states: Engine, engine: Engine, clock: VirtualClock) -> None:
        self.states, self.engine, self.clock = states, engine, clock
        known = NarrowEngine(engine, "item").ports()
        self.bus = Mute(known.bus)
        own = ItemStore(EngineStore(states.core, states.documents))
        self._ports = StorePorts(own, self.bus, known.operations, known.blobs, known.store)

    def ports(self) -> StorePorts:
        return self._ports


def kinds(engine: Engine) -> set[str]:
    """What kinds of documents lie in an engine, by the beginning of their ids."""
    spaces = engine.state.documents.spaces.items()
    return {id.split(":")[0] for name, space in spaces if name.startswith("p/") for id in space}


@asynccontextmanager
async def apart() -> AsyncIterator[Apart]:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as states, Engine.in_memory(clock=clock) as engine:
        yield Apart(states, engine, clock)


async def test_nothing_but_states_lies_with_the_states() -> None:
    async with apart() as at, Worker(adding(), at) as worker:
        await deliver(worker, "adds", Add("a"), id="m1")
        assert await worker.state(Sum, "a") == Sum(1)
        assert kinds(at.states) == {"state"}
        assert kinds(at.engine) == {"done", "handlers", "retention"}


async def test_a_renamed_handler_is_refused_by_what_is_registered_apart_from_the_states() -> None:
    async with apart() as at:
        async with Worker(adding(), at):
            pass
        other = App("adding")
        other.queue("told")

        @other.handler("adds", key="key", name="another")
        def add(message: Add, total: Sum) -> None: ...

        await Client(other, at).send("adds", Add("a"), id="m1")
        with pytest.raises(NotRegistrable, match="name='add'"):
            async with Worker(other, at):
                pass


async def test_a_note_is_written_once_for_each_version_apart_from_the_states() -> None:
    async with apart() as at:
        operations = operations_over(at.ports())
        assert await operations.write_note("spark:r1", b"1", "")
        assert not await operations.write_note("spark:r1", b"2", "")
        note = await operations.note("spark:r1")
        assert note is not None and await operations.write_note("spark:r1", b"2", note.version)
        assert kinds(at.states) == set() and kinds(at.engine) == {"spark"}


async def test_dead_letters_that_a_store_keeps_are_listed_and_discarded_apart_from_the_states() -> None:
    async with apart() as at:
        client, message = Client(adding(), at), Message(body=b'{"key":"a"}', message_id="m1", type="Add")
        await client.declare()
        dead_letters = StoredDeadLetters(EngineStore(at.engine.core, at.engine.documents), at.ports().blobs)
        await dead_letters.keep(Delivery("adds", 7, message, 0, 0, 0), "no", "")
        assert [dead_letter.id for dead_letter in await client.dead_letters("adds")] == ["m1"]
        assert not await operations_over(at.ports()).is_drained(["adds"])
        await client.discard("adds", "m1")
        assert await client.dead_letters("adds") == [] and kinds(at.states) == set()


async def test_a_key_that_is_stopped_goes_on_after_a_resubmission_apart_from_the_states() -> None:
    async with apart() as at:
        steps = Steps(at.engine, at.clock, "item", at.ports().operations)
        async with Worker(steps.app, at) as worker:
            for number in range(3):
                await worker.send("steps", Step("a", number), id=f"s{number}")
            await steps.until(lambda: worker.dead_letters("steps"))
            assert "stopped" in kinds(at.engine) and kinds(at.states) == {"state"}
            steps.bad.clear()
            await worker.resubmit("steps", "s1")

            async def is_done() -> bool:
                return await worker.state(Trail, "a") == Trail([0, 1, 2])

            await steps.until(is_done)
            assert "stopped" not in kinds(at.engine)


async def test_the_record_of_a_refusal_is_looked_for_apart_from_the_states() -> None:
    app = App("late", retention=timedelta(days=1), margin=timedelta(hours=1))

    @app.handler("adds", key="key")
    def add(message: Add, sum: Sum) -> None:
        raise Reject("closed")

    async with apart() as at, Worker(app, at) as worker:
        await worker.send("adds", Add("a"), id="m1", created=at.clock.seconds - 82_800)
        await until(lambda: worker.dead_letters("adds"))
        at.clock.seconds += 7_200  # the message is past retention, the record of its refusal is not
        await worker.resubmit("adds", "m1")


async def test_a_request_is_claimed_and_read_apart_from_the_states() -> None:
    async with apart() as at, serving(at) as entry:
        first = await post(entry, Pay("a", 5))
        assert (await entry.handle("GET", "/purses/a", {})).json()["balance"] == 5
        assert await post(entry, Pay("a", 5)) == first and (await post(entry, Pay("b", 5))).status == 422
        await settled(entry)
        assert kinds(at.states) == {"state"} and "claim" in kinds(at.engine)


async def test_both_stores_are_swept() -> None:
    async with apart() as at:
        at.bus.is_mute = True
        async with Worker(adding(), at, drain_s=0.1) as worker:
            await worker.send("adds", Add("a"), id="m1")
            await until(lambda: worker.state(Sum, "a"))
        lost = Staged("t", b"m2", "Sum:a", 0, Record("t", b"", 0))  # of an attempt that can not land any more
        await EngineStore(at.engine.core, at.engine.documents).write([Create(staged_key("Sum:a", "t"), encode(lost))])
        at.bus.is_mute = False
        at.clock.seconds += 61
        found = await swept(at, adding())
        assert (found.seen_count, found.finished_count) == (2, 2), "a pointer there, a staged result here"
        assert kinds(at.engine) == {"done", "handlers", "retention"}
        assert at.engine.broker.queue("told").counts()["active"] == 1

"""Messages of other schema versions: older ones are lifted, newer ones wait for code that knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from outbox import App, Context, Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import NotRegistrable
from outbox.ports import Backend
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import deliver, deliver_raw


@dataclass
class Names:
    seen: list[str] = field(default_factory=list)


@dataclass
class OldPerson:
    key: str
    name: str = ""


@dataclass
class Person:
    key: str
    first: str
    last: str = ""


def split(fields: dict[str, Any]) -> dict[str, Any]:
    first, _, last = fields.pop("name").partition(" ")
    return {**fields, "first": first, "last": last}


def old_app(ordering: str = "unordered") -> App:
    app = App("people")
    app.queue("people", ordering)  # type: ignore[arg-type]  # a parameter of the test
    app.message("person")(OldPerson)

    @app.handler("people", key="key", name="meet")
    def meet(person: OldPerson, names: Names) -> None:
        names.seen.append(person.name)

    return app


def new_app(ordering: str = "unordered", *, upcasts: dict[int, Any] | None = None) -> App:
    app = App("people")
    app.queue("people", ordering)  # type: ignore[arg-type]  # a parameter of the test
    app.queue("told")
    app.message("person", version=2, upcasts={1: split} if upcasts is None else upcasts)(Person)

    @app.handler("people", key="key", name="meet")
    def meet(person: Person, names: Names, ctx: Context) -> None:
        names.seen.append(f"{person.first}|{person.last}")
        if person.last:
            ctx.send("told", person)

    return app


def over(engine: Engine, scope: str) -> Backend:
    return engine if scope == "engine" else NarrowEngine(engine, "item" if scope == "item" else "partition")


async def test_an_older_message_is_lifted_before_it_is_handled() -> None:
    async with Harness(new_app()) as world:
        properties: dict[str, Any] = {"outbox-id": "1", "outbox-type": "person"}
        await world.send_raw("people", b'{"key":"a","name":"Kim Berg"}', properties=properties)
        await deliver(world, "people", Person("a", "Jo"), id="2")
        assert await world.state(Names, "a") == Names(["Kim|Berg", "Jo|"])
        (record,) = world.sent_records("told")
        assert record.message == Person("a", "Kim", "Berg") and record.properties["outbox-schema"] == 2


async def test_an_older_message_is_lifted_on_every_attempt() -> None:
    for seed in range(12):
        async with Harness(new_app(), seed=seed, faults=Faults.drawn(seed=seed, lost=1, refused=3)) as world:
            properties: dict[str, Any] = {"outbox-id": "1", "outbox-type": "person"}
            await deliver_raw(world, "people", b'{"key":"a","name":"Kim Berg"}', properties=properties)
            assert await world.state(Names, "a") == Names(["Kim|Berg"]), f"seed {seed}: {world.fault_log}"


@pytest.mark.parametrize("ordering", ["unordered", "per_key"])
async def test_a_newer_message_is_released_uncounted_and_never_decoded(ordering: str) -> None:
    async with Harness(old_app(ordering)) as world:
        properties: dict[str, Any] = {"outbox-id": "1", "outbox-type": "person", "outbox-schema": 2, "session-id": "a"}
        await world.send_raw("people", b'{"key":"a","name":"not what it was"}', properties=properties)
        await world.advance(hours=1)
        assert world.dead_letters("people") == [] and await world.state(Names, "a") is None
        (task,) = world.engine.broker.queue("people").tasks.values()
        assert task.failures == 0 and task.message.failures == 0


async def test_a_newer_message_is_handled_by_the_newer_worker_that_comes_for_it(engine: Engine, scope: str) -> None:
    backend = over(engine, scope)
    async with Worker(new_app(), backend) as newer:
        pass
    await newer.send("people", Person("a", "Kim", "Berg"), id="1")
    async with Worker(old_app(), backend):
        pass
    async with Worker(new_app(), backend) as newer:
        await newer.wait_idle(timeout_s=20)
        assert await newer.state(Names, "a") == Names(["Kim|Berg"])


async def test_behind_a_newer_message_nothing_of_its_session_goes_on() -> None:
    async with Harness(old_app("per_key")) as world:
        properties: dict[str, Any] = {"outbox-id": "1", "outbox-type": "person", "outbox-schema": 2, "session-id": "a"}
        await world.send_raw("people", b"{}", properties=properties)
        await world.send("people", OldPerson("a", "Kim"), id="2")
        await world.send("people", OldPerson("b", "Jo"), id="3")
        await world.advance(minutes=1)
        assert await world.state(Names, "a") is None and await world.state(Names, "b") == Names(["Jo"])


async def test_an_older_message_without_a_way_up_is_refused_and_says_what_to_declare() -> None:
    async with Harness(new_app(upcasts={})) as world:
        await deliver_raw(world, "people", b'{"key":"a","name":"Kim"}', properties={"outbox-id": "1"})
        (dead_letter,) = world.dead_letters("people")
        assert dead_letter.reason == "undecodable" and "no upcast from schema 1; declare it" in dead_letter.description


async def test_an_upcast_that_gives_what_json_cannot_hold_makes_the_message_undecodable() -> None:
    async with Harness(new_app(upcasts={1: lambda fields: split(fields) | {"last": float("nan")}})) as world:
        await deliver_raw(world, "people", b'{"key":"a","name":"Kim"}', properties={"outbox-id": "1"})
        (dead_letter,) = world.dead_letters("people")
        assert dead_letter.reason == "undecodable" and "`$.last`" in dead_letter.description


@pytest.mark.parametrize("version", ["2", 2.0, True, "x", -1, None, float("inf")])
async def test_what_a_foreign_sender_calls_a_version_may_be_anything(version: Any) -> None:
    async with Harness(old_app()) as world:
        properties: dict[str, Any] = {"outbox-id": "1", "outbox-schema": version}
        await deliver_raw(world, "people", b'{"key":"a","name":"Kim"}', properties=properties)
        is_newer = version in ("2", 2.0) and version is not True
        assert (await world.state(Names, "a") is None) == is_newer and world.dead_letters("people") == []


def test_upcasts_of_a_message_lead_from_an_older_version() -> None:
    with pytest.raises(NotRegistrable, match="message 'person': versions count from 1"):
        App("a").message("person", version=2, upcasts={2: split})(Person)

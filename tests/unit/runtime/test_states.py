"""State: schema versions, keys of every kind, and types that do not clash."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from outbox import App, Context
from outbox.errors import FormatTooNew
from outbox.lineage import Key
from outbox.testing import Harness
from tests.unit.messages import deliver


@dataclass
class Ask:
    key: str
    n: int = 1


@dataclass
class Number:
    key: int


@dataclass
class Whose:
    key: UUID


@dataclass
class Old:
    total: int = 0


@dataclass
class New:
    total_cents: int = 0
    currency: str = "EUR"
    tags: list[str] = field(default_factory=list)


@dataclass
class Other:
    n: int = 0


class Colour(str, enum.Enum):  # noqa: UP042  # the kind whose str() is not its value
    RED = "red"


def from_1_to_2(old: dict[str, Any]) -> dict[str, Any]:
    return {"total_cents": old["total"] * 100}


def from_2_to_3(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "tags": ["lifted"]}


def app_of(kind: type[Any], version: int, **options: Any) -> App:
    """The application as deployed with one version of its state."""
    app = App("versions")
    app.state("account", version=version, **options)(kind)

    def add(ask: Ask, state: Any) -> None:
        if isinstance(state, Old):
            state.total += ask.n
        else:
            state.total_cents += ask.n

    add.__annotations__["state"] = kind
    app.handler("q", key="key")(add)
    return app


async def upgraded(world: Harness, app: App) -> Harness:
    """The same data under another version of the code."""
    successor = Harness(app)
    successor._disk = world._disk
    await world.__aexit__(None, None, None)
    await successor.__aenter__()
    return successor


async def test_older_state_is_lifted_through_every_version_and_stored_as_the_newest() -> None:
    world = Harness(app_of(Old, 1))
    await world.__aenter__()
    await deliver(world, "q", Ask("a", 7), id="1")
    newest = app_of(New, 3, upcasts={1: from_1_to_2, 2: from_2_to_3})
    world = await upgraded(world, newest)
    assert await world.state(New, "a") == New(700, tags=["lifted"])
    await deliver(world, "q", Ask("a", 5), id="2")
    assert await world.state(New, "a") == New(705, tags=["lifted"])
    world = await upgraded(world, app_of(New, 3))  # nothing is left to lift
    assert await world.state(New, "a") == New(705, tags=["lifted"])
    await world.__aexit__(None, None, None)


async def test_a_newer_state_is_released_uncounted_and_never_decoded() -> None:
    world = Harness(app_of(New, 2))
    await world.__aenter__()
    await world.given(New, "a", New(5, tags=["kept"]))
    world = await upgraded(world, app_of(Old, 1))
    await world.send("q", Ask("a", 1), id="1")
    await world.advance(minutes=10)
    with pytest.raises(FormatTooNew, match="deploy the newer"):
        await world.state(Old, "a")
    assert world.dead_letters("q") == []
    world = await upgraded(world, app_of(New, 2))
    await world.advance(minutes=1)
    assert await world.state(New, "a") == New(6, tags=["kept"])
    await world.__aexit__(None, None, None)


@pytest.mark.parametrize("upcasts", [{}, {1: lambda old: old["nothing"]}, {1: lambda old: {"total_cents": "x"}}])
async def test_a_state_that_cannot_be_lifted_is_kept_as_it_is(upcasts: Any) -> None:
    world = Harness(app_of(Old, 1))
    await world.__aenter__()
    await world.given(Old, "a", Old(7))
    world = await upgraded(world, app_of(New, 2, upcasts=upcasts))
    await world.send("q", Ask("a"), id="1")
    await world.advance(hours=1)
    (dead_letter,) = world.dead_letters("q")
    assert dead_letter.reason in ("undecodable", "failed")
    world = await upgraded(world, app_of(Old, 1))
    assert await world.state(Old, "a") == Old(7)
    await world.__aexit__(None, None, None)


# Keys

KEYS = ["a/b", "?x#y", "é" * 50, "k" * 5_000, " ", "\0", "a\nb", "../..", "null", "~41", "i.5", "A:B", "\U0001f600"]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key[:12]))
async def test_a_key_may_hold_any_character_and_be_long(key: str) -> None:
    app = App("a")

    @app.handler("q", key="key")
    def count(ask: Ask, other: Other, ctx: Context) -> None:
        assert ctx.key == ask.key
        other.n += 1

    async with Harness(app) as world:
        for again in range(2):
            await world.send("q", Ask(key, again))
        await world.wait_idle()
        await world.restart()
        assert await world.state(Other, key) == Other(2)
        for neighbour in (key + "x", key[:-1] or "x", key.swapcase() + "."):
            assert await world.state(Other, neighbour) is None


async def test_keys_of_different_kinds_never_meet() -> None:
    app, id = App("a"), UUID(int=5)

    def count(message: Ask | Number | Whose, other: Other, ctx: Context) -> None:
        assert type(ctx.key) is type(message.key)
        other.n += 1

    app.handler("q", key="key")(count)
    keys: list[Key] = ["5", 5, -5, str(id), id]
    async with Harness(app) as world:
        await world.send("q", Ask("5"))
        await world.send("q", Number(5))
        await world.send("q", Number(-5))
        await world.send("q", Ask(str(id)))
        await deliver(world, "q", Whose(id))
        assert [await world.state(Other, key) for key in keys] == [Other(1)] * 5


async def test_an_enumeration_is_known_by_its_value() -> None:
    app = App("a")

    @app.handler("q", key=lambda ask: Colour.RED)
    def count(ask: Ask, other: Other) -> None:
        other.n += 1

    async with Harness(app) as world:
        await deliver(world, "q", Ask("x"))
        assert await world.state(Other, "red") == await world.state(Other, Colour.RED) == Other(1)


@pytest.mark.parametrize("key", [None, "", 1.5, True])
async def test_what_is_no_key_has_no_state(key: Any) -> None:
    async with Harness(app_of(Old, 1)) as world:
        with pytest.raises(ValueError, match="key"):
            await world.state(Old, key)
        with pytest.raises(ValueError, match="key"):
            await world.given(Old, key, Old())


async def test_two_types_under_one_key_do_not_clash() -> None:
    app = App("a")

    @app.handler("q", key="key")
    def one(ask: Ask, old: Old) -> None:
        old.total += ask.n

    @app.handler("q", key="key")
    def two(ask: Ask, other: Other) -> None:
        other.n += 10 * ask.n

    async with Harness(app) as world:
        await deliver(world, "q", Ask("a"))
        assert (await world.state(Old, "a"), await world.state(Other, "a")) == (Old(1), Other(10))


async def test_given_takes_the_place_of_what_is_there() -> None:
    async with Harness(app_of(Old, 1)) as world:
        for total in (1, 2):
            await world.given(Old, "a", Old(total))
        await deliver(world, "q", Ask("a", 5))
        await world.restart()
        assert await world.state(Old, "a") == Old(7)


async def test_a_harness_that_was_never_opened_says_how_to() -> None:
    with pytest.raises(RuntimeError, match="async with Harness"):
        await Harness(App("closed")).wait_idle()

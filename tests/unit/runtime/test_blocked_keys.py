"""A key that is blocked for longer than retention goes on where it stopped, and nothing of it is applied twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outbox import Context, Reject, Retry
from outbox.testing import Harness
from tests.unit.messages import Book, Line
from tests.unit.runtime.journals import MARGIN_S, RETENTION_S, journal_app

LIFE_S = RETENTION_S + MARGIN_S


class World:
    """A journal whose keys stop behind a dead letter; `bad` are the lines that are refused."""

    def __init__(self) -> None:
        self.bad = {"bad"}
        self.busy: set[str] = set()
        self.app = journal_app()
        self.app.queue("lines", "per_key")
        self.app.queue("copied")

        @self.app.handler("lines", key="book", on_dead_letter="stop_key")
        def write(line: Line, book: Book, ctx: Context) -> None:
            if line.text in self.bad:
                raise Reject("not a line")
            if line.text in self.busy:
                raise Retry("the printer is busy", after_s=100)
            book.lines.append(line.text)
            ctx.send("copied", line)

        self.harness = Harness(self.app)

    async def send(self, *texts: str, created: float | None = None) -> None:
        for text in texts:
            await self.harness.send("lines", Line("red", text), id=text, created=created)
        await self.harness.wait_idle()

    async def lines(self) -> list[str]:
        found = await self.harness.state(Book, "red")
        return [] if found is None else found.lines

    def reasons(self) -> list[tuple[str, str]]:
        return [(dead_letter.id, dead_letter.reason) for dead_letter in self.harness.dead_letters("lines")]


@pytest.fixture
async def world(scope: str) -> AsyncIterator[World]:
    made = World()
    async with made.harness:
        yield made


@pytest.mark.parametrize("seconds", [RETENTION_S - 1, RETENTION_S, LIFE_S, 5 * LIFE_S])
async def test_what_waited_behind_a_block_is_handled_in_order_however_long_it_was(world: World, seconds: float) -> None:
    await world.send("a", "bad", "b", "c", "d")
    await world.harness.advance(seconds=seconds)
    assert await world.lines() == ["a"]
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["a", "b", "c", "d"] and world.reasons() == []
    assert [line.text for line in world.harness.sent("copied")] == ["a", "b", "c", "d"]


async def test_what_waited_is_remembered_from_when_it_was_applied(world: World) -> None:
    await world.send("bad", "b")
    await world.harness.advance(seconds=2 * LIFE_S)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=LIFE_S - 10)
    await world.send("b", created=world.harness.now() - 4 * LIFE_S)
    assert await world.lines() == ["b"] and world.reasons() == []
    await world.harness.advance(seconds=20)
    await world.send("b", created=world.harness.now() - 4 * LIFE_S)
    assert await world.lines() == ["b"] and world.reasons() == [("b", "too-old")]


async def test_a_copy_of_what_was_applied_before_the_block_is_not_applied_again(world: World) -> None:
    await world.send("a", "bad", "a", "b")
    await world.harness.advance(seconds=2 * LIFE_S)  # the record of the first is gone
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["a", "b"] and world.reasons() == []


async def test_a_copy_that_comes_behind_a_block_when_the_record_is_gone_is_not_applied_again(world: World) -> None:
    created = world.harness.now()
    await world.send("a", created=created)
    await world.harness.advance(seconds=LIFE_S)
    await world.send("bad", "b")
    await world.send("a", created=created)
    await world.harness.advance(seconds=10)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["a", "b"] and world.reasons() == [("a", "too-old")]


async def test_of_two_copies_behind_a_block_one_is_applied(world: World) -> None:
    await world.send("bad", "b", "b", "c")
    await world.harness.advance(seconds=2 * LIFE_S)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["b", "c"] and world.reasons() == []


async def test_of_two_copies_with_another_block_between_them_one_is_applied(world: World) -> None:
    await world.send("bad", "b", "worse", "b", "c")
    world.bad.add("worse")
    await world.harness.advance(seconds=2 * LIFE_S)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=2 * LIFE_S)
    assert await world.lines() == ["b"] and world.reasons() == [("worse", "not a line")]
    await world.harness.discard("lines", "worse")
    await world.harness.advance(seconds=10)
    assert (await world.lines()).count("b") == 1


async def test_what_was_too_old_when_it_came_behind_a_block_stays_too_old(world: World) -> None:
    await world.send("bad")
    await world.send("b", created=world.harness.now() - RETENTION_S)
    await world.send("c", created=world.harness.now() - RETENTION_S + 100)
    await world.harness.advance(seconds=10)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == [] and world.reasons() == [("b", "too-old")]
    await world.harness.advance(seconds=2 * LIFE_S)
    await world.harness.discard("lines", "b")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["c"] and world.reasons() == []


async def test_another_message_under_the_id_of_one_that_waited_is_refused(world: World) -> None:
    await world.send("bad", "b")
    await world.harness.send("lines", Line("red", "other"), id="b")
    await world.harness.advance(seconds=2 * LIFE_S)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["b"] and world.reasons() == [("b", "payload-differs")]


async def test_another_message_under_the_id_of_one_that_was_applied_is_refused_when_its_turn_comes(
    world: World,
) -> None:
    await world.send("a", "bad")
    await world.harness.send("lines", Line("red", "other"), id="a")
    await world.harness.advance(seconds=10)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["a"] and world.reasons() == [("a", "payload-differs")]


async def test_what_waited_and_is_refused_is_refused_with_its_own_reason_and_can_be_resubmitted(world: World) -> None:
    await world.send("bad", "b", "c")
    world.bad.add("b")
    await world.harness.advance(seconds=2 * LIFE_S)
    await world.harness.discard("lines", "bad")
    await world.harness.advance(seconds=10)
    assert await world.lines() == [] and world.reasons() == [("b", "not a line")]
    world.bad.clear()
    await world.harness.resubmit("lines", "b")
    await world.harness.advance(seconds=10)
    assert await world.lines() == ["b", "c"] and world.reasons() == []

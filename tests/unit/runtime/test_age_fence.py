"""How old a message may be, what counts as its age, and how long it is remembered."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from outbox import Retry
from outbox.context import to_ms
from outbox.runtime.start.notes import duration
from outbox.testing import Harness
from tests.unit.messages import Count, deliver, resubmit
from tests.unit.runtime.plant import DAY_S, Plant, Task, only, raising

# The age fence


async def test_a_message_as_old_as_retention_is_never_run() -> None:
    plant = Plant(retention=timedelta(days=2))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1", created=world.now() - 2 * DAY_S)
        await deliver(world, "q", Task("b"), id="2", created=datetime.fromtimestamp(world.now() - 2 * DAY_S + 1, UTC))
        dead_letter = await only(world)
        assert (dead_letter.id, dead_letter.reason) == ("1", "too-old")
        assert len(plant.runs) == 1


async def test_what_is_sent_anew_under_a_refused_id_gets_a_text_that_holds_for_it_too() -> None:
    plant = Plant(retention=timedelta(days=7))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1", created=world.now() - 60 * DAY_S)
        await deliver(world, "q", Task("a"), id="1")
        first, second = world.dead_letters("q")
        assert [first.reason, second.reason] == ["too-old"] * 2
        assert second.description == (
            "a message of this id came 60 days after it was created, and retention is 7 days; all of this id is "
            "refused since: what is to be done anew needs a new id"
        )


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (1_999, "1999 ms"),
        (2_000, "2 s"),
        (119_999, "119 s"),
        (7_199_999, "119 min"),
        (172_799_999, "47 hours"),
        (5_184_000_002, "60 days"),
    ],
)
def test_a_length_of_time_is_said_in_a_unit_that_is_read_at_a_glance(ms: int, text: str) -> None:
    assert duration(ms) == text


async def test_a_duplicate_of_an_applied_message_is_completed_at_any_age_that_its_record_lives() -> None:
    plant = Plant(retention=timedelta(days=2), margin=timedelta(hours=1))
    async with Harness(plant.app) as world:
        created = world.now()
        await deliver(world, "q", Task("a"), id="1", created=created)
        await world.advance(days=2, minutes=59)
        await deliver(world, "q", Task("a"), id="1", created=created)
        assert world.dead_letters("q") == [] and len(plant.runs) == 1
        await world.advance(minutes=2)
        await deliver(world, "q", Task("a"), id="1", created=created)
        assert (await only(world)).reason == "too-old" and len(plant.runs) == 1


@pytest.mark.engine_only("a store protocol may run a handler again and throw its result away")
async def test_records_live_on_over_a_restart_and_are_gone_after_retention_and_margin() -> None:
    plant = Plant(retention=timedelta(days=2), margin=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1")
        await world.advance(days=1)
        await world.restart()
        await deliver(world, "q", Task("a"), id="1")
        assert len(plant.runs) == 1
        await world.advance(days=1, hours=2)
        await world.restart()
        await deliver(world, "q", Task("a"), id="1")
        assert len(plant.runs) == 2


async def test_without_a_creation_time_the_time_of_arrival_counts() -> None:
    plant = Plant(raising(Retry(after_s=1_800)), retention=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await world.send_raw("q", b'{"key":"a"}', properties={"outbox-id": "1"})
        await world.advance(hours=2)
        assert len(plant.runs) == 2 and (await only(world)).reason == "too-old"


async def test_a_creation_time_that_lies_ahead_is_refused() -> None:
    plant = Plant(clock_skew=timedelta(minutes=5))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1", created=world.now() + 299)
        await deliver(world, "q", Task("b"), id="2", created=world.now() + 301)
        dead_letter = await only(world)
        assert (dead_letter.id, dead_letter.reason) == ("2", "from-the-future") and "clock" in dead_letter.description


async def test_a_scheduled_message_is_as_old_as_its_due_time() -> None:
    plant = Plant(retention=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1", after_s=5 * DAY_S)
        await world.advance(days=6)
        assert await world.state(Count, "a") == Count(1) and world.dead_letters("q") == []


async def test_an_output_is_as_old_as_its_due_time() -> None:
    plant = Plant(retention=timedelta(hours=1))
    plant.act = lambda task, ctx: ctx.send("q", Task("b"), after_s=5 * DAY_S) if task.key == "a" else None
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        await world.advance(days=6)
        assert await world.state(Count, "b") == Count(1) and world.dead_letters("q") == []


def test_a_time_without_a_zone_is_utc_wherever_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        found = to_ms(datetime(2026, 1, 1, 12))  # noqa: DTZ001 - without a zone on purpose
    time.tzset()
    assert found == to_ms(datetime(2026, 1, 1, 12, tzinfo=UTC)) == 1_767_268_800_000


# What is rescheduled until it is too old


@pytest.mark.parametrize(("after_s", "is_rescheduled"), [(3_599.999, True), (3_600, False)])
async def test_a_retry_that_would_come_too_late_is_the_last_and_keeps_its_words(
    after_s: float, is_rescheduled: bool
) -> None:
    plant = Plant(raising(Retry("the bank is closed", after_s=after_s)), retention=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1")
        assert (world.dead_letters("q") == []) == is_rescheduled
        await world.advance(hours=1)
        dead_letter = await only(world)
        assert dead_letter.reason == "too-old" and len(plant.runs) == 1 + is_rescheduled
        assert "the bank is closed" in dead_letter.description and "retention is 60 min" in dead_letter.description


async def test_what_was_rescheduled_until_it_was_too_old_can_be_resubmitted() -> None:
    plant = Plant(
        raising(Retry("the bank is closed", after_s=1_800)), retention=timedelta(hours=1), margin=timedelta(minutes=20)
    )
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        await world.advance(hours=1, minutes=5)
        assert (await only(world)).reason == "too-old" and len(plant.runs) == 2
        plant.act = lambda task, ctx: None
        await resubmit(world, "q", "1")
        assert await world.state(Count, "a") == Count(1) and world.dead_letters("q") == []

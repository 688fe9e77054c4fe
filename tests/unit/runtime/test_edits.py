"""A dead letter with another body takes the place of the refusal that it names, once, and nothing else does."""

from __future__ import annotations

import pytest

from outbox import App, Reject
from outbox.errors import Refused
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.values.dead_letters import Resubmit
from outbox.testing import Harness
from tests.unit.messages import Book, Line, deliver, deliver_raw, resubmit
from tests.unit.runtime.journals import MARGIN_S, RETENTION_S, Journal, Page


async def test_an_edit_is_handled_under_the_identity_of_what_it_replaces(world: Journal) -> None:
    await world.send("bad")
    await world.edit("good")
    assert (await world.lines(), world.dead()) == (["good"], [])
    assert [line.text for line in world.harness.sent("copied")] == ["good"]


async def test_copies_of_what_was_edited_and_of_the_edit_are_duplicates(world: Journal) -> None:
    await world.send("bad")
    await world.edit("good")
    world.bad.clear()
    await world.send("bad")
    await world.send("good")
    await world.send_edit("good", "bad")
    assert (await world.lines(), world.dead()) == (["good"], [])


async def test_while_an_edit_is_refused_copies_of_what_it_replaced_are_refused_for_its_reason(world: Journal) -> None:
    await world.send("bad")
    await world.edit("worse")
    world.bad.clear()
    await world.send("bad")
    assert (await world.lines(), world.dead()) == ([], ["not a line", "not a line"])


async def test_what_an_edit_replaced_is_not_run_by_a_resubmission_either(world: Journal) -> None:
    await world.send("bad")
    await world.edit("worse")
    await world.harness.discard("lines", "1")
    await world.send("bad")
    world.bad.clear()
    for _ in range(3):
        await resubmit(world.harness, "lines", "1")
    assert (await world.lines(), world.dead()) == ([], ["not a line"])
    await world.send_edit("good", "worse", attempt=2)  # and it has not taken the place of the edit
    assert await world.lines() == ["good"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_edit_may_be_edited_and_copies_of_all_of_them_follow(world: Journal, restarts: bool) -> None:
    await world.send("bad")
    for edit in ("worse", "good"):
        await world.edit(edit)
        if restarts:
            await world.harness.restart()
    world.bad.clear()
    for copy in ("bad", "worse", "good"):
        await world.send(copy)
    assert (await world.lines(), world.dead()) == (["good"], [])


async def test_an_edit_may_be_taken_back(world: Journal) -> None:
    await world.send("bad")
    await world.edit("worse")
    world.bad.remove("bad")
    await world.edit("bad")
    await world.send_edit("worse", "bad")  # a late copy
    assert (await world.lines(), world.dead()) == (["bad"], [])


async def test_an_edit_that_was_refused_may_be_resubmitted_as_it_is(world: Journal) -> None:
    await world.send("bad")
    await world.edit("worse")
    world.bad.clear()
    await resubmit(world.harness, "lines", "1")
    await world.send("bad")
    assert (await world.lines(), world.dead()) == (["worse"], [])


async def test_of_two_edits_of_one_refusal_the_first_is_handled_and_the_other_stays_a_dead_letter(
    world: Journal,
) -> None:
    await world.send("bad")
    await world.send_edit("good", "bad")
    await world.send_edit("better", "bad")
    assert (await world.lines(), world.dead()) == (["good"], ["not a line", "payload-differs"])
    [late] = [dead for dead in world.harness.dead_letters("lines") if dead.reason == "payload-differs"]
    assert "edit of id 1" in late.description and b"better" in late.body


async def test_an_edit_does_not_take_the_place_of_an_edit_that_it_does_not_name(world: Journal) -> None:
    await world.send("bad")
    await world.send_edit("worse", "bad")
    await world.send_edit("good", "bad", attempt=7)
    assert (await world.lines(), world.dead()) == ([], ["not a line", "not a line", "payload-differs"])


async def test_an_edit_of_what_was_applied_meanwhile_is_a_dead_letter(world: Journal) -> None:
    await world.send("bad")
    world.bad.clear()
    await resubmit(world.harness, "lines", "1")
    await world.send_edit("good", "bad", attempt=2)
    assert (await world.lines(), world.dead()) == (["bad"], ["payload-differs"])


async def test_an_edit_of_nothing_is_refused_and_stays_so(world: Journal) -> None:
    await world.send_edit("good", "bad")
    await world.send_edit("good", "bad", attempt=2)
    await world.send("bad")
    assert (await world.lines(), world.dead()) == ([], ["edit-without-record"] * 2 + ["payload-differs"])
    await world.harness.discard("lines", "1")
    await world.send_edit("good", "bad", attempt=3)
    with pytest.raises(Refused, match="replaces a refusal that is not on record"):
        await world.harness.resubmit("lines", "1")


async def test_an_edit_under_another_key_is_refused_and_the_message_may_still_be_resubmitted(world: Journal) -> None:
    await world.send("bad")
    await world.send_edit("good", "bad", book="blue")
    assert (await world.lines("blue"), world.dead()) == ([], ["edit-without-record", "not a line"])
    world.bad.clear()
    await world.send_edit("bad", "bad", attempt=2)  # the same body: a plain resubmission
    assert await world.lines() == ["bad"]


async def test_an_edit_past_the_life_of_the_refusal_is_refused(world: Journal) -> None:
    await world.send("bad")
    created = world.harness.now()
    await world.harness.advance(seconds=RETENTION_S + MARGIN_S + 1)
    with pytest.raises(Refused, match="the record of it is gone"):
        await world.harness.resubmit("lines", "1", message=Line("red", "good"))
    await world.send_edit("good", "bad")
    assert (await world.lines(), world.dead()) == ([], ["edit-without-record", "not a line"])
    assert created < world.harness.now()


async def test_an_edit_past_retention_runs_while_its_refusal_is_on_record(world: Journal) -> None:
    await world.send("bad", created=world.harness.now() - RETENTION_S + 1)
    await world.harness.advance(seconds=60)
    await world.edit("good")
    assert (await world.lines(), world.dead()) == (["good"], [])


async def test_an_edit_that_fails_at_first_is_tried_again_as_an_edit(world: Journal) -> None:
    await world.send("bad")
    await world.edit("shaky")
    await world.harness.advance(minutes=1)
    world.bad.clear()
    await world.send("bad")
    assert (await world.lines(), world.dead()) == (["shaky"], [])


async def test_an_edited_head_unblocks_its_key(world: Journal) -> None:
    await world.send("bad", queue="strict")
    await world.send("next", queue="strict", id="2")
    await world.edit("worse", queue="strict")
    await world.harness.advance(seconds=10)
    assert (await world.lines(), world.dead("strict")) == ([], ["not a line"])
    await world.edit("good", queue="strict")
    await world.harness.advance(seconds=10)
    assert (await world.lines(), world.dead("strict")) == (["good", "next"], [])


async def test_an_edit_behind_another_block_waits_for_its_turn(world: Journal) -> None:
    await world.send("bad", queue="strict")
    await world.harness.send("strict", Line("red", "worse"), id="2")
    await world.edit("good", queue="strict")
    await world.harness.advance(seconds=10)
    assert (await world.lines(), world.dead("strict")) == (["good"], ["not a line"])


async def test_an_edit_of_nothing_is_not_put_on_record_while_it_waits(world: Journal) -> None:
    await world.send("bad", queue="strict")
    await world.send_edit("good", "bad", queue="strict", id="2")
    await world.harness.discard("strict", "1")
    await world.harness.advance(seconds=10)
    assert (await world.lines(), world.dead("strict")) == ([], ["edit-without-record"])


async def test_bodies_in_blobs_are_edited_too(scope: str) -> None:
    world = Journal(claim_check_bytes=1_000)
    long = "b" * 2_000
    world.bad |= {long}
    async with world.harness:
        await world.send(long)
        await world.edit("l" * 3_000)
        await world.send(long)
        assert (await world.lines(), world.dead()) == (["l" * 10], [])


# What a client refuses before it is sent


async def test_an_edit_without_a_change_is_a_resubmission(world: Journal) -> None:
    await world.send("bad")
    world.bad.clear()
    await world.edit("bad")
    assert (await world.lines(), world.dead()) == (["bad"], [])


async def test_an_edit_keeps_key_and_type(world: Journal) -> None:
    await world.send("bad")
    with pytest.raises(Refused, match="has the key 'blue', and was refused under 'red'"):
        await world.edit("good", book="blue")
    with pytest.raises(Refused, match="is a Line, not a Page"):
        await world.harness.resubmit("lines", "1", message=Page("red"))
    assert world.dead() == ["not a line"]


@pytest.mark.parametrize("body", [b"[", b'{"book": "", "text": "good"}'], ids=["undecodable", "missing-key"])
async def test_what_was_refused_without_its_key_is_not_edited(world: Journal, body: bytes) -> None:
    await deliver_raw(world.harness, "lines", body, properties={"outbox-id": "1", "outbox-type": "Line"})
    with pytest.raises(Refused, match="without a record that an edit could replace; discard it"):
        await world.edit("good")


async def test_what_was_too_old_is_not_edited(world: Journal) -> None:
    await world.send("good", created=world.harness.now() - RETENTION_S)
    with pytest.raises(Refused, match="too old to run"):
        await world.edit("better")


async def test_an_edit_of_a_subscriptions_message_reaches_no_other_subscription(scope: str) -> None:
    app = App("news")

    @app.handler("news", subscription="audit")
    def audit(page: Page) -> None:
        if page.book == "bad":
            raise Reject("unfit")

    @app.handler("news", subscription="archive")
    def archive(page: Page) -> None: ...

    async with Harness(app) as world:
        await world.publish("news", Page("bad"), id="1")
        await world.wait_idle()
        edit = world.resubmit("news/Subscriptions/audit", "1", message=Page("good"))
        if scope == "engine":  # it has each subscription's message apart
            await edit
        else:
            with pytest.raises(Refused, match="an edit would reach the topic's other ones too"):
                await edit
        await world.wait_idle()
        assert len(world.dead_letters("news/Subscriptions/audit")) == int(scope != "engine")
        assert world.dead_letters("news/Subscriptions/archive") == []


@pytest.mark.engine_only("an operator of a host is beside its engine")
async def test_an_operator_beside_the_application_checks_the_key(world: Journal) -> None:
    await world.send("bad")
    admin = EngineAdmin(world.harness.engine, None, world.app)
    with pytest.raises(Refused, match="has the key 'blue'"):
        await admin.ask(Resubmit("lines", "1", body=b'{"book":"blue","text":"good"}'))
    await admin.ask(Resubmit("lines", "1", body=b'{"book":"red","text":"good"}'))
    await world.harness.wait_idle()
    assert (await world.lines(), world.dead()) == (["good"], [])


async def test_of_two_handlers_the_one_that_applied_the_original_keeps_it(scope: str) -> None:
    app, seen = App("twofold"), list[tuple[str, str]]()

    @app.handler("lines", key="book")
    def index(line: Line, book: Book) -> None:
        seen.append(("index", line.text))

    @app.handler("lines", key="book")
    def write(line: Line, book: Book) -> None:
        if line.text == "bad":
            raise Reject("not a line")
        seen.append(("write", line.text))

    async with Harness(app) as world:
        await deliver(world, "lines", Line("red", "bad"), id="1")
        await resubmit(world, "lines", "1", message=Line("red", "good"))
        (dead_letter,) = world.dead_letters("lines")
        assert dead_letter.reason == "payload-differs" and dead_letter.description.startswith("index: ")
        assert sorted(set(seen)) == [("index", "bad"), ("write", "good")]

"""Large bodies, claim checks, written blobs, and commits over the limit."""

from __future__ import annotations

from typing import cast

import pytest

from outbox import App, BlobRef, Context, Reject
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import deliver, deliver_raw
from tests.unit.runtime.jobs import Job, Made, Note, ran, running

# Large bodies and blobs


async def test_a_large_body_comes_back_unseen_inbound_outbound_and_dead() -> None:
    large, seen = "x" * 300_000, []
    app = running(lambda job, ctx: ctx.send("next", Job("b", job.text + "y")))

    @app.handler("next", key="key")
    def next_(job: Job, note: Note) -> None:
        seen.append(job)
        raise Reject("seen")

    async with Harness(app) as world:
        await ran(world, Job("a", large))
        await world.restart()
        assert seen == world.sent("next") == [Job("b", large + "y")]
        (dead_letter,) = world.dead_letters("next")
        assert dead_letter.message == Job("b", large + "y") and len(dead_letter.body) > 300_000
        assert "outbox-claim" in world.sent_records("next")[0].properties


@pytest.mark.parametrize(("text", "is_claimed"), [("x" * 73, False), ("x" * 74, True)], ids=["100 bytes", "101 bytes"])
@pytest.mark.parametrize("does", ["send", "cancel"])
async def test_a_body_a_byte_over_the_limit_goes_to_the_blob_store(text: str, is_claimed: bool, does: str) -> None:
    app = App("a", claim_check_bytes=100)
    app.queue("out")
    tickets: list[str] = []

    @app.handler("q", key="key")
    def act(job: Job, ctx: Context) -> None:
        if job.key == "cancel":
            ctx.cancel(tickets.pop())
        elif does == "send":
            ctx.send("out", Job("b", text))
        else:
            tickets.append(ctx.schedule("out", Job("b", text), after_s=60))

    async with Harness(app) as world:
        await ran(world, Job("a"))
        if does == "cancel":
            await world.send("q", Job("cancel"), id="2")
            await world.wait_idle()
        last = world.sent_records("out")[-1]
    assert ("outbox-cancels" in last.properties) is (does == "cancel")
    assert ("outbox-claim" in last.properties) is is_claimed and last.message == Job("b", text)


@pytest.mark.parametrize("does", ["refused", "lost"])
@pytest.mark.parametrize("call", range(1, 8))
async def test_a_body_that_cannot_be_read_now_is_read_later(does: str, call: int) -> None:
    seen, faults = list[Job](), Faults(refused=(call,)) if does == "refused" else Faults(lost=(call,))
    async with Harness(running(lambda job, ctx: seen.append(job)), faults=faults) as world:
        await ran(world, Job("a", "x" * 300_000))
        assert world.dead_letters("q") == [] and seen[-1] == Job("a", "x" * 300_000)


async def test_the_same_large_message_again_has_no_further_effect() -> None:
    async with Harness(running(lambda job, ctx: ctx.send("out", Job("b")))) as world:
        for _ in range(2):
            await ran(world, Job("a", "x" * 300_000))
        await deliver(world, "q", Job("a", "y" * 300_000), id="1")
        assert world.sent("out") == [Job("b")]
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["payload-differs"]


@pytest.mark.parametrize("claim", ["claims/x", "../../etc/passwd", f"claims/{'0' * 64}/{'1' * 64}"])
async def test_a_claim_that_is_not_ours_is_not_read(claim: str) -> None:
    async with Harness(running(lambda job, ctx: ctx.send("out", job))) as world:
        await deliver_raw(world, "q", b"", properties={"outbox-id": "1", "outbox-type": "Job", "outbox-claim": claim})
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["undecodable"]


async def test_a_body_that_was_changed_is_not_handled() -> None:
    seen = list[Job]()
    async with Harness(running(lambda job, ctx: seen.append(job))) as world:
        await world.send("q", Job("a", "x" * 300_000), id="1")
        [(name, data)] = cast(MemoryBlobStore, world.engine.blobs)._blobs.items()
        cast(MemoryBlobStore, world.engine.blobs)._blobs[name] = data.replace(b"x", b"y")
        await world.wait_idle()
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["undecodable"] and not seen


async def test_a_written_blob_can_be_read_by_its_reference_whatever_fails() -> None:
    refs: list[BlobRef] = []

    def act(job: Job, ctx: Context) -> None:
        data = bytearray(b"report")
        refs.append(ctx.write_blob("re/port.txt", data))  # type: ignore[arg-type]  # any bytes will do
        data[:] = b"change"
        ctx.send("out", Made(refs[-1]))

    for n in range(1, 6):
        async with Harness(running(act), faults=Faults(lost=(n,), crashes=((n + 1, "before"),))) as world:
            await ran(world)
            (made,) = world.sent("out")
            assert isinstance(made, Made) and made.ref.size_bytes == 6
            assert await world.blob(made.ref) == b"report"
            with pytest.raises(LookupError, match="changed"):
                await world.blob(BlobRef(made.ref.name, made.ref.size_bytes, "0" * 64))
    assert len(set(refs)) == 1
    async with Harness(running(act)) as world:
        with pytest.raises(LookupError, match="committed"):
            await world.blob(refs[0])


async def test_a_blob_whose_name_is_no_text_is_refused_where_it_is_written() -> None:
    refused: list[str] = []

    def act(job: Job, ctx: Context) -> None:
        with pytest.raises(UnicodeEncodeError):
            ctx.write_blob("\ud800", b"")
        refused.append(job.key)

    async with Harness(running(act)) as world:
        await ran(world)
        assert refused == ["a"] and world.dead_letters("q") == []


async def test_a_commit_over_the_limit_is_dead_lettered_as_oversize() -> None:
    app = App("a")

    @app.handler("q", key="key")
    def grow(job: Job, note: Note) -> None:
        note.text = "x" * job.n

    async with Harness(app) as world:
        await world.send("q", Job("a", n=40 << 20), id="1")
        await deliver(world, "q", Job("b", n=5), id="2")
        (dead_letter,) = world.dead_letters("q")
        assert (dead_letter.id, dead_letter.reason) == ("1", "oversize")
        assert await world.state(Note, "a") is None
        assert await world.state(Note, "b") == Note("x" * 5)

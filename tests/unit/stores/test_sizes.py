"""What does not fit: outputs that spill into blobs, states that are too large."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outbox import App, Client, Reject, Worker
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.errors import CorruptRecord, Throttled
from outbox.message import Message
from outbox.ports import Output, StoreCapabilities
from outbox.runtime.commit import overflow
from outbox.stored import Record
from tests.unit.stores.store_site import Add, Sum, adding, handled, site


async def test_outputs_that_do_not_fit_lie_in_a_blob_until_they_have_left(scope: str) -> None:
    async with site(scope) as at:
        await handled(at, adding(), Add("a", text="shout"))
        assert at.engine.broker.queue("told").counts()["active"] == 20
        blobs = at.engine.blobs
        names = [name for name in getattr(blobs, "_blobs", {}) if name.startswith("overflow/")]
        assert names == []


async def test_a_blob_that_cannot_be_deleted_holds_up_no_handler(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(name: str) -> None:
        raise Throttled(f"{name}: not now")

    async with site(scope) as at:
        monkeypatch.setattr(at.engine.blobs, "delete", refused)
        worker = await handled(at, adding(), Add("a", text="shout"), Add("a", 2))
        assert await worker.state(Sum, "a") == Sum(3)
        assert at.engine.broker.queue("told").counts()["active"] == 21


async def test_a_state_that_is_too_large_refuses_its_message_and_stays_as_it_was(scope: str) -> None:
    async with site(scope) as at:
        worker = await handled(at, adding(), Add("a", 5))
        await worker.send("adds", Add("a", 1, "grow"), id="large")
        async with Worker(adding(), at) as again:
            await again.wait_idle()
            assert await again.state(Sum, "a") == Sum(5)
            (dead_letter,) = await again.dead_letters("adds")
            assert dead_letter.reason == "oversize" and dead_letter.id == "large"


async def test_a_state_that_only_the_pointer_makes_too_large_is_refused() -> None:
    async with site("item") as at:
        at.store.capabilities = StoreCapabilities("item", 1, 1_000, True, True)
        app = App("large")

        @app.handler("adds", key="key")
        def add(message: Add, total: Sum) -> None:
            total.text = "x" * message.n

        async with Worker(app, at) as worker:
            for size in range(840, 1_000, 10):
                await worker.send("adds", Add(f"k{size}", size), id=f"m{size}")
            await worker.wait_idle(timeout_s=20)
            dead_letters = {dead_letter.id: dead_letter.reason for dead_letter in await worker.dead_letters("adds")}
            assert "m990" in dead_letters and set(dead_letters.values()) == {"oversize"} and "m840" not in dead_letters


def growing(seen: list[str]) -> App:
    app = App("growing")

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum) -> None:
        seen.append(message.key)
        if message.text:
            raise Reject(message.text)
        total.text += "x" * message.n

    return app


@pytest.mark.parametrize("spare", [800, 600, 400])
async def test_a_state_at_the_limit_leaves_room_for_what_is_refused_next(scope: str, spare: int) -> None:
    seen: list[str] = []
    async with site(scope) as at, Worker(growing(seen), at) as worker:
        limit = at.store.capabilities.item_bytes_max
        await worker.send("adds", Add("a", limit - 8_192 - spare), id="m0")
        for number in range(1, 20):
            await worker.send("adds", Add("a", 40), id=f"m{number}")
        await worker.send("adds", Add("a", text="\x01" * 3_000), id="refused")
        await worker.wait_idle(timeout_s=20)
        found = await worker.state(Sum, "a")
        dead_letters = {dead_letter.id: dead_letter.reason for dead_letter in await worker.dead_letters("adds")}
        assert found is not None and limit - 9_000 < len(found.text) < limit - 8_192
        assert dead_letters.pop("refused").startswith("\x01") and set(dead_letters.values()) == {"oversize"}
        assert len(seen) <= 3 * 21


async def test_a_state_that_is_written_with_a_refusal_leaves_room_for_the_next() -> None:
    app = growing([])
    async with site("partition") as at:
        client, limit = Client(app, at), at.store.capabilities.item_bytes_max
        await client.declare()
        await client.send("adds", Add("a", limit - 8_192 + 100), id="large")  # fits, but not with the room to be left
        await client.send("adds", Add("a", text="no"), id="refused")
        async with Worker(app, at) as worker:  # gets both in one batch
            await worker.wait_idle(timeout_s=20)
            dead_letters = {dead_letter.id: dead_letter.reason for dead_letter in await worker.dead_letters("adds")}
            assert dead_letters == {"large": "oversize", "refused": "no"} and await worker.state(Sum, "a") is None


async def test_a_refusal_that_does_not_fit_is_cut_to_its_reason(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("outbox.runtime.commit.overflow.REFUSAL_BYTES_MAX", 0)  # as it was before room was left
    async with site(scope) as at, Worker(growing(seen), at) as worker:
        at.store.capabilities = replace(at.store.capabilities, item_bytes_max=1_000)
        await worker.send("adds", Add("a", 500), id="large")
        await worker.send("adds", Add("a", text="no " * 400), id="refused")
        await worker.wait_idle(timeout_s=20)
        (dead_letter,) = await worker.dead_letters("adds")
        assert dead_letter.id == "refused" and len(dead_letter.reason) <= 100 and dead_letter.reason.startswith("no no")
        assert await worker.state(Sum, "a") == Sum(0, "x" * 500)


async def test_overflow_that_is_not_what_was_written_is_reported() -> None:
    record, name, _ = overflow.spilled(Record("tx", b"", 0, outputs=(Output("q", 0, Message(body=b"1")),)))
    blobs = MemoryBlobStore()
    assert await overflow.outputs_of(record, blobs) is None
    await blobs.write(name, b"[]")
    with pytest.raises(CorruptRecord, match="was changed"):
        await overflow.outputs_of(record, blobs)

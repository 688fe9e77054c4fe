"""Outputs that lie inside the state of item scope: their cost, when they are staged, when a pointer is cleared."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from outbox import App, Context, Retry, Worker, stored
from outbox.engine.backend.apart import EngineStore
from outbox.errors import CorruptRecord
from outbox.ports import Replace
from outbox.stored import Inline, Record, StateItem, state_key
from tests.unit.stores.store_site import Add, Site, Sum, Told, adding, found, handled, site, slow_first_blob, swept
from tests.unit.stores.test_marks import send_apart
from tests.unit.stores.test_riding_marks import Counted, add_one, lingering

STEPS = ("read", "stage", "swap", "processed", "dispatched", "clear", "unstage")


def steps(at: Site) -> dict[str, int]:
    """How often the store was asked for what since the last look."""
    made = {what: at.store.calls[what] for what in STEPS if at.store.calls[what]}
    at.store.calls.clear()
    return made


async def state(at: Site, key: str = "k0") -> StateItem:
    return stored.decode(await found(at, state_key(f"Sum:{key}")), StateItem)


async def test_a_message_takes_two_reads_and_two_writes_and_the_next_of_its_key_one_read() -> None:
    async with site("item") as at, lingering(at, adding()) as worker:
        at.store.calls.clear()
        await add_one(worker, "m1")
        assert steps(at) == {"read": 2, "swap": 1, "processed": 1}
        await add_one(worker, "m2")
        assert steps(at) == {"read": 1, "swap": 1, "processed": 1}
        assert await worker.state(Sum, "k0") == Sum(2)


async def test_a_pointer_that_no_swap_replaces_is_cleared_once_and_the_state_stays_at_hand() -> None:
    async with site("item") as at, Worker(adding(), at) as worker:
        await add_one(worker, "m1")
        async with asyncio.timeout(5):
            while (await state(at)).pending:  # noqa: ASYNC110  # no event says that a pointer is cleared
                await asyncio.sleep(0.01)
        steps(at)
        await add_one(worker, "m2")
        assert steps(at)["read"] == 1 and at.store.calls["clear"] <= 1


async def test_a_stopping_worker_clears_what_it_has_finished() -> None:
    async with site("item") as at:
        async with lingering(at, adding()) as worker:
            await send_apart(worker, 3, keys=3)
            assert [(await state(at, key)).pending != "" for key in ("k0", "k1", "k2")] == [True] * 3
        assert [(await state(at, key)).pending for key in ("k0", "k1", "k2")] == [""] * 3
        assert (await swept(at, adding(), grace_s=0)).seen_count == 0


async def test_a_message_that_changes_nothing_leaves_the_pointer_to_be_cleared() -> None:
    async with site("item") as at:
        async with lingering(at, adding()) as worker:
            await add_one(worker, "m1")
            await worker.send("adds", Add("k0"), id="m1")  # a copy, which follows its marker
            await worker.wait_idle()
        assert (await state(at)).pending == "" and at.store.calls["clear"] == 1


async def test_a_state_that_another_worker_changed_is_read_again() -> None:
    counted = Counted()
    async with site("item") as at, lingering(at, counted.app) as worker:
        await add_one(worker, "m1")
        async with Worker(adding(), at) as other:
            await add_one(other, "m2")
        await add_one(worker, "m3")
        assert await worker.state(Sum, "k0") == Sum(3) and counted.runs in (2, 3)


async def test_a_message_that_is_tried_again_sees_what_another_worker_has_changed(scope: str) -> None:
    app, seen, was_tried = App("adding"), list[int](), asyncio.Event()

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum) -> None:
        if message.text == "wait":
            seen.append(total.n)
            was_tried.set()
            if total.n < 2:
                raise Retry(after_s=5)
        total.n += message.n

    async with site(scope) as at, lingering(at, app) as worker:
        await add_one(worker, "m1")
        await worker.send("adds", Add("k0", text="wait"), id="m2")
        await asyncio.wait_for(was_tried.wait(), 5)
        known = await found(at, state_key("Sum:k0"))
        two, before = msgspec.Raw(b'{"n":2,"text":""}'), stored.decode(known, StateItem)
        body = stored.encode(msgspec.structs.replace(before, value=two, version=before.version + 1))
        await EngineStore(at.engine.core, at.engine.documents).write([Replace(known.key, body, known.version)])
        at.clock.seconds += 6
        at.engine.tick()
        await worker.wait_idle()
        assert seen == [1, 2] and await worker.state(Sum, "k0") == Sum(3)


@pytest.mark.parametrize(("size_bytes", "is_staged"), [(150_000, False), (300_000, True)])
async def test_what_is_too_large_for_the_state_is_staged(size_bytes: int, is_staged: bool) -> None:
    app = App("adding", claim_check_bytes=1_000_000)
    app.queue("told")

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum, ctx: Context) -> None:
        total.n += 1
        ctx.send("told", Told(1, "y" * size_bytes))

    async with site("item") as at:
        await handled(at, app, Add("a"))
        assert bool(at.store.calls["stage"]) == is_staged
        (task,) = at.engine.broker.queue("told").tasks.values()
        assert len(task.message.body) > size_bytes


async def test_a_state_with_no_room_beside_it_has_its_outputs_staged() -> None:
    app = App("adding", claim_check_bytes=1_000_000)
    app.queue("told")

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum, ctx: Context) -> None:
        total.text = "x" * 1_990_000
        ctx.send("told", Told(1, "y" * 100_000))

    async with site("item") as at:
        await handled(at, app, Add("a"))
        assert at.store.calls["stage"] == 1 and len(at.engine.broker.queue("told").tasks) == 1


async def test_an_attempt_whose_attachment_takes_past_its_deadline_swaps_nothing() -> None:
    app = App("adding", claim_check_bytes=1_000)
    app.queue("told")

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum, ctx: Context) -> None:
        total.n += 1
        ctx.send("told", Told(1, "y" * 5_000))

    async with site("item") as at:
        written = slow_first_blob(at)
        await handled(at, app, Add("a"))
        assert len(written) == 2, "another attempt was made"
        assert at.store.calls["swap"] == 1 and at.store.calls["stage"] == 0
        assert len(at.engine.broker.queue("told").tasks) == 1


# Earlier versions of the code


class EarlierStateItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as earlier builds knew it: what is pending is the id of a staged transaction."""

    value: msgspec.Raw = stored.NO_VALUE
    schema: int = 1
    version: int = 0
    at_ms: int = 0
    pending: str = ""
    token: str = ""


def test_an_earlier_version_cannot_decode_a_pointer_to_what_lies_inside() -> None:
    inline = StateItem(version=1, pending=Inline(b"i", Record("tx", b"f", 1)))
    with pytest.raises(msgspec.ValidationError, match=r"pending"):
        msgspec.json.decode(stored.encode(inline), type=EarlierStateItem)
    cleared = StateItem(version=1, token="t")
    assert msgspec.json.decode(stored.encode(cleared), type=EarlierStateItem).token == "t"


async def test_what_an_earlier_version_has_staged_is_finished() -> None:
    async with site("item", staged=True) as at:
        at.bus.is_mute = True
        async with Worker(adding(), at, drain_s=0.2) as worker:
            await worker.send("adds", Add("a"), id="m1")
            await asyncio.sleep(0.3)
        assert isinstance((await state(at, "a")).pending, str) and (await state(at, "a")).pending
        at.bus.is_mute, at.store.capabilities = False, replace(at.store.capabilities, inline_bytes_max=1_000_000)
        at.clock.seconds += 61
        assert (await swept(at, adding())).finished_count == 1
        assert (await state(at, "a")).pending == "" and len(at.engine.broker.queue("told").tasks) == 1


async def test_a_state_that_is_not_ours_is_named() -> None:
    async with site("item") as at, lingering(at, adding()) as worker:
        await add_one(worker, "m1")
        document = await found(at, state_key("Sum:k0"))
        with pytest.raises(CorruptRecord, match="Sum:k0/state is not a Record"):
            stored.decode(document, Record)

"""What an operator over a store and a bus moves, and what it says is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from outbox.app import CLAIM_CHECK_BYTES, App
from outbox.deliveries import EntityCounts
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.errors import OutcomeUnknown, Refused, TooLarge
from outbox.message import Message
from outbox.ops.admins.azure import host_of
from outbox.ops.admins.store import StoreAdmin
from outbox.ops.messages.store import scan_count
from outbox.ops.values.dead_letters import Discard, DiscardSome, ListDeadLetters, Moved, Resubmit
from outbox.ops.values.messages import Cancel, MakeDue, NewMessage, Pause, Paused, Peek, Send
from outbox.ops.values.requests import BATCH_COUNT_MAX
from outbox.ops.values.status import ReadStatus
from outbox.ports import DeadLetterEntry, Document, DocumentKey, HeldMessage, Output
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.worker import Worker
from tests.unit.ops.conftest import Deposit, app
from tests.unit.ops.operators import store_admin, store_site


@dataclass
class Order:
    number: int = 0


def dead(sequence: int) -> DeadLetterEntry:
    message = Message(body=b"1", outbox_id=f"m{sequence}")
    return DeadLetterEntry("q", sequence, message, "no", "", delivery_count=1, enqueued_ms=0)


@pytest.mark.parametrize("what", ["resubmit", "discard"])
@pytest.mark.parametrize("error", [LookupError("a receiver has it"), Refused("too old")])
async def test_one_that_cannot_be_moved_does_not_keep_the_others(engine: Engine, what: str, error: Exception) -> None:
    moved = list[int]()

    async def move(sequence: int) -> None:
        if sequence == 2:
            raise error
        moved.append(sequence)

    async def resubmit(queue: str, sequence: int) -> None:
        await move(sequence)

    async def discard_found(dead: DeadLetterEntry) -> None:
        await move(dead.sequence)

    async def listed(queue: str) -> list[DeadLetterEntry]:
        return [dead(n) for n in (1, 2, 3)]

    admin = store_admin(engine)
    admin._at.operations = cast(
        Any, SimpleNamespace(dead_letters=listed, resubmit=resubmit, discard_found=discard_found)
    )
    found = await (
        admin.ask(Resubmit("q", None)) if what == "resubmit" else admin.ask(Discard("q", None, for_good=True))
    )
    assert sorted(moved) == [1, 3] and (found.count, found.in_hand) == (2, 1)


async def test_pages_of_dead_letters_go_on_behind_the_last(engine: Engine) -> None:
    async def listed(queue: str) -> list[DeadLetterEntry]:
        return [dead(n) for n in (1, 2, 3)]

    admin = store_admin(engine)
    admin._at.operations = cast(Any, SimpleNamespace(dead_letters=listed))
    pages = [await admin.ask(ListDeadLetters("q", after=after, count_max=2)) for after in (0, 2, 3)]
    assert [[each.sequence for each in page] for page in pages] == [[1, 2], [3], []]


async def test_of_copies_the_newest_is_resubmitted_and_takes_the_others_along(engine: Engine) -> None:
    asked, none = list[int](), msgspec.structs.replace(dead(9), message=Message(body=b"1"))
    copies = [msgspec.structs.replace(dead(1), sequence=n) for n in (1, 2)]

    async def listed(queue: str) -> list[DeadLetterEntry]:
        return [*copies, *(msgspec.structs.replace(none, sequence=n) for n in (3, 4))]

    async def resubmit(queue: str, sequence: int) -> None:
        asked.append(sequence)

    admin = store_admin(engine)
    admin._at.operations = cast(Any, SimpleNamespace(dead_letters=listed, resubmit=resubmit))
    assert await admin.ask(Resubmit("q", None)) == Moved(4, 0)
    assert asked == [4, 3, 2], "what has no id has no copies"


@pytest.mark.parametrize("for_good", [True, False])
async def test_what_is_discarded_in_one_pass_is_set_aside_first_and_what_is_gone_is_left(
    engine: Engine, for_good: bool
) -> None:
    lives = list[float | None]()

    async def listed(queue: str) -> list[DeadLetterEntry]:
        return [dead(n) for n in (1, 2, 3)]

    async def before_discard(dead: DeadLetterEntry, *, life_s: float | None) -> None:
        lives.append(life_s)

    async def discard_some(queue: str, firsts: Any) -> set[int]:
        for first in firsts.values():
            await first()
        return set(firsts) - {2}

    admin = store_admin(engine, discard_some=discard_some)
    admin._at.operations = cast(Any, SimpleNamespace(dead_letters=listed, before_discard=before_discard))
    moved = await admin.ask(DiscardSome("q", [1, 2, 7], for_good=for_good))
    assert (moved.count, moved.in_hand, moved.numbers) == (1, 2, [1])
    assert len(lives) == 2 and all((life_s is None) is for_good for life_s in lives)
    assert for_good or (lives[0] is not None and 86_400 <= lives[0] < 1e8), "seconds"


async def test_a_discard_of_several_dead_letters_says_which_they_were(engine: Engine) -> None:
    async def listed(queue: str) -> list[DeadLetterEntry]:
        return [dead(2), msgspec.structs.replace(dead(2), sequence=5), dead(3)]

    async def discard_found(dead: DeadLetterEntry) -> None: ...

    admin = store_admin(engine)
    admin._at.operations = cast(Any, SimpleNamespace(dead_letters=listed, discard_found=discard_found))
    moved = await admin.ask(Discard("q", "m2", for_good=True))
    assert (moved.count, moved.numbers) == (2, [2, 5])


async def test_dead_letters_of_the_store_count_for_their_queue_whatever_its_case(engine: Engine) -> None:
    async def counts() -> dict[str, EntityCounts]:
        return {"ORDERS": EntityCounts(1, 0, 2), "invoices": EntityCounts(0, 0, 0)}

    app = App("shop")

    @app.handler("Orders")
    def take(order: Order) -> None: ...

    narrow = NarrowEngine(engine, "partition")
    async with Worker(app, narrow):
        pass  # registers its handlers
    ports = narrow.ports()
    letters = StoredDeadLetters(ports.store, ports.blobs)
    for sequence in (1, 2, 3):
        await letters.put(msgspec.structs.replace(dead(sequence), queue="Orders"))
    found = await StoreAdmin(store_site(ports, counts=counts)).ask(ReadStatus())
    assert {path: queue.dead_letters for path, queue in found.queues.items()} == {"invoices": 0, "ORDERS": 2 + 3}


async def registered(engine: Engine) -> StoreAdmin:
    """An operator on a store in which the application has registered its handlers."""
    async with Worker(app, NarrowEngine(engine, "partition")):
        return store_admin(engine)


async def test_what_is_sent_without_a_type_gets_the_only_one_that_is_registered(engine: Engine) -> None:
    admin = await registered(engine)
    body = msgspec.Raw(b'{"account": "a", "amount": 5}')
    await admin.ask(Send("deposits", [NewMessage(id="m1", body=body), NewMessage(id="m1", body=body, type="Deposit")]))
    first, second = (task.message for task in engine.broker.peek("deposits", 0, 9))
    assert (first.type, first.body) == (second.type, second.body) == ("Deposit", second.body)


async def test_a_large_body_is_sent_by_a_blob_and_too_many_at_once_are_refused(engine: Engine) -> None:
    admin = await registered(engine)
    large = msgspec.Raw(b'"' + b"x" * CLAIM_CHECK_BYTES + b'"')
    await admin.ask(Send("deposits", [NewMessage(id="m1", body=large)]))
    [task] = engine.broker.peek("deposits", 0, 9)
    assert task.message.body == b"" and await engine.blobs.read(task.message.claim, bytes_max=1 << 20) == bytes(large)
    with pytest.raises(TooLarge, match="1001 messages in one batch"):
        await admin.ask(Send("deposits", [NewMessage(id="m", body=msgspec.Raw(b"1"))] * (BATCH_COUNT_MAX + 1)))


def test_one_queue_is_looked_through_as_far_as_many_together() -> None:
    assert [scan_count(queues) for queues in (0, 1, 5, 10, 11, 1_000)] == [20_000, 20_000, 4_000, 2_000, 2_000, 2_000]


class Bus:
    """A bus with these scheduled messages, which notes what it is asked to do."""

    def __init__(self, *held: HeldMessage) -> None:
        self.held, self.done = held, list[Any]()

    async def peek(self, queue: str, *, is_wanted: Any, after: int = 0, **_: Any) -> tuple[list[HeldMessage], int]:
        return [each for each in self.held if each.sequence > after and is_wanted(each)], 0

    async def cancel(self, queue: str, sequences: list[int]) -> None:
        self.done += sequences

    async def pause(self, queue: str, *, paused: bool) -> bool:
        self.done.append(paused)
        return True


def later(sequence: int, id: str, **more: Any) -> HeldMessage:
    due = {"status": "scheduled", "enqueued_ms": 0, "due_ms": 1_000 * sequence, **more}
    return HeldMessage(sequence=sequence, message=Message(body=b"1", outbox_id=id), **due)


def over(engine: Engine, bus: Bus) -> StoreAdmin:
    return store_admin(engine, peek=bus.peek, cancel=bus.cancel, pause=bus.pause)


async def test_on_a_bus_what_is_tried_again_is_not_cancelled(engine: Engine) -> None:
    bus = Bus(later(1, "m1"), later(2, "m1", failures=1), later(3, "m2"))
    assert await over(engine, bus).ask(Cancel("q", "m1")) == Moved(1, id="m1")
    assert bus.done == [1]


async def test_on_a_bus_an_id_is_found_behind_many_that_begin_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.ops.messages.store.BATCH_COUNT_MAX", 2)
    bus = Bus(*(later(n, f"message{n}") for n in range(1, 6)), later(9, "message"))
    assert await over(engine, bus).ask(Cancel("q", "message")) == Moved(1, id="message")
    assert bus.done == [9]


async def test_on_a_bus_a_page_by_due_time_begins_behind_a_message_that_is_there(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus(later(1, "m1"), later(4, "m4"), later(3, "m3"))
    admin = over(engine, bus)
    found = await admin.ask(Peek("q", 1, 1, "scheduled", by_due=True))
    assert ([view.id for view in found.messages], found.more) == (["m3"], 3)
    with pytest.raises(Refused, match="message 2 of q is not scheduled any more"):
        await admin.ask(Peek("q", 2, 1, "scheduled", by_due=True))

    async def one_by_one(queue: str, *, after: int, **more: Any) -> tuple[list[HeldMessage], int]:
        some = sorted((await bus.peek(queue, after=after, **more))[0], key=lambda held: held.sequence)
        return some[:1], some[0].sequence if len(some) > 1 else 0

    admin = store_admin(engine, peek=one_by_one)
    assert [view.id for view in (await admin.ask(Peek("q", 0, 9, "scheduled", by_due=True))).messages] == [
        "m1",
        "m3",
        "m4",
    ]
    monkeypatch.setattr("outbox.ops.messages.store.LOOKS_MAX", 2)
    with pytest.raises(Refused, match="holds too many messages"):
        await admin.ask(Peek("q", 0, 9, "scheduled", by_due=True))


@pytest.mark.parametrize("is_indexed", [True, False])
async def test_on_a_bus_a_page_says_which_dead_letters_block_its_keys(engine: Engine, is_indexed: bool) -> None:
    """With a query all of its keys are looked up, else the first three."""
    narrow, asked = NarrowEngine(engine, "partition"), list[Sequence[str]]()
    store, keys = narrow.ports().store, ["k1", "free", "k2", "k3", "k4"]
    async with Worker(app, narrow) as worker:
        for key in (each for each in keys if each != "free"):
            await worker.send("ledger", Deposit(key, -1), id=f"dead-{key}")
        await worker.wait_idle(timeout_s=20)

    async def among(partitions: Sequence[str], id: str) -> AsyncIterator[Document]:
        asked.append(partitions)
        for partition in partitions:
            if (found := await store.read(DocumentKey(partition, id))) is not None:
                yield found

    held = [
        HeldMessage(
            sequence=n, message=Message(body=b"1", outbox_id=key, session_id=key), status="active", enqueued_ms=0
        )
        for n, key in enumerate(("", *keys), 1)
    ]
    index: Any = SimpleNamespace(among=among) if is_indexed else None
    admin = store_admin(engine, peek=Bus(*held).peek, index=index)
    shown = (await admin.ask(Peek("ledger", state="blocked"))).messages
    assert [view.id for view in shown] == (["k1", "k2", "k3", "k4"] if is_indexed else ["k1", "k2"])
    assert all(f"'dead-{view.id}'" in view.why for view in shown) and len(asked) == is_indexed
    assert len((await admin.ask(Peek("ledger"))).messages) == 6


@pytest.mark.parametrize("paused", [True, False])
async def test_a_queue_of_a_bus_is_paused_or_resumed_as_asked(engine: Engine, paused: bool) -> None:
    bus = Bus()
    assert await over(engine, bus).ask(Pause("q", paused)) == Paused("q", paused, True)
    assert bus.done == [paused]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://shop.documents.azure.com:443/", "shop.documents.azure.com:443"),
        ("shop.servicebus.windows.net", "shop.servicebus.windows.net"),
        ("Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKey=abc=", "shop.servicebus.windows.net"),
        ("AccountKey=abc==;AccountEndpoint=http://127.0.0.1:9/", "127.0.0.1:9"),
        ("AccountName=shop;AccountKey=abc;BlobEndpoint=http://127.0.0.1:9/shop", "127.0.0.1:9"),
        ("DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=abc", "shop"),
        ("https://shop.blob.core.windows.net/?sv=1&sig=abc", "shop.blob.core.windows.net"),
        ("https://me:abc@shop.example/", "shop.example"),
        ("AccountKey=abc", ""),
    ],
)
def test_an_address_is_named_without_its_key(address: str, host: str) -> None:
    assert host_of(address) == host and "abc" not in host_of(address)


async def test_what_is_sent_for_later_is_scheduled_on_the_bus(engine: Engine) -> None:
    admin = await registered(engine)
    body = msgspec.Raw(b'{"account": "a", "amount": 5}')
    await admin.ask(Send("deposits", [NewMessage(id="m1", body=body)], due=4e9))
    await admin.ask(Send("deposits", [NewMessage(id="m2", body=body, created=5)], due=4e9))
    await admin.ask(Send("deposits", [NewMessage(id="m3", body=body)], due=5))
    found = [(task.due_ms, task.message.created_ms) for task in engine.broker.peek("deposits", 0, 9)]
    assert found[:2] == [(4_000_000_000_000, 4_000_000_000_000), (4_000_000_000_000, 5_000)]
    assert found[2][0] == 0 and found[2][1] > 5_000


@pytest.mark.parametrize("is_sent", [True, False])
async def test_what_is_to_be_due_now_is_cancelled_only_when_it_was_sent(engine: Engine, is_sent: bool) -> None:
    done, message = list[str](), Message(body=b"1", message_id="m1")

    async def peek(queue: str, **_: Any) -> tuple[list[HeldMessage], int]:
        return [HeldMessage(sequence=7, message=message, status="scheduled", enqueued_ms=0, due_ms=9)], 0

    async def send(outputs: list[Output]) -> None:
        (output,) = outputs
        done.append(f"{output.message.identity} {output.message.message_id} {output.due_ms}")
        if not is_sent:
            raise OutcomeUnknown("no answer")

    async def cancel(queue: str, sequences: list[int]) -> None:
        done.append(f"cancelled {sequences}")

    admin = store_admin(engine, peek=peek, cancel=cancel)
    admin._at.operations = cast(Any, SimpleNamespace(send=send))
    with nullcontext() if is_sent else pytest.raises(OutcomeUnknown):
        assert await admin.ask(MakeDue("q", "m1")) == Moved(1, id="m1")
    assert done == ["m1 m1~now-7 0", "cancelled [7]"][: 1 + is_sent]

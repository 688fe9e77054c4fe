"""Several dead letters of one id: a filter, a limit and a blocked key mean one of them, and no other is moved."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outbox import App, Client, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import make_parser
from outbox.ops.dead_letters import groups as dead_letters
from outbox.ops.dead_letters.blocked import every_blocked, unblock
from outbox.ops.dead_letters.groups import discard_all, found_in, resubmit_all
from outbox.ops.dead_letters.views import cure_of
from outbox.ops.shared.names import later_id, scheduled_id
from outbox.ops.values.dead_letters import (
    DeadLetterFilter,
    Discard,
    ListDeadLetters,
    ListDiscarded,
    Resubmit,
    ShowDeadLetter,
)
from outbox.ops.values.messages import Find
from outbox.ops.values.requests import Admin
from outbox.ports import Backend, DeadLetterEntry
from tests.unit.ops.operators import operator, store_admin


@dataclass
class Entry:
    key: str
    n: int


@dataclass
class Seen:
    ns: list[int] = field(default_factory=list)


@dataclass
class Site:
    """Two keys that are refused, as long as they are down."""

    backend: Backend
    admin: Admin
    down: set[str] = field(default_factory=lambda: {"a", "b"})

    def app(self) -> App:
        app = App("shop")
        app.queue("ledger", "per_key")

        def enter(entry: Entry, seen: Seen) -> None:
            if entry.key in self.down:
                raise Reject(f"down {entry.key}")
            seen.ns.append(entry.n)

        app.handler("orders", key="key", name="order")(enter)
        app.handler("ledger", key="key", name="enter", on_dead_letter="stop_key")(enter)
        return app

    async def handle(self, *sends: tuple[str, Entry, str]) -> None:
        """Send, and let a worker handle what waits and is not blocked."""
        async with Worker(self.app(), self.backend) as worker:
            for queue, entry, id in sends:
                await worker.send(queue, entry, id=id)
            await worker.wait_idle(timeout_s=5)

    async def state(self, key: str) -> list[int]:
        seen = await Client(self.app(), self.backend).state(Seen, key)
        return [] if seen is None else seen.ns


async def no_messages(queue: str, **_: Any) -> tuple[list[Any], int]:
    """What a queue holds, as a bus shows it."""
    return [], 0


@pytest.fixture(params=["direct", "http", "partition"])
async def site(request: pytest.FixtureRequest, engine: Engine, disk_path: Path) -> AsyncIterator[Site]:
    if request.param == "partition":
        yield Site(NarrowEngine(engine, "partition"), store_admin(engine, peek=no_messages))
        return
    async with operator(engine, disk_path, request.param) as admin:
        yield Site(engine, admin)


async def test_a_filter_discards_what_it_means_and_no_other_of_the_id(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("a", 7), "x1"))
    meant = await found_in(site.admin, ["orders"], DeadLetterFilter(reason="payload-differs"))
    moved = await discard_all(site.admin, meant, a_second=None, for_good=True)
    assert (moved.count, moved.left) == (1, 0)
    [left] = await site.admin.ask(ListDeadLetters("orders"))
    assert left.reason == "down a"


async def test_a_limit_is_one_of_so_many_dead_letters(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("b", 2), "x1"))
    first = await found_in(site.admin, ["orders"], DeadLetterFilter(), 1)
    assert (await discard_all(site.admin, first, a_second=None)).count == 1
    assert (
        len(await site.admin.ask(ListDeadLetters("orders"))) == 1 == len(await site.admin.ask(ListDiscarded("orders")))
    )


async def test_a_filter_resubmits_what_it_means(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("b", 2), "x1"))
    meant = await found_in(site.admin, ["orders"], DeadLetterFilter(reason="down a"))
    assert len(meant) == 1
    site.down.clear()
    await site.admin.ask(Resubmit("orders", "x1", sequence=meant[0].sequence))
    await site.handle()
    assert (await site.state("a"), await site.state("b")) == ([1], [])


async def test_copies_that_go_along_with_a_resubmission_are_not_left(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"))
    await site.handle(("orders", Entry("a", 1), "x1"))
    letters = await found_in(site.admin, ["orders"], DeadLetterFilter())
    assert len(letters) == 2
    moved = await resubmit_all(site.admin, letters, a_second=None)
    assert (moved.count, moved.left, moved.why) == (1, 0, "")


async def test_copies_go_along_with_a_resubmission_of_all(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"))
    await site.handle(("orders", Entry("a", 1), "x1"))
    moved = await site.admin.ask(Resubmit("orders", None))
    assert (moved.count, moved.in_hand) == (2, 0)
    site.down.clear()
    await site.handle()
    assert await site.state("a") == [1] and await site.admin.ask(ListDeadLetters("orders")) == []


async def test_another_dead_letter_of_the_id_is_no_relapse(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "RELAPSE_WITHIN_S", 0.6)
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("a", 7), "x1"))
    meant = await found_in(site.admin, ["orders"], DeadLetterFilter(reason="down a"))
    moved = await resubmit_all(site.admin, meant, a_second=None)
    assert (moved.count, moved.left, moved.relapsed) == (1, 0, "")


async def test_a_relapse_is_seen_beside_another_dead_letter_of_the_id(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("a", 7), "x1"))
    meant = await found_in(site.admin, ["orders"], DeadLetterFilter(reason="down a"))
    async with Worker(site.app(), site.backend):
        moved = await resubmit_all(site.admin, meant, a_second=None)
    assert (moved.count, moved.relapsed) == (1, "x1")
    [back] = await found_in(site.admin, ["orders"], DeadLetterFilter(reason="down a"))
    assert moved.number == back.sequence


async def test_what_is_shown_is_what_is_resubmitted_and_its_cure_names_it(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("a", 7), "x1"))
    by_reason = {letter.reason: letter.sequence for letter in await site.admin.ask(ListDeadLetters("orders"))}
    shown = await site.admin.ask(ShowDeadLetter("orders", "x1"))
    assert (shown.reason, shown.sequence) == ("down a", by_reason["down a"])  # not the newest, which reused the id
    assert f"`outbox dead-letters resubmit --body FILE --sequence {shown.sequence} orders x1`" in shown.cure
    other = await site.admin.ask(ShowDeadLetter("orders", "x1", sequence=by_reason["payload-differs"]))
    assert (other.reason, other.sequence) == ("payload-differs", by_reason["payload-differs"])
    assert f"`outbox dead-letters discard --sequence {other.sequence} orders x1`" in other.cure
    await site.admin.ask(Resubmit("orders", "x1"))
    [left] = await site.admin.ask(ListDeadLetters("orders"))
    assert left.sequence == other.sequence
    assert "--sequence" not in (await site.admin.ask(ShowDeadLetter("orders", "x1"))).cure


async def test_of_all_those_without_an_id_none_is_a_copy_and_what_is_refused_is_left(engine: Engine) -> None:
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"1") for _ in range(3)])
    for reason, claim in zip(("no", "no", "too-old"), engine.broker.claim("q", 3), strict=True):
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason=reason)
    moved = await EngineAdmin(engine).ask(Resubmit("q", None))
    assert (moved.count, moved.in_hand) == (2, 1)


async def test_every_place_of_an_id_has_a_cure_that_means_it(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("a", 7), "x1"))
    for found in await site.admin.ask(Find("x1", "orders")):
        assert found.dead_letter is not None
        assert f"--sequence {found.dead_letter.sequence} orders x1" in found.dead_letter.cure


async def test_a_discard_of_an_id_takes_all_its_dead_letters(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"), ("orders", Entry("a", 7), "x1"))
    assert (await site.admin.ask(Discard("orders", "x1"))).count == 2
    assert await site.admin.ask(ListDeadLetters("orders")) == []


async def test_one_that_is_gone_is_named_by_its_number(site: Site) -> None:
    await site.handle(("orders", Entry("a", 1), "x1"))
    for move in (Resubmit, Discard):
        with pytest.raises(LookupError, match="no dead letter 'x1' of number 99 any more"):
            await site.admin.ask(move("orders", "x1", sequence=99))


@pytest.mark.parametrize("site", ["direct", "http"], indirect=True)  # a store's keys are looked for on the bus
@pytest.mark.parametrize("by", ["discard", "resubmit"])
async def test_unblocking_a_key_moves_the_dead_letter_of_no_other(site: Site, by: Any) -> None:
    await site.handle(
        ("ledger", Entry("a", 1), "x1"), ("ledger", Entry("b", 2), "x1"), ("ledger", Entry("b", 22), "x3")
    )
    site.down.discard("a")
    await unblock(site.admin, "ledger", "a", by)
    await site.handle()
    assert [(key.key, key.id) for key in await every_blocked(site.admin, "ledger")] == [("b", "x1")]
    assert await site.state("b") == []


@pytest.mark.parametrize("one", [scheduled_id, later_id])
def test_an_empty_id_means_none_of_the_messages_without_one(one: Any) -> None:
    with pytest.raises(LookupError):
        one("orders", "", {"", "x1"})


@pytest.mark.parametrize("id", ["x; touch y #", "o 1", "$(true)", "it's", "-dash"])
def test_a_cure_holds_an_id_as_one_word_whatever_its_sender_chose(id: str) -> None:
    dead = DeadLetterEntry("orders", 1, Message(body=b"{}", outbox_id=id), "failed", "", 1, 0)
    command = cure_of(id, dead).partition("` once its cause")[0].removeprefix("`")
    words = shlex.split(command)
    assert words == ["outbox", "dead-letters", "resubmit", "orders", *["--"] * id.startswith("-"), id]
    assert make_parser().parse_args(words[1:]).id == id

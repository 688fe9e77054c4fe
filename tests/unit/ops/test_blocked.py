"""Keys that a dead letter blocks are listed with it, and go on only by what is done with that dead letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.errors import Refused, UnknownDestination
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main
from outbox.ops.dead_letters.blocked import GONE, every_blocked, page_of, unblock
from outbox.ops.values.dead_letters import BlockedKey, BlockedPage, ListBlocked, ListDeadLetters
from outbox.ops.values.messages import Peek
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import ReadStatus
from outbox.worker import Worker
from tests.unit.ops.conftest import Deposit, app
from tests.unit.ops.operators import on_folder


async def entered(engine: Engine, *entries: tuple[str, str, int]) -> None:
    """Send entries of the ledger (key, id, amount): a negative one is refused, and blocks its key."""
    async with Worker(app, engine) as worker:
        for key, id, amount in entries:
            await worker.send("ledger", Deposit(key, amount), id=id)
        await worker.wait_idle(timeout_s=5)


BLOCKED = (("alice", "a1", -1), ("alice", "a2", 5), ("alice", "a3", 5), ("bob", "b1", -1), ("cyd", "c1", 5))


async def test_each_blocked_key_says_by_what_and_how_many_wait(bank: Any, admin: Admin) -> None:
    await entered(bank.engine, *BLOCKED)
    found = await every_blocked(admin)
    shown = [(x.queue, x.key, x.id, x.waiting, x.reason, x.is_there) for x in found]
    assert shown == [
        ("ledger", "alice", "a1", 2, "no such entry", True),
        ("ledger", "bob", "b1", 0, "no such entry", True),
    ]
    assert all(0 < x.since * 1_000 <= bank.engine.now_ms() for x in found)
    assert await every_blocked(admin, "deposits") == []
    with pytest.raises(UnknownDestination, match="no-such"):
        await every_blocked(admin, "no-such")


def bury(engine: Engine, queue: str, *keys: str) -> None:
    """Let each of these keys be blocked by a dead letter of its own."""
    engine.broker.send(
        queue, [Message(body=b"1", outbox_id=f"{key}-{n}", session_id=key) for n, key in enumerate(keys)]
    )
    for task in list(engine.broker.queue(queue).tasks.values()):
        engine.state._dead_letter(engine.broker.queue(queue), task, "no", "text\nstack", stops_session=True)


async def test_pages_of_all_queues_begin_each_queue_at_its_first_key(engine: Engine) -> None:
    for queue, keys in (("a", ("k1", "k2")), ("b", ("k0", "k1"))):
        engine.declare(QueueSettings(queue, ordering="per_key", stop_key=True))
        bury(engine, queue, *keys)
    admin, found, asked = EngineAdmin(engine), list[tuple[str, str]](), ListBlocked(count=1)
    for _ in range(4):
        page = await admin.ask(asked)
        found += [(each.queue, each.key) for each in page.keys]
        asked = ListBlocked("", page.more, 1)
    assert found == [("a", "k1"), ("a", "k2"), ("b", "k0"), ("b", "k1")] and page.more == ""


async def test_a_key_is_blocked_by_the_first_of_its_dead_letters(engine: Engine) -> None:
    engine.declare(QueueSettings("a", ordering="per_key", stop_key=True))
    bury(engine, "a", "k", "k")
    engine.broker.send("a", [Message(body=b"1", outbox_id="waits", session_id="k")])
    admin = EngineAdmin(engine)
    [key] = await every_blocked(admin)
    [waits] = (await admin.ask(Peek("a"))).messages
    assert (key.id, key.waiting, key.why, "'k-0'" in waits.why) == ("k-0", 1, "text", True)


def test_pages_of_a_store_have_every_key_once() -> None:
    keys = [BlockedKey(queue="q", key=key, id="", since=0.0, waiting=0, is_there=False) for key in "dbace"]
    first = page_of(keys, ListBlocked(count=2))
    second = page_of(keys, ListBlocked("", first.more, 2))
    third = page_of(keys, ListBlocked("", second.more, 2))
    found = [each.key for page in (first, second, third) for each in page.keys]
    assert ("".join(found), third.more) == ("abcde", "")


async def test_all_pages_are_of_the_queue_that_was_asked_for() -> None:
    asked = list[ListBlocked]()

    class Paged:
        async def ask(self, one: ListBlocked) -> BlockedPage:
            asked.append(one)
            return BlockedPage([], "there is more" if len(asked) < 3 else "")

    await every_blocked(cast(Any, Paged()), "ledger")
    assert asked == [ListBlocked("ledger"), *[ListBlocked("ledger", "there is more")] * 2]


async def test_discarding_the_dead_letter_lets_its_key_go_on_and_no_other(bank: Any, admin: Admin) -> None:
    await entered(bank.engine, *BLOCKED)
    done = await unblock(admin, "ledger", "alic", "discard")
    assert (done.key, done.id, done.by, done.waiting) == ("alice", "a1", "discard", 2)
    assert [x.key for x in await every_blocked(admin)] == ["bob"]
    await entered(bank.engine)
    assert (await admin.ask(ReadStatus())).queues["ledger"].active == 0
    assert [letter.id for letter in await admin.ask(ListDeadLetters("ledger"))] == ["b1"]


async def test_resubmitting_it_runs_it_first_and_blocks_the_key_again_if_it_fails(bank: Any, admin: Admin) -> None:
    await entered(bank.engine, *BLOCKED)
    done = await unblock(admin, "ledger", "alice", "resubmit")
    assert (done.id, done.by) == ("a1", "resubmit")
    await entered(bank.engine)
    [alice, _] = await every_blocked(admin)
    assert (alice.id, alice.waiting) == ("a1", 2)


async def test_only_a_blocked_key_is_unblocked_and_its_prefix_must_be_one(bank: Any, admin: Admin) -> None:
    await entered(bank.engine, ("alice-x", "a1", -1), ("alice-y", "b1", -1))
    with pytest.raises(LookupError, match="no key 'cyd' of ledger is blocked; blocked are: alice-x, alice-y"):
        await unblock(admin, "ledger", "cyd", "discard")
    with pytest.raises(Refused, match="2 blocked keys of ledger begin with 'alice'"):
        await unblock(admin, "ledger", "alice", "discard")
    assert len(await every_blocked(admin)) == 2


async def test_what_blocks_without_a_dead_letter_is_named_and_not_touched(bank: Any, admin: Admin) -> None:
    await entered(bank.engine, *BLOCKED)
    order = bank.engine.broker.queue("ledger").order
    order.sessions["bob"].blocked_by = {9_999}
    [_, bob] = await every_blocked(admin)
    assert (bob.id, bob.is_there, bob.why) == ("", False, GONE)
    with pytest.raises(Refused, match="its dead letter is gone"):
        await unblock(admin, "ledger", "bob", "discard")


def test_the_commands_list_and_want_to_be_told_how(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("alice", "a1", -1), ("alice", "a2", 5), ("k\x1b[2J", "b1", -1)
    on_folder(disk_path, lambda engine: entered(engine, *lines))
    place = ("--data", str(disk_path))
    assert main(["blocked", "list", *place]) == 0
    out = capsys.readouterr().out
    assert "alice" in out and "no such entry: rejected by the handler" in out and "\x1b" not in out
    assert main(["blocked", "list", "ledger", "--json", *place]) == 0
    assert [(x["key"], x["waiting"]) for x in json.loads(capsys.readouterr().out)] == [("alice", 1), ("k\x1b[2J", 0)]
    with pytest.raises(SystemExit):
        main(["blocked", "unblock", "ledger", "alice", *place])
    assert "--by" in capsys.readouterr().err
    assert main(["blocked", "unblock", "ledger", "alice", "--by", "discard", *place]) == 0
    assert capsys.readouterr().out == "discarded 'a1' of ledger; key 'alice' goes on now, 1 waiting\n"
    assert main(["blocked", "unblock", "ledger", "k\x1b[2J", "--by", "resubmit", *place]) == 0
    assert "goes on when that is applied" in capsys.readouterr().out
    assert main(["blocked", "list", *place]) == 0
    assert capsys.readouterr().out == "no key is blocked\n"

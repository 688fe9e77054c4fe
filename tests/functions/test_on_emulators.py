"""The bank as a Functions app over both emulators by the real SDKs: faults, kill -9, poison, the timer."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from function_app.bank import OpenAccount, Posting, Transfer
from outbox.emulator.faults import FaultRule, drawn
from outbox.engine.entities import QueueSettings

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


async def open_accounts(cloud: Any, *accounts: str, balance: int = 100) -> None:
    for account in accounts:
        await cloud.client.send("accounts", OpenAccount(account, balance), id=f"open-{account}")


async def move(cloud: Any, count: int, *, first: int = 0, amount: int = 1, source: str = "alice") -> None:
    for n in range(first, first + count):
        await cloud.client.send("transfers", Transfer(f"t{n}", source, "bob", amount), id=f"t{n}")


def kinds(cloud: Any) -> list[tuple[str, str]]:
    """What the ledger says, each posting once however many copies of it were sent."""
    once = {task.message.identity: json.decode(task.message.body, type=Posting) for task in cloud.postings()}
    assert len(once) == len({(posting.transfer, posting.account, posting.kind) for posting in once.values()})
    return sorted((posting.transfer, posting.kind) for posting in once.values())


async def test_transfers_settle_exactly_once_with_faults_on_everything(cloud: Any) -> None:
    await open_accounts(cloud, "alice", "bob")
    await cloud.host()
    await cloud.wait_idle()
    bus, store = cloud.faults
    for rule in (
        *drawn(5, ["lost-reply", "throttled", "status", "reset"], operation="batch", status=503, retry_after_s=0.05),
        *drawn(6, ["lost-reply", "status", "throttled"], operation="item.*", status=503, retry_after_s=0.05),
    ):
        store.install(rule)
    for rule in drawn(7, ["duplicate", "lock-expiry", "lost-disposition", "reorder"], within=20):
        bus.install(rule)
    await move(cloud, 30)
    for n in range(0, 30, 3):  # and every third once more
        await cloud.client.send("transfers", Transfer(f"t{n}", "alice", "bob", 1), id=f"t{n}")
    await cloud.wait_idle(within_s=90)
    assert (await cloud.balance("alice"), await cloud.balance("bob")) == (70, 130)
    moved = [(f"t{n}", kind) for n in range(30) for kind in ("deposit", "withdraw")]
    assert kinds(cloud) == sorted([("", "opened"), ("", "opened"), *moved])
    assert sum(store.fired.values()) >= 3 and sum(bus.fired.values()) >= 2, (store.fired, bus.fired)


async def test_one_of_two_hosts_is_killed_and_nothing_is_lost_or_doubled(cloud: Any) -> None:
    await open_accounts(cloud, "alice", "bob")
    first, _second = await cloud.host(), await cloud.host()
    await cloud.wait_idle()
    await move(cloud, 40)

    async def has_begun() -> bool:
        return bool(0 < 100 - await cloud.balance("alice") < 40)

    await cloud.wait_until(has_begun)
    await first.kill()
    await move(cloud, 20, first=40)
    await cloud.wait_until(lambda: settled(cloud, 60), within_s=150)
    assert (await cloud.balance("alice"), await cloud.balance("bob")) == (40, 160)
    assert [kind for _, kind in kinds(cloud)].count("withdraw") == 60


async def settled(cloud: Any, moved: int) -> bool:
    """Whether both halves of so many transfers are done; what the killed host held comes when its locks run out."""
    return bool(cloud.in_flight() == 0 and await cloud.balance("bob") == 100 + moved)


async def test_poison_is_kept_in_the_store_and_can_be_resubmitted(cloud: Any) -> None:
    await open_accounts(cloud, "alice", "bob")
    await cloud.client.send("transfers", Transfer("bad", "alice", "bob", -5), id="bad")
    await cloud.client.send_raw("transfers", b"{nonsense", properties={"outbox-id": "raw", "outbox-type": "Transfer"})
    await cloud.host()

    async def both() -> bool:
        return len(await cloud.client.dead_letters("transfers")) == 2

    await cloud.wait_until(both)
    dead_letters = {dead_letter.id: dead_letter for dead_letter in await cloud.client.dead_letters("transfers")}
    assert dead_letters["bad"].reason == "amount must be positive" and dead_letters["bad"].message.amount == -5
    assert dead_letters["raw"].reason == "undecodable" and dead_letters["raw"].body == b"{nonsense"
    assert len(cloud.engine.broker.queue("transfers/$DeadLetterQueue").tasks) == 0
    said = cloud.hosts[0].log.read_text()
    for id, reason in (("bad", "amount must be positive"), ("raw", "undecodable")):
        line = f"message dead-lettered id={id} queue=transfers handler=withdraw reason={reason}"
        assert said.count(line) == 1, said
    await cloud.client.resubmit("transfers", "bad")  # refused again, by the same rule
    await cloud.wait_idle()
    await cloud.wait_until(both)
    await cloud.client.discard("transfers", "raw")
    assert [dead_letter.id for dead_letter in await cloud.client.dead_letters("transfers")] == ["bad"]
    assert await cloud.balance("alice") == 100


async def test_the_timer_sends_what_a_killed_host_had_committed(cloud: Any) -> None:
    await open_accounts(cloud, "alice", "bob")
    host = await cloud.host()
    await cloud.wait_idle()
    cloud.engine.declare(QueueSettings("transfers", lock_s=60.0))  # longer than this test
    cloud.bus.faults.install(FaultRule(kind="refused", operation="send", where="deposits"))
    await cloud.client.send("transfers", Transfer("t", "alice", "bob", 5), id="t")

    async def is_withdrawn() -> bool:
        return bool(await cloud.balance("alice") == 95)

    await cloud.wait_until(is_withdrawn)
    await host.kill()
    cloud.bus.faults.clear()
    sweeping = await cloud.host()

    async def is_deposited() -> bool:
        assert await sweeping.tick("sweep") == 202  # the first may find what is left too young to touch
        return bool(await cloud.balance("bob") == 105)

    await cloud.wait_until(is_deposited, within_s=30)
    assert (
        len(cloud.engine.broker.queue("transfers").tasks) == 1
    )  # the message itself is locked still: it was the timer


async def test_a_request_is_applied_once_by_whichever_host_it_reaches(cloud: Any) -> None:
    first, second = await cloud.host(), await cloud.host()
    for account in ("alice", "bob"):
        opened = {"account": account, "balance": 100}
        assert (await first.ask("POST", "/accounts", opened, key=f"open-{account}"))[0] == 204
    body = {"id": "t1", "source": "alice", "target": "bob", "amount": 5}
    store = cloud.cosmos.faults
    store.install(FaultRule(kind="lost-reply", operation="batch", count=1))
    answers = [await host.ask("POST", "/transfers", body, key="k1") for host in (first, second, first)]
    assert answers == [(200, {"transfer": "t1", "status": "accepted", "balance": 95})] * 3
    assert store.fired == {"lost-reply": 1}
    assert (await second.ask("POST", "/transfers", body | {"amount": 6}, key="k1"))[0] == 422
    assert (await second.ask("POST", "/transfers", body | {"amount": -6}, key="k2"))[0] == 409
    assert (await second.ask("POST", "/transfers", body))[0] == 400
    assert (await second.ask("GET", "/accounts/nobody"))[0] == 404
    await cloud.wait_idle()
    assert await second.ask("GET", "/accounts/bob") == (200, {"account": "bob", "balance": 105})
    await first.kill()
    assert await second.ask("POST", "/transfers", body, key="k1") == answers[0]

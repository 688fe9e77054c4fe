"""The bank for a long while: under faults drawn by seed, and in a host killed with SIGKILL again and again.

Drawn faults are crashes, lost replies, refusals and duplicates in one life.  After the kills every transfer that was
acknowledged counts once.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from function_app.bank import Account, CloseAccount, OpenAccount, Posting, Transfer, app
from outbox.engine.engine import Engine
from outbox.errors import OutboxError
from outbox.ops.values.messages import NewMessage
from outbox.testing import Harness
from outbox.verify.faults import Faults
from outbox.verify.guarantees import check
from tools.demo.host import Host
from tools.demo.phases import is_idle

ACCOUNTS = ("alice", "bob", "carol")
FEW_BALANCE = 20
WHOLE = ({"refused"}, {"withdraw", "deposit"}, {"withdraw", "refund"})
ACCOUNT_COUNT = 40
OPENING_BALANCE = 1_000
BATCH_COUNT = 50
SETTLE_WITHIN_S = 120.0


async def lives(seeds: Iterable[int]) -> tuple[int, int, list[str]]:
    """One life for each seed: how many, the faults that happened, and what was found broken, with its seed."""
    broken: list[str] = []
    count = fault_count = 0
    for seed in seeds:
        found, happened = await life(seed)
        broken += [f"life {seed}: {line}" for line in found]
        count, fault_count = count + 1, fault_count + happened
    return count, fault_count, broken


async def life(seed: int) -> tuple[list[str], int]:
    """One life of the bank under the faults that a seed draws: what is broken, and how many faults happened."""
    draw = random.Random(seed)
    faults = Faults.drawn(seed=seed, crashes=draw.randint(0, 4), lost=draw.randint(0, 3), refused=draw.randint(0, 3),
                          duplicates=draw.randint(0, 6), within=60)  # fmt: skip
    async with Harness(app, faults=faults, seed=seed) as bank:
        for name in ACCOUNTS:
            await bank.send("accounts", OpenAccount(name, FEW_BALANCE), id=f"open-{name}")
        await bank.wait_idle()
        ids = [f"t{n}" for n in range(8)]
        for id in ids:
            source, target = draw.sample(ACCOUNTS, 2)
            await bank.send("transfers", Transfer(id, source, target, draw.randint(1, 15)), id=id)
        if draw.random() < 0.3:
            await bank.send("accounts", CloseAccount(draw.choice(ACCOUNTS)), id="close")
        await bank.wait_idle()
        return await judge_life(bank, ids), len(bank.fault_log)


async def judge_life(bank: Harness, ids: list[str]) -> list[str]:
    """What is wrong with a bank that has nothing left to do."""
    states = [await bank.state(Account, name) for name in ACCOUNTS]
    total = sum(state.balance for state in states if state is not None)
    broken = [] if total == FEW_BALANCE * len(ACCOUNTS) else [f"the balances add up to {total}; {bank.fault_log}"]
    postings: list[Posting] = bank.sent("ledger")
    for id in ids:
        kinds = [posting.kind for posting in postings if posting.transfer == id]
        if set(kinds) not in WHOLE or len(set(kinds)) != len(kinds):
            broken.append(f"{id} is posted as {kinds}; {bank.fault_log}")
    return broken


@dataclass(slots=True)
class Load:
    """Sends transfers until it is told to stop; what was acknowledged is kept."""

    host: Host
    chance: random.Random
    acknowledged: list[str] = field(default_factory=list)
    repeated_count: int = 0
    stopping: bool = False
    _number: int = 0

    async def run(self) -> None:
        """Send batch after batch; one whose outcome is unknown is sent again as it was."""
        while not self.stopping:
            batch = [self._transfer() for _ in range(BATCH_COUNT)]
            while True:
                try:
                    async with asyncio.timeout(SETTLE_WITHIN_S):
                        await self.host.send("transfers", batch)
                    break
                except (OutboxError, OSError, TimeoutError, LookupError):
                    self.repeated_count += 1
                    await asyncio.sleep(0.05)
            self.acknowledged += [message.id for message in batch]

    def _transfer(self) -> NewMessage:
        self._number += 1
        source, target = self.chance.sample(range(ACCOUNT_COUNT), 2)
        transfer = Transfer(f"t{self._number}", f"a{source}", f"a{target}", self.chance.randint(1, 9))
        return NewMessage(body=msgspec.Raw(msgspec.json.encode(transfer)), id=transfer.id, type="Transfer")


async def run_kills(folder: Path, *, kill_count: int, seed: int) -> list[str]:
    """Kill a host `kill_count` times under load; what was found broken, empty if nothing was."""
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    await asyncio.to_thread(folder.mkdir, parents=True)
    chance = random.Random(seed)
    host = Host(folder / "host", 0, folder / "host.log", folder / "history.jsonl")
    await host.start()
    try:
        await host.send("accounts", [_opening(n) for n in range(ACCOUNT_COUNT)])
        await host.wait(is_idle, lambda status: None, SETTLE_WITHIN_S)
        load = Load(host, chance)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            for number in range(kill_count):
                await asyncio.sleep(chance.uniform(0.0, 0.8))
                await host.kill()
                if (number + 1) % 10 == 0:
                    print(f"  {number + 1} kills, {len(load.acknowledged):,} transfers acknowledged", flush=True)
            load.stopping = True
        await host.wait(is_idle, lambda status: None, SETTLE_WITHIN_S)
    finally:
        await host.stop()
    recoveries = sorted(host.recoveries_s)
    print(
        f"  {kill_count} kills, {len(load.acknowledged):,} acknowledged, {load.repeated_count} sends repeated, "
        f"recovery median {recoveries[len(recoveries) // 2]:.2f} s, longest {recoveries[-1]:.2f} s",
        flush=True,
    )
    judged = await asyncio.to_thread(check, host.history, alone=True)
    print(f"  {judged.text}".replace("\n", "\n  "), flush=True)
    return judge_log(folder / "host", load.acknowledged) + [
        f"history, line {f.line}: {f.text}" for f in judged.findings
    ]


def _opening(number: int) -> NewMessage:
    body = msgspec.Raw(msgspec.json.encode(OpenAccount(f"a{number}", OPENING_BALANCE)))
    return NewMessage(body=body, id=f"open-{number}", type="OpenAccount")


def judge_log(folder: Path, acknowledged: list[str]) -> list[str]:
    """Read the log that the host left and say what is wrong with it."""
    engine = Engine.open(folder)
    try:
        accounts = [
            msgspec.json.decode(doc.value, type=Account) for doc in engine.state.documents.spaces["state"].values()
        ]
        postings = [
            msgspec.json.decode(task.message.body, type=Posting)
            for task in engine.broker.queue("ledger").tasks.values()
        ]
    finally:
        engine.close()
    broken: list[str] = []
    total = sum(account.balance for account in accounts)
    if total != ACCOUNT_COUNT * OPENING_BALANCE:
        broken.append(f"the balances add up to {total}, not {ACCOUNT_COUNT * OPENING_BALANCE}")
    kinds: dict[str, Counter[str]] = {}
    for posting in postings:
        kinds.setdefault(posting.transfer, Counter())[posting.kind] += 1
    whole = ({"withdraw": 1, "deposit": 1}, {"refused": 1})
    wrong = [id for id in acknowledged if dict(kinds.get(id, {})) not in whole]
    broken += [f"transfer {id} is posted as {dict(kinds.get(id, {}))}" for id in wrong[:20]]
    return broken

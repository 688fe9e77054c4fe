"""The bank under faults drawn by seed: crashes, lost replies, refusals and duplicates in one life."""

from __future__ import annotations

import random
import time

from function_app.bank import Account, CloseAccount, OpenAccount, Posting, Transfer, app
from outbox.testing import Harness
from outbox.verify.faults import Faults

ACCOUNTS = ("alice", "bob", "carol")
OPENING_BALANCE = 20
WHOLE = ({"refused"}, {"withdraw", "deposit"}, {"withdraw", "refund"})


async def run(*, minutes: float, seed: int) -> list[str]:
    """Try seed after seed until the time is over; what was found broken, with the seed that shows it."""
    broken: list[str] = []
    until_s = time.monotonic() + minutes * 60
    count = 0
    while time.monotonic() < until_s and len(broken) < 20:
        found = await life(seed + count)
        broken += [f"seed {seed + count}: {line}" for line in found]
        count += 1
    print(f"  {count:,} lives", flush=True)
    return broken


async def life(seed: int) -> list[str]:
    """One life of the bank under the faults that a seed draws."""
    draw = random.Random(seed)
    faults = Faults.drawn(seed=seed, crashes=draw.randint(0, 4), lost=draw.randint(0, 3), refused=draw.randint(0, 3),
                          duplicates=draw.randint(0, 6), within=60)  # fmt: skip
    async with Harness(app, faults=faults, seed=seed) as bank:
        for name in ACCOUNTS:
            await bank.send("accounts", OpenAccount(name, OPENING_BALANCE), id=f"open-{name}")
        await bank.wait_idle()
        ids = [f"t{n}" for n in range(8)]
        for id in ids:
            source, target = draw.sample(ACCOUNTS, 2)
            await bank.send("transfers", Transfer(id, source, target, draw.randint(1, 15)), id=id)
        if draw.random() < 0.3:
            await bank.send("accounts", CloseAccount(draw.choice(ACCOUNTS)), id="close")
        await bank.wait_idle()
        return await judge(bank, ids)


async def judge(bank: Harness, ids: list[str]) -> list[str]:
    """What is wrong with a bank that has nothing left to do."""
    states = [await bank.state(Account, name) for name in ACCOUNTS]
    total = sum(state.balance for state in states if state is not None)
    broken = [] if total == OPENING_BALANCE * len(ACCOUNTS) else [f"the balances add up to {total}; {bank.fault_log}"]
    postings: list[Posting] = bank.sent("ledger")
    for id in ids:
        kinds = [posting.kind for posting in postings if posting.transfer == id]
        if set(kinds) not in WHOLE or len(set(kinds)) != len(kinds):
            broken.append(f"{id} is posted as {kinds}; {bank.fault_log}")
    return broken

"""The steps of the demo, each of which can be repeated: what is done already has no further effect.

open the accounts -> feed with Spark -> send some of it again -> let the host finish -> drain the ledger with Spark ->
reconcile.  While Spark feeds and while it drains, the host is killed when a drawn number of messages has gone through.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from function_app.bank import CloseAccount, OpenAccount
from outbox.ops.values.messages import NewMessage
from outbox.ops.values.status import Status
from tools.demo.data import OPENING_BALANCE, SCHEMA, Facts
from tools.demo.host import LOOK_EVERY_S, Host
from tools.demo.jobs import LookAtStep, reconciled, run_job
from tools.demo.resending import copies_of_fed

BATCH_COUNT = 500
HANDLE_WITHIN_S = 600.0
CHUNK_COUNT_MAX = 4
CHUNK_ROWS = 1_000
FEED_FOR_S, FEED_FOR_MIN_S = 8.0, 3.0
"""How long feeding 20,000 rows is to take, and any number, so that there is a while in which the host can be killed."""
SOURCES = ("accounts", "transfers", "deposits", "refunds")

Look = Callable[[Status], None]


@dataclass(slots=True)
class Demo:
    """One run of the demo in one folder."""

    folder: Path
    transfers: Path
    facts: Facts
    host: Host
    chance: random.Random
    say: Callable[[str], None]
    kills: list[str] = field(default_factory=list)
    refused_ids: frozenset[str] = frozenset()
    """The transfers in the dead letters, known when all is reconciled."""

    async def _with_kills(
        self, name: str, job: Sequence[str], marks: Sequence[int], count: Callable[[Status], int], look: Look
    ) -> dict[str, Any]:
        """Run a job, and kill the host each time that `count` has passed the next mark."""
        left = list(marks)
        running = asyncio.create_task(run_job(self.folder, name, *job, connection=self.host.connection))
        try:
            while not running.done():
                status = await self.host.status()
                if status is not None:
                    look(status)
                    if left and count(status) >= left[0]:
                        self.kills.append(f"{name}: after {count(status):,} messages")
                        left.pop(0)
                        await self.host.kill()
                await asyncio.wait([running], timeout=LOOK_EVERY_S)
            code, report = await running
        finally:
            running.cancel()
        if code:
            raise RuntimeError(f"spark_jobs.{name} refused: {report}")
        report["kills_missed"] = len(left)
        return report

    def draw_marks(self, kill_count: int, total: int) -> list[int]:
        """Moments to kill at, in messages: one somewhere in each of equal parts of the first four fifths."""
        part = total * 0.8 / max(1, kill_count)
        return [round(part * n + part * self.chance.uniform(0.2, 1.0)) for n in range(kill_count)]

    # The steps

    async def open_accounts(self) -> None:
        """Open every account with the same balance, and close some of them again."""
        encode = msgspec.json.encode
        opened = [
            NewMessage(
                body=msgspec.Raw(encode(OpenAccount(name, OPENING_BALANCE))), id=f"open-{name}", type="OpenAccount"
            )
            for name in self.facts.accounts
        ]
        closed = [
            NewMessage(body=msgspec.Raw(encode(CloseAccount(name))), id=f"close-{name}", type="CloseAccount")
            for name in self.facts.closed
        ]
        for messages in (opened, closed):
            for start in range(0, len(messages), BATCH_COUNT):
                await self.host.send("accounts", messages[start : start + BATCH_COUNT])
            await self.host.wait(is_idle, lambda status: None, HANDLE_WITHIN_S)

    async def feed(self, kill_count: int, look: Look) -> dict[str, Any]:
        """Feed the transfers with Spark, under kills drawn in messages."""
        job = (
            *("--input", str(self.transfers), "--schema", SCHEMA, "--queue", "transfers", "--type", "Transfer"),
            *("--id", "id"),
            *("--progress", str(self.folder / "feed.progress"), "--quarantine", str(self.folder / "feed.quarantine")),
            *("--chunks", str(chunk_count(self.facts.id_count)), "--rate", str(feed_rate(self.facts.id_count))),
        )
        done = (await self.host.asked()).queues["transfers"].received
        marks = [mark for mark in self.draw_marks(kill_count, self.facts.id_count) if mark > done]
        self.say(announcement("feeding with Spark", done, len(marks)))
        report = await self._with_kills("feed", job, marks, lambda s: s.queues["transfers"].received, look)
        if not report["accepted"]:
            self.say("everything had been fed before")
        return report

    async def send_again(self) -> int:
        """Send some transfers a second time, as a producer does that got no answer; how many."""
        copies = await asyncio.to_thread(copies_of_fed, self.folder / "feed.progress", "Transfer")
        self.say(f"sending {len(copies):,} of the transfers a second time, under the same ids")
        for start in range(0, len(copies), BATCH_COUNT):
            await self.host.send("transfers", copies[start : start + BATCH_COUNT])
        return len(copies)

    async def finish(self, look: Look) -> Status:
        """Wait until the host has handled everything."""
        return await self.host.wait(is_idle, look, HANDLE_WITHIN_S)

    async def drain(self, kill_count: int, look: Look) -> dict[str, Any]:
        """Drain the ledger with Spark, under kills drawn in messages."""
        ledger = (await self.host.asked()).queues["ledger"]
        held = ledger.active
        marks = self.draw_marks(kill_count if held else 0, held)
        self.say(announcement("draining the ledger with Spark", ledger.received - held, len(marks)))
        job = (
            *("--queue", "ledger", "--output", str(self.folder / "ledger")),
            *("--idle-s", "3", "--receivers", "4"),
        )
        report = await self._with_kills("consume", job, marks, lambda s: held - s.queues["ledger"].active, look)
        if not held:
            self.say("everything had been drained before")
        return report

    async def reconcile(self, look: LookAtStep) -> tuple[bool, dict[str, Any]]:
        """Compare inputs, ledger and balances; whether each transfer took effect exactly once."""
        states = await self.host.export()
        refused = await self.host.dead_letter_ids("transfers")
        self.refused_ids = frozenset(id for id, _ in refused)
        postings = (await self.host.asked()).queues["ledger"].received
        balances = states.count(b"\n")
        self.say(f"reconciling with Spark: {self.facts.row_count:,} rows, {postings:,} postings, {balances:,} balances")
        return await reconciled(self.folder, self.transfers, states, refused, look)


def chunk_count(row_count: int) -> int:
    """How many chunks are fed; each costs Spark a job and a record, which small inputs should not pay four times."""
    return min(CHUNK_COUNT_MAX, max(1, row_count // CHUNK_ROWS))


def feed_rate(row_count: int) -> float:
    """Messages a second to feed at: for a few seconds, fewer where there is less to feed."""
    return max(1.0, row_count / min(FEED_FOR_S, max(FEED_FOR_MIN_S, row_count / 20_000 * FEED_FOR_S)))


def announcement(what: str, done: int, kill_count: int) -> str:
    """What is to come: kills are drawn among the messages that are not through yet."""
    parts = [what]
    if done:
        parts.append(f"{done:,} messages are through already")
    if kill_count:
        parts.append(f"the host will be killed {'once' if kill_count == 1 else f'{kill_count} times'} meanwhile")
    elif done:
        parts.append("no kill is planned behind them")
    return "; ".join(parts)


def is_idle(status: Status) -> bool:
    """Whether nothing waits in a queue that the host handles."""
    return not any(status.queues[name].active + status.queues[name].scheduled for name in SOURCES)


def arrived(status: Status) -> int:
    """How many messages the host was ever given to handle."""
    return sum(status.queues[name].received for name in SOURCES)


def handled(status: Status) -> int:
    """How many messages the host has handled for good."""
    return sum(status.queues[name].received - status.queues[name].active for name in SOURCES)

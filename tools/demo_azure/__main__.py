"""`make demo-azure`: the job of `make demo` through the real Azure SDKs and Functions hosts, under faults and kills.

    python -m tools.demo_azure [--transfers 1000] [--accounts 100] [--kills 3] [--faults 0.01] [--rtt-ms 10] [--seed 1]

Spark feeds Service Bus, two Functions hosts handle the messages on Cosmos DB, one of them is killed now and then, Spark
drains the ledger and reconciles.  Both services are this project's emulators, by default ten milliseconds away; they
live as long as the command.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from function_app.bank import CloseAccount, OpenAccount
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from tools.demo.data import OPENING_BALANCE, SCHEMA, Facts, read_facts, write_transfers
from tools.demo.jobs import StepLines, reconciled, run_job
from tools.demo_azure.cloud import LOOK_EVERY_S, SOURCES, Cloud

ROOT = Path(__file__).resolve().parents[2]
USUAL_FOLDER = ROOT / "build" / "demo-azure"
HANDLE_WITHIN_S = 540.0
SENT_TOGETHER = 32


@dataclass(slots=True)
class Seen:
    """What a run saw."""

    facts: Facts
    fed: dict[str, Any] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    handled_s: float = 0.0
    handled_count: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    requests: dict[str, int] = field(default_factory=dict)
    charge_ru: float = 0.0
    refused_count: int = 0
    verdict: dict[str, Any] = field(default_factory=dict)
    ok: bool = False


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="make demo-azure", description=__doc__.splitlines()[0] if __doc__ else "")
    found.add_argument("--transfers", type=int, default=1_000)
    found.add_argument("--accounts", type=int, default=100)
    found.add_argument("--kills", type=int, default=3, help="how often one of the two hosts is killed")
    found.add_argument("--faults", type=float, default=0.01, help="the share of requests that each kind of fault meets")
    found.add_argument("--rtt-ms", type=float, default=10.0, help="how far away both services are (10; 0: here)")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--folder", type=Path, default=USUAL_FOLDER)
    return found


def prepare(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """An empty folder, and a file of transfers in it."""
    folder: Path = arguments.folder.resolve()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    transfers = folder / "transfers.csv"
    counts = {"transfer_count": arguments.transfers, "account_count": arguments.accounts}
    write_transfers(transfers, seed=arguments.seed, **counts)
    return folder, transfers


async def run(arguments: argparse.Namespace) -> int:
    """Run it; 0 if every transfer took effect exactly once."""
    folder, transfers = prepare(arguments)
    seen, started_s = Seen(read_facts(transfers)), time.monotonic()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine.in_memory())
        bus = await stack.enter_async_context(ServiceBusServer(engine))
        cosmos = await stack.enter_async_context(CosmosEmulator(engine, port=0, history_s=5.0))
        ports = [cosmos.port, bus.port]
        if arguments.rtt_ms:
            from outbox_bench.latency import delayed

            ports = await stack.enter_async_context(delayed(*ports, rtt_ms=arguments.rtt_ms))
        cloud = Cloud(folder, engine, bus, cosmos, ports)
        stack.push_async_callback(cloud.close)
        await steps(cloud, folder, transfers, seen, arguments)
    print("\n".join(told(seen, time.monotonic() - started_s)))
    return 0 if seen.ok else 1


async def steps(cloud: Cloud, folder: Path, transfers: Path, seen: Seen, arguments: argparse.Namespace) -> None:
    """Everything in order."""
    say("two Functions hosts start, beside emulators of Cosmos DB and Service Bus")
    await cloud.open()
    say(f"{len(seen.facts.accounts):,} accounts are opened")
    await open_accounts(cloud, seen.facts)
    cloud.cosmos.reset_usage()
    cloud.let_fail(arguments.seed, arguments.faults)
    before, handling_s = handled(cloud), time.monotonic()
    say(f"Spark feeds {arguments.transfers:,} transfers; one of the hosts will be killed {arguments.kills} times")
    killing = asyncio.create_task(kill_now_and_then(cloud, seen, arguments))
    try:
        seen.fed = await feed(cloud, folder, transfers)
        await cloud.wait_idle(HANDLE_WITHIN_S)
    finally:
        killing.cancel()
    with suppress(asyncio.CancelledError):  # all is handled; a host that did not come back is an error
        await killing
    seen.handled_s, seen.handled_count = time.monotonic() - handling_s, handled(cloud) - before
    seen.faults = Counter(cloud.cosmos.faults.fired) + Counter(cloud.bus.faults.fired)
    for faults in (cloud.cosmos.faults, cloud.bus.faults):
        faults.clear()
    usage = cloud.cosmos.usage()
    seen.requests = {name: used.count for name, used in usage.items()}
    seen.charge_ru = sum(used.charge_ru for used in usage.values())
    say("Spark drains the ledger")
    seen.ok, seen.verdict = await compare(cloud, folder, transfers, seen)


async def open_accounts(cloud: Cloud, facts: Facts) -> None:
    """Open every account with the same balance, and close some of them again."""
    opened = [(OpenAccount(name, OPENING_BALANCE), f"open-{name}") for name in facts.accounts]
    closed = [(CloseAccount(name), f"close-{name}") for name in facts.closed]
    for messages in (opened, closed):
        for at in range(0, len(messages), SENT_TOGETHER):
            some = messages[at : at + SENT_TOGETHER]
            await asyncio.gather(*(cloud.client.send("accounts", message, id=id) for message, id in some))
        await cloud.wait_idle(HANDLE_WITHIN_S)


async def feed(cloud: Cloud, folder: Path, transfers: Path) -> dict[str, Any]:
    """Feed the transfers with Spark."""
    code, report = await run_job(
        folder,
        "feed",
        *("--input", str(transfers), "--schema", SCHEMA, "--queue", "transfers", "--type", "Transfer"),
        *("--id", "id"),
        *("--progress", str(folder / "feed.progress"), "--quarantine", str(folder / "feed.quarantine")),
        connection=cloud.connection,
    )
    if code:
        raise RuntimeError(f"spark_jobs.feed refused: {report}")
    return report


async def kill_now_and_then(cloud: Cloud, seen: Seen, arguments: argparse.Namespace) -> None:
    """Kill one host each time that a drawn number of transfers has arrived, and start it again."""
    chance = random.Random(arguments.seed)
    part = seen.facts.id_count * 0.9 / max(1, arguments.kills)
    for number in range(arguments.kills):
        mark = round(part * number + part * chance.uniform(0.3, 1.0))
        while settled(cloud, "transfers") < mark:  # noqa: ASYNC110  # what is waited for happens in other processes
            await asyncio.sleep(LOOK_EVERY_S)
        host = chance.choice(cloud.hosts)
        seen.kills.append(f"{host.name} after {settled(cloud, 'transfers'):,} transfers")
        seen.recoveries_s.append(await host.kill())


def settled(cloud: Cloud, queue: str) -> int:
    """How many messages of a queue are handled for good."""
    return cloud.arrived(queue) - len(cloud.engine.broker.queue(queue).tasks)


def handled(cloud: Cloud) -> int:
    """How many messages the hosts have handled for good."""
    return sum(settled(cloud, name) for name in SOURCES)


async def compare(cloud: Cloud, folder: Path, transfers: Path, seen: Seen) -> tuple[bool, dict[str, Any]]:
    """Drain the ledger, compare inputs, ledger and balances; whether each transfer took effect exactly once."""
    await run_job(
        folder,
        "consume",
        *("--queue", "ledger", "--output", str(folder / "ledger")),
        *("--idle-s", "3", "--receivers", "4"),
        connection=cloud.connection,
    )
    dead_letters = await cloud.client.dead_letters("transfers")
    refused = {dead_letter.id: dead_letter.reason for dead_letter in dead_letters}
    seen.refused_count = len(refused)
    states = await cloud.export(seen.facts.accounts)
    say(f"Spark reconciles {seen.facts.row_count:,} rows with the ledger and {len(seen.facts.accounts):,} balances")
    return await reconciled(folder, transfers, states, refused.items(), StepLines(say).look)


def told(seen: Seen, seconds: float) -> list[str]:
    """The report for a person."""
    per_message = {name: count / max(1, seen.handled_count) for name, count in sorted(seen.requests.items())}
    shown = ", ".join(f"{name} {share:.2f}" for name, share in per_message.items() if share >= 0.005)
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.faults.items())) or "none"
    rows = [
        ("rows", f"{seen.facts.row_count:,}; {seen.fed.get('messages', 0):,} distinct transfers fed"),
        ("rejected by a handler", f"{seen.refused_count:,}"),
        ("messages handled", f"{seen.handled_count:,} in {seen.handled_s:.0f} s, feeding and faults included"),
        ("faults", faults),
        ("kill -9", f"{len(seen.kills)}: {'; '.join(seen.kills) or 'none'}"),
        ("recovery", ", ".join(f"{s:.1f} s" for s in seen.recoveries_s) or "-"),
        ("Cosmos requests a message", f"{sum(per_message.values()):.2f}: {shown}"),
        ("request units a message", f"{seen.charge_ru / max(1, seen.handled_count):.1f} (estimates of the emulator)"),
        ("whole run", f"{seconds:.0f} s"),
    ]
    verdict = "money conserved, every transfer took effect exactly once" if seen.ok else f"BROKEN: {seen.verdict}"
    return ["", *(f"{name:<27}{value}" for name, value in rows), "", f"VERDICT: {verdict}"]


def say(text: str) -> None:
    """Print what is going on."""
    print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    # Short locks, so that what a killed host held comes again soon, are what this is about and no news.
    logging.getLogger("outbox.servicebus").setLevel(logging.ERROR)
    return asyncio.run(run(parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())

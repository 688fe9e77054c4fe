"""A worker on both emulators under every kind of fault at once, and why it repeated what it repeated.

    python -m tests.wire.on_azure.thousand [--messages 1000] [--seed 1] [--ordering unordered|per_key]

Nothing may be lost or doubled.  Every fault that a client can see is counted by it, so that two counts have to agree:
what the emulators did, by kind and operation, and what came to nothing for the adapters, by operation and reason.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outbox import Client, Worker
from outbox.azure.servicebus import bus as sending
from outbox.azure.servicebus import namespace
from outbox.azure.usage import Usage
from outbox.emulator.faults import KINDS, FaultRule, Faults
from outbox.engine.entities import QueueSettings
from outbox.message import Message
from tests.wire.on_azure.ground import Place, place
from tests.wire.on_azure.ledger_app import Account, Order, books, ledger_app

ACCOUNT_COUNT = 20
LOCK_S = 5.0
WAIT_S = 2.0
"""How long an answer of the bus is waited for here; usually it is five to ten seconds."""
DONE_WITHIN_S = 300.0
ALWAYS: dict[str, Any] = {"count": None}
RARELY: dict[str, Any] = {"count": 3}
"""Of what costs a link with all its locks, or a second."""

STORE_RULES: tuple[tuple[str, str, float, dict[str, Any]], ...] = (
    ("lost-reply", "batch", 0.02, ALWAYS),
    ("reset", "batch", 0.02, ALWAYS),
    ("status", "batch", 0.02, {"status": 503, **ALWAYS}),
    ("refused", "batch", 0.01, ALWAYS),
    ("delay", "batch", 0.02, {"delay_s": 0.05, **ALWAYS}),
    ("throttled", "batch", 0.02, {"batch_index": 0, "retry_after_s": 0.01, **ALWAYS}),
    ("reset", "item.read", 0.02, ALWAYS),
    ("stale-read", "item.read", 0.3, ALWAYS),
)
BUS_RULES: tuple[tuple[str, str, float, dict[str, Any]], ...] = (
    ("lost-reply", "send", 0.02, RARELY),
    ("throttled", "send", 0.02, ALWAYS),
    ("refused", "send", 0.01, ALWAYS),
    ("reset", "send", 0.02, RARELY),
    ("duplicate", "receive", 0.05, ALWAYS),
    ("reorder", "receive", 0.02, ALWAYS),
    ("lock-expiry", "receive", 0.02, ALWAYS),
    ("detach", "receive", 0.01, RARELY),
    ("pause", "receive", 0.01, {"delay_s": 0.3, **RARELY}),
    ("lost-disposition", "settle", 0.01, RARELY),
    ("wrong-disposition", "settle", 0.01, RARELY),
)


@dataclass(slots=True)
class Report:
    """What a run came to; `fired` counts by kind and operation what the emulators did."""

    message_count: int
    seconds: float = 0.0
    applied: list[str] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    fired: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    request_count: int = 0
    failed_count: int = 0

    @property
    def lost_count(self) -> int:
        """Messages whose effect is nowhere."""
        return self.message_count - len(set(self.applied))

    @property
    def doubled_count(self) -> int:
        """Effects that are there more than once."""
        return len(self.applied) - len(set(self.applied))

    def happened(self, operation: str, *kinds: str) -> int:
        """How often faults of these kinds met an operation."""
        return sum(self.fired[kind, operation] for kind in kinds)

    def differences(self) -> list[str]:
        """Where the emulators' count and the adapters' differ: every fault that a client can see has been seen."""
        seen = self.reasons
        pairs = {
            "batches without an answer": (self.happened("batch", "lost-reply", "reset"), seen["batch", "no answer"]),
            "batches answered 503": (self.happened("batch", "status"), seen["batch", "status"]),
            "batches refused": (self.happened("batch", "refused"), seen["batch", "refused"]),
            "batches throttled": (self.happened("batch", "throttled"), seen["batch", "throttled"]),
            "reads without an answer": (self.happened("item.read", "reset"), seen["read", "no answer"]),
            "sends throttled": (self.happened("send", "throttled"), seen["send", "throttled"]),
            "sends without an answer": (
                self.happened("send", "lost-reply", "reset", "refused"),
                seen["send", "timeout"] + seen["send", "no answer"] + seen["send", "refused"],
            ),
        }
        cancelled = sum(count for (_, reason), count in seen.items() if reason == "cancelled")
        return [
            f"{what}: {did} happened, {saw} seen"
            for what, (did, saw) in pairs.items()
            if not did - cancelled <= saw <= did  # whoever was cancelled did not see what happened to its request
        ]

    def lines(self) -> list[str]:
        """The report for a person."""
        verdict = f"{self.lost_count} lost, {self.doubled_count} doubled"
        return [
            f"{self.message_count:,} messages in {self.seconds:.0f} s: {verdict}",
            f"requests {self.request_count:,}, of which {self.failed_count:,} came to nothing",
            *table("faults that the emulators caused", self.fired),
            *table("why the adapters' requests came to nothing", self.reasons),
            *(self.differences() or ["both counts agree"]),
        ]


def table(title: str, counts: Counter[tuple[str, str]]) -> list[str]:
    """Counts by two names, a line each."""
    return [title, *(f"  {one:<18}{other:<12}{count:>6,}" for (one, other), count in sorted(counts.items()))]


def install(faults: Faults, rules: Sequence[tuple[str, str, float, dict[str, Any]]], seed: int) -> None:
    """Let these kinds happen by chance, drawn from a seed."""
    for number, (kind, operation, probability, more) in enumerate(rules):
        fields: dict[str, Any] = {"kind": kind, "operation": operation, "probability": probability, **more}
        faults.install(FaultRule(seed=seed * 100 + number, **fields))


async def run(message_count: int, seed: int, ordering: Any = "unordered", *, ledger: bool = False) -> Report:
    """Handle so many messages under all faults; with a dispatch `ledger`, or with marks."""
    app, report = ledger_app(ordering), Report(message_count)
    documents, deliveries = Faults(), Faults()
    async with place(cosmos_faults=documents, bus_faults=deliveries) as world:
        world.declare(
            QueueSettings("orders", ordering=ordering, lock_s=LOCK_S), QueueSettings("entries", lock_s=LOCK_S)
        )
        async with world.connect(dispatch_ledger=ledger) as backend, Worker(app, backend) as worker:
            install(documents, STORE_RULES, seed)
            install(deliveries, BUS_RULES, seed + 1)
            started_s = time.monotonic()
            sent = [(f"o{n}", Order(f"account-{n % ACCOUNT_COUNT}", n)) for n in range(message_count)]
            put(world, worker, sent)
            await done(world, worker)
            report.seconds = time.monotonic() - started_s
            for faults in (documents, deliveries):
                for one in faults.installed():
                    report.fired[one.rule.kind, one.rule.operation] += one.fired_count
                faults.clear()
        tell(report, backend.usage)
        async with world.connect() as other:
            client = Client(app, other)
            report.applied = [entry.split()[0] for entry in await books(client)]
            for name in {order.account for _, order in sent}:
                state = await client.state(Account, name)
                report.totals[name] = 0 if state is None else state.total
    return report


def put(world: Place, worker: Worker, sent: Sequence[tuple[str, Order]]) -> None:
    """Put messages into the queue, past the faults of sending: those are for what the worker sends."""
    messages = []
    for id, order in sent:
        body, kind = worker.app.encode(order)
        messages.append(Message(body=body, type=kind, outbox_id=id, session_id=order.account))
    world.servicebus.engine.broker.send("orders", messages)


async def done(world: Place, worker: Worker) -> None:
    """Wait until both queues are empty, or the worker has died."""
    engine = world.servicebus.engine
    died = asyncio.ensure_future(worker.wait_stopped())
    async with asyncio.timeout(DONE_WITHIN_S):
        while any(engine.broker.peek(queue, 0, 1) for queue in ("orders", "entries")):
            await asyncio.wait({died}, timeout=0.05)
            if died.done():
                died.result()
    died.cancel()


def tell(report: Report, usage: Usage) -> None:
    """Take over what the adapters counted."""
    report.reasons = Counter(usage.reasons)
    report.request_count = usage.request_count
    report.failed_count = sum(used.failed_count for used in usage.by_kind.values())


def shorten_waits() -> None:
    """Wait shortly for answers that faults have swallowed."""
    sending.SEND_S = WAIT_S
    namespace._LINK["timeout"] = WAIT_S


def unseen_kinds(report: Report) -> set[str]:
    """Kinds of faults that there are and that did not happen."""
    return set(KINDS) - {kind for (kind, _), count in report.fired.items() if count}


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ordering", choices=("unordered", "per_key"), default="unordered")
    options = parser.parse_args(argv)
    shorten_waits()
    report = asyncio.run(run(options.messages, options.seed, options.ordering))
    print("\n".join(report.lines()))
    return 1 if report.lost_count or report.doubled_count or report.differences() else 0


if __name__ == "__main__":
    sys.exit(main())

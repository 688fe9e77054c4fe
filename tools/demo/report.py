"""What happened, as a table and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox.ops.values import Handling, Status
from tools.demo.data import Facts
from tools.demo.phases import handled


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of the demo saw."""

    ok: bool
    facts: Facts
    fed: dict[str, Any]
    drained: dict[str, Any]
    verdict: dict[str, Any]
    status: Status
    kills: tuple[str, ...]
    recoveries_s: tuple[float, ...]
    handling: Handling | None
    handled_s: float
    seconds: float


def text_of(outcome: Outcome) -> str:
    """The report for a person."""
    lines = [f"{name:<26}{value}" for name, value in rows(outcome)]
    return "\n".join(["", *lines, "", verdict_of(outcome)])


def rows(outcome: Outcome) -> list[tuple[str, str]]:
    """The table's rows."""
    queues, fed = outcome.status.queues, outcome.fed
    transfers = queues["transfers"]
    distinct = fed["messages"]
    quarantined = ", ".join(f"{count:,} {reason}" for reason, count in fed["quarantined"].items()) or "none"
    total = handled(outcome.status)
    once = distinct + len(outcome.facts.accounts) + len(outcome.facts.closed)
    suppressed = max(0, transfers.received + queues["accounts"].received - once)
    recoveries = sorted(outcome.recoveries_s)
    return [
        ("rows read", f"{outcome.facts.row_count:,}, {fed['duplicates']:,} of them repeated rows"),
        ("quarantined by Spark", quarantined),
        ("transfers fed", f"{distinct:,} distinct, {transfers.received:,} arrived"),
        ("duplicates suppressed", f"{suppressed:,} messages that had arrived before"),
        ("refused by a handler", f"{transfers.dead_letters:,}"),
        ("messages handled", f"{total:,} in {outcome.handled_s:.1f} s, {total / outcome.handled_s:,.0f} a second"),
        ("claim to durable commit", latency_of(outcome.handling)),
        ("ledger", f"{queues['ledger'].received:,} postings"),
        ("crashes survived", f"{len(outcome.kills)} x kill -9: {'; '.join(outcome.kills) or 'none'}"),
        ("recovery", f"{', '.join(f'{s:.2f}' for s in recoveries)} s" if recoveries else "-"),
        ("whole run", f"{outcome.seconds:.1f} s"),
    ]


def latency_of(handling: Handling | None) -> str:
    """Median and 99th percentile, as the last host to handle messages saw them."""
    if handling is None or handling.p50_ms is None or handling.p99_ms is None:
        return "-"
    return f"p50 {handling.p50_ms:.1f} ms, p99 {handling.p99_ms:.1f} ms"


def verdict_of(outcome: Outcome) -> str:
    """One line that says whether the promise held."""
    if outcome.ok:
        return "VERDICT: money conserved, every transfer took effect exactly once"
    return f"VERDICT: BROKEN: {outcome.verdict}"

"""What happened, as a table and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox.ops.values.status import Handling, Status
from outbox.verify.recorded.verdict import Verdict
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
    refused_count: int
    resent_count: int
    """How many transfers this run sent a second time."""
    kills: tuple[str, ...]
    recoveries_s: tuple[float, ...]
    handling: Handling | None
    handled_before: int
    handled_s: float
    seconds: float


def text_of(outcome: Outcome, judged: Verdict) -> str:
    """The report for a person: what was seen from outside, and what the hosts' own history says."""
    lines = [f"{name:<26}{value}" for name, value in rows(outcome, judged)]
    return "\n".join(["", *lines, "", "history of the host, all lives:", judged.text, "", *verdict_of(outcome, judged)])


def rows(outcome: Outcome, judged: Verdict) -> list[tuple[str, str]]:
    """The table's rows."""
    facts, fed, transfers = outcome.facts, outcome.fed, outcome.status.queues["transfers"]
    quarantined = ", ".join(f"{count:,} {reason}" for reason, count in fed["quarantined"].items()) or "none"
    suppressed = judged.counts.duplicates  # as the host has recorded, not reckoned from what was sent
    recoveries = sorted(outcome.recoveries_s)
    return [
        ("rows read", f"{facts.row_count:,}: {facts.id_count:,} transfers, and {fed['duplicates']:,} of them repeated"),
        ("quarantined by Spark", f"{quarantined}; these are not fed, and neither are repeated rows"),
        ("transfers fed", f"{fed['messages']:,}"),
        ("sent a second time", f"{outcome.resent_count:,} of them in this run; {transfers.received:,} arrived in all"),
        ("duplicates suppressed", f"{suppressed:,} messages ended as duplicates, says the host's history"),
        (
            "rejected by a handler",
            f"{outcome.refused_count:,}, dead-lettered" + copies_of_rejected(copies_refused(outcome)),
        ),
        ("messages handled", handling_of(outcome)),
        ("claim to durable commit", latency_of(outcome.handling)),
        ("ledger", postings_of(outcome)),
        ("crashes survived", f"{len(outcome.kills)} x kill -9: {'; '.join(outcome.kills) or 'none in this run'}"),
        ("recovery", f"{', '.join(f'{s:.2f}' for s in recoveries)} s" if recoveries else "-"),
        ("whole run", f"{outcome.seconds:.1f} s"),
    ]


def copies_arrived(outcome: Outcome) -> int:
    """How many transfers arrived that had arrived before, in all runs on this folder."""
    received: int = outcome.status.queues["transfers"].received
    return received - int(outcome.fed["messages"])


def copies_refused(outcome: Outcome) -> int:
    """How many of these were refused: a copy of a refused transfer is a dead letter as well."""
    return outcome.status.queues["transfers"].dead_letters - outcome.refused_count


def copies_of_rejected(count: int) -> str:
    """What became of copies of rejected transfers, if there were any."""
    return f"; {count:,} {'copy' if count == 1 else 'copies'} of them likewise, for the same reason" if count else ""


def handling_of(outcome: Outcome) -> str:
    """How many messages were handled ever, and how fast those of this run; the feed sets their pace."""
    total = handled(outcome.status)
    now = total - outcome.handled_before
    if not now:
        return f"{total:,}, all of them before this run"
    rate = now / outcome.handled_s
    return f"{total:,}; {now:,} since feeding began, in {outcome.handled_s:.1f} s: {rate:,.0f} a second"


def postings_of(outcome: Outcome) -> str:
    """How many postings there are, and of which kinds where the numbers of messages explain every one."""
    queues = outcome.status.queues
    opened, withdrawn = len(outcome.facts.accounts), queues["deposits"].received
    refunded = queues["refunds"].received
    refused = outcome.fed["messages"] - outcome.refused_count - withdrawn
    total = queues["ledger"].received
    text = f"{total:,} postings"
    if min(refused, withdrawn - refunded) < 0 or opened + 2 * withdrawn + refused != total:
        return text  # of several inputs in one folder, say
    kinds = {
        "openings": opened,
        "withdrawals": withdrawn,
        "deposits": withdrawn - refunded,
        "refunds": refunded,
        "refused withdrawals": refused,
    }
    return f"{text}: {', '.join(f'{count:,} {kind}' for kind, count in kinds.items())}"


def latency_of(handling: Handling | None) -> str:
    """Median and 99th percentile, as the last host to handle messages saw them."""
    if handling is None or handling.p50_ms is None or handling.p99_ms is None:
        return "-"
    return f"p50 {handling.p50_ms:.1f} ms, p99 {handling.p99_ms:.1f} ms, from taking a message to its commit on disk"


def verdict_of(outcome: Outcome, judged: Verdict) -> list[str]:
    """A line that says whether the promise held as seen from outside, and one as the history tells it."""
    copies = copies_arrived(outcome)
    though = f", although {copies:,} {'copy' if copies == 1 else 'copies'} arrived as well" if copies > 0 else ""
    lines = [f"VERDICT: money conserved, every transfer took effect exactly once{though}"]
    if not outcome.ok:
        lines = [f"VERDICT: BROKEN: {outcome.verdict}"]
    if judged.ok:
        return [*lines, "VERDICT: the recorded history is exactly-once, consistent and recoverable"]
    return [*lines, f"VERDICT: BROKEN: the recorded history is not, first at line {judged.findings[0].line}"]

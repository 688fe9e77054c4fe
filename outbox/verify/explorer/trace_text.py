"""Messages, deliveries and commits in a few words, for traces."""

from __future__ import annotations

from outbox.ports import Commit, Delivery


def delivery_text(delivery: Delivery) -> str:
    return f"{short(delivery.message.identity)} (delivery {delivery.delivery_count + 1})"


def short(identity: str) -> str:
    """An identity as a trace shows it: an output's by the beginning of its cause and its position."""
    cause, dash, position = identity.rpartition("-")
    return f"{cause[:6]}..-{position}" if dash and len(cause) == 64 else identity


def commit_text(commit: Commit) -> str:
    parts = [
        *(f"{how} {short(d.message.identity)}" for how, d in [("complete", d) for d in commit.consumed]),
        *(f"dead-letter {short(b.delivery.message.identity)} ({b.reason})" for b in commit.dead_lettered),
        *(f"postpone {short(p.delivery.message.identity)}" for p in commit.postponed),
        *(f"{id} {commit.if_versions.get(id, '?')}->{change.value.decode()}" for id, change in commit.states.items()),
        *(f"send {short(output.message.identity)} to {output.destination}" for output in commit.outputs),
    ]
    return ", ".join(parts)

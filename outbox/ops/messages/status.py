"""The commands that look at all queues, `status`, `metrics` and `doctor`: arguments, work, text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops.shared.asking import (
    ANSWER,
    Command,
    Commands,
    Options,
    and_whether_hosted,
    answer,
    ask,
    data,
    talk,
    with_folder,
)
from outbox.ops.shared.names import word
from outbox.ops.shared.text import age, columns
from outbox.ops.streams.command import streams_text
from outbox.ops.values.status import Finding, Handled, ReadMetrics, ReadStatus, Status


def status_text(found: Status) -> str:
    head = ("queue", "active", "scheduled", "deferred", "dead letters", "oldest")
    rows = [
        (name, str(q.active), str(q.scheduled), str(q.deferred), str(q.dead_letters), age(q.oldest_s))
        for name, q in found.queues.items()
    ]
    lines = [columns([head, *rows]), f"pending transactions: {found.pending}"]
    lines += [
        f"{name}: {q.standing} {'key is' if q.standing == 1 else 'keys are'} blocked behind a dead letter, until it is "
        f"resubmitted or discarded; `outbox blocked list {word(name)}` names it"
        for name, q in zip(map(printable, found.queues), found.queues.values(), strict=True)
        if q.standing
    ]
    lines += [
        f"{name} is paused: nothing is taken from it until `outbox queue resume {word(name)}`"
        for name, q in zip(map(printable, found.queues), found.queues.values(), strict=True)
        if q.paused
    ]
    lines += [
        f"{name}: {q.retrying} of {q.scheduled} scheduled {'is a next try' if q.retrying == 1 else 'are next tries'}; "
        f"`outbox queue peek {word(name)} --state retrying` says why"
        for name, q in zip(map(printable, found.queues), found.queues.values(), strict=True)
        if q.retrying
    ]
    if any(q.scheduled and isinstance(q.retrying, msgspec.UnsetType) for q in found.queues.values()):
        lines.append("scheduled are next tries, too; `outbox queue peek QUEUE` tells them apart")
    lines += [
        f"{name}: no handler of this host takes from it, so what is in it waits for another receiver"
        for name, q in zip(map(printable, found.queues), found.queues.values(), strict=True)
        if q.unhandled and q.active
    ]
    lines += [_handled(name, q.handled) for name, q in found.queues.items() if q.handled]
    lines += [
        f"{guard.kind} {printable(guard.name)}: {guard.state}, {guard.rest_s:.0f} s more, {printable(guard.why)}; "
        f"it has rescheduled messages {guard.rescheduled} times"
        for guard in found.guards
        if guard.state != "closed"
    ]
    if (handling := found.handling) is not None and handling.p50_ms is not None and handling.p99_ms is not None:
        times = f"p50 {handling.p50_ms:.1f} ms, p99 {handling.p99_ms:.1f} ms from claim to durable commit"
        lines.append(f"handled since start: {handling.handled}, {times}")
    if found.streams is not None:
        lines.append(streams_text(found.streams))
    return "\n".join(filter(None, lines))


def _handled(name: str, handled: Handled) -> str:
    """Summarize the outcomes of a queue's messages since the host's start; empty where none came."""
    if handled == Handled(0, 0, 0, 0, {}, 0):
        return ""
    refused = ", ".join(f"{printable(reason)} {count}" for reason, count in sorted(handled.refused.items()))
    parts = [
        f"{handled.applied} applied",
        f"{handled.duplicates} {'duplicate' if handled.duplicates == 1 else 'duplicates'}",
        f"{sum(handled.refused.values())} refused" + (f" ({refused})" if refused else ""),
        f"{handled.failed} failed {'attempt' if handled.failed == 1 else 'attempts'}",
        f"{handled.rescheduled} rescheduled",
    ]
    return f"{printable(name)}: {', '.join(parts)}; {handled.minute} in the last minute"


def findings(found: Sequence[Finding]) -> str:
    """A line for each, with its cure."""
    return columns([(x.level, x.about, x.what + (f"; {x.cure}" if x.cure else "")) for x in found])


def metrics(options: Options) -> None:
    found = ask(options, ReadMetrics())
    answer(options, {"metrics": found}, found.rstrip("\n"))


def status(options: Options) -> None:
    found = ask(options, ReadStatus())
    answer(options, found, and_whether_hosted(options, with_folder(options, status_text(found))))


def doctor(options: Options) -> None:
    """Print the faults found, with the cure of each.

    Raises:
        Refused: there are errors.
    """
    from outbox.ops.messages.doctor import examine

    found = talk(options, lambda admin: examine(admin, options.data))
    found = [msgspec.structs.replace(each, cure=with_folder(options, each.cure)) for each in found]
    answer(options, found, findings(found))
    errors = sum(finding.level == "error" for finding in found)
    if errors:
        raise Refused(f"{errors} error{'s' if errors > 1 else ''}; each line names its cure")


COMMANDS: Commands = {
    "status": Command("Count messages and dead letters of every queue.", (), status, at="azure"),
    "metrics": Command("Print the metrics of a folder's host in Prometheus' text format.", (data(), *ANSWER), metrics),
    "doctor": Command(
        "Look for what is wrong or soon will be, and name the cure; exit code 1 where there is an error.",
        (),
        doctor,
        at="azure",
    ),
}

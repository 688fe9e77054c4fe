"""Answers as text for a terminal, and log lines with their fields."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import msgspec

from outbox.errors import OutboxError
from outbox.escape import printable
from outbox.ops.names import last_word, word
from outbox.ops.pending_values import PendingView
from outbox.ops.state_values import StateHistory, StateVersion, StateWritten
from outbox.ops.stream_values import Streams
from outbox.ops.trail_values import Fact, Trace
from outbox.ops.values import (
    BlockedKey,
    DeadLetterGroup,
    DeadLetterView,
    Finding,
    FoundMessage,
    Handled,
    Peeked,
    Status,
)

REASON_LENGTH_MAX = 60
WHY_LENGTH_MAX = 160
MESSAGES_SHOWN_MAX = 20
_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LogFormatter(logging.Formatter):
    """A log line with its fields: `claim failed error=...`; our own errors are logged without a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OutboxError):
            record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None, "error": error})
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        fields = [f"{name}={printable(str(value))}" for name, value in record.__dict__.items() if name not in _ORDINARY]
        return " ".join([printable(super().formatMessage(record)), *fields])  # a peer chooses names of queues too


def status(found: Status) -> str:
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
        lines.append(streams(found.streams))
    return "\n".join(filter(None, lines))


def _handled(name: str, handled: Handled) -> str:
    """What became of a queue's messages since the host's start; empty where none came."""
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


def streams(found: Streams) -> str:
    """Logs, a line for each row, and registers; what is behind is so by so many cells."""
    parts = []
    if any(log.rows for log in found.logs):
        is_measured = any(row.size_bytes is not msgspec.UNSET for log in found.logs for row in log.rows)
        head = ("log", "row", "floor", "end", "cells", *(("bytes",) if is_measured else ()), "readers", "writers")
        rows = [
            (
                *(log.name, row.row, str(row.floor), str(row.end), str(row.cells)),
                *((str(row.size_bytes),) if is_measured else ()),
                *(_lags(row.readers), _lags(row.writers)),
            )
            for log in found.logs
            for row in log.rows
        ]
        parts.append(columns([head, *rows]))
    if found.processors:
        head = ("processor", "serial", "phase", "failures", "behind")
        rows = [(p.name, str(p.serial), p.phase or "-", str(p.failures), _lags(p.lag)) for p in found.processors]
        parts.append(columns([head, *rows]))
    errors = [(each.name, each.error) for each in found.logs] + [(each.name, each.error) for each in found.processors]
    parts += [printable(f"{name}: {error}") for name, error in errors if error]
    if found.more:
        parts.append("there are more: name one, `outbox stream read NAME`, or ask OrderedLog.status()")
    return "\n".join(parts) or "no ordered logs"


def _lags(lags: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(lags.items())) or "-"


def messages(queue: str, found: Peeked) -> str:
    """A line for each message; with `more` how to see those behind them.  A time that none of them has is no column."""
    paused = (
        f"\n{queue} is paused: nothing is taken from it until `outbox queue resume {word(queue)}`"
        if found.paused
        else ""
    )
    if not found.messages:
        more = f" so far; look on with --after {found.more}" if found.more else ""
        return f"nothing of that kind in {queue}{more}{paused}"
    came = [_time_if_known(x.enqueued) for x in found.messages]
    due = [_time_if_known(x.due) if x.state in ("scheduled", "retrying") else "-" for x in found.messages]
    times = [(name, column) for name, column in (("enqueued", came), ("due", due)) if set(column) != {"-"}]
    head = ("number", "id", "state", "key", *(name for name, _ in times), "why")
    rows = [
        (
            *(str(x.sequence), x.id, x.state, x.key or "-"),
            *(column[index] for _, column in times),
            shortened(x.why, WHY_LENGTH_MAX),
        )
        for index, x in enumerate(found.messages)
    ]
    lines = [columns([head, *rows])]
    if found.more:
        lines.append(f"there may be more: --after {found.more}")
    return "\n".join(lines) + paused


def found_messages(found: Sequence[FoundMessage]) -> str:
    """For each place of a message a line that says where and why, and the whole of it as JSON."""
    return "\n".join(f"{_place(one)}\n{whole(one)}" for one in found)


def gone(known: Sequence[Fact]) -> str:
    """What is on record of a message that is in no queue and no dead letter, in one line."""
    id = known[0].id
    more = f"`outbox message trace {last_word(id)}` shows what it caused"
    return printable(f"{id} is in no queue and no dead letter: {facts(known)}; {more}")


def _place(found: FoundMessage) -> str:
    if (view := found.message) is not None:
        return printable(f"{view.id} in {view.queue}: {view.state}, {view.why}")
    letter = found.dead_letter
    assert letter is not None, "a message is in a queue, or a dead letter"
    why = shortened(letter.description, WHY_LENGTH_MAX)
    return printable(f"{letter.id} in the dead letters of {letter.queue}: {letter.reason}, {why}; {letter.cure}")


def trace(found: Trace) -> str:
    """A line for each message, its effects below it and indented; then why there may be more."""
    least = found.hops[0].depth
    lines = []
    for hop in found.hops:
        known = facts(hop.facts) or "nothing is known but its id"
        lines.append(printable(f"{'  ' * (hop.depth - least)}{'*' if hop.id == found.id else '-'} {hop.id}: {known}"))
    return "\n".join([*lines, *(printable(f"note: {note}") for note in found.notes)])


def facts(found: Sequence[Fact]) -> str:
    """What is known of one message, in one line."""
    return "; ".join(_fact(fact) for fact in found)


def state_history(found: StateHistory) -> str:
    """A line for each version of a state, oldest first."""
    earlier = ["(earlier versions are left out)"] if found.more else []
    return "\n".join([f"{printable(found.state)}", *earlier, *(printable(_version(each)) for each in found.versions)])


def _version(each: StateVersion) -> str:
    how = {"written": "written by an operator", "deleted": "deleted", "handled": ""}[each.how]
    named = ", ".join(f"{message.id} in {message.queue}" for message in each.messages[:MESSAGES_SHOWN_MAX])
    more = len(each.messages) - MESSAGES_SHOWN_MAX
    named += f" and {more} more" if more > 0 else ""
    if not named and each.how != "written":
        named = "a request, or what no message names"
    by = f"by {'' if each.is_sure else 'some of '}{named}" if named else ""
    tx = f"tx {each.tx}" if each.tx else ""
    said = ", ".join(filter(None, (how, by, tx, utc(each.at) if each.at else "", each.why)))
    return f"  version {each.version}: {said}"


def _fact(fact: Fact) -> str:
    where = f" in {fact.queue}" if fact.queue else ""
    by = f" by {fact.handler}" if fact.handler else ""
    key = f", key {fact.key}" if fact.key else ""
    tx = f", tx {fact.tx}" if fact.tx else ""
    at = "" if isinstance(fact.at, msgspec.UnsetType) else f", {utc(fact.at)}"
    why = f" ({shortened(fact.why, WHY_LENGTH_MAX)})" if fact.why else ""
    return f"{fact.place}{where}{by}{key}{tx}{at}{why}, known by {_KNOWN_BY[fact.known_by]}"


_KNOWN_BY = {
    "queue": "the queue",
    "dead letter": "the dead letter",
    "pending output": "the record that holds it",
    "record": "its record",
    "its output": "its output",
    "history": "the history",
}


def pending(found: Sequence[PendingView], *, in_full: bool, on_engine: bool) -> str:
    """A line for each; `in_full` each with all that is known of it."""
    if not found and on_engine:
        return "nothing is ever pending on an engine: outputs commit with the message that emitted them"
    if not found:
        return "nothing is pending"
    if in_full:
        return "\n".join(f"{printable(f'{x.tx}: {x.why}')}\n{whole(x)}" for x in found)
    rows = [
        (
            x.tx or "-",
            _time(x.committed),
            ", ".join(sorted({output.destination for output in x.outputs})) or "-",
            shortened(x.why, WHY_LENGTH_MAX),
        )
        for x in found
    ]
    return columns([("tx", "committed", "to", "why"), *rows])


def imported(written: int, same: int, left: Sequence[StateWritten], *, dry_run: bool) -> str:
    """How many states were written, and a line for each that was not."""
    lines = [f"{'would write' if dry_run else 'wrote'} {written}; {same} were stored so already"]
    lines += [printable(f"{one.outcome} {one.id}: {one.why}") for one in left]
    return "\n".join(lines)


def blocked(found: Sequence[BlockedKey]) -> str:
    """A line for each key."""
    if not found:
        return "no key is blocked"
    rows = [(x.queue, x.key, x.id or "-", _time(x.since), str(x.waiting), shortened(_why_blocked(x))) for x in found]
    return columns([("queue", "key", "dead letter", "since", "waiting", "why"), *rows])


def _why_blocked(key: BlockedKey) -> str:
    return ": ".join(filter(None, (key.reason, key.why)))


def findings(found: Sequence[Finding]) -> str:
    """A line for each, with its cure."""
    rows = [(x.level, x.about, x.what + (f"; {x.cure}" if x.cure else "")) for x in found]
    return columns(rows)


def utc(seconds: float) -> str:
    """A time in seconds since 1970, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def dead_letter_groups(groups: Sequence[DeadLetterGroup]) -> str:
    if not groups:
        return "no dead letters"
    head = ("count", "queue", "reason", "error", "raised at", "first", "last", "example")
    rows = [
        (
            str(g.count),
            g.queue,
            shortened(g.reason),
            shortened(g.error),
            g.at or "-",
            utc(g.first),
            utc(g.last),
            g.example,
        )
        for g in groups
    ]
    return columns([head, *rows])


def dead_letters(queue: str, found: Sequence[DeadLetterView], *, named: bool = False, gone: bool = False) -> str:
    """A line for each; `named` says that they may be of several queues, `gone` that they were discarded."""
    if not found and gone:
        return f"nothing that was discarded of {queue or 'any queue'} can be restored"
    if not found:
        return f"{queue} has no dead letters" if queue else "no dead letters in any queue"
    is_numbered = len({(x.queue, x.id) for x in found}) < len(found)  # an id alone does not say which
    first = (*(("queue",) if named else ()), "id", *(("number",) if is_numbered else ()))
    head = (*first, "created", "type", "deliveries", "reason", "description")
    rows = [
        (
            *((x.queue,) if named else ()),
            x.id,
            *((str(x.sequence),) if is_numbered else ()),
            utc(x.created),
            x.type or x.handled_as or "-",
            str(x.delivery_count),
            shortened(x.reason),
            shortened(x.description),
        )
        for x in found
    ]
    return columns([head, *rows])


_TIMES = frozenset(("created", "enqueued", "due", "locked_until", "since", "committed"))
_VIEWS = frozenset(("message", "dead_letter"))
"""The fields of an answer that are times, and those that are answers themselves."""


def whole(value: msgspec.Struct) -> str:
    """All of an answer as indented JSON, its times and an absent key as in a list."""
    return indented(_as_in_a_list(msgspec.json.encode(value)))


def _as_in_a_list(data: bytes) -> bytes:
    """The JSON object of an answer with times for a reader; what its sender chose, such as the body, as it is."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    for name, raw in fields.items():
        if name in _VIEWS and bytes(raw) != b"null":
            fields[name] = msgspec.Raw(_as_in_a_list(bytes(raw)))
        elif name in _TIMES:
            fields[name] = msgspec.Raw(msgspec.json.encode(_time(msgspec.json.decode(raw, type=float))))
        elif name == "key" and bytes(raw) == b'""':
            fields[name] = msgspec.Raw(b'"-"')
    return msgspec.json.encode(fields)


def _time(seconds: float) -> str:
    """A time, or `-` where it is not known."""
    return utc(seconds) if seconds else "-"


def _time_if_known(seconds: float | msgspec.UnsetType) -> str:
    return "-" if isinstance(seconds, msgspec.UnsetType) else utc(seconds)


def indented(data: bytes) -> str:
    """Indented JSON, with characters escaped that a terminal obeys and JSON allows (U+009B, U+202E)."""
    shown = msgspec.json.format(data, indent=2).decode()
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in shown)


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; characters that a terminal obeys are replaced."""
    shown = [
        ["".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell) for cell in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)


def age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.1f} s"


def shortened(text: str, length_max: int = REASON_LENGTH_MAX) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length_max else line[: length_max - 1] + "\N{HORIZONTAL ELLIPSIS}"

"""The commands on messages: send, peek, schedule and pending; arguments, work, text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import BufferedReader
from typing import Any, cast
from uuid import uuid4

import msgspec

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops.shared import text
from outbox.ops.shared.asking import (
    AFTER,
    PAGE,
    QUEUE,
    Command,
    Commands,
    Options,
    Usage,
    and_whether_hosted,
    answer,
    argument,
    ask,
    check_app_name,
    duration,
    identity,
    instant,
    queue,
    seconds,
    talk,
    with_folder,
)
from outbox.ops.shared.names import word
from outbox.ops.shared.text import WHY_LENGTH_MAX, columns, moment, moment_if_known, shortened, whole
from outbox.ops.values.dead_letters import Moved
from outbox.ops.values.messages import (
    Cancel,
    Finish,
    ListPending,
    MakeDue,
    NewMessage,
    Pause,
    Peek,
    Peeked,
    PendingView,
    Send,
)
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import ReadStatus


def messages_text(queue: str, found: Peeked) -> str:
    """A line for each message; with `more` how to see those behind them.  A time that none of them has is no column."""
    paused = (
        f"\n{queue} is paused: nothing is taken from it until `outbox queue resume {word(queue)}`"
        if found.paused
        else ""
    )
    if not found.messages:
        more = f" so far; look on with --after {found.more}" if found.more else ""
        return f"nothing of that kind in {queue}{more}{paused}"
    came = [moment_if_known(x.enqueued) for x in found.messages]
    due = [moment_if_known(x.due) if x.state in ("scheduled", "retrying") else "-" for x in found.messages]
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


def pending_text(found: Sequence[PendingView], *, in_full: bool, on_engine: bool) -> str:
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
            moment(x.committed),
            ", ".join(sorted({output.destination for output in x.outputs})) or "-",
            shortened(x.why, WHY_LENGTH_MAX),
        )
        for x in found
    ]
    return columns([("tx", "committed", "to", "why"), *rows])


def peek(options: Options) -> None:
    found = ask(options, Peek(options.queue, options.after, options.limit, options.state or "", options.key))
    answer(options, found, and_whether_hosted(options, with_folder(options, messages_text(options.queue, found))))


def pause(options: Options) -> None:
    """Pause a queue, or resume it."""
    asked = Pause(options.queue, options.action == "queue pause")
    done = ask(options, asked)
    until = f"nothing is taken from it until `outbox queue resume {word(done.queue)}`"
    line = with_folder(options, f"{done.queue} is paused; {until}" if asked.paused else f"{done.queue} is resumed")
    so_already = "it was paused already" if asked.paused else "it was not paused"
    answer(options, done, line if done.changed else f"{line} ({so_already})")


def list_scheduled(options: Options) -> None:
    """List the scheduled messages of a queue, or of all, that are not due yet, by due time."""
    if options.queue is None and options.after:
        raise Usage("--after is a number of one queue; name the QUEUE")

    async def look(admin: Admin) -> dict[str, Peeked]:
        queues = [options.queue]
        if options.queue is None:
            counts = (await admin.ask(ReadStatus())).queues
            queues = [name for name, queue in counts.items() if queue.scheduled > (queue.retrying or 0)]
        asked = [Peek(queue, options.after, options.limit, "scheduled", by_due=True) for queue in queues]
        return {each.queue: await admin.ask(each) for each in asked}

    found = talk(options, look)
    if options.queue is not None:
        answer(options, found[options.queue], messages_text(options.queue, found[options.queue]))
        return
    parts = [f"{printable(queue)}:\n{messages_text(queue, peeked)}" for queue, peeked in found.items()]
    answer(options, found, "\n".join(parts) or "nothing is scheduled in any queue")


def cancel(options: Options) -> None:
    done = ask(options, Cancel(options.queue, options.id, after=options.after))
    answer(options, done, f"cancelled {done.id} in {options.queue}{_looked_up_to(done)}")


def make_due(options: Options) -> None:
    done = ask(options, MakeDue(options.queue, options.id, after=options.after))
    answer(options, done, f"{done.id} in {options.queue} is due now{_looked_up_to(done)}")


def _looked_up_to(done: Moved) -> str:
    """Up to where a queue was looked through, where it holds more."""
    if isinstance(done.more, msgspec.UnsetType):
        return ""
    return f"; looked through up to number {done.more}, for others of this id behind it give --after {done.more}"


def list_pending(options: Options) -> None:
    """List pending transactions, or explain one that is named, with its outputs."""
    found = ask(options, ListPending())
    if options.tx is not None:
        found = [view for view in found if view.tx.startswith(options.tx)]
        if not found:
            raise LookupError(f"nothing is pending of {options.tx!r}; `outbox pending list` shows what is")
    answer(
        options,
        found,
        pending_text(found, in_full=options.action == "pending explain", on_engine=options.data is not None),
    )


def finish_pending(options: Options) -> None:
    """Finish pending transactions.

    Raises:
        Refused: some of it cannot be finished now; the text says why.
    """
    if (options.tx is None) is not options.all:
        raise Usage("name one TX, or give --all")
    done = ask(options, Finish(options.tx))
    young = f"; {done.young} younger than a minute, which workers finish themselves" if done.young else ""
    answer(options, done, f"finished {done.finished}{young}")
    if done.left or done.troubles:
        why = "; ".join(done.troubles) or "what they wait for is not there yet"
        raise Refused(f"{done.left} could not be finished: {why}")


def send(options: Options) -> None:
    check, due = _judge(options), _due(options)
    if options.body == "-":
        import asyncio

        from outbox.ops.messages.sending import send_lines

        if options.id is not None:
            raise Usage("--id names one message; lines of stdin carry their own, or give --id-field")
        _done(options, asyncio.run(send_lines(options, cast(BufferedReader, sys.stdin.buffer), check, due=due)), due)
        return
    if options.id_field or options.key_field:
        raise Usage("--id-field and --key-field go with - only")
    if options.id == "":
        raise Usage("--id is empty; leave it out for a fresh one")
    id = options.id or str(uuid4())
    message = NewMessage(
        id=id,
        body=_json(options.body),
        type=options.type,
        created=options.created,
        key=options.key,
        correlation_id=options.correlation_id,
    )
    ask(options, Send(options.queue, [check(message)], due=due))
    _done(options, {"queue": options.queue, "count": 1, "ids": [id]}, due)


def _judge(options: Options) -> Callable[[NewMessage], NewMessage]:
    """The check of a message before it is sent, by the application of --app; without one the host checks it."""
    if options.app is None:
        return lambda message: message
    check_app_name(options.app)
    with redirect_stdout(sys.stderr):  # stdout gets the answer, whatever the application prints
        from outbox.ops.messages.sending import as_handled
        from outbox.ops.shared.loading import load_app

        app = load_app(options.app)
    app.destination(options.queue)
    return lambda message: as_handled(app, options.queue, message)


def _due(options: Options) -> float | None:
    """When the messages are due, in seconds since 1970; None for now."""
    if options.at is not None and options.in_s is not None:
        raise Usage("--at and --in name two times; keep one")
    due: float | None = options.at if options.in_s is None else time.time() + options.in_s
    return due


def _done(options: Options, sent: dict[str, Any], due: float | None) -> None:
    what = f"{sent['ids'][0]}" if sent["count"] == 1 else f"{sent['count']} messages"
    later = "" if due is None else f", due at {text.utc(due)}"
    answer(options, sent if due is None else {**sent, "due": due}, f"sent {what} to {options.queue}{later}")
    if options.app is None and sent["count"]:
        _say_unchecked(options)


def _say_unchecked(options: Options) -> None:
    """Warn on stderr that no application has checked the sent messages, where none can have."""
    from outbox.ops.shared.control_file import is_held

    why = "" if options.data is None else "no host runs on this folder, so "
    if options.data is None or not is_held(options.data):
        cure = "with --app module:attribute one does, before it is sent"
        print(f"outbox: {why}no application has checked this; {cure}", file=sys.stderr)


def _json(body: str) -> msgspec.Raw:
    try:
        encoded = body.encode()
        msgspec.json.decode(encoded)
        return msgspec.Raw(encoded)
    except UnicodeEncodeError as error:
        raise Refused(f"the message is not UTF-8: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f'the message is not JSON: {error}; quote it as in \'{{"id": "t1"}}\'') from error


# The commands

_STATES = ("waiting", "retrying", "blocked", "in-hand", "scheduled", "deferred")

COMMANDS: Commands = {
    "send": Command(
        "Send a message, or one for each line of stdin.",
        (
            argument("queue", metavar="QUEUE", type=queue, help="a queue or topic"),
            argument("body", metavar="JSON", help='the message, or - for lines of {"id": ..., "body": ...} on stdin'),
            argument("--type", default="", help="the wire type; a queue with one type needs none"),
            argument("--id", help="its identity (default: a fresh one); a duplicate has no further effect"),
            argument(
                "--created",
                type=seconds,
                metavar="SECONDS",
                help="its time, since 1970 (default: now, or when it is due)",
            ),
            argument(
                "--at", type=instant, metavar="TIME", help="when it is due, as 2026-01-31T12:00:00Z (default: now)"
            ),
            argument(
                "--in", dest="in_s", type=duration, metavar="DURATION", help="how long until it is due, as 90s or 15min"
            ),
            argument("--key", "--session", dest="key", default="", help="its key, where the queue is ordered by key"),
            argument("--correlation-id", default="", metavar="ID"),
            argument(
                "--app",
                metavar="APP",
                help="check the message by this application's types (module:attribute); a host does so by its own",
            ),
            argument("--id-field", metavar="NAME", help="with -: lines are bodies, and this field is the identity"),
            argument("--key-field", metavar="NAME", help="with --id-field: this field is the key"),
        ),
        send,
        at="azure",
    ),
    "queue": Command("Look into a queue, pause it, or resume it."),
    "queue peek": Command(
        "Show what a queue holds, and why each message waits: for a worker, for its next try, behind a dead letter.",
        (
            QUEUE,
            argument("--state", choices=_STATES, help="only messages in this state"),
            argument("--key", default="", help="only messages of this key (session)"),
            *PAGE,
        ),
        peek,
        at="azure",
    ),
    "queue pause": Command(
        "Let workers and receivers take nothing from a queue until it is resumed; what is sent to it waits.",
        (QUEUE,),
        pause,
        at="azure",
    ),
    "queue resume": Command("Let a paused queue go on.", (QUEUE,), pause, at="azure"),
    "schedule": Command("List or cancel what is not due yet, or let it be due."),
    "schedule list": Command(
        "List what is scheduled in a queue, or in all queues, by the time when it is due.",
        (argument("queue", metavar="QUEUE", nargs="?", type=queue), *PAGE),
        list_scheduled,
        at="azure",
    ),
    "schedule cancel": Command(
        "Cancel a scheduled message: it is gone, and nothing remembers it.",
        (
            QUEUE,
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            AFTER,
        ),
        cancel,
        at="azure",
    ),
    "schedule now": Command(
        "Let a scheduled message, or one that waits for its next try, be taken now.",
        (
            QUEUE,
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            AFTER,
        ),
        make_due,
        at="azure",
    ),
    "pending": Command("List or finish what was committed and whose outputs are not known to have left."),
    "pending list": Command(
        "List transactions whose outputs are not known to have left, and why.",
        (argument("--tx", type=identity, metavar="TX", help="one of them, or those that begin so"),),
        list_pending,
        at="azure",
    ),
    "pending explain": Command(
        "Show all that is known of one.",
        (argument("tx", type=identity, metavar="TX", help="or its beginning"),),
        list_pending,
        at="azure",
    ),
    "pending finish": Command(
        "Send what is pending once more, now, and say what stands in the way.",
        (
            argument("tx", type=identity, metavar="TX", nargs="?"),
            argument("--all", action="store_true", help="everything, instead of one TX"),
        ),
        finish_pending,
        at="azure",
    ),
}

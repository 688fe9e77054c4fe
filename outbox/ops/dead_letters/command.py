"""The commands on dead letters and on the keys that they block: arguments, work, text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops.shared import text
from outbox.ops.shared.asking import (
    QUEUE,
    Command,
    Commands,
    Options,
    Usage,
    answer,
    argument,
    ask,
    count,
    duration,
    identity,
    number,
    queue,
    rate,
    talk,
    with_folder,
)
from outbox.ops.shared.names import last_word, word
from outbox.ops.shared.text import columns, compact_json, moment, shortened, utc
from outbox.ops.values.dead_letters import (
    BlockedKey,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterView,
    Discard,
    ListDiscarded,
    Moved,
    Restore,
    Resubmit,
    ShowDeadLetter,
)
from outbox.ops.values.requests import Admin, Request
from outbox.ops.values.status import ReadStatus


def blocked_text(found: Sequence[BlockedKey]) -> str:
    """A line for each key."""
    if not found:
        return "no key is blocked"
    rows = [
        (
            x.queue,
            x.key,
            x.id or "-",
            moment(x.since),
            str(x.waiting),
            shortened(": ".join(filter(None, (x.reason, x.why)))),
        )
        for x in found
    ]
    return columns([("queue", "key", "dead letter", "since", "waiting", "why"), *rows])


def groups_text(groups: Sequence[DeadLetterGroup]) -> str:
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


def dead_letters_text(queue: str, found: Sequence[DeadLetterView], *, named: bool = False, gone: bool = False) -> str:
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


EDIT_BYTES_MAX = 16 << 20
"""The largest body of an edit: a running host takes it as one request."""


def list_blocked(options: Options) -> None:
    """List the keys that dead letters block."""
    from outbox.ops.dead_letters.blocked import every_blocked

    found = talk(options, lambda admin: every_blocked(admin, options.queue or ""))
    answer(options, found, blocked_text(found))


def unblock(options: Options) -> None:
    from outbox.ops.dead_letters import blocked

    done = talk(options, lambda admin: blocked.unblock(admin, options.queue, options.key, options.by))
    then = "when that is applied" if options.by == "resubmit" else "now"
    verb = "resubmitted" if options.by == "resubmit" else "discarded"
    answer(
        options, done, f"{verb} {done.id!r} of {done.queue}; key {done.key!r} goes on {then}, {done.waiting} waiting"
    )


def list_dead_letters(options: Options) -> None:
    """List the dead letters of a queue, or of all; or groups of them by error."""
    from outbox.ops.dead_letters import groups as dead_letters

    if options.discarded:
        if options.group or _filters(options):
            raise Usage("--discarded lists all that can be restored; leave the other options out")
        found = talk(options, lambda admin: _discarded(admin, options))
        answer(options, found, dead_letters_text(options.queue or "", found, named=options.queue is None, gone=True))
        return
    found = talk(options, lambda admin: _dead_letters(admin, options))
    if options.group:
        groups = dead_letters.grouped(found)
        answer(options, groups, groups_text(groups))
    else:
        answer(options, found, dead_letters_text(options.queue or "", found, named=options.queue is None))


async def _discarded(admin: Admin, options: Options) -> list[DeadLetterView]:
    """List the discarded dead letters of a queue, or of all."""
    queues = [options.queue] if options.queue is not None else list((await admin.ask(ReadStatus())).queues)
    return [letter for queue in queues for letter in await admin.ask(ListDiscarded(queue))]


async def _dead_letters(admin: Admin, options: Options) -> list[DeadLetterView]:
    """List the dead letters that the options select; --limit may cut the list."""
    from outbox.ops.dead_letters.groups import found_in, queues_with_dead_letters

    now_s = time.time()
    where = DeadLetterFilter(
        options.reason,
        options.type,
        options.text,
        0 if options.newer is None else max(0, now_s - options.newer),
        1e11 if options.older is None else max(0, now_s - options.older),
        options.exception,
        options.handler,
    )
    queues = [options.queue] if options.queue is not None else await queues_with_dead_letters(admin)
    return await found_in(admin, queues, where, options.limit)


def show_dead_letter(options: Options) -> None:
    found = ask(options, ShowDeadLetter(options.queue, options.id, sequence=options.sequence))
    found = msgspec.structs.replace(found, cure=with_folder(options, found.cure))
    answer(options, found, text.whole(found))


def resubmit(options: Options) -> None:
    number = options.sequence
    if options.body is None:
        _move(options, "resubmitted", lambda id: Resubmit(options.queue, id, sequence=number))
        return
    if options.id is None:
        raise Usage("--body is for one dead letter: name its ID")
    body = compact_json(options.id, _read_body(options.body))
    _move(
        options,
        "edited and resubmitted",
        lambda id: Resubmit(options.queue, id, body=body, sequence=number),
    )


def _read_body(file: str) -> bytes:
    """The body in a file, or (`-`) on stdin.

    Raises:
        Refused: it is empty, or too large.
    """
    where = "stdin" if file == "-" else file
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
        body = source.read(EDIT_BYTES_MAX + 1)
    if not body.strip():
        raise Refused(f"{where} is empty; give the whole body, as `outbox dead-letters show` prints it")
    if len(body) > EDIT_BYTES_MAX:
        raise Refused(f"{where} is over {EDIT_BYTES_MAX} bytes, the most that an edited body may have")
    return body


def discard(options: Options) -> None:
    """Discard a dead letter, for a time or for good."""
    good, number = options.for_good, options.sequence
    _move(
        options,
        "discarded",
        lambda id: Discard(options.queue, id, for_good=good, sequence=number),
    )


def restore(options: Options) -> None:
    """Restore discarded dead letters."""
    if (options.id is None) is not options.all:
        raise Usage("name one ID, or give --all")
    done = ask(options, Restore(options.queue, options.id))
    which = f": {done.id!r}" if isinstance(done.id, str) and done.id != options.id else ""
    answer(options, done, f"restored {done.count} of {options.queue}{which}")


def _filters(options: Options) -> list[str]:
    """The names of the options that say which dead letters are meant."""
    names = ("reason", "type", "handler", "exception", "text", "newer", "older", "limit")
    return [name for name in names if getattr(options, name)]


def _say_restorable(options: Options, which: str) -> None:
    """Print at a terminal how to restore discarded dead letters; a script gets no further line."""
    if not options.for_good and sys.stderr.isatty():
        again = with_folder(options, f"`outbox dead-letters restore {word(options.queue)} {which}`")
        print(f"outbox: {printable(again)} takes it back, for as long as retention", file=sys.stderr)


def _move(options: Options, verb: str, move: Callable[[str | None], Request[Moved]]) -> None:
    filters = [*_filters(options), *(["rate"] if options.rate else [])]
    if options.sequence and options.id is None:
        raise Usage("--sequence is one of an id's several dead letters; name the ID, or sequence-N where it has none")
    if options.id is not None and (options.all or filters):
        raise Usage(f"ID names one dead letter; leave --{filters[0] if filters else 'all'} out, or ID")
    if options.id is None and not (options.all or filters):
        raise Usage("name one ID, or say which: --all, --reason, --text and so on")
    if filters:
        _move_some(options, verb)
        return
    moved = ask(options, move(options.id))
    why = "a receiver has them" + (", or they were too-old" if verb == "resubmitted" and options.all else "")
    left = f"; {moved.in_hand} left, {why}" if moved.in_hand else ""
    which = f": {moved.id!r}" if isinstance(moved.id, str) and moved.id != options.id else ""
    if not isinstance(moved.numbers, msgspec.UnsetType):
        which = f": all dead letters of {moved.id!r}, numbers {', '.join(map(str, moved.numbers))}"
    answer(options, moved, f"{verb} {moved.count} of {options.queue}{which}{left}")
    if verb == "discarded" and moved.count:
        _say_restorable(options, last_word(moved.id) if isinstance(moved.id, str) else "--all")


def _move_some(options: Options, verb: str) -> None:
    """Move the dead letters that a filter selects, at a pace.

    Raises:
        Refused: the filter means none, or one that was resubmitted has come back.
    """
    from outbox.ops.dead_letters.groups import MovedGroup, discard_all, resubmit_all

    async def move(admin: Admin) -> MovedGroup:
        found = await _dead_letters(admin, options)
        if not found:
            shown = f"`outbox dead-letters list {word(options.queue)}` shows all"
            raise Refused(f"no dead letter of {options.queue} is meant by these options; {shown}")
        if verb == "resubmitted":
            return await resubmit_all(admin, found, a_second=options.rate)
        return await discard_all(admin, found, a_second=options.rate, for_good=options.for_good)

    moved = talk(options, move)
    left = f"; {moved.left} left" + (f", the first because {moved.why}" if moved.why else "") if moved.left else ""
    answer(options, moved, f"{verb} {moved.count} of {options.queue}{left}")
    if verb == "discarded" and moved.count:
        _say_restorable(options, "ID")
    if moved.is_broken_off:
        raise Refused(f"stopped there; list them, and give the same command again: {moved.why}")
    if moved.relapsed:
        which = f"--sequence {moved.number} {word(options.queue)} {last_word(moved.relapsed)}"
        again = f"`outbox dead-letters show {which}`"
        raise Refused(f"{moved.relapsed!r} is a dead letter again, so no more are resubmitted; look at it: {again}")


# The commands

_WHICH = (
    argument("--reason", default="", help="only those of this reason, such as failed or too-old"),
    argument("--type", default="", help="only messages of this wire type"),
    argument("--handler", default="", metavar="NAME", help="only messages that this handler takes"),
    argument("--exception", default="", metavar="CLASS", help="only those that failed with it, as KeyError"),
    argument("--text", default="", help="only those with this text in their reason, description, stack or body"),
    argument("--older", type=duration, metavar="AGE", help="only those enqueued longer ago, as 7d, 12h, 15min or 90s"),
    argument("--newer", type=duration, metavar="AGE", help="only those enqueued since"),
    argument("--limit", type=count, metavar="N", help="at most so many, the oldest first"),
)
_SEQUENCE = argument(
    "--sequence",
    type=number,
    default=0,
    metavar="NUMBER",
    help="of an id's several dead letters the one of this number",
)
_ID_OR_ALL = (
    argument("id", type=identity, metavar="ID", nargs="?"),
    argument("--all", action="store_true", help="all of the queue's, instead of one ID"),
    _SEQUENCE,
    *_WHICH,
    argument("--rate", type=rate, metavar="N", help="at most so many a second"),
)

COMMANDS: Commands = {
    "blocked": Command("List keys that a dead letter blocks, or let one go on."),
    "blocked list": Command(
        "List the keys that a dead letter blocks, by which, since when, and how many messages wait.",
        (argument("queue", metavar="QUEUE", nargs="?", type=queue),),
        list_blocked,
        at="azure",
    ),
    "blocked unblock": Command(
        "Let a key go on: by discarding the dead letter that blocks it, or by resubmitting that.",
        (
            QUEUE,
            argument(
                "key", type=identity, metavar="KEY", help="the key, or the beginning of it: four characters or more"
            ),
            argument("--by", choices=("discard", "resubmit"), required=True, help="what to do with the dead letter"),
        ),
        unblock,
        at="azure",
    ),
    "dead-letters": Command("List, show, resubmit or discard refused messages."),
    "dead-letters list": Command(
        "List the dead letters of a queue, or of all queues, oldest first.",
        (
            argument("queue", metavar="QUEUE", nargs="?", type=queue),
            *_WHICH,
            argument("--group", action="store_true", help="one line for all that went wrong alike"),
            argument("--discarded", action="store_true", help="those that were discarded and can be restored"),
        ),
        list_dead_letters,
        at="azure",
    ),
    "dead-letters show": Command(
        "Show a dead letter with its body.",
        (QUEUE, argument("id", type=identity, metavar="ID"), _SEQUENCE),
        show_dead_letter,
        at="azure",
    ),
    "dead-letters resubmit": Command(
        "Run a dead letter again; by a filter or --rate up to the first that comes back, else without a look back.",
        (QUEUE, *_ID_OR_ALL, argument("--body", metavar="FILE", help="edit one: another body, JSON (-: from stdin)")),
        resubmit,
        at="azure",
    ),
    "dead-letters discard": Command(
        "Discard a dead letter; for as long as retention it can be restored.",
        (QUEUE, *_ID_OR_ALL, argument("--for-good", action="store_true", help="delete it: it cannot be restored")),
        discard,
        at="azure",
    ),
    "dead-letters restore": Command(
        "Take a discard back: it is a dead letter again. A key that has gone on is not blocked again.",
        (
            QUEUE,
            argument("id", type=identity, metavar="ID", nargs="?"),
            argument("--all", action="store_true", help="all of them"),
        ),
        restore,
        at="azure",
    ),
}

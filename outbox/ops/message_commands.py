"""The commands on messages: what a queue holds, what is scheduled or pending, and dead letters."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops import text
from outbox.ops.asking import Options, Usage, and_whether_hosted, answer, ask, talk, with_folder
from outbox.ops.bodies import compact_json
from outbox.ops.names import last_word, look_on, near, word
from outbox.ops.pending_values import Finish, ListPending
from outbox.ops.requests import Admin, Request
from outbox.ops.trail import facts_of, tree
from outbox.ops.trail_values import FindTrail
from outbox.ops.values import (
    Cancel,
    DeadLetterFilter,
    DeadLetterView,
    Discard,
    Find,
    FoundMessage,
    ListDiscarded,
    MakeDue,
    Moved,
    Pause,
    Peek,
    Peeked,
    ReadStatus,
    Restore,
    Resubmit,
    ShowDeadLetter,
)

EDIT_BYTES_MAX = 16 << 20
"""The largest body of an edit: a running host takes it as one request."""


def peek(options: Options) -> None:
    asked = Peek(options.queue, options.after, options.limit, options.state or "", options.key)
    found = ask(options, asked)
    answer(options, found, and_whether_hosted(options, with_folder(options, text.messages(options.queue, found))))


def pause(options: Options) -> None:
    """Pause a queue, or resume it."""
    asked = Pause(options.queue, options.action == "queue pause")
    done = ask(options, asked)
    if asked.paused:
        line = f"{done.queue} is paused; nothing is taken from it until `outbox queue resume {word(done.queue)}`"
    else:
        line = f"{done.queue} is resumed"
    so_already = "it was paused already" if asked.paused else "it was not paused"
    line = with_folder(options, line)
    answer(options, done, line if done.changed else f"{line} ({so_already})")


def show_message(options: Options) -> None:
    """Show where a message is, why it is there, and its body; of one that is gone, what is on record of it.

    Raises:
        LookupError: it is in no queue and no dead letter, and nothing is on record of it.
        Refused: it was not seen, and there is more than was looked through.
    """
    if options.after and not options.queue:
        raise Usage("--after is a number of one queue; name it by --queue")
    asked = Find(options.id, options.queue or "", options.after)

    async def look(admin: Admin) -> list[FoundMessage]:
        try:
            return await admin.ask(asked)
        except LookupError as gone:
            if type(gone) is not LookupError or asked.queue:
                raise
            trail = await admin.ask(FindTrail(asked.id))
            if not (known := facts_of(trail)):
                raise
            return [FoundMessage(facts=known)]

    found = [_with_folder(options, each) for each in talk(options, look)]
    if found[0].facts:  # it is gone: no host has anything to do with it
        answer(options, found, with_folder(options, text.gone(found[0].facts)))
        return
    answer(options, found, and_whether_hosted(options, text.found_messages(found)))


def _with_folder(options: Options, found: FoundMessage) -> FoundMessage:
    """A place of a message, whose cure names the folder; not its body, which may have the same words."""
    letter, view = found.dead_letter, found.message
    if letter is not None:
        letter = msgspec.structs.replace(letter, cure=with_folder(options, letter.cure))
    if view is not None:
        view = msgspec.structs.replace(view, why=with_folder(options, view.why))
    return msgspec.structs.replace(found, dead_letter=letter, message=view)


def trace_message(options: Options) -> None:
    """Show the causes and effects of a message.

    Raises:
        LookupError: nothing is known of it.
    """
    asked = FindTrail(options.id, [], options.key, options.kind, options.depth)
    history = None
    if options.history is not None:
        from outbox.ops.trail_history import HistoryTrail

        history = HistoryTrail(options.history, asked)
        asked = FindTrail(history.id, history.ids, options.key, options.kind, options.depth)
    found = ask(options, asked)
    if history is not None:
        named = {fact.id for fact in found.facts} | {fact.cause for fact in found.facts}
        more = history.facts({found.id, *history.ids, *named} - {""})
        found = msgspec.structs.replace(found, facts=[*found.facts, *more])
    if not found.facts and found.cut:
        unseen = look_on(options.id, found.cut, "outbox message show --queue {queue} --after {after} {id}")
        raise Refused(f"{unseen}; no record of it was found: --key names the key of its handler, --history a history")
    if not found.facts:
        raise LookupError(
            f"nothing is known of a message {options.id!r}: it is in no queue and no dead letter, and no record of "
            "it was found; --key names the key of its handler, --history a history"
            f"{near(options.id, found.near)}"
        )
    traced = tree(found, depth_max=options.depth, width_max=options.width)
    answer(options, traced, text.trace(traced))


def list_scheduled(options: Options) -> None:
    """List what is scheduled in a queue, or in all of them, and not due yet, by due time."""
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
        answer(options, found[options.queue], text.messages(options.queue, found[options.queue]))
        return
    parts = [f"{printable(queue)}:\n{text.messages(queue, peeked)}" for queue, peeked in found.items()]
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
    """List what was committed and is not finished; of a transaction, if one is named, with its outputs."""
    found = ask(options, ListPending())
    if options.tx is not None:
        found = [view for view in found if view.tx.startswith(options.tx)]
        if not found:
            raise LookupError(f"nothing is pending of {options.tx!r}; `outbox pending list` shows what is")
    answer(
        options,
        found,
        text.pending(found, in_full=options.action == "pending explain", on_engine=options.data is not None),
    )


def finish_pending(options: Options) -> None:
    """Finish what is pending.

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


def list_blocked(options: Options) -> None:
    """List the keys that dead letters block."""
    from outbox.ops.blocked import every_blocked

    found = talk(options, lambda admin: every_blocked(admin, options.queue or ""))
    answer(options, found, text.blocked(found))


def unblock(options: Options) -> None:
    from outbox.ops import blocked

    done = talk(options, lambda admin: blocked.unblock(admin, options.queue, options.key, options.by))
    then = "when that is applied" if options.by == "resubmit" else "now"
    verb = "resubmitted" if options.by == "resubmit" else "discarded"
    answer(
        options, done, f"{verb} {done.id!r} of {done.queue}; key {done.key!r} goes on {then}, {done.waiting} waiting"
    )


# Dead letters


def list_dead_letters(options: Options) -> None:
    """List the dead letters of a queue, or of all; or groups of those that went wrong alike."""
    from outbox.ops import dead_letters

    if options.discarded:
        if options.group or _filters(options):
            raise Usage("--discarded lists all that can be restored; leave the other options out")
        found = talk(options, lambda admin: _discarded(admin, options))
        answer(options, found, text.dead_letters(options.queue or "", found, named=options.queue is None, gone=True))
        return
    found = talk(options, lambda admin: _dead_letters(admin, options))
    if options.group:
        groups = dead_letters.grouped(found)
        answer(options, groups, text.dead_letter_groups(groups))
    else:
        answer(options, found, text.dead_letters(options.queue or "", found, named=options.queue is None))


async def _discarded(admin: Admin, options: Options) -> list[DeadLetterView]:
    """What was discarded of a queue, or of all of them."""
    queues = [options.queue] if options.queue is not None else list((await admin.ask(ReadStatus())).queues)
    return [letter for queue in queues for letter in await admin.ask(ListDiscarded(queue))]


async def _dead_letters(admin: Admin, options: Options) -> list[DeadLetterView]:
    """Those that the options mean; they may be fewer than are there by --limit."""
    from outbox.ops.dead_letters import found_in, queues_with_dead_letters

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
    """Let what was discarded be dead letters again."""
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
    """Say at a terminal how what was discarded comes back; a script's answer stays what it is."""
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
    """Move those that a filter means, at a pace.

    Raises:
        Refused: the filter means none, or one that was resubmitted has come back.
    """
    from outbox.ops.dead_letters import MovedGroup, discard_all, resubmit_all

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

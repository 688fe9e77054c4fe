"""The commands `outbox message show` and `trace`: arguments, work, text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops.shared.asking import (
    AFTER,
    Command,
    Commands,
    Options,
    Usage,
    and_whether_hosted,
    answer,
    argument,
    ask,
    depth,
    identity,
    page,
    queue,
    talk,
    with_folder,
)
from outbox.ops.shared.names import last_word, look_on, near
from outbox.ops.shared.text import WHY_LENGTH_MAX, facts, shortened, whole
from outbox.ops.trail.tree import facts_of, tree
from outbox.ops.values.messages import Find, FoundMessage
from outbox.ops.values.requests import Admin
from outbox.ops.values.trail import Fact, FindTrail, Trace


def gone(known: Sequence[Fact]) -> str:
    """Describe in one line a recorded message that is in no queue and no dead letter."""
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


def trace_text(found: Trace) -> str:
    """A line for each message, its effects below it and indented; then why there may be more."""
    least = found.hops[0].depth
    lines = [
        f"{'  ' * (hop.depth - least)}{'*' if hop.id == found.id else '-'} {hop.id}: "
        + (facts(hop.facts) or "nothing is known but its id")
        for hop in found.hops
    ]
    return "\n".join(map(printable, [*lines, *(f"note: {note}" for note in found.notes)]))


def show_message(options: Options) -> None:
    """Show where a message is, why it is there, and its body; if it is gone, the facts on record.

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
            if (
                type(gone) is LookupError
                and not asked.queue
                and (known := facts_of(await admin.ask(FindTrail(asked.id))))
            ):
                return [FoundMessage(facts=known)]
            raise

    found = [_with_folder(options, each) for each in talk(options, look)]
    if found[0].facts:  # it is gone: no host has anything to do with it
        answer(options, found, with_folder(options, gone(found[0].facts)))
        return
    answer(options, found, and_whether_hosted(options, "\n".join(f"{_place(one)}\n{whole(one)}" for one in found)))


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
        from outbox.ops.trail.history import HistoryTrail

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
    answer(options, traced, trace_text(traced))


COMMANDS: Commands = {
    "message": Command("Find a message, its causes and its effects."),
    "message show": Command(
        "Show where a message is, in a queue or among dead letters, why it is there, and its body.",
        (
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            argument("--queue", metavar="QUEUE", type=queue, help="look into this queue only"),
            AFTER,
        ),
        show_message,
        at="azure",
    ),
    "message trace": Command(
        "Show the causes and effects of a message over all hops, and where each of them is.",
        (
            argument(
                "id", type=identity, metavar="ID", help="its identity, or the beginning of it: four characters or more"
            ),
            argument("--key", default="", help="the key of its handler, to find a record where the message is gone"),
            argument("--history", type=Path, metavar="FILE", help="a history that `outbox run` has recorded"),
            argument("--depth", type=depth, default=10, metavar="N", help="at most so many hops each way (10)"),
            argument("--width", type=page, default=20, metavar="N", help="at most so many effects of each (20)"),
        ),
        trace_message,
        at="azure",
        key_kind=True,
    ),
}

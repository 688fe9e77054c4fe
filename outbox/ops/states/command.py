"""The commands on states, `outbox state` and `outbox export`: arguments, work, text."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops.shared import text
from outbox.ops.shared.asking import ANSWER, JSON, Command, Commands, Options, answer, argument, ask, data, page, talk
from outbox.ops.shared.names import parse_key, word
from outbox.ops.shared.piped import write_piece
from outbox.ops.shared.text import columns, utc
from outbox.ops.values.requests import Admin
from outbox.ops.values.states import (
    LINES_COUNT_MAX,
    Export,
    ListStates,
    ReadState,
    ReadStates,
    StateHistory,
    StateLine,
    StatesPage,
    StateVersion,
    StateWritten,
    WriteStates,
)

MESSAGES_SHOWN_MAX = 20


def history_text(found: StateHistory) -> str:
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


def imported_text(written: int, same: int, left: Sequence[StateWritten], *, dry_run: bool) -> str:
    """How many states were written, and a line for each that was not."""
    lines = [f"{'would write' if dry_run else 'wrote'} {written}; {same} were stored so already"]
    lines += [printable(f"{one.outcome} {one.id}: {one.why}") for one in left]
    return "\n".join(lines)


LINE_BYTES_MAX = 16 << 20
BATCH_BYTES_MAX = 8 << 20
SHOWN_COUNT_MAX = 1_000
"""How many lines that were not written are listed."""
_decode = msgspec.json.Decoder(StateLine).decode


class Imported(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many lines were written (in a dry run: would be), were there already, had changed, or were refused.

    `left` are the first of those that were not written.
    """

    written: int
    same: int
    changed: int
    refused: int
    dry_run: bool
    left: list[StateWritten]


def list_states(options: Options) -> None:
    """List states, a page at a time."""
    found = ask(options, ListStates(options.type or "", options.key, options.kind, options.after, options.limit))
    answer(options, found, page_text(found))


def page_text(found: StatesPage) -> str:
    """A line for each state; with `more` how to see those behind them."""
    rows = [(x.type, x.id or str(x.key), x.version, str(x.size_bytes)) for x in found.states]
    lines = [columns([("type", "key", "version", "bytes"), *rows])] if rows else ["no such states"]
    return "\n".join([*lines, *([f"there may be more: --after {word(found.more)}"] if found.more else [])])


def history(options: Options) -> None:
    """Show the versions of a state in a history.

    Raises:
        Refused: the history is not there, or the application has no such state.
        LookupError: the history has no version of it.
    """
    from outbox.ops.shared.loading import load_app
    from outbox.ops.states.history import state_history

    app = None if options.app is None else load_app(options.app)
    found = state_history(options.history, options.type, parse_key(options.key, options.kind), app)
    if not found.versions:
        raise LookupError(f"{options.history} has no version of {options.type} {options.key}; check type and key")
    answer(options, found, history_text(found))


def export(options: Options) -> None:
    """Write states as JSON lines; a file appears only when it is complete."""
    asked = Export(options.type) if options.action == "export" else ReadStates(options.type or "")

    async def write(admin: Admin, out: BinaryIO) -> int:
        count = 0
        async for piece in admin.stream(asked):
            count += piece.count(b"\n")
            await write_piece(out, piece)
        out.flush()
        return count

    if options.output is None:
        talk(options, lambda admin: write(admin, sys.stdout.buffer))
        return
    temporary = options.output.with_name(options.output.name + ".tmp")
    with temporary.open("wb") as out:
        count = talk(options, lambda admin: write(admin, out))
    temporary.replace(options.output)
    done = {"count": count, "output": str(options.output)}
    answer(options, done, f"exported {count} state{'' if count == 1 else 's'} to {options.output}")


def import_states(options: Options) -> None:
    """Write the states of a file, each if it still has the version of its line.

    Raises:
        Refused: a line is no state, and nothing was written; or some were not written.
    """
    check_file(options.file)
    counts, left = Counter[str](), list[StateWritten]()

    async def write(admin: Any) -> None:
        with options.file.open("rb") as file:
            for batch in batches(file, options.file):
                for one in await admin.ask(WriteStates(batch, options.dry_run)):
                    counts[one.outcome] += 1
                    if one.outcome in ("changed", "refused") and len(left) < SHOWN_COUNT_MAX:
                        left.append(one)

    try:
        talk(options, write)
    except Exception:
        if counts["written"] and not options.dry_run:
            print(
                f"{counts['written']} states were written before this; import again, they are skipped", file=sys.stderr
            )
        raise
    done = Imported(counts["written"], counts["same"], counts["changed"], counts["refused"], options.dry_run, left)
    answer(options, done, imported_text(done.written, done.same, left, dry_run=options.dry_run))
    if done.changed or done.refused:
        raise Refused(f"{done.changed} changed meanwhile, {done.refused} refused; export those again, and look at both")


def check_file(path: Path) -> None:
    """Read all lines once, so that a file with a bad one changes nothing.

    Raises:
        Refused: it is not there, or a line is no state.
    """
    if not path.is_file():
        raise Refused(f"{path} is no file; `outbox state export --output {path}` makes one")
    with path.open("rb") as file:
        for _ in lines_of(file, path):
            pass


def lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[StateLine, int]]:
    """The states of a file, and how many bytes each line takes.

    Raises:
        Refused: a line is no state.
    """
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if not line.strip():
            continue
        if len(line) > LINE_BYTES_MAX:
            raise Refused(f"{path}: line {number} is over {LINE_BYTES_MAX} bytes; nothing was written")
        try:
            yield _decode(line), len(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(
                f"{path}: line {number} is no state ({error}); nothing was written.  A line is what `outbox state "
                "export` writes: type, key, version, schema and value"
            ) from error


def batches(file: BinaryIO, path: Path) -> Iterator[list[StateLine]]:
    """Split the states of a file into batches that one request takes."""
    batch: list[StateLine] = []
    size_bytes = 0
    for line, taken_bytes in lines_of(file, path):
        if batch and (len(batch) == LINES_COUNT_MAX or size_bytes + taken_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(line)
        size_bytes += taken_bytes
    if batch:
        yield batch


def show(options: Options) -> None:
    found = ask(options, ReadState(options.type, options.key, options.kind))
    if options.json:
        sys.stdout.buffer.write((found or b"null") + b"\n")
    elif found is None:
        print(f"{options.type} {options.key}: none")
    else:
        print(f"{options.type} {options.key}\n{text.indented(found)}")


COMMANDS: Commands = {
    "export": Command(
        "Write all states of one instant as JSON lines.",
        (
            argument("--type", default="", help="only states of this name"),
            argument("--output", type=Path, metavar="FILE", help="where to (default: stdout)"),
            data(),
            *ANSWER,
        ),
        export,
    ),
    "state": Command(
        "Show the state of a key (`outbox state TYPE KEY`) or its history, export states, or import them.",
        left_out="show",
    ),
    "state show": Command(
        "Show the state of a key; the word `show` may be left out.",
        (argument("type", metavar="TYPE", help="the state's name"), argument("key", metavar="KEY")),
        show,
        at="azure",
        key_kind=True,
    ),
    "state list": Command(
        "List states by type and beginning of key, by the order of their ids.",
        (
            argument("type", metavar="TYPE", nargs="?", help="only states of this name"),
            argument("--key", default="", metavar="BEGINNING", help="only those whose key begins so"),
            argument("--limit", type=page, default=20, metavar="N", help="at most so many (20; up to 1000)"),
            argument("--after", default="", metavar="ID", help="behind this one, as a page names it"),
        ),
        list_states,
        at="azure",
        key_kind=True,
    ),
    "state history": Command(
        "Show the versions of a state in a recorded history, each with the message that made it.",
        (
            argument("type", metavar="TYPE", help="the state's name"),
            argument("key", metavar="KEY"),
            argument(
                "--history", type=Path, required=True, metavar="FILE", help="a history that `outbox run` has recorded"
            ),
            argument("--app", metavar="APP", help="as MODULE:NAME; tells the messages of one commit apart"),
            JSON,
        ),
        history,
        key_kind=True,
    ),
    "state export": Command(
        "Write states as JSON lines with their versions, as `state import` takes them.",
        (
            argument("type", metavar="TYPE", nargs="?", help="only states of this name"),
            argument("--output", type=Path, metavar="FILE", help="where to (default: stdout)"),
        ),
        export,
        at="azure",
    ),
    "state import": Command(
        "Write exported states, each only if it has the version of its line; version 0: only if it does not exist.",
        (
            argument("file", metavar="FILE", type=Path, help="JSON lines, as `state export` writes them"),
            argument("--dry-run", action="store_true", help="say what would be done, and write nothing"),
        ),
        import_states,
        at="azure",
    ),
}

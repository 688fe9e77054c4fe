"""The commands `outbox state history`, `export` and `import`: a state's versions, and copies of states out and in."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from outbox.errors import Refused
from outbox.ops import text
from outbox.ops.asking import Options, answer, talk
from outbox.ops.names import parse_key
from outbox.ops.piped import write_piece
from outbox.ops.state_values import LINES_COUNT_MAX, ReadStates, StateLine, StateWritten, WriteStates

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


def history(options: Options) -> None:
    """Show the versions of a state in a history.

    Raises:
        Refused: the history is not there, or the application has no such state.
        LookupError: the history has no version of it.
    """
    from outbox.ops.loading import load_app
    from outbox.ops.state_history import state_history

    app = None if options.app is None else load_app(options.app)
    found = state_history(options.history, options.type, parse_key(options.key, options.kind), app)
    if not found.versions:
        raise LookupError(f"{options.history} has no version of {options.type} {options.key}; check type and key")
    answer(options, found, text.state_history(found))


def export_states(options: Options) -> None:
    """Write states as JSON lines; a file appears only when it is complete."""

    async def write(admin: Any, out: Any) -> int:
        count = 0
        async for piece in admin.stream(ReadStates(options.type or "")):
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
    answer(options, done, text.imported(done.written, done.same, left, dry_run=options.dry_run))
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
    """The states of a file, so many at a time as one request takes."""
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

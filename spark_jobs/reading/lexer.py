"""The ends of records: the part of CSV's grammar needed before a range of bytes can be read by itself.

Theory of operation.  What a byte means depends on one of five states: at the start of a field, inside a plain field,
inside quotes, behind a quote inside quotes (its end, or the first of two), behind an escape.  `advance` goes from a
state over some bytes to a state.  It is run over every range of a file from each of the five (`survey`), so the state
in which any range begins is known without reading what is before it, and a middle line of a quoted field is no record.
A quote inside a plain field, or text behind a closing quote, changes no state: it spoils its own record only.

JSON lines are the same without quotes: a record is a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_jobs.reading.source import Dialect

START, PLAIN, QUOTED, QUOTE, ESCAPED = STATES = range(5)
RECORD_BYTES_MAX = 16 * 1024 * 1024
SHOWN_BYTES = 4_096
NO_QUOTES = Dialect(separator="\x00", quote="")


class Lexer:
    """The states of a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.quote, self.escape = dialect.quote.encode(), dialect.escape.encode()
        ends = b"[" + re.escape(dialect.separator.encode()) + b"\n]"
        others = b"[^" + re.escape(dialect.separator.encode()) + b"\n]*+"
        self._ends, self._last = re.compile(ends), dialect.separator + "\n"
        if not self.quote:
            return
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        inside = b"[^%b]*+(?:%b%b[^%b]*+)*+" % (quote, quote, quote, quote)
        if self.escape:
            inside = rb"[^%b%b]*+(?:%b[\s\S][^%b%b]*+)*+" % (quote, escape, escape, quote, escape)
        field = b"(?:%b%b%b%b|(?!%b)%b)" % (quote, inside, quote, others, quote, others)
        self._inside = re.compile(inside)
        self._fields = re.compile(b"(?:%b%b)*+" % (field, ends))
        separator = re.escape(dialect.separator.encode())
        self._record = re.compile(b"((?:%b%b)*+%b)\n" % (field, separator, field))

    def advance(self, data: bytes, state: int) -> int:
        """The state behind some bytes that begin in a state."""
        if not data:
            return state
        at = 0
        if state == QUOTE:
            state, at = (QUOTED, 1) if data.startswith(self.quote) else (PLAIN, 0)
        elif state == ESCAPED:
            state, at = QUOTED, 1
        if state == QUOTED:
            at, state = self._behind_quotes(data, at)
            if state != PLAIN:
                return state
        if state == PLAIN:
            found = self._ends.search(data, at)
            if found is None:
                return PLAIN
            at = found.end()
        return self._behind_fields(data, at)

    def _behind_fields(self, data: bytes, at: int) -> int:
        """The state at the end of bytes that hold the start of a field at `at`."""
        if at == len(data):
            return START
        if not self.quote or data.find(self.quote, at) < 0:
            return START if chr(data[-1]) in self._last else PLAIN
        found = self._fields.match(data, at)
        assert found is not None
        at = found.end()
        if at == len(data):
            return START
        if not data.startswith(self.quote, at):
            return PLAIN
        return self._behind_quotes(data, at + 1)[1]

    def _behind_quotes(self, data: bytes, at: int) -> tuple[int, int]:
        """Where the quotes that are open at `at` end, and the state there."""
        found = self._inside.match(data, at)
        assert found is not None
        at = found.end()
        if at == len(data):
            return at, QUOTED
        if self.escape and data.startswith(self.escape, at):
            return at + 1, ESCAPED
        return at + 1, QUOTE if at + 1 == len(data) and not self.escape else PLAIN

    def split(self, data: bytes) -> tuple[list[bytes], int]:
        """The whole records of bytes that begin with one, without their line feeds, and how many bytes these take."""
        if not self.quote or self.quote not in data:
            used = data.rfind(b"\n") + 1
            return (data[: used - 1].split(b"\n"), used) if used else ([], 0)
        records, used = list[bytes](), 0
        while (found := self._record.match(data, used)) is not None:
            records.append(found[1])
            used = found.end()
        return records, used

    def skip(self, data: bytes, state: int) -> tuple[int, int | None]:
        """The number of bytes of the record open in a state; the new state where it does not end."""
        at = 0
        while at < len(data):
            sign = at
            if state == QUOTED:  # nothing ends before the next of these signs
                signs = [data.find(each, at) for each in (self.quote, self.escape) if each]
                sign = min((found for found in signs if found >= 0), default=len(data))
            end = data.find(b"\n", sign) + 1 or len(data)
            state, at = self.advance(data[at:end], state), end
            if state == START and data[end - 1] == 10:
                return at, None
        return at, state


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a range begins: in which state, on which line, and whether a record begins there."""

    state: int = START
    line: int = 1
    is_record: bool = True


@dataclass(frozen=True, slots=True)
class Records:
    """Records without line ends, and the lines on which they begin; `cut` names the ones too long.

    `is_whole` is false for the last record of a file that ends without a line feed.
    """

    raw: list[bytes]
    lines: Sequence[int]
    cut: frozenset[int] = frozenset()
    is_whole: bool = True


def survey(lexer: Lexer, chunks: Iterable[bytes]) -> tuple[int, list[int], bool]:
    """Line feeds of a range, its end state for each start state, and whether it ends with a line feed."""
    lines, ends, last = 0, list(STATES), False
    for chunk in chunks:
        if chunk:
            lines += chunk.count(b"\n")
            if lexer.quote:
                behind = {state: lexer.advance(chunk, state) for state in set(ends)}
                ends = [behind[state] for state in ends]
            last = chunk.endswith(b"\n")
    return lines, ends if lexer.quote else [START if last else PLAIN] * len(STATES), last


def records(
    lexer: Lexer, chunks: Iterable[bytes], begin: Begin, owned: int, *, limit: int = RECORD_BYTES_MAX
) -> Iterator[Records]:
    """The records that begin in the first `owned` bytes of chunks that go on to the end of the file.

    Memory holds one chunk and one record of at most `limit` bytes; of a longer one only its beginning is kept.
    """
    pending, at, line = b"", 0, begin.line
    open_state: int | None = None if begin.is_record else begin.state
    long: tuple[bytes, int] | None = None
    for chunk in chunks:
        data = pending + chunk if pending else chunk
        pending = b""
        if open_state is not None:
            used, open_state = lexer.skip(data, open_state)
            at, line, data = at + used, line + data.count(b"\n", 0, used), data[used:]
            if open_state is not None:
                if at >= owned:
                    break  # what begins behind that record is another range's
                continue
            if long is not None:
                yield Records([long[0]], [long[1]], frozenset({0}))
                long = None
        if at >= owned:
            return
        raw, used = lexer.split(data)
        if used > owned - at:
            raw, used = begun(raw, owned - at)
        if raw:
            raw = without_returns(raw) if b"\r\n" in data else raw
            yield Records(raw, numbers(raw, line, data.count(b"\n", 0, used)))
        at, line, pending = at + used, line + data.count(b"\n", 0, used), data[used:]
        if at >= owned:
            return
        if len(pending) > limit:
            long, open_state = (pending[:SHOWN_BYTES], line), lexer.advance(pending, START)
            at, line, pending = at + len(pending), line + pending.count(b"\n"), b""
    if long is not None:
        yield Records([long[0]], [long[1]], frozenset({0}))
    elif pending and at < owned:
        yield Records([pending], [line], is_whole=False)


def begun(raw: list[bytes], room: int) -> tuple[list[bytes], int]:
    """The records that begin in the first `room` bytes, and how many bytes they take."""
    at = 0
    for count, record in enumerate(raw):
        if at >= room:
            return raw[:count], at
        at += len(record) + 1
    return raw, at


def numbers(raw: list[bytes], line: int, feeds: int) -> Sequence[int]:
    """The lines on which records begin."""
    if feeds == len(raw):
        return range(line, line + feeds)
    found = []
    for record in raw:
        found.append(line)
        line += 1 + record.count(b"\n")
    return found


def without_returns(raw: list[bytes]) -> list[bytes]:
    """Records without the carriage returns of their line ends."""
    return [record[:-1] if record.endswith(b"\r") else record for record in raw]

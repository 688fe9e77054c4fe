"""CSV as in RFC 4180, in a given dialect: records become fields, or a reason why they are none.

    file    = header LF *(record (LF / CRLF / end))        empty lines are no records
    record  = field *(separator field)                     as many as the header has
    field   = quoted / *TEXT                               TEXT: neither separator, quote, CR nor LF
    quoted  = quote *(ANY / quote quote) quote             a line feed only with --multiline

With an escape a quote inside quotes is `escape quote`, the escape itself `escape escape`, and nothing else is escaped.
An unquoted empty field is null, a quoted one is an empty text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from outbox.errors import Refused
from spark_jobs.reading.lexer import RECORD_BYTES_MAX, Records
from spark_jobs.reading.rows import ENCODING, MALFORMED, Broken, Fields, shown, too_long
from spark_jobs.reading.source import Dialect

HEADER_BYTES_MAX = 1024 * 1024
UTF8_MARK, OTHER_MARKS = codecs.BOM_UTF8, (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Csv:
    """The grammar of fields in a dialect, for records of `width` fields (0: any), maybe with an id."""

    def __init__(self, dialect: Dialect, width: int = 0, id_at: int | None = None) -> None:
        self._dialect, self._width, self._id_at = dialect, width, id_at
        self._separator, self._quote = dialect.separator.encode(), dialect.quote.encode()
        self._escape = dialect.escape.encode()
        separator, quote, escape = map(re.escape, (self._separator, self._quote, self._escape))
        plain = b"([^%b%b%b\r\n]*+)" % (separator, quote, escape)
        inside = b"[^%b]*+(?:%b%b[^%b]*+)*+" % (quote, quote, quote, quote)
        if escape:
            inside = b"[^%b%b]*+(?:%b[%b%b][^%b%b]*+)*+" % (quote, escape, escape, quote, escape, quote, escape)
        self._field = re.compile(b"%b(%b)%b|%b" % (quote, inside, quote, plain) if quote else b"(?!)()|" + plain)
        self._escaped = re.compile(escape + b"(.)", re.DOTALL)
        # A record with one of these is read sign by sign.
        self._signs = [sign for sign in (self._quote, self._escape, b"\r") if sign]

    def rows(self, found: Records, *, limit: int = RECORD_BYTES_MAX) -> Fields:
        """The fields of records."""
        rows = Fields([], [], [])
        raw, lines = found.raw, found.lines
        if found.cut:
            rows.broken.extend(too_long(lines[at], raw[at], limit) for at in sorted(found.cut))
            return rows
        text = self._decoded(raw, lines, rows.broken)
        if b"" in text:  # an empty line, or a record that is broken already
            kept = [at for at, record in enumerate(text) if record]
            text, lines = [text[at] for at in kept], [lines[at] for at in kept]
        whole = b"\n".join(text)
        if any(sign in whole for sign in self._signs):
            values = [self._fields(record, line, rows.broken) for record, line in zip(text, lines, strict=True)]
        else:
            values = [record.split(self._separator) for record in text]
            ends = (self._separator * 2, self._separator + b"\n", b"\n" + self._separator)
            if any(end in b"\n%b\n" % whole for end in ends):
                values = [[field or None for field in row] for row in values]
        return self._of_width(values, lines, text, rows.broken)

    def _of_width(
        self, values: list[Sequence[bytes | None]], lines: Sequence[int], raw: Sequence[bytes], broken: list[Broken]
    ) -> Fields:
        """The rows that have as many fields as the header; those of other counts are broken, empty ones are already."""
        if not self._width or set(map(len, values)) <= {self._width}:
            return Fields(values, lines, raw, broken)
        kept = []
        for at, row in enumerate(values):
            if len(row) == self._width:
                kept.append(at)
            elif row:
                reason = f"{MALFORMED}: {len(row)} fields, the header has {self._width}"
                broken.append(Broken(lines[at], raw[at], reason, self._id_of(row)))
        return Fields([values[at] for at in kept], [lines[at] for at in kept], [raw[at] for at in kept], broken)

    def _id_of(self, row: Sequence[bytes | None]) -> str | None:
        """The value in the place of the id."""
        if self._id_at is None or self._id_at >= len(row):
            return None
        found = row[self._id_at]
        return None if found is None else found.decode()

    def _decoded(self, raw: list[bytes], lines: Sequence[int], broken: list[Broken]) -> list[bytes]:
        """Records in UTF-8, an empty one in place of each that is no text."""
        encoding, is_utf8 = self._dialect.encoding, self._dialect.is_utf8
        try:
            whole = b"\n".join(raw).decode(encoding)
            if is_utf8:
                return raw
            if whole.isascii():
                return list(raw)
        except UnicodeDecodeError:
            pass
        found = []
        for line, record in zip(lines, raw, strict=True):
            try:
                found.append(record.decode(encoding).encode())
            except UnicodeDecodeError as error:
                reason = f"{ENCODING}: byte {error.start + 1} of the row is not {encoding}; --encoding names another"
                broken.append(Broken(line, record, reason + reach(record, line)))
                found.append(b"")
        return found

    def _fields(self, record: bytes, line: int, broken: list[Broken]) -> Sequence[bytes | None]:
        """The fields of one record; none where it is broken."""
        quick = self._quick(record)
        if quick is not None:
            return quick
        found, pos = list[bytes | None](), 0
        while True:
            match = self._field.match(record, pos)
            assert match is not None  # a plain field may be empty
            pos = match.end()
            if match[1] is not None:
                found.append(self._unquoted(match[1]))
            else:
                found.append(match[2] or None)
            if pos == len(record):
                break
            if not record.startswith(self._separator, pos):
                reason = f"{MALFORMED}: {self._wrong(record, pos, match[1])}"
                broken.append(Broken(line, record, reason + reach(record, line)))
                return ()
            pos += 1
        feeds = record.count(b"\n")
        if feeds and not self._dialect.multiline:
            told = f"a line feed inside quotes, up to line {line + feeds}; --multiline takes it as text"
            broken.append(Broken(line, record, f"{MALFORMED}: {told}"))
            return ()
        return found

    def _quick(self, record: bytes) -> list[bytes | None] | None:
        """The fields of a record whose quotes, if any, hold nothing but text; None where it is less plain."""
        if b"\r" in record or b"\n" in record or (self._escape and self._escape in record):
            return None
        quote, found = self._quote, list[bytes | None]()
        for part in record.split(self._separator):
            count = part.count(quote) if quote else 0
            if not count:
                found.append(part or None)
            elif count == 2 and part[:1] == part[-1:] == quote:
                found.append(part[1:-1])
            else:
                return None
        return found

    def _unquoted(self, value: bytes) -> bytes:
        if self._escape:
            return self._escaped.sub(rb"\1", value) if self._escape in value else value
        return value.replace(self._quote * 2, self._quote)

    def _wrong(self, record: bytes, pos: int, quoted: bytes | None) -> str:
        """The reason why a field cannot go on at a place."""
        sign = record[pos : pos + 1]
        if quoted is not None:
            told = "text behind a closing quote"
            return told if self._escape else f"{told}; a quote inside quotes is doubled, or give --escape"
        if sign == self._quote:
            if pos == 0 or record[pos - 1 : pos] == self._separator:
                if self._escape and self._escape in record[pos:]:
                    return f"quotes that do not close, or {shown(self._escape)} in front of something else than a quote"
                return "quotes that do not close"
            return "a quote inside a field that is not quoted"
        if sign == b"\r":
            return "a carriage return inside a field that is not quoted"
        return f"{shown(self._escape)} inside a field that is not quoted"


def reach(record: bytes, line: int) -> str:
    """Name the lines that a broken record took: a quote left open takes all up to the next one."""
    feeds = record.count(b"\n")
    return f"; a quote of line {line} takes the lines up to {line + feeds}" if feeds else ""


def header_of(head: bytes, name: str, dialect: Dialect) -> tuple[list[str], int]:
    """The columns that the first line of a file names, and how many bytes it takes.

    `head` is the file's beginning: up to HEADER_BYTES_MAX, or all of it.

    Raises:
        Refused: there is no header that names each column once.
    """
    if head.startswith(OTHER_MARKS):
        raise Refused(f"{name} is UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
    start = len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0
    end = head.find(b"\n", start)
    if end < 0 and len(head) >= HEADER_BYTES_MAX:
        raise Refused(f"{name} has no line end in its first {HEADER_BYTES_MAX} bytes; is it CSV?")
    line = head[start:] if end < 0 else head[start:end].removesuffix(b"\r")
    if not line.strip():
        raise Refused(f"{name} begins with an empty line; its first line names the columns")
    found = Csv(dialect).rows(Records([line], [1]))
    if found.broken:
        raise Refused(f"{name}: the header cannot be read: {found.broken[0].reason.partition(': ')[2]}")
    names = ["" if value is None else value.decode() for value in found.values[0]]
    return checked_names(names, name), len(head) if end < 0 else end + 1


def checked_names(names: list[str], file: str) -> list[str]:
    """Column names, each there once and without blanks round it.

    Raises:
        Refused: not so.
    """
    for at, column in enumerate(names, 1):
        if not column.strip():
            raise Refused(f"{file}: column {at} of the header has no name; give it one, or take the column out")
        if column != column.strip():
            raise Refused(
                f"{file}: the header has {column!r}, with a blank at its end or beginning; take the blank out"
            )
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise Refused(f"{file}: the header has {twice[0]!r} {names.count(twice[0])} times; rename all but one")
    return names

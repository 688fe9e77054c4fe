"""Rows to judged rows: what a row would be as a message, or the reason why it is none.

    judged    {id, body, created_ms, session, position, reason, detail, text, file, line}      one per row

A body is made of the row's fields only, in the order of their names and without nulls, so that equal rows give equal
bytes.  `reason` and `detail` tell the first thing that is wrong with a row and are null where nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from outbox.errors import Refused
from spark_jobs.common.ids import BROKER_ID_LENGTH_MAX, ID_LENGTH_MAX, identity
from spark_jobs.reading.arrow import Json, Value, Wrong, integer_column, joined, json_of, null_column, text_column
from spark_jobs.reading.json_rows import Objects
from spark_jobs.reading.kinds import Column, Kind, column_json, micros_of
from spark_jobs.reading.rows import TYPE, Broken, Fields, shown
from spark_jobs.reading.texts import quoted

BODY_BYTES_MAX = 192 * 1024  # a Standard-tier message is 256 KB with everything; above this a claim check is due
SHOWN_BYTES_MAX = 64 * 1024
"""Of a row that is set aside; `file` and `line` tell where all of it is."""
YEAR_2001_MS, YEAR_10000_MS = 978_307_200_000, 253_402_300_800_000

VALID = "id string, body string, created_ms bigint, session string, position bigint"
VALID_NAMES = [part.split()[0] for part in VALID.split(", ")]
JUDGED = f"{VALID}, reason string, detail string, text string, file string, line bigint"
JUDGED_SCHEMA = pa.schema(
    [(part.split()[0], pa.string() if part.endswith("string") else pa.int64()) for part in JUDGED.split(", ")]
)

CheckBody = Callable[[bytes], str | None]
"""A check of a body for its receivers, which returns the fault."""

_MILLISECONDS = re.compile(r"[0-9]{1,15}")
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_text = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a message's creation time, of its session and of its place in the session."""

    created: str = ""
    session: str = ""
    order: str = ""
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names."""
        return tuple(filter(None, (self.created, self.session, self.order)))


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules by which a row is judged.  `texts`: valid rows are shown as well, for those that turn out to
    conflict."""

    ids: tuple[str, ...]
    shape: Shape = field(default_factory=Shape)
    check_body: CheckBody | None = None
    texts: bool = False


@dataclass(slots=True)
class Batch:
    """Some rows, as any of the formats gives them.

    `keys` are the texts of id columns, `marks` the JSON of the columns that the shape names, `wrong` reasons by row.
    """

    bodies: Sequence[bytes]
    keys: list[Json]
    marks: Mapping[str, Json]
    lines: Sequence[int]
    raw: Sequence[bytes]
    wrong: dict[int, str]
    positions: Sequence[int] | None = None


def of_fields(rows: Fields, names: Sequence[str], kinds: Mapping[str, Kind], judge: Judge) -> Batch:
    """Rows of CSV; `kinds` are the columns that are sent."""
    at = {name: index for index, name in enumerate(names)}
    given = list(zip(*rows.values, strict=True)) or [()] * len(names)
    columns = {name: column_json(kind, given[at[name]]) for name, kind in sorted(kinds.items())}
    wrong = {
        row: f"{TYPE}: column {name} is {told}"
        for name, column in reversed(columns.items())
        for row, told in column.wrong.items()
    }
    marks: dict[str, Json] = {name: list(columns[name].json()) for name in judge.shape.columns}
    keys: list[Json] = [list(given[at[name]]) for name in judge.ids]
    return Batch(bodies_of(columns, len(rows.values)), keys, marks, rows.lines, rows.raw, wrong)


def bodies_of(columns: Mapping[str, Column], count: int) -> list[bytes]:
    """The bodies of rows whose columns come in the order of their names."""
    names = [quoted(name).encode() for name in columns]
    if any(None in column.values for column in columns.values()):
        rows = zip(*(column.json() for column in columns.values()), strict=True)
        found = (joined(names, row) for row in rows)
        return [body for body in found if not isinstance(body, Wrong)]  # texts have a JSON
    if not columns:
        return [b"{}"] * count
    parts = [
        name.replace(b"%", b"%%") + (b':"%b"' if column.is_bare else b":%b")
        for name, column in zip(names, columns.values(), strict=True)
    ]
    form = b"{%b}" % b",".join(parts)
    return [form % row for row in zip(*(column.values for column in columns.values()), strict=True)]


def of_objects(rows: Objects, judge: Judge, given: Mapping[str, bytes], kinds: Mapping[str, Kind] | None) -> Batch:
    """Judge rows of JSON; `given` are fields that all of them share, `kinds` the types of a schema."""
    values: list[Mapping[str, bytes]] = [{**row, **given} for row in rows.values] if given else rows.values
    wrong = dict[int, str]()
    if kinds is not None:
        values = [cast(row, kinds, at, wrong) for at, row in enumerate(values)]
    names = _Names()
    bodies = [b"{%b}" % b",".join([names[name] + row[name] for name in sorted(row)]) for row in values]
    marks: dict[str, Json] = {name: [row.get(name) for row in values] for name in judge.shape.columns}
    keys: list[Json] = [[key_of(row.get(name)) for row in rows.values] for name in judge.ids]
    for name in set(judge.ids) & set(given):
        keys[judge.ids.index(name)] = [key_of(given[name])] * len(values)
    return Batch(bodies, keys, marks, rows.lines, rows.raw, wrong)


class _Names(dict[str, bytes]):
    """Names of fields as a body has them."""

    def __missing__(self, name: str) -> bytes:
        self[name] = found = f"{quoted(name)}:".encode()
        return found


def cast(row: Mapping[str, bytes], kinds: Mapping[str, Kind], at: int, wrong: dict[int, str]) -> dict[str, bytes]:
    """The fields of a JSON row that a schema names, as its types have them."""
    found = {}
    for name, kind in sorted(kinds.items()):
        value = row.get(name)
        if value is None:
            continue
        is_text = value.startswith(b'"')
        fits = is_text != (kind.is_number or kind.name == "boolean")
        json = kind.json_of(_text(value) if is_text else value.decode()) if fits else None
        if json is None:
            wrong.setdefault(at, f"{TYPE}: column {name} is {kind}, not {shown(value[:80])}")
        else:
            found[name] = json.encode()
    return found


def of_arrow(batch: pa.RecordBatch, lines: Sequence[int], judge: Judge, given: Mapping[str, bytes]) -> Batch:
    """Rows of Arrow columns."""
    count = batch.num_rows
    columns: dict[str, Json] = {
        name: json_of(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    columns |= {name: [value] * count for name, value in given.items()}
    ordered = sorted(columns)
    names = [quoted(name).encode() for name in ordered]
    bodies, wrong = list[bytes](), dict[int, str]()
    for at, row in enumerate(zip(*(columns[name] for name in ordered), strict=True)):
        body = joined(names, row)
        if isinstance(body, Wrong):
            column = next(name for name, value in zip(ordered, row, strict=True) if isinstance(value, Wrong))
            wrong[at] = f"{TYPE}: column {column}: {body}"
            shown_row = joined(names, [None if isinstance(value, Wrong) else value for value in row])
            body = b"" if isinstance(shown_row, Wrong) else shown_row
        bodies.append(body)
    nothing: Json = [None] * count
    marks = {name: columns.get(name, nothing) for name in judge.shape.columns}
    keys: list[Json] = [[key_of(value) for value in columns.get(name, nothing)] for name in judge.ids]
    return Batch(bodies, keys, marks, lines, bodies, wrong)


def key_of(value: Value) -> Value:
    """The text of an id, of a session: that of a string, an integer or a boolean."""
    if value is None or isinstance(value, Wrong):
        return value
    if value.startswith(b'"'):
        return value[1:-1] if b"\\" not in value else _text(value).encode()
    if _INTEGER.fullmatch(value) or value in (b"true", b"false"):
        return value
    return Wrong(f"{shown(value[:80])} is neither a string, an integer nor a boolean")


def judged(batch: Batch, judge: Judge, file: str, rank: int) -> pa.RecordBatch:
    """The rows of a batch, judged; `rank` is the file's place among all files."""
    shape, count = judge.shape, len(batch.bodies)
    reasons: list[str | None] = [batch.wrong.get(at) for at in range(count)] if batch.wrong else [None] * count
    ids = ids_of(batch, reasons)
    check_lengths(batch.bodies, reasons, shape.body_bytes_max)
    created: Sequence[int | None] = [None] * count
    if shape.created:
        created = times_of(batch.marks[shape.created], shape.created, reasons)
    session: Sequence[bytes | None] = [None] * count
    if shape.session:
        session = sessions_of(batch.marks[shape.session], shape.session, reasons)
    position: Sequence[int | None] = batch.positions or [(rank << 40) + line for line in batch.lines]
    if shape.order:
        position = order_of(batch.marks[shape.order], shape.order, reasons)
    if judge.check_body is not None:
        check_bodies(batch.bodies, reasons, judge.check_body)
    is_valid = not any(reasons)
    raw = batch.raw
    bodies: Sequence[bytes | None] = batch.bodies
    if not is_valid:  # what is set aside is shown by its text, and its body may be of any length
        bodies = [body if reason is None else None for body, reason in zip(bodies, reasons, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            text_column(ids),
            text_column(bodies),
            integer_column(created) if shape.created else null_column(pa.int64(), count),
            text_column(session) if shape.session else null_column(pa.string(), count),
            integer_column(position),
            *reason_columns(reasons, is_valid),
            *place_columns(raw, batch.lines, reasons, judge.texts, is_valid, file),
        ],
        schema=JUDGED_SCHEMA,
    )


def reason_columns(reasons: Sequence[str | None], is_valid: bool) -> list[pa.Array]:
    """The columns `reason` and `detail`."""
    if is_valid:
        return [null_column(pa.string(), len(reasons))] * 2
    parts = [(None, None) if reason is None else told(reason) for reason in reasons]
    return [text_column([code for code, _ in parts]), text_column([detail for _, detail in parts])]


def told(reason: str) -> tuple[bytes, bytes]:
    """Code and detail of a reason."""
    code, _, detail = reason.partition(": ")
    return code.encode(), detail.encode("utf-8", "backslashreplace")


def place_columns(
    raw: Sequence[bytes], lines: Sequence[int], reasons: Sequence[str | None], texts: bool, is_valid: bool, file: str
) -> list[pa.Array]:
    """The columns `text`, `file` and `line`, filled for rows that are or may be set aside."""
    count = len(reasons)
    if is_valid and not texts:
        return [null_column(pa.string(), count), null_column(pa.string(), count), null_column(pa.int64(), count)]
    shown_rows = [texts or reason is not None for reason in reasons]
    name = file.encode("utf-8", "backslashreplace") or None
    return [
        text_column([text_of(row) if is_shown else None for row, is_shown in zip(raw, shown_rows, strict=True)]),
        text_column([name if is_shown else None for is_shown in shown_rows]),
        integer_column([line if is_shown and file else None for line, is_shown in zip(lines, shown_rows, strict=True)]),
    ]


def text_of(raw: bytes) -> bytes:
    """A row as it stands, cut where it is very long, printable where it is no text."""
    cut = raw if len(raw) <= SHOWN_BYTES_MAX else raw[:SHOWN_BYTES_MAX] + b" ..."
    return shown(cut).encode()


def broken_rows(found: Sequence[Broken], file: str, rank: int) -> pa.RecordBatch:
    """The judged rows of records that the grammar refused."""
    parts = [told(row.reason) for row in found]
    count, name = len(found), file.encode("utf-8", "backslashreplace")
    return pa.RecordBatch.from_arrays(
        [
            text_column([None if row.id is None else row.id.encode() for row in found]),
            *(null_column(kind, count) for kind in (pa.string(), pa.int64(), pa.string())),
            integer_column([(rank << 40) + row.line for row in found]),
            text_column([code for code, _ in parts]),
            text_column([detail for _, detail in parts]),
            text_column([text_of(row.raw) for row in found]),
            text_column([name] * count),
            integer_column([row.line for row in found]),
        ],
        schema=JUDGED_SCHEMA,
    )


def ids_of(batch: Batch, reasons: list[str | None]) -> list[bytes | None]:
    """The identity of each row."""
    ids: list[Any] = batch.keys[0] if len(batch.keys) == 1 else list(map(combined, *batch.keys))
    if all(ids) and Wrong not in set(map(type, ids)) and max(map(len, ids), default=0) <= ID_LENGTH_MAX:
        return ids
    for at, id in enumerate(ids):
        if isinstance(id, Wrong):
            reasons[at], ids[at] = reasons[at] or f"bad-id: {id}", None
        elif not id:
            reasons[at] = reasons[at] or "missing-id: a column of the id is empty"
        elif len(id) > ID_LENGTH_MAX and len(id.decode()) > ID_LENGTH_MAX:
            reasons[at] = reasons[at] or f"long-id: more than {ID_LENGTH_MAX} characters"
    return ids


def combined(*keys: Value) -> Value:
    """The identity that several texts give; none where one is missing."""
    if None in keys:
        return None
    wrong = next((key for key in keys if isinstance(key, Wrong)), None)
    if wrong is not None:
        return wrong
    return identity([key.decode() for key in keys if isinstance(key, bytes)]).encode()


def check_lengths(bodies: Sequence[bytes], reasons: list[str | None], limit: int) -> None:
    """Set rows aside that are too large for a message."""
    if max(map(len, bodies), default=0) > limit:
        for at, body in enumerate(bodies):
            if len(body) > limit:
                reasons[at] = reasons[at] or f"oversize: a body of more than {limit} bytes"


def times_of(column: Json, name: str, reasons: list[str | None]) -> list[int | None]:
    """Creation times in milliseconds since 1970."""
    times = list[int | None]()
    for at, value in enumerate(column):
        found = created_ms(value)
        if isinstance(found, str):
            reasons[at] = reasons[at] or f"bad-created: column {name} {found}"
        times.append(None if isinstance(found, str) else found)
    return times


def created_ms(value: Value) -> int | str:
    """Milliseconds since 1970 of an integer (milliseconds), or of a day or time as a text; else the fault."""
    if value is None or isinstance(value, Wrong):
        return "tells no time"
    is_text = value.startswith(b'"')
    text = _text(value) if is_text else value.decode()
    if _MILLISECONDS.fullmatch(text):
        time_ms = int(text)
        if time_ms < YEAR_2001_MS:
            return f"is {text}, in milliseconds a time before 2001; milliseconds since 1970 are seconds times 1,000"
        if time_ms < YEAR_10000_MS:
            return time_ms
        return f"is {text}, in milliseconds a time after the year 9999; they are microseconds divided by 1,000"
    if not is_text:
        return "tells no time: a number is milliseconds since 1970"
    micros = micros_of(text[:26] + text[29:] if len(text) >= 29 and text[20:29].isdigit() else text)
    return "tells no time" if micros is None else micros // 1_000


def sessions_of(column: Json, name: str, reasons: list[str | None]) -> list[bytes | None]:
    """Session ids."""
    sessions = list[bytes | None]()
    for at, session in enumerate(map(key_of, column)):
        if isinstance(session, Wrong):
            reasons[at], session = reasons[at] or f"bad-session: column {name}: {session}", None
        elif not session:
            reasons[at] = reasons[at] or f"missing-session: column {name}"
        elif len(session.decode()) > BROKER_ID_LENGTH_MAX:
            reasons[at] = reasons[at] or f"long-session: column {name}"
        sessions.append(session)
    return sessions


def order_of(column: Json, name: str, reasons: list[str | None]) -> list[int | None]:
    """Places within a session."""
    places = list[int | None]()
    for at, value in enumerate(column):
        found = key_of(value)
        place = int(found) if isinstance(found, bytes) and _INTEGER.fullmatch(found) else None
        if place is None or not -(1 << 63) <= place < 1 << 63:
            reasons[at], place = reasons[at] or f"bad-order: column {name} holds no integer", None
        places.append(place)
    return places


def check_bodies(bodies: Sequence[bytes], reasons: list[str | None], check: CheckBody) -> None:
    """Set rows aside that the handler could not decode."""
    for at, body in enumerate(bodies):
        if reasons[at] is None:
            found = check(body)
            if found is not None:
                reasons[at] = f"undecodable: {found}"


def check_columns(names: Sequence[str], judge: Judge) -> None:
    """Refuse columns that no row can have.

    Raises:
        Refused: one of them.
    """
    if not judge.ids:
        raise Refused("an identity needs a column; name one with --id")
    for name in judge.ids:
        if name not in names:
            raise Refused(f"there is no column {name!r} to take the id from; there are {', '.join(sorted(names))}")
    for name in judge.shape.columns:
        if name not in names:
            raise Refused(f"there is no column {name!r}; the input has {', '.join(names)}")

"""Types of CSV's columns, and lossless casts from text: a text is a value, or its row is set aside.

    --schema 'id string, amount decimal(10,2), at timestamp'      by name; columns that it does not name are not sent

Without a schema one cautious rule holds: a column is `bigint` only if all its values are integers without leading
zeros, anything else is a string, and id columns always are.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from math import isfinite

from outbox.errors import Refused
from spark_jobs.reading.texts import double_text, float_text, quoted

SHOWN_CHARACTERS = 80
VALUE_CHARACTERS_MAX = 400
"""The longest text of a value; a double needs 326 at most, and longer texts cost time to refuse."""
INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "dec": "decimal",
           "numeric": "decimal", "real": "float", "timestamp_ltz": "timestamp"}  # fmt: skip
TRUE, FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
DOUBLE_DIGITS, FLOAT_DIGITS, DECIMAL_DIGITS = 17, 9, 38
DAY_ZERO, DAY_S = date(1970, 1, 1).toordinal(), 86_400
LAST_SECOND, OFFSET_MAX = [23, 59, 59], [18, 0]

_SIMPLE = {*INTEGER_BITS, "string", "boolean", "float", "double", "date", "timestamp", "timestamp_ntz"}
_PART = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`,:()]+))\s*[:\s]\s*(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?)?"
    r"(Z|UTC|([+-])([0-9]{1,2})(?::?([0-9]{2}))?)?"
)
_LOOSE = re.compile(rb'[\x00-\x09\x0b-\x1f"\\]')  # not a line feed, which is looked for apart
_CLEAN_INTEGERS = re.compile(rb"(?:(?:0|-?[1-9][0-9]{0,17}+)\n)*+")
_NO_INTEGERS = re.compile(rb"(?:(?!-?[0-9]+\n)[^\n]*+\n)*+")
_CLEAN_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,17}")  # 18 digits always fit a bigint
_ZERO_LED = re.compile(rb"-?0[0-9]+")  # a code, not a number


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: its name and, for decimals, precision and scale."""

    name: str
    precision: int = 10
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name

    def json_of(self, text: str) -> str | None:
        """The JSON of a text; None where it is no value of this type, or would lose something."""
        if len(text) > VALUE_CHARACTERS_MAX and self.name != "string":
            return None
        if self.name == "decimal":
            return decimal_json(text, self.precision, self.scale)
        return _CASTS[self.name](text)

    @property
    def is_number(self) -> bool:
        """Whether its JSON is a number."""
        return self.name in INTEGER_BITS or self.name in ("decimal", "float", "double")


STRING, BIGINT = Kind("string"), Kind("bigint")


def integer_cast(bits: int) -> Callable[[str], str | None]:
    """The cast to integers of `bits` bits."""

    def cast(text: str) -> str | None:
        if not _WHOLE.fullmatch(text):
            return None
        value = int(text)
        return str(value) if -(1 << bits - 1) <= value < 1 << bits - 1 else None

    return cast


def decimal_json(text: str, precision: int, scale: int) -> str | None:
    """A number with exactly `scale` places; None where it has more, or more digits than the precision."""
    if not _NUMBER.fullmatch(text):
        return None
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    whole = "".join(map(str, digits)).lstrip("0")
    if not whole:
        return str(Decimal((0, (0,), -scale)))
    shift = exponent + scale
    if len(whole) + shift > precision or (shift < 0 and whole[shift:].strip("0")):
        return None
    unscaled = whole[:shift] if shift < 0 else whole + "0" * shift
    return str(Decimal((sign, tuple(map(int, unscaled)), -scale))) if unscaled else None


def double_json(text: str) -> str | None:
    """A number that is a double, or as many digits of one as tell it from all others."""
    value = float(text) if _NUMBER.fullmatch(text) else None
    if value is None or not isfinite(value) or not is_told(text, value, DOUBLE_DIGITS):
        return None
    return double_text(value)


def float_json(text: str) -> str | None:
    """The same for 32 bits."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        value = struct.unpack("f", struct.pack("f", float(text)))[0]
    except OverflowError:
        return None
    return float_text(value) if isfinite(value) and is_told(text, value, FLOAT_DIGITS) else None


def is_told(text: str, value: float, digits_max: int) -> bool:
    """Whether a text says just this value: rounded to the text's digits, the value is the text."""
    given = Decimal(text)
    digits = len("".join(map(str, given.as_tuple().digits)).strip("0"))
    return digits <= digits_max and Decimal(format(value, f".{max(1, digits)}g")) == given


def boolean_json(text: str) -> str | None:
    """true or false."""
    lower = text.lower()
    return "true" if lower in TRUE else "false" if lower in FALSE else None


def date_json(text: str) -> str | None:
    """A day, and nothing but a day."""
    found = _DATE.fullmatch(text)
    try:
        return f'"{date(*map(int, found.groups())).isoformat()}"' if found else None
    except ValueError:
        return None


def timestamp_json(text: str) -> str | None:
    """A time in UTC."""
    micros = micros_of(text)
    try:
        return None if micros is None else f'"{timestamp_text(micros)}Z"'
    except OverflowError:  # its offset takes it out of the years from 1 to 9999
        return None


def local_timestamp_json(text: str) -> str | None:
    """A time without a zone."""
    micros = micros_of(text, has_zone=False)
    return None if micros is None else f'"{timestamp_text(micros)}"'


def micros_of(text: str, *, has_zone: bool = True) -> int | None:
    """Microseconds since 1970 of a day or a time, in UTC unless it names its offset; None else."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone, sign, hours, minutes = found.groups()
    clock = [int(part or 0) for part in (hour, minute, second)]
    offset = [int(part or 0) for part in (hours, minutes)]
    if (zone and (hour is None or not has_zone)) or clock > LAST_SECOND or max(*clock[1:], offset[1]) > 59:
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - DAY_ZERO
    except ValueError:
        return None
    seconds = days * DAY_S + clock[0] * 3_600 + clock[1] * 60 + clock[2]
    seconds += (offset[0] * 3_600 + offset[1] * 60) * (1 if sign == "-" else -1)
    return None if offset > OFFSET_MAX else seconds * 1_000_000 + int((fraction or "").ljust(6, "0"))


def timestamp_text(micros: int, nanos: int = 0) -> str:
    """A time with three digits of its second, or with as many as it needs; `nanos` are those beyond microseconds.

    Raises:
        OverflowError: it is in no year from 1 to 9999.
    """
    seconds, micros = divmod(micros, 1_000_000)
    days, second = divmod(seconds, DAY_S)
    fraction = f"{micros:06d}{nanos:03d}" if nanos else f"{micros:06d}" if micros % 1_000 else f"{micros // 1_000:03d}"
    return f"{day_text(days)}T{second // 3_600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{fraction}"


def day_text(days: int) -> str:
    """A day by its number since 1970.

    Raises:
        OverflowError: it is in no year from 1 to 9999.
    """
    try:
        return date.fromordinal(days + DAY_ZERO).isoformat()
    except ValueError:
        raise OverflowError(days) from None


_CASTS: dict[str, Callable[[str], str | None]] = {
    "string": quoted, "boolean": boolean_json, "double": double_json, "float": float_json, "date": date_json,
    "timestamp": timestamp_json, "timestamp_ntz": local_timestamp_json,
    **{name: integer_cast(bits) for name, bits in INTEGER_BITS.items()},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """The JSON of a column's values, None for a null; `is_bare`: texts without quotes; `wrong`: faults by row."""

    values: Sequence[bytes | None]
    is_bare: bool = False
    wrong: Mapping[int, str] = field(default_factory=dict)

    def json(self) -> Sequence[bytes | None]:
        """The values with their quotes."""
        return [None if value is None else b'"%b"' % value for value in self.values] if self.is_bare else self.values


def column_json(kind: Kind, values: Sequence[bytes | None]) -> Column:
    """The JSON of a column's texts, and the faults of texts that are no values of the type."""
    if kind in (BIGINT, STRING) and None not in values:
        whole = b"\n".join(values) + b"\n"  # type: ignore[arg-type]  # there is no None
        if whole.count(b"\n") == len(values):
            if kind is STRING and not _LOOSE.search(whole):
                return Column(values, is_bare=True)
            found = _CLEAN_INTEGERS.match(whole) if kind is BIGINT else None
            if found is not None and found.end() == len(whole):
                return Column(values)
    json, wrong = list[bytes | None](), dict[int, str]()
    for at, value in enumerate(values):
        text = None if value is None else kind.json_of(value.decode())
        if text is None and value is not None:
            wrong[at] = f"{kind}, not {value.decode()[:SHOWN_CHARACTERS]}"
        json.append(None if text is None else text.encode())
    return Column(json, wrong=wrong)


def parsed(schema: str) -> dict[str, Kind]:
    """Columns and types that a text such as `id string, amount decimal(10,2)` names.

    Raises:
        Refused: it is no such text.
    """
    kinds, at = dict[str, Kind](), 0
    example = "; for example --schema 'id string, amount decimal(10,2), at timestamp'"
    while True:
        found = _PART.match(schema, at)
        if found is None or schema[found.end() : found.end() + 1] not in ("", ","):
            raise Refused(f"--schema cannot be read at {schema[at : at + 40]!r}{example}")
        name = (found[1] or "").replace("``", "`") or found[2]
        if name in kinds:
            raise Refused(f"--schema names {name!r} twice")
        kinds[name] = kind_of(name, found[3].lower(), found[4], found[5])
        at = found.end() + 1
        if found.end() == len(schema):
            return kinds


def kind_of(column: str, name: str, precision: str | None, scale: str | None) -> Kind:
    """The type of a name.

    Raises:
        Refused: there is none for texts.
    """
    name = ALIASES.get(name, name)
    if name == "decimal":
        kind = Kind(name, int(precision or 10), int(scale or 0))
        if not 1 <= kind.precision <= DECIMAL_DIGITS or kind.scale > kind.precision:
            raise Refused(f"--schema: column {column} is {kind}; at most {DECIMAL_DIGITS} digits, of which the places")
        return kind
    if name not in _SIMPLE or precision is not None:
        known = ", ".join([*sorted(_SIMPLE), "decimal(p,s)"])
        raise Refused(f"--schema: column {column} cannot be {name}{f'({precision})' if precision else ''}; {known} can")
    return STRING if name == "string" else BIGINT if name == "bigint" else Kind(name)


@dataclass(slots=True)
class Seen:
    """Counts of a column's values: all, the ones that are no integers, and whether one has a leading zero."""

    values: int = 0
    others: int = 0
    zeros: bool = False
    shown: str = ""

    @property
    def counts(self) -> tuple[int, int, bool, str]:
        """The counts that a task sends to the driver."""
        return self.values, self.others, self.zeros, self.shown

    def look(self, column: Sequence[bytes | None]) -> None:
        """Count more values."""
        given = [value for value in column if value is not None]
        whole = b"\n".join(given) + b"\n"
        self.values += len(given)
        found = _CLEAN_INTEGERS.match(whole)
        if not given or (found is not None and found.end() == len(whole) and whole.count(b"\n") == len(given)):
            return
        none = _NO_INTEGERS.match(whole)
        if none is not None and none.end() == len(whole):
            others = given
        else:
            others = [value for value in given if not _CLEAN_INTEGER.fullmatch(value)]
            self.zeros = self.zeros or any(map(_ZERO_LED.fullmatch, others))
        self.others += len(others)
        if others:
            least = min(others).decode()[:SHOWN_CHARACTERS]
            self.shown = min(self.shown, least) if self.shown else least

    def add(self, other: Seen) -> None:
        """Count what another has seen."""
        self.shown = min(filter(None, (self.shown, other.shown)), default="")
        self.values, self.others = self.values + other.values, self.others + other.others
        self.zeros = self.zeros or other.zeros


def inferred(seen: Mapping[str, Seen], ids: Sequence[str]) -> dict[str, Kind]:
    """`bigint` where every value is an integer that reads back the same, else `string`.

    Raises:
        Refused: most values of a column are integers and some are not: either guess would spoil messages.
    """
    kinds = {}
    for name, found in seen.items():
        text = name in ids or found.values == 0 or found.zeros or found.others * 2 >= found.values
        if found.others and not text:
            raise Refused(
                f"column {name!r} is unclear: {found.others} of {found.values} values are no integers, "
                f"{found.shown!r} for one; --schema with `{name} bigint` sends what is a number, "
                f"with `{name} string` all as text"
            )
        kinds[name] = STRING if text else BIGINT
    return kinds

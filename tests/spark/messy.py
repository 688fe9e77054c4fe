"""Drawn files of every kind of mess, alone and in pairs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.spark.judge import Dialect

Draw = Callable[[random.Random], str]

NAMES = ("id", "amount", "price", "day", "at", "note")
KINDS = {
    "id": "string",
    "amount": "bigint",
    "price": "decimal(10,2)",
    "day": "date",
    "at": "timestamp",
    "note": "string",
}

DIALECTS = (
    Dialect(),
    Dialect(multiline=True),
    Dialect(separator=";", quote="'"),
    Dialect(separator="\t", quote=""),
    Dialect(escape="\\"),
    Dialect(separator="|", escape="\\", multiline=True),
    Dialect(encoding="latin-1"),
)

VALUES: dict[str, tuple[str, ...]] = {
    "amount": ("5", "-3", "0", "+7", "007", "9223372036854775807"),
    "price": ("1.1", "2", "-0.50", "1e2", "99999999.99"),
    "day": ("2025-01-05", "1999-12-31"),
    "at": ("2025-01-05T10:00:00Z", "2025-01-05 10:00:00.123456", "2025-01-05T10:00:00.5+02:00", "2025-01-05"),
    "note": ("ok", "two words", "", "é", "x" * 40, "\x0b\x1f", "tab\there", "a/b"),
}
WRONG: dict[str, tuple[str, ...]] = {
    "amount": ("5.0", " 5", "9223372036854775808", "x", "1e3", "NaN"),
    "price": ("1.239", "100000000.00", "1,5", "abc", "1e400"),
    "day": ("2025-01-05 10:00:00", "2025", "2025-02-30", "05.01.2025"),
    "at": ("10:00", "2025-01-05T10:00:00.1234567Z", "2025-01-05T25:00:00Z", "soon"),
}


def quoted(text: str, dialect: Dialect) -> str:
    """A field in quotes."""
    quote, escape = dialect.quote, dialect.escape
    if not quote:
        return text
    text = text.replace(escape, escape * 2).replace(quote, escape + quote) if escape else text.replace(quote, quote * 2)
    return quote + text + quote


def clean_row(rng: random.Random, dialect: Dialect, id: str, **given: str) -> str:
    """A row as it should be."""
    fields = [id]
    for name in NAMES[1:]:
        value = given.get(name, rng.choice(VALUES[name]))
        if dialect.separator in value:
            value = value.replace(dialect.separator, "_")
        fields.append(quoted(value, dialect) if rng.random() < 0.3 else value)
    return dialect.separator.join(fields)


def text_row(rng: random.Random, dialect: Dialect, id: str, field: str) -> str:
    """A row whose last field is given as it stands."""
    return dialect.separator.join([*clean_row(rng, dialect, id, note="n").split(dialect.separator)[:-1], field])


def break_in_quotes(rng: random.Random, dialect: Dialect, id: str) -> str:
    q = dialect.quote
    middle = clean_row(rng, Dialect(quote=""), f"phantom{id}").replace(",", dialect.separator)
    return text_row(rng, dialect, id, f"{q}dear sir\n{middle}\nthanks{q}")


MESS: dict[str, Callable[[random.Random, Dialect, str], str]] = {
    "break in quotes": break_in_quotes,
    "unclosed quote": lambda rng, d, id: text_row(rng, d, id, f"{d.quote}never closed"),
    "return in quotes": lambda rng, d, id: text_row(rng, d, id, f"{d.quote}a\rb{d.quote}"),
    "return outside": lambda rng, d, id: text_row(rng, d, id, "a\rb"),
    "backslashes": lambda rng, d, id: text_row(rng, d, id, f"{d.quote}say \\{d.quote}hi\\{d.quote}{d.quote}"),
    "a path": lambda rng, d, id: text_row(rng, d, id, f"{d.quote}C:\\temp{d.quote}"),
    "doubled": lambda rng, d, id: text_row(rng, d, id, f"{d.quote}say {d.quote * 2}hi{d.quote * 2}{d.quote}"),
    "separator in quotes": lambda rng, d, id: text_row(rng, d, id, f"{d.quote}a{d.separator}b{d.quote}"),
    "behind quotes": lambda rng, d, id: text_row(rng, d, id, f"{d.quote}a{d.quote}b"),
    "inch": lambda rng, d, id: text_row(rng, d, id, f"5{d.quote} pipe"),
    "only quotes": lambda rng, d, id: text_row(rng, d, id, d.quote * 3),
    "not utf-8": lambda rng, d, id: text_row(rng, d, id, "a\udcffb"),
    "id not utf-8": lambda rng, d, id: clean_row(rng, d, id + rng.choice("\udcff\udcfe")),
    "fewer fields": lambda rng, d, id: clean_row(rng, d, id).rpartition(d.separator)[0],
    "more fields": lambda rng, d, id: clean_row(rng, d, id) + d.separator + "more",
    "empty line": lambda rng, d, id: "",
    "blank line": lambda rng, d, id: "  ",
    "no id": lambda rng, d, id: clean_row(rng, d, ""),
    "wrong amount": lambda rng, d, id: clean_row(rng, d, id, amount=rng.choice(WRONG["amount"])),
    "wrong price": lambda rng, d, id: clean_row(rng, d, id, price=rng.choice(WRONG["price"])),
    "wrong day": lambda rng, d, id: clean_row(rng, d, id, day=rng.choice(WRONG["day"])),
    "wrong time": lambda rng, d, id: clean_row(rng, d, id, at=rng.choice(WRONG["at"])),
    "equal rows": lambda rng, d, id: "\n".join([clean_row(random.Random(id), d, id)] * 2),
    "unequal rows": lambda rng, d, id: "\n".join(clean_row(rng, d, id, amount=text) for text in "12"),
    "microseconds": lambda rng, d, id: "\n".join(
        clean_row(random.Random(id), d, id, at=f"2025-01-05T10:00:00.123{text}Z") for text in ("456", "999")
    ),
    "long": lambda rng, d, id: text_row(rng, d, id, quoted("long " * 300, d)),
}


@dataclass(frozen=True)
class Messy:
    """A drawn file."""

    name: str
    data: bytes
    dialect: Dialect = DIALECTS[0]


def csv_file(seed: int, kinds: tuple[str, ...]) -> Messy:
    """A CSV file with some rows of each kind of mess among clean ones."""
    rng = random.Random(seed)
    dialect = DIALECTS[seed % len(DIALECTS)]
    rows = []
    for number in range(rng.randrange(4, 30)):
        kind = rng.choice([*kinds, "clean", "clean"])
        make = MESS.get(kind, clean_row)
        rows.append(make(rng, dialect, f"r{number}"))
    rng.shuffle(rows)
    for kind in kinds:
        rows.insert(rng.randrange(len(rows) + 1), MESS[kind](rng, dialect, f"k{kind[:3]}"))
    end = rng.choice(("\n", "\r\n"))
    text = dialect.separator.join(NAMES) + end + end.join(rows) + rng.choice((end, ""))
    mark = b"\xef\xbb\xbf" if dialect.encoding == "utf-8" and rng.random() < 0.2 else b""
    encoding = "latin-1" if dialect.encoding == "latin-1" else "utf-8"
    data = text.replace("\udcff", "\xff").replace("\udcfe", "\xfe").encode(encoding) if encoding == "latin-1" else (
        text.encode("utf-8", "surrogateescape")
    )  # fmt: skip
    return Messy(f"csv {seed} {', '.join(kinds)}", mark + data, dialect)


NUMBERS = ("9007199254740993", "0.50", "1E5", "-0", "1e-400")
LINES: dict[str, Draw] = {
    "clean": lambda rng: f'{{"id":"r{rng.randrange(50)}","n":{rng.randrange(5)}}}',
    "spaces": lambda rng: f' {{ "id" : "s{rng.randrange(50)}" , "n" : [ 1 , 2 ] }} \t',
    "two objects": lambda rng: '{"id":"1","n":1}{"id":"2","n":2}',
    "junk behind": lambda rng: '{"id":"1","n":1} junk',
    "not utf-8": lambda rng: '{"id":"a' + rng.choice("\udcff\udcfe") + '"}',
    "inner not utf-8": lambda rng: '{"id":"a","in":{"x":"\udcff"}}',
    "key twice": lambda rng: '{"id":"1","n":1,"n":2}',
    "id twice": lambda rng: '{"id":"1", "n":1, "id":"2"}',
    "escaped key twice": lambda rng: '{"id":"1","\\u0069d":"2"}',
    "inner key twice": lambda rng: '{"id":"1","in":{"a":1,"a":1}}',
    "too large": lambda rng: '{"id":"1","n":1e400}',
    "inner too large": lambda rng: '{"id":"1","n":[-1e999]}',
    "NaN": lambda rng: '{"id":"1","n":' + rng.choice(("NaN", "Infinity", "-Infinity")) + "}",
    "integers and fractions": lambda rng: (
        f'{{"id":"i{rng.randrange(9)}","n":{rng.choice(("9007199254740993", "0.50", "1E5", "-0", "1e-400"))}}}'
    ),  # one row
    "many digits": lambda rng: '{"id":"d","n":' + "9" * 305 + "." + "1" * 30 + "}",
    "escapes": lambda rng: f'{{"id":"e{rng.randrange(9)}","t":"\\u00e9\\n\\u001f\\"\\/\\\\é"}}',
    "escaped id": lambda rng: '{"id":"\\u0065\\u0031","t":1}',
    "half a pair": lambda rng: '{"id":"1","t":"\\ud800"}',
    "inner half a pair": lambda rng: '{"id":"1","t":["\\ud800"]}',
    "nested": lambda rng: '{"id":"n","in":{"b":null,"a":[null,{"z":1.0,"y":null,"x":"\\u0041"}]},"zero":null}',
    "nested again": lambda rng: '{"in":{"a":[null,{"x":"A","z":1.0}]},"id":"n"}',
    "empty": lambda rng: "",
    "blank": lambda rng: " \t",
    "form feed": lambda rng: "\x0c",
    "array": lambda rng: '["id"]',
    "number": lambda rng: "17",
    "cut": lambda rng: '{"id":"1","n":',
    "leading zero": lambda rng: '{"id":"1","n":01}',
    "tab in text": lambda rng: '{"id":"1","t":"a\tb"}',
    "apostrophes": lambda rng: "{'id':'1'}",
    "comma behind": lambda rng: '{"id":"1",}',
    "comment": lambda rng: '{"id":"1"} // one',
    "number id": lambda rng: f'{{"id":{rng.randrange(9)}}}',
    "true id": lambda rng: '{"id":true}',
    "fraction id": lambda rng: '{"id":1.5}',
    "null id": lambda rng: '{"id":null,"n":1}',
    "object id": lambda rng: '{"id":{"a":1}}',
    "no id": lambda rng: '{"n":1}',
    "empty id": lambda rng: '{"id":""}',
    "deep": lambda rng: '{"id":"deep","n":' + "[" * 5_000 + "]" * 5_000 + "}",
    "unequal": lambda rng: f'{{"id":"u","n":{rng.randrange(3)}}}',
    "wide": lambda rng: '{"id":"w",' + ",".join(f'"c{n}":{n}' for n in range(60)) + "}",
}


def json_file(seed: int, kinds: tuple[str, ...]) -> Messy:
    """JSON lines with some lines of each kind among clean ones."""
    rng = random.Random(seed)
    rows = [LINES[rng.choice([*kinds, "clean"])](rng) for _ in range(rng.randrange(3, 25))]
    for kind in kinds:
        rows.insert(rng.randrange(1, len(rows) + 1), LINES[kind](rng))
    rows.insert(0, LINES["clean"](rng))  # what a file is its first line tells
    end = rng.choice(("\n", "\r\n"))
    mark = b"\xef\xbb\xbf" if rng.random() < 0.2 else b""
    data = (end.join(rows) + rng.choice((end, ""))).encode("utf-8", "surrogateescape")
    return Messy(f"json {seed} {', '.join(kinds)}", mark + data)

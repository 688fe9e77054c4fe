"""Casts that never lose: a text is a value of its type, or it is none."""

from __future__ import annotations

import pytest

from outbox.errors import Refused
from spark_jobs.reading.kinds import BIGINT, STRING, Kind, Seen, column_json, inferred, parsed
from spark_jobs.reading.texts import double_text, float_text, quoted

CASTS = [
    ("decimal(10,2)", {"1.1": "1.10", "1e2": "100.00", "-0.00": "0.00", "1.10000": "1.10", ".5": "0.50", "+1": "1.00",
                       "99999999.99": "99999999.99", "-1": "-1.00"}, ["1.239", "123456789.01", "1e999999", "1,5", "",
                       "NaN", " 1", "0x1", "1e", "1_0"]),
    ("decimal(3)", {"999": "999", "1e2": "100"}, ["1000", "0.5"]),
    ("decimal(38,10)", {"0": "0E-10", "0.0000000001": "1E-10"}, ["0.00000000001"]),
    ("bigint", {"5": "5", "007": "7", "-0": "0", "+5": "5", "-9223372036854775808": "-9223372036854775808"},
     ["9223372036854775808", " 5", "5.0", "1e3", "", "\u0665", "0x5", "1_000"]),
    ("int", {"2147483647": "2147483647"}, ["2147483648"]),
    ("smallint", {"-32768": "-32768"}, ["32768"]),
    ("tinyint", {"127": "127"}, ["128"]),
    ("double", {"0.1": "0.1", "0.10000000000000001": "0.1", "1e22": "1.0E22", "5": "5.0", "100": "100.0", "-0": "-0.0",
                "9007199254740992": "9.007199254740992E15", "0.001": "0.001", "0.0001": "1.0E-4"},
     ["1e400", "NaN", "Infinity", "9007199254740993", "0.1234567890123456789", "", "1e-400", " 1"]),
    ("float", {"0.1": "0.1", "16777216": "1.6777216E7"}, ["16777217", "3.5e38", "0.123456789012"]),
    ("boolean", {"TRUE": "true", "no": "false", "1": "true"}, ["x", "", "2"]),
    ("date", {"2025-01-05": '"2025-01-05"', "2025-1-5": '"2025-01-05"'},
     ["2025", "2025-01", "2025-01-05 10:00:00", "2025-02-30", "0000-01-01", "10:00", "05.01.2025"]),
    ("timestamp", {
        "2025-01-05T10:00:00Z": '"2025-01-05T10:00:00.000Z"', "2025-01-05": '"2025-01-05T00:00:00.000Z"',
        "2025-01-05 10:00:00.5": '"2025-01-05T10:00:00.500Z"', "2025-01-05 9:05": '"2025-01-05T09:05:00.000Z"',
        "2025-01-05T10:00:00.123456Z": '"2025-01-05T10:00:00.123456Z"',
        "2025-01-05T10:00:00+02:00": '"2025-01-05T08:00:00.000Z"',
        "2025-01-05T10:00:00-0530": '"2025-01-05T15:30:00.000Z"',
        "1969-12-31T23:59:59.999999Z": '"1969-12-31T23:59:59.999999Z"',
        "2025-01-05T00:00:00+2": '"2025-01-04T22:00:00.000Z"',
    }, ["10:00", "10:00:00", "2025-01-05T10:00:00.1234567Z", "2025-01-05T24:00:00Z", "2025-01-05T10:60:00Z",
        "2025-01-05T10:00:60Z", "2025-01-05Z", "2025-01-05T10:00:00+19:00", "2025-01-05T10:00:00+02:60",
        "0001-01-01T00:00:00+02:00", "2025-01-05T10:00:00 Europe/Berlin", "soon", ""]),
    ("timestamp_ntz", {"2025-01-05T10:00:00": '"2025-01-05T10:00:00.000"'}, ["2025-01-05T10:00:00Z"]),
    ("string", {"a\"b": '"a\\"b"', "": '""'}, []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "right", "wrong"), CASTS, ids=[name for name, _, _ in CASTS])
def test_a_text_is_its_value_or_none(name: str, right: dict[str, str], wrong: list[str]) -> None:
    kind = parsed(f"x {name}")["x"]
    assert {text: kind.json_of(text) for text in right} == right
    assert {text: kind.json_of(text) for text in wrong} == dict.fromkeys(wrong)


@pytest.mark.parametrize("name", ["bigint", "decimal(38,2)", "double", "float", "date", "timestamp", "boolean"])
def test_a_text_of_any_length_is_looked_at_for_a_moment_only(name: str) -> None:
    assert parsed(f"x {name}")["x"].json_of("1" * 10_000_000) is None


@pytest.mark.parametrize(
    "column", [[b"1", b"22"], [b"1", None], [b"1\n2", b"3"], [b"1", b"x"], [b"+1", b"2"], [b'a"', b"b"], [b"", b"b"]]
)
@pytest.mark.parametrize("kind", [BIGINT, STRING])
def test_a_column_at_once_is_what_its_values_are_one_by_one(kind: Kind, column: list[bytes | None]) -> None:
    found = column_json(kind, column)
    each = [None if value is None else kind.json_of(value.decode()) for value in column]
    assert [value or None for value in found.json()] == [None if text is None else text.encode() for text in each]
    assert sorted(found.wrong) == [at for at, text in enumerate(each) if text is None and column[at] is not None]


def test_a_schema_is_a_list_of_names_and_types() -> None:
    found = parsed("id string, `a b` DECIMAL(10, 2), `q``x`: long,t TIMESTAMP,n numeric")
    assert {name: str(kind) for name, kind in found.items()} == {
        "id": "string", "a b": "decimal(10,2)", "q`x": "bigint", "t": "timestamp", "n": "decimal(10,0)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("id", "cannot be read at 'id'"), ("", "cannot be read at ''"), ("id string,, b int", "cannot be read at ', b"),
        ("a struct<b:int>", "cannot be read"), ("id strin", "column id cannot be strin; bigint, boolean"),
        ("id varchar(10)", r"column id cannot be varchar\(10\)"), ("a decimal(40,2)", "at most 38 digits"),
        ("a decimal(2,3)", "at most 38 digits"), ("a int, a int", "names 'a' twice"),
    ],
)  # fmt: skip
def test_a_schema_that_is_none_is_refused(schema: str, told: str) -> None:
    with pytest.raises(Refused, match=told):
        parsed(schema)


def test_what_is_seen_in_parts_is_what_is_seen_at_once() -> None:
    parts: list[list[bytes | None]] = [[b"1", b"2", None], [b"x", b"y"], [b"007", b"3"], [], [b"9" * 18, b"9" * 19]]
    whole, together = Seen(), Seen()
    whole.look([value for part in parts for value in part])
    for part in parts:
        seen = Seen()
        seen.look(part)
        together.add(seen)
    assert together.counts == whole.counts == (8, 4, True, "007")


@pytest.mark.parametrize(
    ("values", "kind"),
    [([b"1", b"-2"], "bigint"), ([b"1", b"01"], "string"), ([b"x", b"1"], "string"), ([None], "string"),
     ([b"9" * 18], "bigint"), ([b"9" * 19], "string"), ([b"-0"], "string"), ([b"+1"], "string")],
)  # fmt: skip
def test_a_column_of_integers_alone_is_one_of_integers(values: list[bytes | None], kind: str) -> None:
    seen = Seen()
    seen.look(values)
    assert {name: str(found) for name, found in inferred({"a": seen, "id": seen}, ["id"]).items()} == {
        "a": kind, "id": "string",
    }  # fmt: skip


def test_texts_and_numbers_are_as_sparks_to_json_has_them() -> None:
    assert quoted('a\x0b\x1f"\\/é\n\x7f\u2028') == '"a\\u000B\\u001F\\"\\\\/é\\n\x7f\u2028"'
    numbers = (0.0, 1e7, 9999999.0, 0.00099, 1.5e-5, 1e22, -0.1, 1.7976931348623157e308, 123.456)
    assert [double_text(number) for number in numbers] == [
        "0.0", "1.0E7", "9999999.0", "9.9E-4", "1.5E-5", "1.0E22", "-0.1", "1.7976931348623157E308", "123.456",
    ]  # fmt: skip
    assert float_text(0.10000000149011612) == "0.1"

"""The functions and patterns of Cosmos DB queries, value by value."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from outbox.emulator.cosmos.query.budget import Budget
from outbox.emulator.cosmos.query.expressions import _BINARY
from outbox.emulator.cosmos.query.functions import FUNCTIONS, TEXT_LENGTH_MAX
from outbox.emulator.cosmos.query.like import Pattern
from outbox.emulator.cosmos.wire import UNDEFINED

U = UNDEFINED
LONGEST = "x" * TEXT_LENGTH_MAX
KINDS = {"IS_NULL": 0, "IS_BOOL": 1, "IS_NUMBER": 2, "IS_STRING": 3, "IS_ARRAY": 4, "IS_OBJECT": 5}


@pytest.mark.parametrize("name", KINDS)
def test_a_value_is_of_one_kind_and_null_is_a_value(name: str) -> None:
    function = FUNCTIONS[name][2]
    values: list[Any] = [None, False, 0, "", [], {}, U]
    assert [function(value) for value in values] == [at == KINDS[name] for at in range(7)]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("IS_DEFINED", (None,), True), ("IS_DEFINED", (U,), False), ("IS_PRIMITIVE", (None,), True),
        ("IS_PRIMITIVE", ([],), False), ("IS_INTEGER", (2.0,), True), ("IS_INTEGER", (2.5,), False),
        ("IS_INTEGER", (True,), False), ("STARTSWITH", ("Ab", "a"), False), ("STARTSWITH", ("Ab", "a", True), True),
        ("STARTSWITH", ("Ab", "A", None), U), ("STARTSWITH", ("Ab", 1), U), ("STARTSWITH", (1, "A"), U),
        ("ENDSWITH", ("ab", ""), True), ("CONTAINS", ("abc", "b"), True), ("STRINGEQUALS", ("a", "A"), False),
        ("INDEX_OF", ("abab", "b"), 1), ("INDEX_OF", ("abab", "b", 2), 3), ("INDEX_OF", ("abab", "a", -5), 0),
        ("INDEX_OF", ("abab", "a", -1), 0), ("RIGHT", ("abc", 5), "abc"),
        ("INDEX_OF", ("abab", "c"), -1), ("INDEX_OF", ("abab", 1), U), ("INDEX_OF", ("abab", "a", "1"), U),
        ("UPPER", ("a",), "A"), ("UPPER", (None,), U), ("TRIM", (" a ",), "a"), ("LTRIM", (" a ",), "a "),
        ("RTRIM", (" a ",), " a"), ("REVERSE", ("abc",), "cba"), ("LENGTH", ("",), 0), ("LENGTH", ([],), U),
        ("CONCAT", ("a", "b", "c"), "abc"), ("CONCAT", ("a", None), U), ("CONCAT", (LONGEST[1:], "y", "z"), U),
        ("SUBSTRING", ("abcd", 1, 2), "bc"), ("SUBSTRING", ("abcd", -1, 2), "ab"), ("SUBSTRING", ("abcd", 1, -1), ""),
        ("SUBSTRING", ("abcd", 0, 1), "a"), ("SUBSTRING", ("abcd", "1", 1), U), ("SUBSTRING", ("abcd", 1, None), U),
        ("LEFT", ("abc", 2), "ab"), ("LEFT", ("abc", -1), ""), ("LEFT", (1, 1), U), ("LEFT", ("abc", None), U),
        ("RIGHT", ("abc", 2), "bc"), ("RIGHT", ("abc", 9), "abc"), ("RIGHT", ("abc", -1), ""),
        ("RIGHT", ("abc", 0), ""),
        ("RIGHT", ("abc", None), U), ("RIGHT", (1, 1), U), ("REPLACE", ("aba", "a", "xy"), "xybxy"),
        ("REPLACE", ("aba", "", "x"), "aba"), ("REPLACE", ("aba", "a", None), U), ("REPLACE", (LONGEST, "x", "yy"), U),
        ("TOSTRING", (None,), "null"), ("TOSTRING", (1.0,), "1"), ("TOSTRING", ("a",), "a"), ("TOSTRING", (U,), U),
        ("STRINGTONUMBER", (" 1 ",), 1), ("STRINGTONUMBER", ("1e2",), 100), ("STRINGTONUMBER", ("1.5",), 1.5),
        ("STRINGTONUMBER", ("x",), U), ("STRINGTONUMBER", ("",), U), ("STRINGTONUMBER", ("1" * 101,), U),
        ("STRINGTONUMBER", (" -12.50 ",), -12.5), ("STRINGTONUMBER", ("1E-2",), 0.01),
        *(("STRINGTONUMBER", (text,), U) for text in ("1_0", "+1", "01", ".5", "1.", "0x1", "nan", "inf", "1e999")),
        *(("STRINGTONUMBER", (text,), U) for text in ("\u0661", "1 2")),
        ("STRINGTONUMBER", ("1" * 100,), int("1" * 100)), ("ABS", (-2,), 2), ("CEILING", (1.2,), 2),
        ("FLOOR", (-1.2,), -2), ("TRUNC", (-1.8,), -1), ("SIGN", (-3,), -1), ("SIGN", (0,), 0), ("SIGN", (0.5,), 1),
        ("ROUND", (0.5,), 1), ("ROUND", (-0.5,), -1), ("ROUND", (2.4,), 2), ("ROUND", (-2.6,), -3), ("ABS", (True,), U),
        ("SQRT", (4,), 2), ("SQRT", (-1,), U), ("EXP", (1_000,), U), ("LOG10", (0,), U), ("POWER", (2, 3), 8),
        ("POWER", (2, None), U), ("POWER", (None, 2), U), ("POWER", (10, 400), U), ("POWER", (-1, 0.5), U),
        ("ARRAY_CONTAINS", ([1, None], None), True), ("ARRAY_CONTAINS", ([1], True), False),
        ("ARRAY_CONTAINS", ([1], U), False), ("ARRAY_CONTAINS", ("1", 1), U), ("ARRAY_CONTAINS", ([1], 1, None), False),
        ("ARRAY_CONTAINS", ([{"a": 1, "b": 2}], {"a": 1}), False),
        ("ARRAY_CONTAINS", ([{"a": 1, "b": 2}], {"a": 1}, True), True),
        ("ARRAY_CONTAINS", ([{"a": 1, "b": 2}], {"a": 1, "b": 3}, True), False),
        ("ARRAY_CONTAINS", ([{"b": 2}], {"a": None}, True), False), ("ARRAY_CONTAINS", ([[1]], [1], True), True),
        ("ARRAY_LENGTH", ([1, 2],), 2), ("ARRAY_LENGTH", ("ab",), U), ("ARRAY_SLICE", ([1, 2, 3], 1), [2, 3]),
        ("ARRAY_SLICE", ([1, 2, 3], -2), [2, 3]), ("ARRAY_SLICE", ([1, 2, 3], -9, 2), [1, 2]),
        ("ARRAY_SLICE", ([1, 2, 3], 0, 1), [1]), ("ARRAY_SLICE", ([1, 2, 3], 1, -1), []),
        ("ARRAY_SLICE", ([1], "0"), U),
        ("ARRAY_SLICE", ([1], 0, None), U), ("ARRAY_SLICE", ("a", 0), U), ("ARRAY_CONCAT", ([1], [2], []), [1, 2]),
        ("ARRAY_CONCAT", ([1], 2), U),
    ],
)  # fmt: skip
def test_a_function_gives_a_value_or_nothing(name: str, given: tuple[Any, ...], expected: Any) -> None:
    least, most, function = FUNCTIONS[name]
    found = function(*given)
    assert least <= len(given) <= most
    assert (
        found is U if expected is U else (found == expected and isinstance(found, bool) is isinstance(expected, bool))
    )


def test_a_text_may_be_as_long_as_the_limit() -> None:
    assert FUNCTIONS["CONCAT"][2](LONGEST[1:], "y") == LONGEST[1:] + "y"
    assert FUNCTIONS["REPLACE"][2](LONGEST[1:], "z", "yy") == LONGEST[1:]


def test_a_function_takes_one_number_of_arguments_or_has_optional_ones() -> None:
    for name, counts in (
        ("CONCAT", (2, 1_000)),
        ("ARRAY_CONCAT", (2, 1_000)),
        ("REVERSE", (1, 1)),
        ("REPLACE", (3, 3)),
    ):
        assert FUNCTIONS[name][:2] == counts
    one = [name for name, (_, most, _) in FUNCTIONS.items() if most == 1]
    assert len(one) == 29 and not {"LEFT", "RIGHT", "POWER", "CONTAINS"} & set(one)
    assert all(most == least or (least, most) in ((2, 3), (2, 1_000)) for least, most, _ in FUNCTIONS.values())


def test_a_pattern_fits_what_the_same_regular_expression_does() -> None:
    texts = ["".join(letters) for length in range(6) for letters in product("ab", repeat=length)]
    patterns = ["".join(letters) for length in range(5) for letters in product("a_%", repeat=length)]
    for pattern in (*patterns, "%aa_b%", "%b_aa%", "a%aa_b%", "%b_aa%b", "%ab%ba%"):
        same = re.compile(pattern.replace("%", ".*").replace("_", "."))
        one = Pattern(pattern, "", Budget())
        assert [one.fits(text, Budget()) for text in texts] == [bool(same.fullmatch(text)) for text in texts]
    for pattern, fitting in (("%ab_ba%", "xabxbay"), ("%a_b%b_a", "xa1b2bxbza"), ("!%%!_!!", "%x_!")):
        assert Pattern(pattern, "!", Budget()).fits(fitting, Budget())
        assert not Pattern(pattern, "!", Budget()).fits(
            fitting[:-1] + "?" * 2 if "!" in pattern else fitting[:3], Budget()
        )


@pytest.mark.parametrize(
    ("left", "sign", "right", "expected"),
    [
        (1, "+", 2, 3), (1, "+", True, U), (None, "+", 1, U), (1, "-", None, U), (1, "/", 0, U), (4, "/", 2, 2),
        (1, "/", 2, 0.5), (-5, "%", 3, -2), (5, "%", -3, 2), (5, "%", 0, U), (1e308, "*", 10, U), (1.0, "|", 2, 3),
        (6, "&", 3, 2), (6, "^", 3, 5), (1.5, "&", 1, U), (1 << 32, "|", 1, 1), (1, "<<", 3, 8),
        (1, "<<", 31, -(1 << 31)), (1, "<<", 33, 2), (-8, ">>", 1, -4), (-1, ">>", 32, -1), (8, ">>>", 1, 4),
        (-1, ">>>", 0, 0xFFFF_FFFF),
        (True, "<<", 1, U), (1, ">>", 0.5, U), (True, "|", 1, U), ("a", "||", "b", "ab"), ("a", "||", 1, U),
        (LONGEST, "||", "", LONGEST), (LONGEST, "||", "x", U), (1, "<", 2, True), (2, "<", 2, False),
        (2, "<=", 2, True),
        (2, ">", 2, False), (2, ">=", 2, True), (1, "<", "a", U), (U, "<=", U, U), (None, "=", None, True),
        (1, "=", 1.0, True), (1, "=", True, False), ("a", "<", "b", True),
    ],
)  # fmt: skip
def test_an_operator_gives_a_value_or_nothing(left: Any, sign: str, right: Any, expected: Any) -> None:
    found = _BINARY[sign](left, right)
    assert (
        found is U if expected is U else (found == expected and isinstance(found, bool) is isinstance(expected, bool))
    )

"""The functions of queries: their names, how many arguments they take, and what they give.

A function that gets an argument of the wrong type, or undefined, gives undefined, as the service's do.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

from outbox.emulator.cosmos.query.values import equal, plain, rank_of
from outbox.emulator.cosmos.wire import UNDEFINED, Json, encode

TEXT_LENGTH_MAX = 2 << 20
"""No function makes a longer text; undefined instead."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""A number in JSON's syntax."""

Function = Callable[..., Json]


def is_number(value: Json) -> bool:
    """Whether a value is a number: a boolean is none here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Json) -> Json:
    """A number that JSON has, else undefined."""
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else UNDEFINED


def _of_text(function: Callable[[str], Json]) -> Function:
    return lambda text: function(text) if isinstance(text, str) else UNDEFINED


def _of_numbers(function: Callable[..., Json]) -> Function:
    def call(*numbers: Json) -> Json:
        if not all(map(is_number, numbers)):
            return UNDEFINED
        try:
            return finite(function(*numbers))
        except (ValueError, OverflowError):
            return UNDEFINED

    return call


def _of(kinds: str, function: Function) -> Function:
    """A function whose arguments are texts (t), numbers (n) or arrays (a), as far as they are there."""
    tests = [_IS[kind] for kind in kinds]

    def call(*values: Json) -> Json:
        are_right = all(test(value) for test, value in zip(tests, values, strict=False))
        return function(*values) if are_right else UNDEFINED

    return call


_IS: dict[str, Callable[[Json], bool]] = {
    "t": lambda value: isinstance(value, str),
    "n": is_number,
    "a": lambda value: isinstance(value, list),
}


def _of_texts(function: Callable[[str, str], Json]) -> Function:
    """A function of two texts, and whether their case does not matter."""

    def call(left: Json, right: Json, ignores_case: Json = False) -> Json:
        if not (isinstance(left, str) and isinstance(right, str) and isinstance(ignores_case, bool)):
            return UNDEFINED
        return function(left.casefold(), right.casefold()) if ignores_case else function(left, right)

    return call


def _kind(*ranks: int) -> Function:
    return lambda value: rank_of(value) in ranks


def _concat(*texts: Json) -> Json:
    if not all(isinstance(text, str) for text in texts) or sum(len(text) for text in texts) > TEXT_LENGTH_MAX:
        return UNDEFINED
    return "".join(texts)


def _count(number: Any) -> int:
    return max(0, int(number))


def _replace(text: str, old: str, new: str) -> Json:
    if not old or len(text) + text.count(old) * len(new) > TEXT_LENGTH_MAX:
        return UNDEFINED if old else text
    return text.replace(old, new)


def _to_string(value: Json) -> Json:
    if value is UNDEFINED:
        return UNDEFINED
    return value if isinstance(value, str) else encode(plain(value)).decode()


def _to_number(text: Json) -> Json:
    if not isinstance(text, str) or len(text) > 100 or not _NUMBER.fullmatch(text.strip(" \t\r\n")):
        return UNDEFINED
    return plain(finite(float(text)) if any(sign in text for sign in ".eE") else int(text))


def _round(number: Any) -> Json:
    return math.floor(abs(number) + 0.5) * (1 if number >= 0 else -1)


def _array_contains(array: Json, wanted: Json, partial: Json = False) -> Json:
    if not isinstance(array, list) or wanted is UNDEFINED or not isinstance(partial, bool):
        return UNDEFINED if not isinstance(array, list) else False
    if partial and isinstance(wanted, dict):
        return any(
            isinstance(one, dict) and all(name in one and equal(one[name], value) for name, value in wanted.items())
            for one in array
        )
    return any(equal(one, wanted) for one in array)


def _array_slice(array: list[Json], start: Any, length: Any = sys.maxsize) -> Json:
    first = int(start) if start >= 0 else max(0, len(array) + int(start))
    return array[first : first + _count(length)]


def _array_concat(*arrays: Json) -> Json:
    if not all(isinstance(array, list) for array in arrays):
        return UNDEFINED
    return [element for array in arrays for element in array]


FUNCTIONS: dict[str, tuple[int, int, Function]] = {
    "IS_DEFINED": (1, 1, lambda value: value is not UNDEFINED),
    "IS_NULL": (1, 1, _kind(1)),
    "IS_BOOL": (1, 1, _kind(2)),
    "IS_NUMBER": (1, 1, _kind(3)),
    "IS_STRING": (1, 1, _kind(4)),
    "IS_ARRAY": (1, 1, _kind(5)),
    "IS_OBJECT": (1, 1, _kind(6)),
    "IS_PRIMITIVE": (1, 1, _kind(1, 2, 3, 4)),
    "IS_INTEGER": (1, 1, lambda value: is_number(value) and (isinstance(value, int) or value.is_integer())),
    "IS_FINITE_NUMBER": (1, 1, is_number),
    "STARTSWITH": (2, 3, _of_texts(str.startswith)),
    "ENDSWITH": (2, 3, _of_texts(str.endswith)),
    "CONTAINS": (2, 3, _of_texts(lambda text, part: part in text)),
    "STRINGEQUALS": (2, 3, _of_texts(lambda left, right: left == right)),
    "INDEX_OF": (2, 3, _of("ttn", lambda text, part, start=0: text.find(part, _count(start)))),
    "UPPER": (1, 1, _of_text(str.upper)),
    "LOWER": (1, 1, _of_text(str.lower)),
    "TRIM": (1, 1, _of_text(str.strip)),
    "LTRIM": (1, 1, _of_text(str.lstrip)),
    "RTRIM": (1, 1, _of_text(str.rstrip)),
    "REVERSE": (1, 1, _of_text(lambda text: text[::-1])),
    "LENGTH": (1, 1, _of_text(len)),
    "CONCAT": (2, 1_000, _concat),
    "SUBSTRING": (3, 3, _of("tnn", lambda text, start, length: text[_count(start) : _count(start) + _count(length)])),
    "LEFT": (2, 2, _of("tn", lambda text, length: text[: _count(length)])),
    "RIGHT": (2, 2, _of("tn", lambda text, length: text[max(0, len(text) - _count(length)) :])),
    "REPLACE": (3, 3, _of("ttt", _replace)),
    "TOSTRING": (1, 1, _to_string),
    "STRINGTONUMBER": (1, 1, _to_number),
    "ABS": (1, 1, _of_numbers(abs)),
    "CEILING": (1, 1, _of_numbers(math.ceil)),
    "FLOOR": (1, 1, _of_numbers(math.floor)),
    "ROUND": (1, 1, _of_numbers(_round)),
    "TRUNC": (1, 1, _of_numbers(math.trunc)),
    "SIGN": (1, 1, _of_numbers(lambda number: (number > 0) - (number < 0))),
    "SQRT": (1, 1, _of_numbers(math.sqrt)),
    "EXP": (1, 1, _of_numbers(math.exp)),
    "LOG10": (1, 1, _of_numbers(math.log10)),
    "POWER": (2, 2, _of_numbers(math.pow)),
    "ARRAY_CONTAINS": (2, 3, _array_contains),
    "ARRAY_LENGTH": (1, 1, lambda array: len(array) if isinstance(array, list) else UNDEFINED),
    "ARRAY_SLICE": (2, 3, _of("ann", _array_slice)),
    "ARRAY_CONCAT": (2, 1_000, _array_concat),
}
"""By name: the least and greatest number of arguments, and the function."""
CONSTANT_COST = frozenset(name for name in FUNCTIONS if name.startswith("IS_")) | {"ARRAY_LENGTH", "LENGTH"}
"""Functions of one argument that take no longer for a larger one."""

"""Expressions as functions: compiled once for a query, called for every row.

A row is what the names in FROM stand for.  Undefined spreads through operators; AND, OR and NOT know three values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from outbox.emulator.cosmos.query.budget import Budget
from outbox.emulator.cosmos.query.functions import CONSTANT_COST, FUNCTIONS, TEXT_LENGTH_MAX, finite, is_number
from outbox.emulator.cosmos.query.like import Pattern
from outbox.emulator.cosmos.query.nodes import (
    AGGREGATES,
    ArrayOf,
    Binary,
    Call,
    In,
    Like,
    Literal,
    Logical,
    Member,
    Name,
    Node,
    ObjectOf,
    Unary,
)
from outbox.emulator.cosmos.query.values import compare, equal, plain
from outbox.emulator.cosmos.wire import UNDEFINED, Json, bad, unsupported

Row = dict[str, Json]
Evaluate = Callable[[Row], Json]

INT_MAX = 1 << 63
_GROWING = frozenset((str, list, dict))
"""Types whose values take the longer the larger they are."""


class Compiler:
    """Compiles the expressions of one query.  `names` are those that FROM gives."""

    def __init__(self, names: frozenset[str], constants: dict[str, Evaluate], budget: Budget) -> None:
        """`constants` are functions without arguments, such as the time.

        What grows with a value counts in `budget` when it is called; that an expression is called at all counts for
        each row, by the caller.
        """
        self._budget = budget
        self._names = names
        self._constants = constants

    def compile(self, node: Node) -> Evaluate:
        """The function that gives an expression's value for a row.

        Raises:
            Rejection: 400, a name or function that is not there.
        """
        match node:
            case Literal(value=value):
                return lambda row: value
            case Name(alias=alias):
                return self._name(alias)
            case Member():
                return self._member(node)
            case Logical():
                return self._logical(node)
            case Binary():
                return self._binary(node)
            case Unary():
                return _unary(node.sign, self.compile(node.operand))
            case In():
                return self._in(node)
            case Like():
                return self._like(node)
            case Call():
                return self._call(node)
            case ArrayOf():
                elements = [self.compile(element) for element in node.elements]
                return lambda row: [value for element in elements if (value := element(row)) is not UNDEFINED]
            case ObjectOf():
                members = [(name, self.compile(member)) for name, member in node.members]
                return lambda row: {name: value for name, part in members if (value := part(row)) is not UNDEFINED}

    def _name(self, alias: str) -> Evaluate:
        if alias not in self._names:
            known = ", ".join(sorted(self._names)) or "none, there is no FROM"
            raise bad(f"identifier {alias[:80]!r} could not be resolved; the query's FROM names {known}")
        return lambda row: row[alias]

    def _member(self, node: Member) -> Evaluate:
        target, key = self.compile(node.target), node.key
        if isinstance(key, Literal) and isinstance(key.value, str):
            name = key.value

            def named(row: Row) -> Json:
                found = target(row)
                return found.get(name, UNDEFINED) if type(found) is dict else UNDEFINED

            return named
        at = self.compile(key)
        return lambda row: _element(target(row), at(row))

    def _logical(self, node: Logical) -> Evaluate:
        parts = [self.compile(operand) for operand in node.operands]
        decides = node.sign == "OR"  # the value that needs no look at the others

        def evaluate(row: Row) -> Json:
            is_known = True
            for part in parts:
                value = part(row)
                if value is decides:
                    return decides
                is_known = is_known and isinstance(value, bool)
            return (not decides) if is_known else UNDEFINED

        return evaluate

    def _binary(self, node: Binary) -> Evaluate:
        left, right = self.compile(node.left), self.compile(node.right)
        if node.sign == "??":
            return lambda row: right(row) if (value := left(row)) is UNDEFINED else value
        apply, weigh, is_copied = _BINARY[node.sign], self._budget.weigh, node.sign == "||"

        def evaluate(row: Row) -> Json:
            a, b = left(row), right(row)
            if type(a) in _GROWING:
                weigh(a)
            if is_copied and type(b) in _GROWING:  # a comparison goes no further than its left side
                weigh(b)
            return UNDEFINED if a is UNDEFINED or b is UNDEFINED else apply(a, b)

        return evaluate

    def _in(self, node: In) -> Evaluate:
        operand = self.compile(node.operand)
        choices = [self.compile(choice) for choice in node.choices]
        if all(isinstance(choice, Literal) and isinstance(choice.value, str) for choice in node.choices):
            texts = frozenset(choice.value for choice in node.choices if isinstance(choice, Literal))
            return lambda row: UNDEFINED if (v := operand(row)) is UNDEFINED else isinstance(v, str) and v in texts

        weigh, count = self._budget.weigh, len(choices)

        def evaluate(row: Row) -> Json:
            value = operand(row)
            if value is UNDEFINED:
                return UNDEFINED
            if type(value) in _GROWING:
                weigh([value] * count)
            return any(equal(value, choice(row)) for choice in choices)

        return evaluate

    def _like(self, node: Like) -> Evaluate:
        operand, pattern, escape = self.compile(node.operand), self.compile(node.pattern), node.escape
        if isinstance(node.pattern, Literal) and isinstance(node.pattern.value, str) and "[" in node.pattern.value:
            raise unsupported("a set of characters in LIKE")

        budget = self._budget
        if isinstance(node.pattern, Literal) and isinstance(node.pattern.value, str):
            known = Pattern(node.pattern.value, escape, budget)
            return lambda row: known.fits(text, budget) if isinstance(text := operand(row), str) else UNDEFINED

        def evaluate(row: Row) -> Json:
            text, wanted = operand(row), pattern(row)
            if not (isinstance(text, str) and isinstance(wanted, str)):
                return UNDEFINED
            return Pattern(wanted, escape, budget).fits(text, budget)

        return evaluate

    def _call(self, node: Call) -> Evaluate:
        name, count = node.name, len(node.arguments)
        if name in self._constants and not count:
            return self._constants[name]
        if name in AGGREGATES:
            raise bad(f"{name} is an aggregate and cannot stand here; use it in SELECT, not within another")
        if name == "IIF" and count == 3:
            test, yes, no = map(self.compile, node.arguments)
            return lambda row: yes(row) if test(row) is True else no(row)
        if name not in FUNCTIONS:
            raise unsupported(f"the function {name[:80]}")
        least, most, function = FUNCTIONS[name]
        if not least <= count <= most:
            raise bad(f"{name} takes {least} to {most} arguments, not {count}")
        arguments = [self.compile(argument) for argument in node.arguments]
        if name in CONSTANT_COST:
            only = arguments[0]
            return lambda row: function(only(row))
        weigh = self._budget.weigh

        def evaluate(row: Row) -> Json:
            values = [argument(row) for argument in arguments]
            for value in values:
                if type(value) in _GROWING:
                    weigh(value)
            return function(*values)

        return evaluate


def _element(target: Json, key: Json) -> Json:
    if isinstance(target, dict) and isinstance(key, str):
        return target.get(key, UNDEFINED)
    if isinstance(target, list) and is_number(key) and 0 <= key < len(target) and float(key).is_integer():
        return target[int(key)]
    return UNDEFINED


def _unary(sign: str, operand: Evaluate) -> Evaluate:
    if sign == "NOT":
        return lambda row: not value if isinstance(value := operand(row), bool) else UNDEFINED
    if sign == "-":
        return lambda row: -value if is_number(value := operand(row)) else UNDEFINED
    if sign == "~":
        return lambda row: ~_of_32_bits(value) if _is_whole(value := plain(operand(row))) else UNDEFINED
    return lambda row: value if is_number(value := operand(row)) else UNDEFINED


def _ordered(test: Callable[[int], bool]) -> Callable[[Json, Json], Json]:
    def apply(left: Json, right: Json) -> Json:
        order = compare(left, right)
        return UNDEFINED if order is None else test(order)

    return apply


def _arithmetic(function: Callable[[Any, Any], Json]) -> Callable[[Json, Json], Json]:
    def apply(left: Json, right: Json) -> Json:
        if not (is_number(left) and is_number(right)):
            return UNDEFINED
        try:
            value = function(left, right)
            return float(value) if isinstance(value, int) and not -INT_MAX <= value < INT_MAX else finite(value)
        except (ArithmeticError, ValueError):
            return UNDEFINED

    return apply


def _bits(function: Callable[[int, int], int]) -> Callable[[Json, Json], Json]:
    """An operator on bits, of which a number has 32 and a sign, as in JavaScript.

    Source: learn.microsoft.com/azure/cosmos-db/nosql/query/bitwise-operators.
    """

    def apply(left: Json, right: Json) -> Json:
        left, right = plain(left), plain(right)
        if not (_is_whole(left) and _is_whole(right)):
            return UNDEFINED
        return function(_of_32_bits(left), _of_32_bits(right))

    return apply


def _is_whole(value: Json) -> bool:
    return isinstance(value, int) and is_number(value)


def _of_32_bits(value: int) -> int:
    return (value + (1 << 31) & 0xFFFF_FFFF) - (1 << 31)


def _shortened(value: float) -> Json:
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value


def _joined(left: Json, right: Json) -> Json:
    if not (isinstance(left, str) and isinstance(right, str)) or len(left) + len(right) > TEXT_LENGTH_MAX:
        return UNDEFINED
    return left + right


_BINARY: dict[str, Callable[[Json, Json], Json]] = {
    "=": equal,
    "!=": lambda left, right: not equal(left, right),
    "<": _ordered(lambda order: order < 0),
    "<=": _ordered(lambda order: order <= 0),
    ">": _ordered(lambda order: order > 0),
    ">=": _ordered(lambda order: order >= 0),
    "+": _arithmetic(lambda left, right: left + right),
    "-": _arithmetic(lambda left, right: left - right),
    "*": _arithmetic(lambda left, right: left * right),
    "/": _arithmetic(lambda left, right: _shortened(left / right)),
    # The sign of a remainder is that of the left operand, as JavaScript has it.
    "%": _arithmetic(lambda left, right: _shortened(math.fmod(left, right))),
    "||": _joined,
    "|": _bits(lambda left, right: left | right),
    "&": _bits(lambda left, right: left & right),
    "^": _bits(lambda left, right: left ^ right),
    "<<": _bits(lambda left, right: _of_32_bits(left << (right & 31))),
    ">>": _bits(lambda left, right: left >> (right & 31)),
    ">>>": _bits(lambda left, right: (left & 0xFFFF_FFFF) >> (right & 31)),
}

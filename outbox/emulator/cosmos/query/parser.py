"""The grammar of queries: their clauses (SELECT to LIMIT) and expressions.

What the service has and this has not is refused by name.  Depth and length are limited, so that no text can exhaust the
stack.  Source: learn.microsoft.com/cosmos-db/query.
"""

from __future__ import annotations

from collections.abc import Mapping

from outbox.emulator.cosmos.query.lexer import Token, tokens_of
from outbox.emulator.cosmos.query.nodes import (
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
    Order,
    Query,
    Source,
    Unary,
)
from outbox.emulator.cosmos.wire import UNDEFINED, Json, Rejection, bad, unsupported

FIELD_COUNT_MAX = 1_000
ROW_NUMBER_MAX = 1 << 31
NESTING_MAX = 40
CHAIN_LENGTH_MAX = 200

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("??",),
    ("OR",),
    ("AND",),
    ("|",),
    ("^",),
    ("&",),
    ("=", "!=", "<>", "<", "<=", ">", ">=", "IN", "BETWEEN", "LIKE", "NOT"),
    ("||",),
    ("<<", ">>", ">>>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_LEVEL = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs}
_COMPARING = _LEVEL["="]
_LITERALS: dict[str, Json] = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": UNDEFINED}
RESERVED = frozenset(
    (
        *("SELECT", "DISTINCT", "TOP", "VALUE", "FROM", "JOIN", "IN", "AS", "WHERE", "GROUP", "BY", "ORDER", "ASC"),
        *("DESC", "OFFSET", "LIMIT", "AND", "OR", "NOT", "BETWEEN", "LIKE", "ESCAPE", "EXISTS", "ARRAY"),
    )
)


def parse_query(text: str, parameters: Mapping[str, Json]) -> Query:
    """A query's text with its parameters.

    Raises:
        Rejection: 400, naming the place or what is not supported.
        RecursionError: it is nested too deep.
    """
    return _Parser(text, parameters).query()


class _Parser:
    """A place in a query's words, from which the nodes are read."""

    def __init__(self, text: str, parameters: Mapping[str, Json]) -> None:
        self._tokens = tokens_of(text)
        self._parameters = parameters
        self._next = 0
        self._depth = 0

    # Words

    @property
    def here(self) -> Token:
        return self._tokens[self._next]

    def take(self) -> Token:
        token = self.here
        self._next += token.kind != "end"
        return token

    def stands(self, sign: str) -> bool:
        token = self.here
        return token.word == sign if sign.isalpha() else token.kind == "sign" and token.value == sign

    def accept(self, sign: str) -> bool:
        if found := self.stands(sign):
            self._next += 1
        return found

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.wrong(f"{sign!r} expected")

    def wrong(self, why: str) -> Rejection:
        """Make the rejection for the word at this place."""
        token = self.here
        found = "the end" if token.kind == "end" else repr(str(token.value)[:40])
        return bad(f"syntax error in the query at position {token.at}, {found}: {why}")

    def identifier(self) -> str:
        token = self.here
        if token.kind != "name" or token.word in RESERVED:
            raise self.wrong("a name expected")
        self._next += 1
        return str(token.value)

    # Clauses

    def query(self) -> Query:
        self.expect("SELECT")
        distinct = self.accept("DISTINCT")
        top = self._row_number() if self.accept("TOP") else None
        is_value = self.accept("VALUE")
        fields = None if self.accept("*") else self._fields(is_value)
        root, sources = self._from() if self.accept("FROM") else ("", ())
        where = self.expression() if self.accept("WHERE") else None
        group = self._group()
        order = self._order()
        offset, limit = 0, None
        if self.accept("OFFSET"):
            offset = self._row_number()
            self.expect("LIMIT")
            limit = self._row_number()
        if self.here.kind != "end":
            raise self.wrong("the query should end here")
        if fields is None and (len(sources) != 1 or group or is_value):
            raise bad("SELECT * goes with one source and without GROUP BY; name the fields")
        return Query(root, sources, fields, is_value, distinct, top, where, group, order, offset, limit)

    def _row_number(self) -> int:
        node = self.primary() if self.here.kind in ("number", "parameter") else None
        value = node.value if isinstance(node, Literal) else None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ROW_NUMBER_MAX:
            raise self.wrong("TOP, OFFSET and LIMIT take a whole number or a parameter that is one")
        return value

    def _fields(self, is_value: bool) -> tuple[tuple[str, Node], ...]:
        if is_value:
            return (("", self.expression()),)
        found: list[tuple[str, Node]] = []
        while True:
            node = self.expression()
            found.append((self._field_name(node, len(found) + 1), node))
            if len(found) > FIELD_COUNT_MAX:
                raise self.wrong(f"more than {FIELD_COUNT_MAX} fields")
            if not self.accept(","):
                return tuple(found)

    def _field_name(self, node: Node, number: int) -> str:
        if self.accept("AS"):
            token = self.take()
            if token.kind not in ("name", "text"):
                raise self.wrong("a name expected after AS")
            return str(token.value)
        if self._is_name():
            return self.identifier()
        match node:
            case Member(key=Literal(value=str() as name)) | Name(alias=name):
                return name
        return f"${number}"

    def _from(self) -> tuple[str, tuple[Source, ...]]:
        name = self.identifier()
        if self.accept("IN"):
            root, path = self._path()
            sources = [Source(name, path, True)]
        else:
            path = self.suffixes(Name(name))
            alias = self.identifier() if self.accept("AS") or self._is_name() else name
            if isinstance(path, Member) and alias == name and isinstance(path.key, Literal):
                alias = str(path.key.value)
            root, sources = name, [Source(alias, None if isinstance(path, Name) else path, False)]
        while self.accept("JOIN"):
            alias = self.identifier()
            self.expect("IN")
            if self.stands("("):
                raise unsupported("a subquery in JOIN")
            sources.append(Source(alias, self._path()[1], True))
        return root, tuple(sources)

    def _is_name(self) -> bool:
        return self.here.kind == "name" and self.here.word not in RESERVED

    def _path(self) -> tuple[str, Node]:
        name = self.identifier()
        return name, self.suffixes(Name(name))

    def _group(self) -> tuple[Node, ...]:
        if not self.accept("GROUP"):
            return ()
        self.expect("BY")
        return self.expressions()

    def _order(self) -> tuple[Order, ...]:
        if not self.accept("ORDER"):
            return ()
        self.expect("BY")
        if self.stands("RANK"):
            raise unsupported("ORDER BY RANK")
        found: list[Order] = []
        while True:
            key = self.expression()
            descending = self.accept("DESC")
            if not descending:
                self.accept("ASC")
            found.append(Order(key, descending))
            if not self.accept(","):
                return tuple(found)

    # Expressions

    def expressions(self) -> tuple[Node, ...]:
        found = [self.expression()]
        while self.accept(","):
            found.append(self.expression())
        return tuple(found)

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self.wrong(f"nested more than {NESTING_MAX} levels deep")
        node = self._level(0)
        if self.accept("?"):
            yes = self.expression()
            self.expect(":")
            node = Call("IIF", (node, yes, self.expression()))
        self._depth -= 1
        return node

    def _level(self, least: int) -> Node:
        """Read operands joined by the signs of this level and of closer ones."""
        node = self._not() if least <= _COMPARING else self._unary()
        length = 0
        while True:
            token = self.here
            sign = token.word or (token.value if token.kind == "sign" else "")
            level = _LEVEL.get(sign, -1)
            if level < least:
                return node
            length += 1
            if length > CHAIN_LENGTH_MAX and sign not in ("AND", "OR"):
                raise self.wrong(f"more than {CHAIN_LENGTH_MAX} operators in a row; use IN or ARRAY_CONTAINS")
            node = self._joined(node, sign, level)

    def _joined(self, left: Node, sign: str, level: int) -> Node:
        if sign in ("AND", "OR"):
            operands = [left]
            while self.accept(sign):
                operands.append(self._level(level + 1))
            return Logical(sign, tuple(operands))
        if level == _COMPARING:
            return self._comparison(left, sign)
        self._next += 1
        return Binary(sign, left, self._level(level + 1))

    def _comparison(self, left: Node, sign: str) -> Node:
        self._next += 1
        if sign == "NOT":
            word = self.here.word
            if word not in ("IN", "LIKE", "BETWEEN"):
                raise self.wrong("IN, LIKE or BETWEEN expected after NOT")
            return Unary("NOT", self._comparison(left, word))
        if sign == "IN":
            self.expect("(")
            choices = self.expressions()
            self.expect(")")
            return In(left, choices)
        right = self._level(_COMPARING + 1)
        if sign == "BETWEEN":
            self.expect("AND")
            high = self._level(_COMPARING + 1)
            return Logical("AND", (Binary(">=", left, right), Binary("<=", left, high)))
        if sign == "LIKE":
            escape = self.take().value if self.accept("ESCAPE") else ""
            if not isinstance(escape, str) or len(escape) > 1:
                raise self.wrong("ESCAPE takes one character")
            return Like(left, right, escape)
        return Binary("!=" if sign == "<>" else sign, left, right)

    def _not(self) -> Node:
        count = 0
        while self.accept("NOT"):
            count += 1
        node = self._unary()
        if not count:
            return node
        while (level := _LEVEL.get(self.here.word or str(self.here.value), -1)) >= _COMPARING:
            node = self._joined(node, self.here.word or str(self.here.value), level)
        return Unary("NOT", node if count % 2 else Unary("NOT", node))

    def _unary(self) -> Node:
        if self.here.kind == "sign" and self.here.value in ("-", "+", "~"):
            sign = str(self.take().value)
            self._depth += 1
            if self._depth > NESTING_MAX:
                raise self.wrong(f"nested more than {NESTING_MAX} levels deep")
            node = self._unary()
            self._depth -= 1
            return Unary(sign, node)
        return self.suffixes(self.primary())

    def suffixes(self, node: Node) -> Node:
        length = 0
        while True:
            if self.accept("."):
                token = self.take()
                if token.kind != "name":
                    raise self.wrong("a property's name expected after '.'")
                node = Member(node, Literal(token.value))
            elif self.accept("["):
                node = Member(node, self.expression())
                self.expect("]")
            else:
                return node
            length += 1
            if length > CHAIN_LENGTH_MAX:
                raise self.wrong(f"a path of more than {CHAIN_LENGTH_MAX} steps")

    def primary(self) -> Node:
        token = self.take()
        if token.kind in ("number", "text"):
            return Literal(token.value)
        if token.kind == "parameter":
            if token.value not in self._parameters:
                raise bad(f"the query names {token.value!r}, which is not among its parameters")
            return Literal(self._parameters[token.value])
        if token.kind == "name":
            return self._named(token)
        if token.value == "(":
            if self.stands("SELECT"):
                raise unsupported("a subquery")
            node = self.expression()
            self.expect(")")
            return node
        if token.value == "[":
            elements = () if self.stands("]") else self.expressions()
            self.expect("]")
            return ArrayOf(elements)
        if token.value == "{":
            return self._object()
        self._next -= token.kind != "end"
        raise self.wrong("a value expected")

    def _named(self, token: Token) -> Node:
        word = token.word
        if word in _LITERALS and not self.stands("("):
            return Literal(_LITERALS[word])
        if word in ("EXISTS", "ARRAY", "ALL", "FIRST", "LAST") and self.stands("("):
            raise unsupported(f"{word}(subquery)")
        if self.stands(".") and word == "UDF":
            raise unsupported("a user-defined function")
        if not self.accept("("):
            if word in RESERVED:
                self._next -= 1
                raise self.wrong("a value expected")
            return Name(str(token.value))
        arguments: tuple[Node, ...] = ()
        if self.accept("*"):
            arguments = (Literal(1),)  # COUNT(*)
        elif not self.stands(")"):
            arguments = self.expressions()
        self.expect(")")
        return Call(word, arguments)

    def _object(self) -> Node:
        members: list[tuple[str, Node]] = []
        while not self.stands("}"):
            token = self.take()
            if token.kind not in ("name", "text"):
                raise self.wrong("a member's name expected")
            self.expect(":")
            members.append((str(token.value), self.expression()))
            if not self.accept(","):
                break
        self.expect("}")
        return ObjectOf(tuple(members))

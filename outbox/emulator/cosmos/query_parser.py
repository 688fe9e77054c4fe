"""The grammar of queries: SELECT, FROM, JOIN, WHERE, GROUP BY, ORDER BY, OFFSET and LIMIT.

What the service has and this has not is refused by name.  Source: learn.microsoft.com/cosmos-db/query.
"""

from __future__ import annotations

from collections.abc import Mapping

from outbox.emulator.cosmos.answers import bad, unsupported
from outbox.emulator.cosmos.query_grammar import RESERVED, Grammar
from outbox.emulator.cosmos.query_nodes import Literal, Member, Name, Node, Order, Query, Source
from outbox.emulator.cosmos.values import Json

FIELD_COUNT_MAX = 1_000
ROW_NUMBER_MAX = 1 << 31


def parse_query(text: str, parameters: Mapping[str, Json]) -> Query:
    """A query's text with its parameters.

    Raises:
        Rejection: 400, naming the place or what is not supported.
    """
    try:
        return _Parser(text, parameters).query()
    except RecursionError as error:
        raise bad("the query is nested too deep") from error


def parse_condition(text: str) -> Query:
    """The condition of a patch: `from c where ...`.

    Raises:
        Rejection: 400.
    """
    return parse_query(f"SELECT * {text}", {})


class _Parser(Grammar):
    """The clauses of one query."""

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
        if self.here.kind == "name" and self.here.word not in RESERVED:
            return self.identifier()
        match node:
            case Member(key=Literal(value=str() as name)) | Name(alias=name):
                return name
        return f"${number}"

    def _from(self) -> tuple[str, tuple[Source, ...]]:
        name = self.identifier()
        if self.accept("IN"):
            root, path = self.path()
            sources = [Source(name, path, True)]
        else:
            path = self.suffixes(Name(name))
            alias = self.identifier() if self.accept("AS") or self.is_name() else name
            if isinstance(path, Member) and alias == name and isinstance(path.key, Literal):
                alias = str(path.key.value)
            root, sources = name, [Source(alias, None if isinstance(path, Name) else path, False)]
        while self.accept("JOIN"):
            alias = self.identifier()
            self.expect("IN")
            if self.stands("("):
                raise unsupported("a subquery in JOIN")
            sources.append(Source(alias, self.path()[1], True))
        return root, tuple(sources)

    def is_name(self) -> bool:
        return self.here.kind == "name" and self.here.word not in RESERVED

    def path(self) -> tuple[str, Node]:
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

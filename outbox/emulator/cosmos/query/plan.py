"""A query compiled: which rows an item gives, what becomes of each, and how they are ordered or gathered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeGuard

from outbox.emulator.cosmos.patch import Condition
from outbox.emulator.cosmos.query.budget import ROW_STEP_COUNT_MAX, Budget
from outbox.emulator.cosmos.query.expressions import Compiler, Evaluate, Row
from outbox.emulator.cosmos.query.functions import finite, is_number
from outbox.emulator.cosmos.query.nodes import AGGREGATES, Binary, Call, In, Literal, Logical, Member, Name, Node, Query
from outbox.emulator.cosmos.query.parser import parse_query
from outbox.emulator.cosmos.query.values import SortKey, identity, rank_of, sort_key
from outbox.emulator.cosmos.wire import UNDEFINED, Json, bad

ROWS_OF_ITEM_MAX = 10_000
GROUP_COUNT_MAX = 100_000
GROUPS_SIZE_MAX_BYTES = 64 << 20
AGGREGATE_COUNT_MAX = 100
CONDITION_STEP_COUNT_MAX = ROW_STEP_COUNT_MAX
"""Of all patches of a request: they are evaluated in one go."""


class QueryPlan:
    """The compiled query, as it runs over items."""

    def __init__(self, query: Query, now_ms: int, budget: Budget | None = None) -> None:
        """Compile a query, for one request: all that it evaluates counts in one budget.

        Raises:
            Rejection: 400, naming what cannot be.
        """
        aliases = [source.alias for source in query.sources]
        if len(set(aliases)) < len(aliases):
            raise bad("FROM and JOIN name one alias twice; give each its own")
        self.query = query
        self.budget = budget or Budget()
        self.row_step_count = 1 + _count_nodes((query.where, query.fields, query.group, query.order))
        self._aggregates: list[Call] = []
        fields_of = query.fields or ()
        gathered = [(name, self._without_aggregates(node)) for name, node in fields_of]
        self.is_gathered = bool(self._aggregates or query.group)
        if query.group and query.order:
            raise bad("ORDER BY does not go with GROUP BY; order the answer in the client")
        constants = _constants(now_ms)
        names = frozenset(aliases)
        compiler = Compiler(names, constants, self.budget)
        slots = Compiler(names | {_slot(index) for index in range(len(self._aggregates))}, constants, self.budget)
        self._fields = [(name, slots.compile(node)) for name, node in gathered]
        self._arguments = [(call.name, compiler.compile(_argument(call))) for call in self._aggregates]
        self._group = [compiler.compile(node) for node in query.group]
        self._where = None if query.where is None else compiler.compile(query.where)
        self._order = [compiler.compile(order.key) for order in query.order]
        self.descending = tuple(order.descending for order in query.order)
        self._sources = self._compiled_sources(constants)
        self.is_plain = query.fields is None and all(value is None for _, value, _ in self._sources)
        """Whether a row's result is the item as it stands."""
        self.is_one_aggregate = query.is_value and not query.group and _is_aggregate(fields_of[0][1])
        """Whether the one result is that of an aggregate."""
        self.copy_count = sum(map(_count_names, (node for _, node in fields_of)))
        """How many copies of an item, or of parts of it, a result may hold."""
        self.ids = _ids_of(query)
        """The only ids that matching items can have; None where that is not plain to see."""

    def _compiled_sources(self, constants: dict[str, Evaluate]) -> list[tuple[str, Evaluate | None, bool]]:
        known = frozenset((self.query.root,))
        found = []
        for source in self.query.sources:
            value = None if source.value is None else Compiler(known, constants, self.budget).compile(source.value)
            found.append((source.alias, value, source.each))
            known |= {source.alias}
        return found

    def names_one_key(self, paths: tuple[tuple[str, ...], ...]) -> bool:
        """Whether the condition plainly says that each of some paths equals one value, as for one partition key."""
        query, operands, named = self.query, _operands(self.query), list[Node]()
        for operand in operands:
            match operand:
                case Binary(sign="=", left=left, right=Literal()):
                    named.append(left)
                case Binary(sign="=", left=Literal(), right=right):
                    named.append(right)
        return bool(operands) and all(_member(query, path) in named for path in paths)

    # Rows

    def rows(self, item: Json) -> Iterator[Row | None]:
        """The rows of one item that the condition holds for; None whenever others should get their turn.

        Raises:
            Rejection: 400, they are too many, or take too many steps.
        """
        budget, where, count = self.budget, self._where, 0
        is_alone = len(self._sources) == 1 and self._sources[0][1] is None  # as mostly: each item is its own row
        found = iter(({self._sources[0][0]: item},)) if is_alone else self._joined({self.query.root: item}, 0)
        for row in found:
            if row is not None:
                count += 1
                if count > ROWS_OF_ITEM_MAX:
                    raise bad(f"an item gives more than {ROWS_OF_ITEM_MAX} rows; join less")
                budget.begin_row(self.row_step_count)
                if where is None or where(row) is True:
                    yield row
            if budget.is_turn_due:
                yield None

    def _joined(self, row: Row, at: int) -> Iterator[Row | None]:
        """The rows that extend a row of the sources before; vain ones take steps as well."""
        if at == len(self._sources):
            yield row
            return
        alias, value, each = self._sources[at]
        self.budget.begin_row(1 + len(row))
        if self.budget.is_turn_due:
            yield None
        found = row[self.query.root] if value is None else value(row)
        if each:
            for element in found if isinstance(found, list) else ():
                yield from self._joined({**row, alias: element}, at + 1)
        elif found is not UNDEFINED:
            yield from self._joined({**row, alias: found}, at + 1)

    def result(self, row: Row) -> Json:
        """The selected value of a row; undefined results are left out by the caller."""
        if self.query.fields is None:
            return row[self.query.sources[0].alias]
        if self.query.is_value:
            return self._fields[0][1](row)
        return {name: value for name, field in self._fields if (value := field(row)) is not UNDEFINED}

    def sort_keys(self, row: Row) -> tuple[SortKey, ...]:
        """The sort keys of a row."""
        values = [key(row) for key in self._order]
        for value in values:
            self.budget.weigh(value)
        return tuple(sort_key(value) for value in values)

    # Aggregates

    def group_of(self, row: Row) -> bytes:
        """The group of a row."""
        values = [part(row) for part in self._group]
        for value in values:
            self.budget.weigh(value)
        return b"\x00".join(identity(value) for value in values)

    def tallies(self) -> list[Tally]:
        """Fresh tallies, one for each aggregate."""
        return [Tally(name, argument) for name, argument in self._arguments]

    def _without_aggregates(self, node: Node) -> Node:
        """The expression with each aggregate in it replaced by a name for its result."""
        if _is_aggregate(node):
            if node in self._aggregates:
                return Name(_slot(self._aggregates.index(node)))
            if len(self._aggregates) >= AGGREGATE_COUNT_MAX:
                raise bad(f"more than {AGGREGATE_COUNT_MAX} aggregates")
            self._aggregates.append(node)
            return Name(_slot(len(self._aggregates) - 1))
        if isinstance(node, Member):
            return node
        changes = {field.name: self._changed(getattr(node, field.name)) for field in fields(node)}
        return replace(node, **changes)

    def _changed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._changed(one) for one in value)
        return self._without_aggregates(value) if isinstance(value, Node) else value


class Tally:
    """One aggregate over the rows seen so far."""

    def __init__(self, name: str, argument: Evaluate) -> None:
        self._name = name
        self._argument = argument
        self._count = 0
        self._sum: Any = 0
        self._is_numeric = True
        self._best: Json = UNDEFINED

    def add(self, row: Row) -> None:
        """Take in a row; undefined does not count."""
        value = self._argument(row)
        if value is UNDEFINED:
            return
        self._count += 1
        if self._name in ("SUM", "AVG"):
            self._is_numeric = self._is_numeric and is_number(value)
            try:
                self._sum += value if self._is_numeric else 0
            except OverflowError:  # a whole number that no double holds, and a fraction
                self._is_numeric = False
        elif self._name in ("MIN", "MAX") and rank_of(value) < 5 and self._is_better(value):
            self._best = value

    def _is_better(self, value: Json) -> bool:
        return self._best is UNDEFINED or (sort_key(value) < sort_key(self._best)) == (self._name == "MIN")

    def value(self) -> Json:
        """The aggregate's value."""
        match self._name:
            case "COUNT":
                return self._count
            case "SUM":
                return finite(self._sum) if self._is_numeric else UNDEFINED
            case "AVG":
                try:
                    return finite(self._sum / self._count) if self._is_numeric and self._count else UNDEFINED
                except OverflowError:
                    return UNDEFINED
        return self._best


class Gathering:
    """The groups of a query with aggregates or GROUP BY."""

    def __init__(self, plan: QueryPlan) -> None:
        self._plan = plan
        self._groups: dict[bytes, tuple[Row, list[Tally]]] = {}
        self._size_bytes = 0
        if not plan.query.group:
            nothing: Row = {source.alias: UNDEFINED for source in plan.query.sources}  # a row of no item
            self._groups[b""] = (nothing, plan.tallies())

    def add(self, row: Row, size_bytes: int) -> None:
        """Take in a row of an item of that size; the first of each group is kept."""
        name = self._plan.group_of(row)
        group = self._groups.get(name)
        if group is None:
            self._size_bytes += size_bytes
            if len(self._groups) >= GROUP_COUNT_MAX or self._size_bytes > GROUPS_SIZE_MAX_BYTES:
                raise bad(f"more than {GROUP_COUNT_MAX} groups, or too much in them; narrow the query")
            group = self._groups[name] = (row, self._plan.tallies())
        for tally in group[1]:
            tally.add(row)

    def results(self) -> Iterator[Json]:
        """The selected value of each group; undefined where it is not."""
        for row, tallies in self._groups.values():
            self._plan.budget.begin_row(self._plan.row_step_count)  # it is evaluated once more
            yield self._plan.result({**row, **{_slot(index): tally.value() for index, tally in enumerate(tallies)}})


def compile_query(text: str, parameters: Mapping[str, Json], now_ms: int) -> QueryPlan:
    """Compile a query's text with its parameters.

    Raises:
        Rejection: 400, naming the place, what is not supported or what cannot be.
    """
    try:
        return QueryPlan(parse_query(text, parameters), now_ms)
    except RecursionError as error:
        raise bad("the query is nested too deep") from error


def compile_condition(text: str, budget: Budget) -> Condition:
    """The condition of a patch, `from c where ...`, as a function of an item.

    Raises:
        Rejection: 400, it is none.
    """
    try:
        query = parse_query(f"SELECT * {text}", {})
        if query.where is None or query.order or query.group or query.limit is not None or len(query.sources) != 1:
            raise bad("the condition of a patch must look like: from c where c.state = 'open'")
        plan = QueryPlan(query, 0, budget)
    except RecursionError as error:
        raise bad("the condition of the patch is nested too deep") from error
    return lambda item: any(row is not None for row in plan.rows(item))


def _operands(query: Query) -> tuple[Node, ...]:
    """The conditions that an item must all meet, where a query is over whole items."""
    if len(query.sources) != 1 or query.sources[0].value is not None or query.where is None:
        return ()
    where = query.where
    return where.operands if isinstance(where, Logical) and where.sign == "AND" else (where,)


def _member(query: Query, path: tuple[str, ...]) -> Node:
    """The expression for a path in an item."""
    found: Node = Name(query.sources[0].alias)
    for name in path:
        found = Member(found, Literal(name))
    return found


def _ids_of(query: Query) -> tuple[str, ...] | None:
    """The ids that a condition such as `c.id = 'a' AND ...` leaves over."""
    operands = _operands(query)
    id_of_item = _member(query, ("id",)) if operands else None
    for operand in operands:
        match operand:
            case (
                Binary(sign="=", left=left, right=Literal(value=str() as id))
                | Binary(sign="=", left=Literal(value=str() as id), right=left)
            ) if left == id_of_item:
                return (id,)
            case In(operand=left, choices=choices) if left == id_of_item:
                ids = [choice.value for choice in choices if isinstance(choice, Literal)]
                if len(ids) == len(choices) and all(isinstance(id, str) for id in ids):
                    return tuple(dict.fromkeys(ids))
    return None


def _count_names(node: Any) -> int:
    """How often an expression names something of a row."""
    if isinstance(node, tuple):
        return sum(map(_count_names, node))
    if isinstance(node, Name):
        return 1
    return sum(_count_names(getattr(node, field.name)) for field in fields(node)) if isinstance(node, Node) else 0


def _count_nodes(node: Any) -> int:
    """How many expressions an expression, or several, are made of."""
    if isinstance(node, tuple):
        return sum(map(_count_nodes, node))
    if isinstance(node, Literal):
        return 1
    inner = (getattr(node, field.name) for field in fields(node)) if is_dataclass(node) else ()
    return int(isinstance(node, Node)) + sum(map(_count_nodes, inner))


def _is_aggregate(node: Node) -> TypeGuard[Call]:
    return isinstance(node, Call) and node.name in AGGREGATES


def _argument(call: Call) -> Node:
    if len(call.arguments) != 1:
        raise bad(f"{call.name} takes one argument")
    return call.arguments[0]


def _slot(index: int) -> str:
    return f"#{index}"


def _constants(now_ms: int) -> dict[str, Evaluate]:
    moment = datetime.fromtimestamp(now_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0Z")
    return {
        "GETCURRENTTIMESTAMP": lambda row: now_ms,
        "GETCURRENTDATETIME": lambda row: moment,
        "PI": lambda row: 3.141592653589793,
    }

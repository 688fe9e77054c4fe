"""A query as parsed: what it selects, from where, under which condition and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.emulator.cosmos.wire import Json

AGGREGATES = frozenset(("COUNT", "SUM", "MIN", "MAX", "AVG"))


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; parameters are constants too."""

    value: Json


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to the value that a name in FROM stands for."""

    alias: str


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object or an element of an array."""

    target: Node
    key: Node


@dataclass(frozen=True, slots=True)
class Unary:
    """`NOT`, `-`, `+` or `~` of something."""

    sign: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands and a sign."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Logical:
    """`AND` or `OR` over two or more operands."""

    sign: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class In:
    """Whether an operand equals one of several."""

    operand: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """Whether text fits a pattern with `%`, `_` and `[...]` not supported."""

    operand: Node
    pattern: Node
    escape: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function, its name in upper case; `test ? yes : no` is `IIF`."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array that is made."""

    elements: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object that is made."""

    members: tuple[tuple[str, Node], ...]


Node = Literal | Name | Member | Unary | Binary | Logical | In | Like | Call | ArrayOf | ObjectOf


@dataclass(frozen=True, slots=True)
class Source:
    """One item of FROM: an alias for an expression's value, or (`each`) for each element of it in turn.

    The first source's expression stands on the name that is the container's item; None is the item itself.
    """

    alias: str
    value: Node | None
    each: bool


@dataclass(frozen=True, slots=True)
class Order:
    """One key of ORDER BY."""

    key: Node
    descending: bool


@dataclass(frozen=True, slots=True)
class Query:
    """A whole query.  `fields` None is `*`; `is_value` says that its one field is the result itself."""

    root: str
    sources: tuple[Source, ...]
    fields: tuple[tuple[str, Node], ...] | None
    is_value: bool = False
    distinct: bool = False
    top: int | None = None
    where: Node | None = None
    group: tuple[Node, ...] = ()
    order: tuple[Order, ...] = ()
    offset: int = 0
    limit: int | None = None

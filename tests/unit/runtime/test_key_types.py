"""What a key may be taken from: a field that cannot be a key is refused when its handler is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import msgspec
import pydantic
import pytest

from outbox import App
from outbox.errors import NotRegistrable
from tests.unit.messages import Count

AccountId = NewType("AccountId", str)


class Color(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "s"


class Rank(IntEnum):
    FIRST = 1


@dataclass
class Part:
    name: str


@dataclass
class Row:
    """A field of each type, called by it."""

    text: str
    number: int
    uuid: UUID
    name: AccountId
    size: Size
    rank: Rank
    long: Annotated[str, msgspec.Meta(min_length=1)]
    kind: Literal["a", "b"]
    may_lack: str | None
    either: int | str
    anything: Any
    ratio: float
    is_paid: bool
    data: bytes
    many: list[str]
    table: dict[str, str]
    pair: tuple[str, str]
    part: Part
    color: Color
    price: Decimal
    when: datetime
    may_lack_ratio: float | None
    flag: Literal[True]

    @property
    def upper(self) -> str:
        return self.text.upper()

    @property
    def half(self) -> float:
        return self.ratio / 2

    @cached_property
    def parts(self) -> list[str]:
        return self.text.split()

    def method(self) -> str:
        return self.text


class Struct(msgspec.Struct):
    text: str
    ratio: float


class Code:
    """A type of whose values pydantic makes texts."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        return handler(str)


class Model(pydantic.BaseModel):
    text: Annotated[str, pydantic.StringConstraints(min_length=1)]
    mail: pydantic.UUID4
    own: Code
    ratio: float
    many: list[str]
    part: Part


KEYS = ["text", "number", "uuid", "name", "size", "rank", "long", "kind", "may_lack", "either", "anything", "upper"]
NO_KEYS = [
    *("ratio", "is_paid", "data", "many", "table", "pair", "part", "color", "price", "when", "may_lack_ratio", "flag"),
    *("half", "parts", "method"),
]


def register(kind: type[Any], key: str | Callable[[Any], Any]) -> None:
    def handle(message: Any, count: Count) -> None: ...

    handle.__annotations__ = {"message": kind, "count": Count, "return": None}
    App("a").handler("q", key=key)(handle)


def given(row: Row) -> str:
    return row.text


def ratio(row: Row) -> float:
    return row.ratio


@pytest.mark.parametrize("key", KEYS)
def test_a_field_that_may_be_a_key_is_taken(key: str) -> None:
    register(Row, key)


@pytest.mark.parametrize("key", NO_KEYS)
def test_a_field_that_cannot_be_a_key_is_refused_with_the_cure(key: str) -> None:
    with pytest.raises(NotRegistrable, match=rf"handle: Row\.{key} is .* cannot be a key.*function of the message"):
        register(Row, key)


@pytest.mark.parametrize(
    ("kind", "key", "fits"),
    [
        (Struct, "text", True), (Struct, "ratio", False),
        (Model, "text", True), (Model, "mail", True), (Model, "own", True),
        (Model, "ratio", False), (Model, "many", False), (Model, "part", False),
        (Row, given, True), (Row, ratio, False), (Row, lambda row: row.ratio, True),
    ],
)  # fmt: skip
def test_structs_models_and_functions_are_judged_alike(kind: type[Any], key: Any, fits: bool) -> None:
    if fits:
        register(kind, key)
        return
    with pytest.raises(NotRegistrable, match="cannot be a key"):
        register(kind, key)


def test_the_key_of_an_http_entry_is_judged_too() -> None:
    with pytest.raises(NotRegistrable, match=r"Struct\.ratio is of type float and cannot be a key"):

        @App("a").http("POST", "/rows", key="ratio")
        def handle(row: Struct, count: Count) -> None: ...

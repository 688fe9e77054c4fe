"""Pydantic models whose fields are not read under the names that they are written under are refused."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from outbox import App
from outbox.codec import codec_for
from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable
from tests.unit.streams.making import made


class Apart(BaseModel):
    n: int = Field(default=0, validation_alias="inn", serialization_alias="out")


class ReadApart(BaseModel):
    n: int = Field(default=0, validation_alias="inn")


class WrittenApart(BaseModel):
    n: int = Field(default=0, serialization_alias="out")


class AliasApart(BaseModel):
    n: int = Field(default=0, alias="out", validation_alias="inn")


class ByPath(BaseModel):
    n: int = Field(default=0, validation_alias=AliasPath("n", 0))


class Generated(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(serialization_alias=str.upper))
    n: int = 0


class NameOnlyOfOther(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    n: int = Field(default=0, validation_alias="inn", serialization_alias="out")


class Holds(BaseModel):
    parts: dict[str, list[Apart | None]] = {}
    next: Holds | None = None


class Within(BaseModel):
    held: Holds | None = None


REFUSED = {
    Apart: "Apart.n is written as 'out' and read as 'inn'",
    ReadApart: "ReadApart.n is written as 'n' and read as 'inn'",
    WrittenApart: "WrittenApart.n is written as 'out' and read as 'n'",
    AliasApart: "AliasApart.n is written as 'out' and read as 'inn'",
    ByPath: "ByPath.n is written as 'n' and read as a path",
    Generated: "Generated.n is written as 'N' and read as 'n'",
    NameOnlyOfOther: "NameOnlyOfOther.n is written as 'out' and read as 'inn' or 'n'",
    Within: "Apart.n is written as 'out'",
}


@pytest.mark.parametrize("model", REFUSED)
def test_a_field_that_would_be_read_back_as_its_default_is_refused_with_the_cure(model: type[BaseModel]) -> None:
    with pytest.raises(NotRegistrable, match=rf"{REFUSED[model]}.*give it one alias=, or add"):
        codec_for(model, "model")


def test_states_messages_and_entries_are_refused_alike() -> None:
    app = App("a")

    def of_state(message: Same, state: Apart) -> None: ...
    def of_message(message: Apart) -> None: ...

    for handler in (of_state, of_message):
        with pytest.raises(NotRegistrable, match=r"Apart\.n"):
            app.handler("q", key="n")(handler)
    with pytest.raises(NotRegistrable, match=r"Apart\.n"):
        made("in", Engine.in_memory(), Apart)


class Same(BaseModel):
    n: int = Field(default=0, alias="number")
    other: int = 0

    @pydantic.computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated property
    @property
    def double(self) -> int:
        return 2 * self.n


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    the_n: int = 0


class Either(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(alias=to_camel), populate_by_name=True)
    the_n: int = 0


class Chosen(BaseModel):
    n: int = Field(default=0, validation_alias=AliasChoices("old", AliasPath("deep", 0), AliasPath("n")))
    m: int = Field(default=0, validation_alias=AliasChoices("old_m", "new_m"), serialization_alias="new_m")


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    n: int = Field(default=0, validation_alias="inn")


class Renamed(BaseModel):
    n: int = Field(default=0, validation_alias="inn", serialization_alias="out")

    @pydantic.model_validator(mode="before")
    @classmethod
    def renamed(cls, given: Any) -> Any:
        return {"inn": given["out"]} if isinstance(given, dict) and "out" in given else given


class Hidden(BaseModel):
    n: int = Field(default=0, validation_alias="inn", exclude=True)


class Ring(BaseModel):
    n: int = 0
    rest: list[Ring] = []


class Numbers(pydantic.RootModel[list[int]]):
    root: list[int] = []


@pytest.mark.parametrize(
    "value",
    [
        Same(number=5),
        Camel.model_validate({"theN": 5}),
        Either(the_n=5),
        Chosen.model_validate({"old": 5, "old_m": 6}),
        ByName.model_validate({"inn": 5}),
        Renamed.model_validate({"inn": 5}),
        Hidden(),
        Ring(n=5, rest=[Ring(n=6)]),
        Numbers([5]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_that_are_read_back_are_taken(value: BaseModel) -> None:
    codec = codec_for(type(value), "model")
    assert codec.decode(codec.encode(value)) == value

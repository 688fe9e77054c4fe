"""What JSON cannot hold is refused when it is encoded, with its place; all else is encoded as it is."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from outbox.encoding import encoded
from outbox.errors import PoisonMessage


@dataclass
class Reading:
    place: str = "kiel"
    degrees: float | None = None
    more: Any = None
    by_name: dict[str, list[float]] = field(default_factory=dict)


class Packed(msgspec.Struct):
    first: Reading
    rest: tuple[float, ...] = ()


class Model(pydantic.BaseModel):
    place: str = "kiel"
    degrees: float | None = pydantic.Field(None, alias="deg")
    more: Any = None


class Outer(pydantic.BaseModel):
    model: Model


class AsTexts(pydantic.BaseModel):
    """Its infinite numbers are texts, which are read back as they were; those of its model are null."""

    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")
    degrees: float | None = None
    more: float | None = None
    model: Model | None = None


class AsConstants(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    degrees: float | None = None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            Reading(degrees=math.nan),
            r"Reading holds nan, which JSON cannot; keep numbers finite .* \(at `\$.degrees`\)",
        ),
        (Reading(degrees=-math.inf, more=1 << 70), r"-inf.*`\$.degrees`"),  # an integer that msgpack cannot hold
        (Reading(more={"a": [1.0, (2.0, math.nan)]}), r"nan.*`\$.more.a\[1\]\[1\]`"),
        (Reading(more=Reading(degrees=math.inf)), r"inf.*`\$.more.degrees`"),
        (Reading(by_name={"a": [math.inf]}), r"inf.*`\$.by_name.a\[0\]`"),
        (Packed(Reading(), (0.0, math.nan)), r"Packed holds nan.*`\$.rest\[1\]`"),
        (Packed(Reading(more={math.nan})), r"nan.*`\$.first.more\[0\]`"),
        (Reading(degrees=math.nan, more=math.inf), r"nan.*`\$.degrees`"),  # the first of them
        (Packed(Reading(), (math.nan, math.inf)), r"nan.*`\$.rest\[0\]`"),
        (Model(deg=None, more={math.nan}), r"nan.*`\$.more\[0\]`"),
        (Model(deg=None, more=frozenset([math.nan])), r"nan.*`\$.more\[0\]`"),
        (Model(deg=math.nan), r"Model holds nan.*`\$.deg`"),
        (Model(deg=None, more=[{"a": math.inf}]), r"inf.*`\$.more\[0\].a`"),
        (Outer(model=Model(deg=math.inf)), r"inf.*`\$.model.deg`"),
        (AsConstants(degrees=math.nan), r"nan.*`\$.degrees`"),
        (AsTexts(model=Model(deg=math.nan)), r"nan.*`\$.model.deg`"),
        ([1, math.nan], r"list holds nan.*`\$\[1\]`"),
        (math.inf, r"float holds inf.*`\$`"),
        (Reading("lone \ud800"), r"Reading holds half of a surrogate pair.*texts Unicode.*`\$.place`"),
        (Reading(more={"\udfff": 1}), r"surrogate pair.*`\$.more, a key`"),
        (Reading(more={"\udfff": math.nan}), r"surrogate pair|nan.*`\$.more.\\\\udfff`"),
        (Reading("\ud800", more=object()), r"surrogate pair.*`\$.place`"),
        (Model.model_construct(place="\ud800"), r"surrogate pair.*`\$.place`"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any, text: str) -> None:
    with pytest.raises(PoisonMessage, match=text) as refused:
        encoded(value)
    assert refused.value.reason == "unstorable" and refused.value.description.isascii()


@pytest.mark.parametrize(
    "value",
    [
        Reading("null, NaN and Infinity", None, [None, 1.5, -0.0, 1e308, True, "nan"]),
        Reading(more=(1 << 70, None)),  # msgpack has no such integer
        Reading("\xcb\x7f\xf0", None, [b"\xcb\x7f\xf0", b"\xcb\xff\xf8", None]),  # as msgpack writes an infinity
        Reading(more=[msgspec.Raw(b'{"a":null}'), 1 << 70, None]),
        Packed(Reading(), (1.0,)),
        Model(place="NaN", deg=None, more=[None, "Infinity", 1 << 70]),
        {"a": None, "b": [None, 2.5]},
    ],
)
def test_what_is_none_or_says_nan_is_encoded_as_it_is(value: Any) -> None:
    plain = value.model_dump(by_alias=True) if isinstance(value, pydantic.BaseModel) else value
    expected = msgspec.to_builtins(plain, enc_hook=msgspec.json.decode)
    assert msgspec.json.decode(encoded(value)) == json.loads(json.dumps(expected))


def test_a_model_may_write_infinite_numbers_as_texts() -> None:
    for value in (AsTexts(degrees=math.inf), AsTexts(degrees=-math.inf, more=1.5, model=Model(deg=2.0))):
        assert AsTexts.model_validate_json(encoded(value)) == value


def test_a_decimal_that_is_no_number_is_a_text() -> None:
    assert encoded([Decimal("NaN"), None]) == b'["NaN",null]'


@pytest.mark.parametrize("value", [object(), Reading(more=object())])
def test_what_is_no_data_is_an_error_of_its_own(value: Any) -> None:
    with pytest.raises(TypeError, match="unsupported"):
        encoded(value)

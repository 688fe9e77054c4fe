"""A state id leads back to its type and key, for every key that it still holds."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.lineage import Key, as_key, parse_state_id, state_id


class Letter(StrEnum):
    A = "a"


class Number(IntEnum):
    ONE = 1


class Id(UUID):
    pass


KEYS = st.text(max_size=40) | st.integers() | st.uuids() | st.text("~.:iuh0-é%", max_size=12)
TYPES = st.text("abcdefgXYZ.:_0123456789", min_size=1, max_size=12)


@given(TYPES, KEYS)
def test_a_state_id_parses_back_to_its_type_and_key(state_type: str, key: Key) -> None:
    id = state_id(state_type, key)
    found = parse_state_id(id)
    if ":h." in id:
        assert found is None
    else:
        assert found == (state_type, key) and type(found[1]) is type(key)


@given(st.text() | st.from_regex(r"[a-z]*:([iuh]\.)?[~0-9a-f-]*", fullmatch=True))
def test_what_parses_is_what_state_id_makes(id: str) -> None:
    found = parse_state_id(id)
    assert found is None or state_id(*found) == id


@pytest.mark.parametrize("key", ["k" * 201, "é" * 40, int("9" * 201)])
def test_a_hashed_key_is_not_guessed(key: Key) -> None:
    assert parse_state_id(state_id("Account", key)) is None


def test_a_text_of_up_to_200_characters_is_stored_as_it_is() -> None:
    assert state_id("A", "k" * 200) == "A:" + "k" * 200
    assert state_id("A", "k" * 201).startswith("A:h.")


@pytest.mark.parametrize("id", ["A:a.b", "A:x.5", "A", "A:i.05", "A:~zz"])
def test_an_id_that_is_never_made_is_none(id: str) -> None:
    assert parse_state_id(id) is None


@pytest.mark.parametrize(("key", "plain"), [(Letter.A, "a"), (Number.ONE, 1), (Id(int=7), UUID(int=7))])
def test_a_key_of_a_class_of_its_own_is_stored_as_what_it_holds(key: object, plain: Key) -> None:
    found = as_key(key)
    assert found == plain and type(found) is type(plain)
    assert state_id("A", found) == state_id("A", plain)


def test_keys_of_one_text_and_different_kinds_stay_apart() -> None:
    number, text = parse_state_id(state_id("A", 5)), parse_state_id(state_id("A", "i.5"))
    assert (number, text) == (("A", 5), ("A", "i.5"))
    assert parse_state_id(state_id("A", UUID(int=7))) == ("A", UUID(int=7))

"""The type codec: vectors of the specification, round trips, and limits on hostile bytes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.emulator.amqp import types
from outbox.emulator.amqp.types import (
    CHOSEN_HASH_COUNT_MAX,
    COUNT_MAX,
    DEPTH_MAX,
    FREE_COUNT_MAX,
    DecodeError,
    Described,
    decode,
    decode_fields,
    field_spans,
)

VECTORS: list[tuple[str, Any]] = [
    ("40", None), ("41", True), ("42", False), ("5601", True), ("5600", False), ("43", 0), ("44", 0), ("45", []),
    ("50ff", 255), ("51ff", -1), ("52fe", 254), ("53fe", 254), ("54ff", -1), ("5580", -128), ("60ffff", 65_535),
    ("61ffff", -1), ("70ffffffff", 2**32 - 1), ("71ffffffff", -1), ("80" + "ff" * 8, 2**64 - 1), ("81" + "ff" * 8, -1),
    ("723fc00000", 1.5), ("823ff8000000000000", 1.5), ("7300000041", "A"), ("830000018bcfe56800", 1_700_000_000_000),
    ("98" + "00" * 15 + "01", UUID(int=1)), ("a003010203", b"\x01\x02\x03"), ("b000000001ff", b"\xff"),
    ("a103c3a978", "éx"), ("b10000000161", "a"), ("a30161", "a"), ("b30000000161", "a"), ("c003024142", [True, False]),
    ("d000000006000000024142", [True, False]), ("c1050252015202", {1: 2}),
    ("d10000000800000002" + "52015202", {1: 2}), ("e00402500102", [1, 2]), ("f00000000700000002500102", [1, 2]),
    ("730000e000", "\ue000"), ("00532445", Described(0x24, [])), ("7400000001", b"\0\0\0\1"),
    ("94" + "00" * 16, bytes(16)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VECTORS)
def test_a_value_reads_as_the_specification_says(text: str, value: object) -> None:
    data = bytes.fromhex(text)
    assert decode(data) == (value, len(data))


@pytest.mark.parametrize(("text", "value"), VECTORS)
def test_a_value_cut_anywhere_is_refused(text: str, value: object) -> None:
    data = bytes.fromhex(text)
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:size])


scalars = st.one_of(
    st.none().map(lambda v: (v, types.NULL)),
    st.booleans().map(lambda v: (v, types.boolean(v))),
    st.integers(0, 2**32 - 1).map(lambda v: (v, types.uint(v))),
    st.integers(0, 2**64 - 1).map(lambda v: (v, types.ulong(v))),
    st.integers(0, 2**16 - 1).map(lambda v: (v, types.ushort(v))),
    st.integers(-(2**31), 2**31 - 1).map(lambda v: (v, types.int_(v))),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: (v, types.long_(v))),
    st.integers(-(2**62), 2**62).map(lambda v: (v, types.timestamp(v))),
    st.floats(allow_nan=False).map(lambda v: (v, types.double(v))),
    st.binary(max_size=300).map(lambda v: (v, types.binary(v))),
    st.text(max_size=300).map(lambda v: (v, types.string(v))),
    st.text(alphabet="abc-:$", max_size=300).map(lambda v: (v, types.symbol(v))),
    st.uuids().map(lambda v: (v, types.uuid_(v))),
)
keyed = st.text(max_size=20).map(lambda v: (v, types.string(v)))


def _as_list(items: list[tuple[Any, bytes]]) -> tuple[Any, bytes]:
    return [value for value, _ in items], types.list_([data for _, data in items])


def _as_map(items: list[tuple[tuple[Any, bytes], tuple[Any, bytes]]]) -> tuple[Any, bytes]:
    unique = {key[0]: (key[1], value) for key, value in items}
    flat = [part for key, (data, value) in unique.items() for part in (data, value[1])]
    return {key: value[0] for key, (_, value) in unique.items()}, types.map_(flat)


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6).map(_as_list),
        st.lists(st.tuples(keyed, inner), max_size=4).map(_as_map),
        inner.map(lambda item: (Described(0x77, item[0]), types.described(0x77, item[1]))),
    ),
    max_leaves=20,
)


@given(values)
@settings(max_examples=200, deadline=None)
def test_what_is_encoded_reads_back(pair: tuple[Any, bytes]) -> None:
    value, data = pair
    assert decode(data) == (value, len(data))


@given(st.lists(scalars, max_size=20))
@settings(max_examples=50, deadline=None)
def test_the_spans_of_a_list_are_its_items(items: list[tuple[Any, bytes]]) -> None:
    data = types.list_([encoded for _, encoded in items])
    assert field_spans(data, 0) == [encoded for _, encoded in items]
    assert decode_fields(data, 0, len(data)) == ([value for value, _ in items], len(data))


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        _, end = decode(data)
    except DecodeError:
        return
    assert 0 < end <= len(data)


def test_nesting_has_a_limit() -> None:
    data = types.NULL
    for _ in range(DEPTH_MAX):
        data = types.list_([data])
    assert decode(data)[1] == len(data)
    with pytest.raises(DecodeError, match="deeper"):
        decode(types.list_([data]))


def array_of(count: int, body: bytes) -> bytes:
    return b"\xf0" + (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + body


@pytest.mark.parametrize("constructor", range(0x40, 0x50))
def test_an_array_of_nothing_cannot_ask_for_much_memory(constructor: int) -> None:
    for count in (FREE_COUNT_MAX + 1, COUNT_MAX, COUNT_MAX + 1, 2**32 - 1):
        with pytest.raises(DecodeError, match=r"without bytes|does not fit"):
            decode(array_of(count, bytes((constructor,))))
    assert decode(array_of(FREE_COUNT_MAX, b"\x41")) == ([True] * FREE_COUNT_MAX, 10)


def test_the_elements_of_all_compounds_of_a_value_count_together() -> None:
    inner = types.list_([types.NULL] * 1_000)
    fits = types.list_([inner] * 65)
    assert decode(fits)[1] == decode_fields(fits, 0, len(fits))[1] == len(fits)
    for wrapped in (types.list_([inner] * 66), types.map_([types.uint(1), types.list_([inner] * 66)])):
        with pytest.raises(DecodeError, match="more than 65536 elements"):
            decode(wrapped)
    with pytest.raises(DecodeError, match="more than 65536 elements"):
        decode_fields(types.list_([inner] * 66), 0, 1 << 20)


@given(st.lists(st.integers(0, 255), max_size=12), st.integers(0, 60_000), st.integers(1, 200))
@settings(max_examples=500, deadline=None)
def test_bytes_never_become_much_more_than_they_are(head: list[int], count: int, repeats: int) -> None:
    bomb = array_of(count, bytes(head))
    for data in (bomb, types.list_([bomb] * repeats), array_of(repeats, b"\xf0" + bomb[1:] * repeats)):
        try:
            value, _ = decode(data)
        except DecodeError:
            continue
        assert elements_of(value) <= FREE_COUNT_MAX * len(data)


def elements_of(value: object) -> int:
    if isinstance(value, dict):
        return sum(1 + elements_of(item) for item in value.values())
    return sum(1 + elements_of(item) for item in value) if isinstance(value, list) else 0


@pytest.mark.parametrize("number", [0xD800, 0xDFFF, 0x110000])
def test_a_character_that_unicode_does_not_have_is_refused(number: int) -> None:
    with pytest.raises(DecodeError, match="not one of Unicode"):
        decode(b"\x73" + number.to_bytes(4, "big"))


def test_a_compound_whose_size_and_items_disagree_is_refused() -> None:
    with pytest.raises(DecodeError, match="size says"):
        decode(bytes.fromhex("c0040152015202"[:12]))


def test_a_map_with_a_key_without_a_value_is_refused() -> None:
    with pytest.raises(DecodeError, match="without a value"):
        decode(bytes.fromhex("c1020143"))


def test_keys_whose_hash_a_peer_can_choose_are_few() -> None:
    keys = [UUID(int=number) for number in range(CHOSEN_HASH_COUNT_MAX + 1)]
    parts = [part for key in keys for part in (types.uuid_(key), types.NULL)]
    assert decode(types.map_(parts[2:]))[0] == dict.fromkeys(keys[1:])
    with pytest.raises(DecodeError, match="over 64 keys that are UUIDs"):
        decode(types.map_(parts))
    with pytest.raises(DecodeError, match="over 64 keys that are UUIDs"):
        decode(types.map_([types.uint(1), types.NULL, *parts]))


def test_a_map_with_a_key_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(DecodeError, match="key"):
        decode(types.map_([types.list_([]), types.NULL]))


@pytest.mark.parametrize("value", ["text", 5, -5, 2**63, 1.5, True, b"bytes", None])
def test_a_property_keeps_its_python_type(value: Any) -> None:
    assert decode(types.scalar(value))[0] == value


def test_a_property_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        types.scalar(2**64)

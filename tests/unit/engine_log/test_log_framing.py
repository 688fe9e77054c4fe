"""Records survive stuffing whatever they hold, and no damage passes for a record."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outbox.engine.log.framing import (
    DELIMITER,
    FIRST_BLOCK_MAX,
    LATER_BLOCK_MAX,
    Record,
    decode_record,
    encode_record,
    scan,
    seed_of,
    stuff,
    stuffed_size_max,
    unstuff,
)

SEED = seed_of(b"0123456789abcdef")
RECORD_MAX = 1 << 20
EDGES = [0, 1, 251, 252, 253, 254, 255, 64_007, 64_258, 64_259, 64_260, 64_261, 64_262, 128_267, 128_268, 128_269]

pieces = st.sampled_from([b"\xfe", b"\xfd", b"\xfe\xfd", b"\x00", b"x" * 251, b"y" * 126, b"\xfc"])
awkward = st.lists(pieces).map(b"".join)


@given(st.one_of(st.binary(max_size=600), awkward))
@settings(max_examples=200, deadline=None)
@example(b"")
@example(b"\xfe\xfd" * 300)
@example(b"\xfe" * 65 + b"\xfd")  # where the plain search takes over
def test_stuffed_bytes_come_back_and_hold_no_delimiter(data: bytes) -> None:
    stuffed = stuff(data)
    assert DELIMITER not in stuffed + b"\xfe"
    assert not stuffed.startswith(b"\xfd")
    assert unstuff(stuffed) == data


@pytest.mark.parametrize("size", EDGES)
def test_block_edges_come_back_with_a_delimiter_at_every_place_near_them(size: int) -> None:
    assert unstuff(stuff(b"a" * size)) == b"a" * size
    for edge in (FIRST_BLOCK_MAX, FIRST_BLOCK_MAX + LATER_BLOCK_MAX):
        for place in range(max(0, edge - 4), min(size, edge + 5)):
            data = b"a" * place + DELIMITER + b"b" * (size - place)
            stuffed = stuff(data)
            assert unstuff(stuffed) == data
            assert DELIMITER not in stuffed


@pytest.mark.parametrize(("size", "overhead"), [(0, 1), (251, 1), (252, 3), (64_259, 3), (64_260, 5), (200_000, 9)])
def test_overhead_is_what_the_format_says(size: int, overhead: int) -> None:
    assert len(stuff(b"a" * size)) == size + overhead


@pytest.mark.parametrize("size", [300, 64_500])
def test_a_record_cut_anywhere_does_not_decode(size: int) -> None:
    stuffed = stuff(b"a" * 100 + DELIMITER + b"b" * size)
    cuts = [*range(min(400, len(stuffed))), *range(len(stuffed) - 400, len(stuffed))]
    shorter = [cut for cut in cuts if 0 <= cut < len(stuffed) and unstuff(stuffed[:cut]) is not None]
    assert all(unstuff(stuffed[:cut]) == b"a" * 100 for cut in shorter), "only an implied delimiter may be lost"
    record = encode_record(5, 3, 1, 9, b"a" * 300, SEED)[:-2]
    assert not any(isinstance(decode_record(record[:cut], SEED), Record) for cut in range(len(record)))


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_never_decode_to_a_record(data: bytes) -> None:
    assert scan(data, SEED, record_size_max_bytes=RECORD_MAX).records == []


@given(st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(1, 254), st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
@example(0xFDFE_FDFE_FDFE_FDFE, 0xFDFE_FDFE, 9, b"\xfe\xfd")
def test_a_record_comes_back_whole(ordinal: int, epoch: int, kind: int, payload: bytes) -> None:
    encoded = encode_record(ordinal, ordinal - 1, epoch, kind, payload, SEED)
    found = scan(DELIMITER + encoded, SEED, record_size_max_bytes=RECORD_MAX)
    assert found.records == [Record(ordinal, ordinal - 1, epoch, kind, payload, 2)]
    assert found.damage == []
    assert len(encoded) - 2 <= stuffed_size_max(len(payload))


def test_the_checksum_covers_every_field() -> None:
    record = encode_record(5, 3, 1, 9, b"payload", SEED)[:-2]
    for place in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[place] ^= 1 << bit
            assert isinstance(decode_record(bytes(damaged), SEED), str)


def test_a_block_of_another_log_does_not_pass() -> None:
    foreign = encode_record(5, 3, 1, 9, b"payload", seed_of(b"another log's id"))
    found = scan(DELIMITER + foreign, SEED, record_size_max_bytes=RECORD_MAX)
    assert found.records == []
    assert found.damage[0].reason == "checksum differs"


def test_a_frame_above_the_limit_is_not_decoded() -> None:
    encoded = encode_record(5, 3, 1, 9, b"a" * 1000, SEED)
    found = scan(DELIMITER + encoded, SEED, record_size_max_bytes=500)
    assert found.records == []
    assert found.damage[0].reason == "larger than the limit"


def test_a_record_that_claims_its_own_sync_is_damage() -> None:
    assert decode_record(encode_record(5, 5, 1, 9, b"", SEED)[:-2], SEED) == "claims to be synced before it was written"


def test_adjacent_damage_is_one_span() -> None:
    first, last = encode_record(1, 0, 1, 9, b"one", SEED), encode_record(2, 0, 1, 9, b"two", SEED)
    found = scan(DELIMITER + first + b"xx" + DELIMITER * 3 + b"yy" + DELIMITER + last, SEED, record_size_max_bytes=100)
    assert [record.payload for record in found.records] == [b"one", b"two"]
    assert [(span.offset, span.end) for span in found.damage] == [(2 + len(first), 2 + len(first) + 10)]

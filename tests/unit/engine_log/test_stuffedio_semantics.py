"""What stuffedio publishes of word-stuffed records, resynchronisation and snapshots holds of the engine's log.

Each test names the test at github.com/shiblon/stuffedio that says so.  What differs on purpose: the last block is
always short, so that a record cut at a block's end is not one, and every record has a checksum.
"""

from __future__ import annotations

import pytest

from outbox.engine.log.framing import DELIMITER, encode_record, scan, seed_of, stuff, unstuff

SEED = seed_of(b"0123456789abcdef")
LATER = 253 * 253 - 1
BLOCKS: dict[str, tuple[bytes, bytes]] = {
    "plain": (b"plain", b"\x05plain"),
    "empty": (b"", b"\x00"),
    "a delimiter at the end": (b"ab\xfe\xfd", b"\x02ab\x00\x00"),
    "one at the start": (b"\xfe\xfdab", b"\x00\x02\x00ab"),
    "one in the middle": (b"ab\xfe\xfdcde", b"\x02ab\x03\x00cde"),
    "two in a row": (b"\xfe\xfd\xfe\xfd", b"\x00\x00\x00\x00\x00"),
    "its first half": (b"ab\xfecd", b"\x05ab\xfecd"),
    "its second half": (b"ab\xfdcd", b"\x05ab\xfdcd"),
    "a full first block": (b"a" * 252, b"\xfc" + b"a" * 252 + b"\x00\x00"),
    "one, and a delimiter": (b"a" * 252 + b"\xfe\xfd", b"\xfc" + b"a" * 252 + b"\x00\x00\x00\x00"),
    "a delimiter across its end": (b"a" * 251 + b"\xfe\xfdb", b"\xfb" + b"a" * 251 + b"\x01\x00b"),
    "a delimiter that ends with it": (b"a" * 250 + b"\xfe\xfd", b"\xfa" + b"a" * 250 + b"\x00\x00"),
    "a full later block": (
        b"a" * 252 + b"b" * LATER, b"\xfc" + b"a" * 252 + b"\xfc\xfc" + b"b" * LATER + b"\x00\x00",
    ),
    "a later block that begins": (
        b"a" * 252 + b"b" * LATER + b"c" * 600,
        b"\xfc" + b"a" * 252 + b"\xfc\xfc" + b"b" * LATER + bytes(divmod(600, 253)[::-1]) + b"c" * 600,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_a_record_is_cut_into_these_blocks(name: str) -> None:
    """`TestStuffer_Append_one`."""
    data, stuffed = BLOCKS[name]
    assert stuff(data) == stuffed
    assert unstuff(stuffed) == data


def test_a_delimiter_that_the_end_of_a_block_splits_is_read_as_well() -> None:
    """`TestStuffer_Append_one`, `longer-message-with-split-delimiter`: theirs is split, ours ends the block before."""
    assert unstuff(b"\xfc" + b"a" * 251 + b"\xfe\x02\x00\xfdb") == b"a" * 251 + b"\xfe\xfdb"


def records(count: int) -> list[bytes]:
    """Records, some of which hold delimiters, as they stand in a segment behind one."""
    payloads = [b"payload %d" % n + (DELIMITER if n % 2 else b"") * n for n in range(count)]
    return [encode_record(n + 1, n, 1, 9, payload, SEED) for n, payload in enumerate(payloads)]


def found(data: bytes) -> list[int]:
    return [record.ordinal for record in scan(data, SEED, record_size_max_bytes=1 << 16).records]


@pytest.mark.parametrize("garbage", [b"hello", b"\x02ABC", b"\x04AB", b"\xff" * 9, b"\x00", b""])
@pytest.mark.parametrize("place", range(5))
def test_garbage_between_two_delimiters_costs_no_record_beside_it(garbage: bytes, place: int) -> None:
    """`TestUnstuffer_Next_corrupt`, and of `TestReverseUnstuffer` what concerns neighbours."""
    whole = records(4)
    whole.insert(place, garbage + DELIMITER)
    result = scan(DELIMITER + b"".join(whole), SEED, record_size_max_bytes=1 << 16)
    assert [record.ordinal for record in result.records] == [1, 2, 3, 4]
    assert len(result.damage) == 1


def test_a_reader_that_begins_anywhere_finds_every_record_behind_the_next_delimiter() -> None:
    """`ExampleUnstuffer_SkipPartial`."""
    whole = records(5)
    data = DELIMITER + b"".join(whole)
    begins = [len(DELIMITER) + sum(map(len, whole[:n])) for n in range(5)]
    for start in range(len(data)):
        behind = [n + 1 for n, begin in enumerate(begins) if begin - len(DELIMITER) >= start]
        assert found(data[start:]) == behind, start

"""Parsers of bytes from outside: drawn nonsense is refused as declared, soon, and without holding much."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from hashlib import sha256

import pytest

from outbox.engine.log import snapshot
from outbox.errors import CorruptRecord
from tests.fuzz.parsers import PARSERS, Parser

COUNT = 600
PARSE_WITHIN_S = 0.5
HELD_BYTES_MAX = 32 << 20


def fuzz(parser: Parser, seed: int, count: int) -> int:
    """Parse drawn nonsense; how many inputs were taken."""
    chance, taken = random.Random(seed), 0
    gc.collect()
    gc.freeze()  # else what other tests have left is gone through while a parser is timed
    for _ in range(count):
        data = parser.drawn(chance)
        started_s = time.thread_time()
        try:
            parser.parse(data)
        except parser.raises:
            pass
        except Exception as error:
            raise AssertionError(f"{parser.name}: {error!r} of {data[:600]!r}") from error
        else:
            taken += 1
        assert time.thread_time() - started_s < PARSE_WITHIN_S, f"{parser.name}: too long over {data[:600]!r}"
    return taken


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_drawn_nonsense_is_refused_as_declared(parser: Parser) -> None:
    for data in parser.inputs:
        parser.parse(parser.around(data))
    assert fuzz(parser, 1, COUNT) < COUNT or not parser.raises


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_nonsense_is_not_held(parser: Parser) -> None:
    tracemalloc.start()
    try:
        fuzz(parser, 2, COUNT // 6)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < HELD_BYTES_MAX


def test_a_snapshot_with_a_digest_that_fits_and_a_content_that_does_not_is_refused() -> None:
    for body in (b"", b"\xc1", b"\x91\xa5st\xa5st", b"\x91" * 5_000):
        with pytest.raises(CorruptRecord):
            snapshot.decode(sha256(body).digest() + body)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3, 6))
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_much_drawn_nonsense_is_refused_as_declared(parser: Parser, seed: int) -> None:
    fuzz(parser, seed, 20_000)

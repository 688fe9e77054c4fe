"""Rows of plain values as Arrow has them, made without pandas."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyarrow.json import ParseOptions, ReadOptions, read_json


def as_batches(rows: Sequence[object], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows of plain values as Arrow has them."""
    text = b"\n".join(map(msgspec.json.encode, rows))
    # From Python values (pa.array, from_pylist) pyarrow would import pandas: 1.5 s of CPU in each worker.
    table = read_json(
        pa.BufferReader(text),
        ReadOptions(use_threads=False, block_size=len(text) + 1),  # a row has to be in one block
        ParseOptions(explicit_schema=schema),
    )
    found: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return found

"""Drawn Parquet folders whose files have more and more columns, judged by the values that were put into them."""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.reading.source import Source
from tests.spark import judge
from tests.spark.reading import outcome

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEEP = pa.struct([("z", pa.list_(pa.int32())), ("a", pa.decimal128(6, 3)), ("t", pa.timestamp("us", "UTC"))])

Draw = Callable[[random.Random], Any]


def moment(rng: random.Random) -> datetime:
    micros = rng.choice((0, 500_000, 123_456, 1, 999_999))
    return EPOCH + timedelta(days=rng.randrange(-30_000, 60_000), seconds=rng.randrange(86_400), microseconds=micros)


COLUMNS: dict[str, tuple[pa.DataType, Draw]] = {
    "whole": (pa.int64(), lambda rng: rng.choice((0, -1, 2**63 - 1, -(2**63), 9007199254740993))),
    "small": (pa.uint8(), lambda rng: rng.randrange(256)),
    "price": (pa.decimal128(12, 4), lambda rng: Decimal(rng.randrange(-10**11, 10**11)).scaleb(-4)),
    "text": (pa.string(), lambda rng: rng.choice(("", "é\u2028", 'a"\\\n\x0b', "x" * 50))),
    "code": (pa.dictionary(pa.int32(), pa.string()), lambda rng: rng.choice("abc")),
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "day": (pa.date32(), lambda rng: date(1, 1, 1) + timedelta(days=rng.randrange(3_000_000))),
    "at": (pa.timestamp("us", "UTC"), moment),
    "local": (pa.timestamp("ms"), lambda rng: moment(rng).replace(microsecond=0, tzinfo=None)),
    "blob": (pa.binary(), lambda rng: rng.randbytes(5)),
    "x": (pa.float64(), lambda rng: rng.choice((0.5, 1e7, 1.25e-5, -3.0, math.nan, math.inf))),
    "deep": (DEEP, lambda rng: {"z": [1, None, 3], "a": Decimal("1.500"), "t": moment(rng)}),
    "list": (pa.list_(pa.string()), lambda rng: rng.choice(([], ["b", None, "a"]))),
    "map": (pa.map_(pa.string(), pa.int8()), lambda rng: [("k", 1), ("j", None)]),
}  # fmt: skip


def plain(name: str, value: Any) -> Any:
    """A value as the judge writes it; NaN and infinities have no such form."""
    if isinstance(value, datetime):
        fraction = f"{value.microsecond:06d}"
        text = f"{value.replace(tzinfo=None):%Y-%m-%dT%H:%M:%S}".rjust(19, "0")
        return f"{text}.{fraction[:3] if fraction.endswith('000') else fraction}{'Z' if value.tzinfo else ''}"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return judge.Raw({0.5: "0.5", 1e7: "1.0E7", 1.25e-5: "1.25E-5", -3.0: "-3.0"}[value])
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return judge.Raw(abs(value) if value == 0 else value)
    if name == "map" and value is not None:
        return {"k": judge.Raw(1), "j": judge.Raw("null")}
    if isinstance(value, dict):
        return {key: plain(key, inner) for key, inner in value.items()}
    return [plain("", inner) for inner in value] if isinstance(value, list) else value


def verdict(line: int, row: dict[str, Any]) -> judge.Verdict:
    """What becomes of a row."""
    if not row["id"] or any(isinstance(value, float) and not math.isfinite(value) for value in row.values()):
        return judge.Verdict(line)
    return judge.Verdict(line, row["id"], judge.text_of({name: plain(name, row[name]) for name in row}).encode())


def judged(row: dict[str, Any]) -> judge.Verdict:
    """What the reader says of a row."""
    if row["reason"] is not None:
        return judge.Verdict(row["line"])
    return judge.Verdict(row["line"], row["id"], row["body"].encode())


@pytest.mark.parametrize("seed", range(40))
def test_each_row_has_the_columns_of_its_file_and_loses_none(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(sorted(COLUMNS), rng.randrange(1, 6))
    folder, wanted = tmp_path / "in.parquet", list[judge.Verdict]()
    folder.mkdir()
    for number in range(rng.randrange(1, 4)):
        own = names[: number + 1] if number else []
        rows = [
            {"id": rng.choice((f"f{number}r{at}", "same", "", None)) if rng.random() < 0.3 else f"f{number}r{at}"}
            | {name: None if rng.random() < 0.2 else COLUMNS[name][1](rng) for name in own}
            for at in range(rng.randrange(1, 30))
        ]
        schema = pa.schema([("id", pa.string()), *((name, COLUMNS[name][0]) for name in own)])
        table = pa.Table.from_pylist(rows, schema)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=rng.choice((1, 7, 100)), version="2.6")
        wanted += [verdict(line, row) for line, row in enumerate(rows, 1)]
    found = outcome(Source(str(folder)))
    told = [
        judge.Verdict(row["line"], row["id"], row["body"].encode())
        if row["reason"] is None
        else judge.Verdict(row["line"])
        for row in found.rows
    ]
    assert told == wanted
    assert found.messages == judge.messages(wanted)

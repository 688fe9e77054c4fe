"""An id depends on the row's key and on nothing else."""

from __future__ import annotations

import datetime
from hashlib import sha256
from typing import Any

import pytest

from outbox.errors import Refused
from spark_jobs.common.ids import broker_id, check_key_columns, identity, identity_column

GOLDEN = {
    ("t1",): "t1",
    (" 007 ",): " 007 ",
    (-5,): "-5",
    (True,): "true",
    (datetime.date(2026, 1, 31),): "2026-01-31",
    ("a-b", "c"): "8113510dd55cfcfdba46cf49f1cbb9c5dac3a98e8845c848c0544f1f3940ef04",
    ("a", "b-c"): "155b9abb652807436d977b0b09f3e865959f8fe8bd97ce89d7cd3ca98548ffaa",
    ("grüße 🎉", 7, False): "b476bb946125f6c184069dc1774cffb4afd42f189b79c9ad4d6bcb2cba3bf39c",
}


@pytest.mark.parametrize("values", GOLDEN, ids=str)
def test_an_id_is_the_same_for_ever(values: tuple[Any, ...]) -> None:
    assert identity(values) == GOLDEN[values]


def test_parts_of_a_compound_key_cannot_run_into_each_other() -> None:
    assert identity(("a-b", "c")) != identity(("a", "b-c"))


@pytest.mark.spark
def test_spark_gives_the_same_ids_as_python(spark: Any) -> None:
    for values, wanted in GOLDEN.items():
        names = [f"c{index}" for index in range(len(values))]
        assert spark.createDataFrame([values], names).select(identity_column(names)).collect()[0][0] == wanted


@pytest.mark.spark
def test_a_missing_part_makes_no_id(spark: Any) -> None:
    frame = spark.createDataFrame([("a", None)], "c0 string, c1 string")
    assert frame.select(identity_column(["c0", "c1"])).collect()[0][0] is None


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["double", "float", "decimal(10,2)", "timestamp", "array<string>"])
def test_a_key_whose_text_depends_on_the_machine_is_refused(spark: Any, kind: str) -> None:
    with pytest.raises(Refused, match="'key' is"):
        check_key_columns(spark.createDataFrame([], f"key {kind}"), ["key"])


def test_a_long_id_goes_to_the_broker_as_its_digest() -> None:
    assert broker_id("x" * 128) == "x" * 128
    assert broker_id("x" * 129) == sha256(b"x" * 129).hexdigest()

"""Tasks of Spark without its SQL: what comes back of them, and in which words one fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from outbox.errors import CorruptRecord
from spark_jobs.common.arguments import text_of
from spark_jobs.common.tasks import collected, parted, tasks

pytestmark = pytest.mark.spark


def doubled(numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    for number in numbers:
        yield number, f"{2 * number}"


def failing(numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        if number == 2:
            raise CorruptRecord("s/a.parquet is gone")
        yield number


def test_what_tasks_give_comes_in_their_order_or_parted_by_numbers(spark: Any) -> None:
    given = tasks(spark, 5, doubled)
    assert collected(given) == [(number, f"{2 * number}") for number in range(5)]
    assert [sorted(part) for part in collected(parted(given, 2).glom())] == [
        [(0, "0"), (2, "4"), (4, "8")], [(1, "2"), (3, "6")],
    ]  # fmt: skip
    assert collected(tasks(spark, 0, doubled)) == []


def test_a_task_that_fails_is_one_line_for_who_ran_it(spark: Any) -> None:
    with pytest.raises(PySparkException) as error:
        collected(tasks(spark, 3, failing))
    assert text_of(error.value) == "outbox.errors.CorruptRecord: s/a.parquet is gone"

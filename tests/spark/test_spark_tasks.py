"""Tasks of Spark without its SQL: what comes back of them, and in which words one fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from outbox.errors import CorruptRecord
from spark_jobs.common.arguments import ended, text_of
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


def killed(parts: Iterable[Any]) -> Iterator[Any]:
    yield from [part for part in parts if not part]
    os.kill(os.getpid(), signal.SIGKILL)


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


def gone(number: int) -> int:
    raise Py4JNetworkError("Answer from Java side is empty") if number else ConnectionRefusedError(111, "refused")


@pytest.mark.parametrize("way", ["tasks", "sql", "java", "link"])
def test_a_process_that_dies_is_one_line_with_the_cure(
    way: str, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "tasks": lambda: collected(tasks(spark, 1, killed)),
        "sql": lambda: spark.range(1).mapInArrow(killed, "id long").collect(),
        "java": lambda: gone(1),
        "link": lambda: gone(0),
    }
    assert ended("feed", ways[way]) == 1
    said = capsys.readouterr().err
    assert said.startswith("feed: Spark failed: ") and said.count("\n") == 1, said
    assert "run the same command again" in said and ("link to Spark's Java" in said) == (way in ("java", "link"))

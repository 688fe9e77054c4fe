"""Tasks of Spark without its SQL, whose first plan would keep a driver busy for four seconds.

A function runs in numbered tasks and what it gives comes back to the driver, or is parted by numbers on its way to
other tasks.  Errors come back as those of frames do, so that callers know one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PythonException

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
_U = TypeVar("_U")


def tasks(spark: SparkSession, count: int, work: Callable[[Iterable[int]], Iterable[_T]]) -> RDD[_T]:
    """Run `work` in `count` numbered tasks, one number each, and return their results as an RDD."""
    return spark.sparkContext.parallelize(range(count), max(1, count)).mapPartitions(work)


def collected(found: RDD[_T]) -> list[_T]:
    """All of it, in the order of the tasks.

    Raises:
        PythonException: a task failed for good; the text ends with what it raised, or is one line.
    """
    try:
        return found.collect()
    except Py4JJavaError as error:
        raise PythonException(failure_of(error)) from None


def failure_of(error: Py4JError | ConnectionError) -> str:
    """Say what failed in Spark: the traceback of a task, or one line with the cure."""
    told = "the link to Spark's Java is lost"
    if isinstance(error, Py4JJavaError):
        with suppress(Py4JError, ConnectionError):  # it may be gone since
            failed = error.java_exception
            told = (failed.getCause() or failed).toString()
    if "Traceback" in told:
        return f"a task failed:\n{told}"
    first = told.splitlines()[0]
    return f"Spark failed: {first}; run the same command again, and if that fails too, give Spark more memory"


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """The rows of batches that are few."""
    for batch in batches:
        yield from batch.to_pylist()


def parted(found: RDD[tuple[int, _U]], count: int) -> RDD[tuple[int, _U]]:
    """Send numbered values to `count` tasks, the values of a number to the task of that number.

    A worker holds up to 1,000 values before it hands them on, however large they are; a task has to have few bytes.
    """
    return found.partitionBy(count, int)

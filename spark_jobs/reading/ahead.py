"""The survey of a small input by the driver, while it would only wait for Spark to start.

What it finds counts only for files that are still the same when Spark is there, by size and version.  It refuses
nothing: where it fails tasks read again, and they tell why.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from outbox.errors import OutboxError
from spark_jobs.common.folder import Folder
from spark_jobs.reading.files import File, Files
from spark_jobs.reading.judging import Judge
from spark_jobs.reading.opened import opened
from spark_jobs.reading.source import Source
from spark_jobs.reading.spans import Survey, asked_of, begun_here, surveyed

AHEAD_BYTES_MAX, AHEAD_FILE_COUNT_MAX = 64 * 1024 * 1024, 100
"""About as much as a core reads while a JVM and Spark in it start."""
SWITCH_S = 0.000_2

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ahead:
    """The survey of files, as they were listed."""

    listed: tuple[File, ...]
    survey: Survey


def surveyed_ahead(source: Source, files: Files, judge: Judge) -> Ahead | None:
    """The survey of files of a folder that are few and small; None of others, or where it fails."""
    if source.kind == "parquet" or not isinstance(files.place, Folder):
        return None
    try:
        if not is_small(files.list()):
            return None
        found, whole = opened(source, files, 1), Survey()
        for span in begun_here(found.reading, found.spans):
            whole.add(surveyed(found.reading, span, asked_of(found.reading, judge)))
    except OutboxError:
        return None
    return Ahead(found.reading.listed, whole)


def is_small(listed: Sequence[File]) -> bool:
    """Whether it takes a core seconds to read some files."""
    is_packed = any(file.is_gzip for file in listed)
    size = sum(file.size for file in listed)
    return not is_packed and len(listed) <= AHEAD_FILE_COUNT_MAX and size <= AHEAD_BYTES_MAX


@contextmanager
def beside(work: Callable[[], _T]) -> Iterator[Future[_T]]:
    """Run `work` in a thread while the driver waits for a process, and end with both; an error waits for no work."""
    done, before_s = Future[_T](), sys.getswitchinterval()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    sys.setswitchinterval(SWITCH_S)  # starting Spark is hundreds of questions, each of which would wait for 5 ms
    try:
        threading.Thread(target=run, name="ahead", daemon=True).start()  # Python's end does not wait for it either
        yield done
        wait([done])
    finally:
        sys.setswitchinterval(before_s)

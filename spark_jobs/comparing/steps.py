"""The steps of a long comparison: what one has found is kept, so that a job that was killed goes on behind it.

Each step is a small table.  It is written under a name of its own and renamed when it is whole, so of two jobs that
work at one step one is first, and both go on with what is there.  Without a folder a step is kept in memory, and lost
with the job.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.common.arguments import Say, silent
from spark_jobs.common.crash_points import CrashPoint, no_crash

Kept = Callable[[str, Callable[[], DataFrame]], DataFrame]
"""Gives what a step of this name has found, by the function if it was not done before."""


def folder_of(progress: Path, frames: Sequence[DataFrame], settings: str) -> Path:
    """The folder for a comparison of just these files, as they are now, by just these settings."""
    spark, names = frames[0].sparkSession, sorted({name for frame in frames for name in frame.inputFiles()})
    files = []
    if names:
        listed = spark.read.format("binaryFile").load(names).select("path", "length", "modificationTime")
        files = sorted(tuple(row) for row in listed.collect())
    place = progress / sha256(repr((settings, files)).encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    return place


class Steps:
    """What was found so far."""

    def __init__(
        self, spark: SparkSession, folder: Path | None = None, say: Say = silent, crash_point: CrashPoint = no_crash
    ) -> None:
        """Take a folder that belongs to this very comparison: of these files, by these rules."""
        self._spark = spark
        self._folder = folder
        self._say = say
        self._crash_point = crash_point
        self._held: list[DataFrame] = []

    def kept(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """What a step has found: now, or when it was done before."""
        if self._folder is None:
            frame = make().persist()
            self._held.append(frame)
            return frame
        place = self._folder / name
        if not place.is_dir():
            self._say(f"reconcile: {name}")
            self._write(make(), place)
            self._crash_point(name)
        return self._spark.read.parquet(str(place))

    def of(self, part: str) -> Kept:
        """The steps of one part, which have names of their own."""
        return lambda name, make: self.kept(f"{part}-{name}", make)

    def _write(self, frame: DataFrame, place: Path) -> None:
        """Write a step whole, or not at all."""
        part = place.with_name(f"{place.name}.{uuid4().hex}.tmp")
        frame.write.parquet(str(part))
        self._crash_point(f"{place.name} written")
        with suppress(OSError):  # another job was first
            part.rename(place)
        shutil.rmtree(part, ignore_errors=True)

    def let_go(self) -> None:
        """Free what is held in memory."""
        for frame in self._held:
            frame.unpersist()
        self._held.clear()

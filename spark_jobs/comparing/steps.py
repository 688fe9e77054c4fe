"""The steps of a long comparison, with their results stored: a killed job resumes after the last one.

Each step is a small table, written by tasks as files of a place, and named by a record that appears whole and once: of
two jobs that work at one step one is first, and both go on with what its record names.  Without a place a step is kept
in memory, and lost with the job.

    progress/<digest>/<step>.begun        for whoever watches
    progress/<digest>/<step>.json         its columns and its files
    progress/<digest>/<step>-<token>/     the files
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as ty

from spark_jobs.common.arguments import Say, silent
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.places import Place
from spark_jobs.common.staging import StagedFile, Writing, stage, staged
from spark_jobs.reading.files import Files

Kept = Callable[[str, Callable[[], DataFrame]], DataFrame]
"""Gives what a step of this name has found, by the function if it was not done before."""


class StepRecord(msgspec.Struct, frozen=True):
    """The result of a step: the columns as Spark writes them in JSON, and the files."""

    schema: msgspec.Raw
    files: list[StagedFile]


def folder_of(progress: Place, ledger: Sequence[str], inputs: Sequence[Files], settings: str) -> Place:
    """The place for a comparison of just these inputs, as they are now, by just these settings.

    `ledger` are the data files of one version of it, none of which is ever written again.
    """
    files = list[tuple[str, int, str]]()
    for found in inputs:
        files += [(found.address(file), file.size, file.version) for file in found.list()]
    return progress / sha256(repr((settings, sorted(ledger), files)).encode()).hexdigest()[:16]


class Steps:
    """The results of the steps so far."""

    def __init__(
        self, spark: SparkSession, place: Place | None = None, say: Say = silent, crash_point: CrashPoint = no_crash
    ) -> None:
        """Take a place that belongs to this very comparison: of these files, by these rules."""
        self._spark = spark
        self._place = place
        self._say = say
        self._crash_point = crash_point
        self._held: list[DataFrame] = []

    def kept(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """The result of a step, made now or kept from before."""
        if self._place is None:
            frame = make().persist()
            self._held.append(frame)
            return frame
        data = self._place.read(f"{name}.json")
        if data is None:
            self._say(f"reconcile: {name}")
            self._place.create(f"{name}.begun", b"")
            data = self._written(make(), name, self._place)
            self._crash_point(name)
        record = msgspec.json.decode(data, type=StepRecord)
        schema = ty.StructType.fromJson(msgspec.json.decode(record.schema))
        return staged(self._spark, self._place, record.files, schema)

    def of(self, part: str) -> Kept:
        """The steps of one part, which have names of their own."""
        return lambda name, make: self.kept(f"{part}-{name}", make)

    def _written(self, frame: DataFrame, name: str, place: Place) -> bytes:
        """Write a step whole, or not at all; gives the record that counts."""
        files = stage(frame, Writing(place.lend(), f"{name}-{uuid4().hex}"))
        self._crash_point(f"{name} written")
        own = msgspec.json.encode(StepRecord(msgspec.Raw(frame.schema.json().encode()), files))
        if place.create(f"{name}.json", own):
            return own
        for file in files:  # another job was first
            place.delete(file.name)
        return place.read(f"{name}.json") or own

    def let_go(self) -> None:
        """Free the frames held in memory."""
        for frame in self._held:
            frame.unpersist()
        self._held.clear()

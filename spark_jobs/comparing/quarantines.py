"""The rows that feeds of an input set aside, from a quarantine shared with other feeds and states.

Each feed has written down which state of its input it read.  Those of this state count, and no others: a file that was
corrected and fed again has nothing set aside any more.  An id was sent where one of them has sent a row of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from spark_jobs.common.arguments import Say, silent
from spark_jobs.common.places import Place
from spark_jobs.comparing.given import WHOLE_ID, aside_in, lines_of
from spark_jobs.feeding.aside import FED, Fed
from spark_jobs.reading.files import Files

Listed = tuple[str, int, str]
"""Name, size and version of a file."""


class State(Protocol):
    """The state of an input now (`spark_jobs.reading.input.Input`)."""

    @property
    def listing(self) -> tuple[Listed, ...]:
        """Its files."""

    @property
    def digest(self) -> str:
        """The digest of its rows, in any order; it takes a pass over them."""

    def ids_of(self, name: str) -> DataFrame:
        """{id} of each row of one file."""


@dataclass(slots=True)
class Run:
    """The leavings of one feed in a quarantine."""

    name: str
    states: list[Fed] = field(default_factory=list)
    has_rows: bool = False
    has_unsent: bool = False
    """Whether the queue refused some messages, of which only the ids are known."""

    @property
    def is_of_a_frame(self) -> bool:
        """Whether nobody can tell which rows were fed."""
        return not any(state.files for state in self.states)

    def is_of_files(self, listing: Sequence[Listed]) -> bool:
        """Whether it fed just these files as they are."""
        return any(state.files == list(listing) for state in self.states)

    def is_of(self, state: State) -> bool:
        """Whether it fed rows that say the same."""
        if self.is_of_a_frame:
            return False
        return self.is_of_files(state.listing) or any(fed.digest == state.digest for fed in self.states)


def read_quarantine(spark: SparkSession, place: Place, state: State, say: Say = silent) -> DataFrame | None:
    """Count, by id, the rows of an input's present state that all its feeds have set aside: {id, count}.

    A watch has fed each file by itself; what these feeds left is added up.  Where no feed says what it read of files,
    as that of a frame, it counts.
    """
    by_file = runs_in(place)
    whole = by_file.pop("", [])
    if own := [run for run in whole if run.is_of(state)]:
        return aside_by(spark, place, own)
    watched = [file for file in state.listing if file[0] in by_file]
    if watched:
        asides = [aside_of_file(spark, place, file, by_file[file[0]], state) for file in watched]
        return added([aside for aside in asides if aside is not None])
    if unknown := [run for run in whole if run.is_of_a_frame]:
        return aside_by(spark, place, unknown)
    if whole or by_file:
        say(f"reconcile: no feed of the input as it is now left anything in {place}; no row counts as set aside")
    return None


def runs_in(place: Place) -> dict[str, list[Run]]:
    """The feeds that left something, by the file that a watch has fed, else under an empty name."""
    runs = dict[str, Run]()
    for item in place.list():
        folder, _, name = item.name.rpartition("/")
        if not name.endswith(".json") and not name.startswith(FED):
            continue
        run = runs.setdefault(folder.removesuffix("/rows"), Run(folder.removesuffix("/rows")))
        if name.startswith(FED):
            run.states.append(msgspec.json.decode(place.read(item.name) or b"", type=Fed))
        else:
            run.has_rows = True
            run.has_unsent = run.has_unsent or not folder.endswith("/rows")
    found = dict[str, list[Run]]()
    for name, run in sorted(runs.items()):
        if name:  # a file beside the feeds' folders is none of theirs
            found.setdefault(name.rpartition("/")[0], []).append(run)
    return found


def aside_of_file(
    spark: SparkSession, place: Place, file: Listed, runs: Sequence[Run], state: State
) -> DataFrame | None:
    """The same of one file that a watch has fed."""
    chosen = [run for run in runs if run.is_of_files([file])] or [run for run in runs if run.is_of_a_frame]
    found = aside_by(spark, place, chosen)
    if found is None or not any(run.has_unsent for run in chosen):
        return found
    return aside_in(state.ids_of(file[0]), found)  # "all of the id" means: in this file


def aside_by(spark: SparkSession, place: Place, runs: Sequence[Run]) -> DataFrame | None:
    """{id, count}: what each of these feeds of the same rows has set aside."""
    if not runs or not all(run.has_rows for run in runs):
        return None
    each = added_by_run(spark, place, runs)
    count = fn.min(fn.coalesce("count", fn.lit(WHOLE_ID))).alias("count")
    return each.groupBy("id").agg(count, fn.count(fn.lit(1)).alias("runs")).where(f"runs = {len(runs)}").drop("runs")


def added_by_run(spark: SparkSession, place: Place, runs: Iterable[Run]) -> DataFrame:
    """{id, count} of each of them."""
    counted = []
    for run in runs:
        rows = lines_of(spark, Files(place / run.name), "id", "row").where(fn.col("id").isNotNull())
        is_whole = fn.count(fn.when(fn.col("row").isNull(), 1)) > 0
        counted.append(rows.groupBy("id").agg(fn.when(~is_whole, fn.count(fn.lit(1))).alias("count")))
    return reduce(DataFrame.unionByName, counted)


def added(frames: Sequence[DataFrame]) -> DataFrame | None:
    """{id, count} of several files together."""
    if not frames:
        return None
    return reduce(DataFrame.unionByName, frames).groupBy("id").agg(fn.sum("count").alias("count"))

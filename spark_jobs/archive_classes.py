"""Record the classes that a Spark session loads, once for a machine: later ones start with half the CPU.

    python -m spark_jobs.archive_classes

Set-up of a checkout runs it.  Without the archive everything works, more slowly; see `common/class_archive`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from spark_jobs.common import class_archive, java
from spark_jobs.session import local_settings

EXIT_S = 120
"""How long a JVM may take to write the archive as it ends."""


def main() -> int:
    """Make the archive; 0 if it is there now."""
    java.prepare(os.environ)
    path = class_archive.path_for(os.environ)
    if path is None:
        print("no archive of classes: that needs Java 17", file=sys.stderr)
        return 1
    if path.is_file():
        return 0
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        write(fresh, Path(folder))
        if not fresh.is_file():
            print("no archive of classes: this Java wrote none", file=sys.stderr)
            return 1
        fresh.replace(path)
    print(f"classes of Spark archived in {path}")
    return 0


def write(path: Path, scratch: Path) -> None:
    """Have a JVM do what jobs do, and write down the classes that it loaded.

    Raises:
        subprocess.TimeoutExpired: it did not end.
    """
    builder = SparkSession.builder.appName("archive classes")
    for name, value in local_settings("local[1]", jvm_flags=f'"-XX:ArchiveClassesAtExit={path}" -Xlog:cds=off').items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    exercise(spark, scratch)
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when its Python has
    gateway.proc.wait(EXIT_S)


def exercise(spark: SparkSession, scratch: Path) -> None:
    """Use Spark as jobs do, on a few rows: files, Arrow to Python and back, joins, groups, tasks."""
    text = scratch / "rows.csv"
    text.write_text("id,amount\n" + "".join(f"t{n},{n}\n" for n in range(20)))
    rows = spark.read.csv(str(text), header=True, mode="FAILFAST").withColumn("n", fn.col("amount").cast("long"))
    rows.write.partitionBy("amount").parquet(str(scratch / "parquet"))
    rows.write.json(str(scratch / "json"))
    kept = spark.read.parquet(str(scratch / "parquet"))
    lines = spark.read.schema("id string, n long").json(str(scratch / "json"))
    joined = kept.join(lines.hint("shuffle_merge"), "id", "left_anti").unionByName(kept).cache()
    joined.groupBy("id").agg(fn.count("*").alias("copies"), fn.max("n")).where("copies > 0").orderBy("id").collect()
    joined.dropDuplicates(["id"]).mapInArrow(same, joined.schema).collect()
    numbers = spark.sparkContext.parallelize(range(4), 2).mapPartitions(same)
    numbers.map(lambda number: (number, b"")).partitionBy(2, int).collect()
    spark.read.format("binaryFile").load(str(text)).select("path", "length", "modificationTime").collect()


def same(batches: Iterable[Any]) -> Iterable[Any]:
    """Pass batches on unchanged."""
    yield from batches


if __name__ == "__main__":
    sys.exit(main())

"""One Spark session with the settings that these jobs rely on.

A session that runs already is taken as it is, and so is the cluster's configuration under `spark-submit`; only what
the jobs' results depend on is then set (time zone, no speculation of sends).  Without either, a small local Spark is
started whose JVM flags make a short run cheap.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.common import class_archive

LOCAL_MASTER = "local[2]"
LOCAL_PARTITIONS, CLUSTER_PARTITIONS = "2", "200"
PACKAGE_ROOT = Path(__file__).resolve().parent.parent
LOGGING = Path(__file__).with_name("log4j2.properties")

# C1 only, one garbage collector thread: a short local run costs half the CPU (heavy SQL is 1.4 times slower).
JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",  # a date's or timestamp's text must not depend on the machine
    "spark.speculation": "false",  # a speculative twin only repeats equal ids, but it sends everything twice
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # What is kept between two jobs may have as few partitions as its size needs.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}


def session(app_name: str, master: str | None = None, *, submitted: bool = False) -> SparkSession:
    """The running session, or a new one; `submitted` says that spark-submit has chosen master and memory already."""
    builder = SparkSession.builder.appName(app_name)
    settings = dict(EVERYWHERE)
    if SparkSession.getActiveSession() is None and not submitted:
        settings |= local_settings(master or LOCAL_MASTER)
    elif master is not None and not submitted:
        raise ValueError(f"a session runs already, so master={master!r} has no effect; leave it out")
    for name, value in settings.items():
        builder = builder.config(name, value)
    running = builder.getOrCreate()
    if submitted and is_left_to_default(running):
        running.conf.set("spark.sql.shuffle.partitions", LOCAL_PARTITIONS)
    return running


def is_left_to_default(running: SparkSession) -> bool:
    """Whether a submitted job runs on one machine with the 200 shuffle partitions that are meant for a cluster."""
    local = str(running.conf.get("spark.master", "")).startswith("local")
    return local and running.conf.get("spark.sql.shuffle.partitions") == CLUSTER_PARTITIONS


def local_settings(master: str, *, jvm_flags: str | None = None) -> dict[str, str]:
    """Two cores, loopback only, few shuffle partitions: what a laptop and a test need.

    The JVM uses the archive of Spark's classes, where there is one, unless other flags are given.
    """
    flags = JVM_FLAGS + " " + (class_archive.flags(os.environ) if jvm_flags is None else jvm_flags)
    if LOGGING.is_file():
        flags += f" -Dlog4j2.configurationFile={LOGGING.as_uri()}"
    return {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": flags,
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": LOCAL_PARTITIONS,
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "spark-warehouse"),
        "spark.python.worker.reuse": "true",
        # Java's own serializer holds a hundred cached batches of 4 MB before it lets go of them.
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.pyspark.python": sys.executable,
        # A worker process starts with its own path: it must find this package wherever the driver was started.
        "spark.executorEnv.PYTHONPATH": str(PACKAGE_ROOT),
    }

"""Run one job in a process that kills itself: python tests/spark/killed.py feed|consume MARKERS POINT CALL JSON."""

from __future__ import annotations

import json
import os
import sys

from spark_jobs.common import java
from spark_jobs.consume import consume
from spark_jobs.feed import Pace, feed
from spark_jobs.session import session
from tests.spark.crash import Kill

if __name__ == "__main__":
    job, markers, point, call, options = sys.argv[1:]
    java.prepare(os.environ)
    spark, given, kill = session("killed"), json.loads(options), Kill(markers, {point: int(call)})
    if job == "consume":
        consume(spark, crash_point=kill, **given)
    else:
        frame = spark.read.schema("id string, amount bigint").csv(given.pop("input"), header=True)
        feed(frame, pace=Pace(chunks=3), crash_point=kill, **given)

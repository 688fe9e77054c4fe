"""A watch feeds each file once, when it is whole; one that is refused holds up no other."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.places import Item, joined
from spark_jobs.common.until import Until
from spark_jobs.feed import main
from spark_jobs.feeding import watching
from spark_jobs.feeding.watching import PAUSE_S, Watch, WatchReport
from spark_jobs.reading.files import check_apart, is_input
from tests.spark.lakes import PLACES


class Time:
    """A clock that a pause moves on; what happens meanwhile is told it."""

    def __init__(self, *, meanwhile: Any = None) -> None:
        self.now_s = 0.0
        self.meanwhile = meanwhile

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        if self.meanwhile is not None:
            self.meanwhile(self.now_s)


class Fed:
    """What was fed; names in `refused` fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tried: list[str] = []
        self.refused: dict[str, Exception] = {}

    def __call__(self, item: Item) -> dict[str, Any]:
        self.tried.append(item.name)
        if item.name in self.refused:
            raise self.refused[item.name]
        self.names.append(item.name)
        return {"rows": 3, "accepted": 2, "quarantined": {"x": 1, "y": 2}}


def watch_of(tmp_path: Path, fed: Fed, time: Time, settle_s: float = -60.0, **until: Any) -> Watch:
    places = Folder(tmp_path / "in"), Folder(tmp_path / "in.feed/q")
    return Watch(*places, fed, Until(**until), settle_s, clock_s=lambda: time.now_s, sleep=time.sleep)


def put(tmp_path: Path, name: str, text: str = "1", at_s: float | None = None) -> None:
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if at_s is not None:
        os.utime(path, (at_s, at_s))


def test_files_are_fed_once_as_they_come(tmp_path: Path) -> None:
    fed = Fed()
    for name in ("b.csv", "a.csv", "deep/c.csv", "_SUCCESS", ".hidden", "deep/_x/d.csv"):
        put(tmp_path, name)
    time = Time(meanwhile=lambda now_s: put(tmp_path, "late.csv") if now_s == PAUSE_S else None)
    report = watch_of(tmp_path, fed, time, seconds=10).run()
    assert fed.names == ["a.csv", "b.csv", "deep/c.csv", "late.csv"]
    assert (report.files, report.rows, report.accepted, report.quarantined, report.failed) == (4, 12, 8, 12, {})
    assert 10 <= report.seconds <= 10 + PAUSE_S
    assert watch_of(tmp_path, fed, Time(), seconds=5).run().files == 0 and len(fed.names) == 4


def test_a_watch_ends_with_its_count(tmp_path: Path) -> None:
    fed, time = Fed(), Time()
    for number in range(5):
        put(tmp_path, f"{number}.csv")
    assert watch_of(tmp_path, fed, time, count=2).run().files == 2 and fed.names == ["0.csv", "1.csv"]
    assert watch_of(tmp_path, fed, time, count=3, seconds=60).run().files == 3 and time.now_s == 0.0
    assert fed.names == [f"{number}.csv" for number in range(5)]


def test_a_file_that_is_being_written_waits(tmp_path: Path) -> None:
    fed = Fed()
    put(tmp_path, "old.csv", at_s=Folder(tmp_path).now_s() - 100)
    put(tmp_path, "new.csv", at_s=Folder(tmp_path).now_s() - 20)
    watch_of(tmp_path, fed, Time(), settle_s=60.0, seconds=5).run()
    assert fed.names == ["old.csv"]


def test_a_file_that_is_written_anew_is_fed_anew(tmp_path: Path) -> None:
    fed = Fed()
    put(tmp_path, "a.csv", "1")
    watch_of(tmp_path, fed, Time(), count=1).run()
    put(tmp_path, "a.csv", "longer")
    assert watch_of(tmp_path, fed, Time(), seconds=5).run().files == 1 and fed.names == ["a.csv"] * 2


@pytest.mark.parametrize("kind", [Refused, ValueError, PySparkException])
def test_a_file_that_is_refused_holds_up_no_other_and_is_tried_by_the_next_watch(
    tmp_path: Path, kind: type[Exception]
) -> None:
    fed = Fed()
    for name in ("a.csv", "b.csv"):
        put(tmp_path, name)
    fed.refused["a.csv"] = kind("the input has changed")
    report = watch_of(tmp_path, fed, Time(), seconds=10).run()
    assert (
        fed.tried == ["a.csv", "b.csv"]
        and fed.names == ["b.csv"]
        and report.failed == {"a.csv": "the input has changed"}
    )
    assert "a.csv: the input has changed" in report.text
    fed.refused.clear()
    assert watch_of(tmp_path, fed, Time(), count=1).run().failed == {} and fed.names == ["b.csv", "a.csv"]


def test_a_refused_file_that_is_mended_in_time_is_fed_by_the_same_watch(tmp_path: Path) -> None:
    fed = Fed()
    put(tmp_path, "a.csv")
    fed.refused["a.csv"] = Refused("line 1 has no id")

    def mend(now_s: float) -> None:
        fed.refused.clear()
        put(tmp_path, "a.csv", "mended")

    report = watch_of(tmp_path, fed, Time(meanwhile=mend), count=1).run()
    assert (report.files, report.failed) == (1, {})


def test_a_watch_stops_where_more_files_are_refused_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FAILED_COUNT_MAX", 2)
    fed = Fed()
    for name in ("a.csv", "b.csv", "c.csv"):
        fed.refused[name] = Refused(f"{name} is none")
    for name in ("a.csv", "b.csv"):
        put(tmp_path, name)
    assert len(watch_of(tmp_path, fed, Time(), seconds=3).run().failed) == 2
    put(tmp_path, "c.csv")
    with pytest.raises(Refused, match=r"more than 2 files were refused, the last: c\.csv is none"):
        watch_of(tmp_path, fed, Time(), seconds=3).run()


def test_an_outage_ends_the_watch_and_marks_nothing(tmp_path: Path) -> None:
    fed = Fed()
    put(tmp_path, "a.csv")
    fed.refused["a.csv"] = OutcomeUnknown("no success for 120 s")
    with pytest.raises(OutcomeUnknown):
        watch_of(tmp_path, fed, Time(), seconds=10).run()
    fed.refused.clear()
    assert watch_of(tmp_path, fed, Time(), count=1).run().files == 1


@pytest.mark.parametrize("until", [{}, {"seconds": -1.0}, {"count": -1, "seconds": 1.0}, {"seconds": float("nan")}])
def test_a_watch_has_an_end(until: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="has an end: give --for-s SECONDS"):
        Until(**until)


@pytest.mark.parametrize("name", ["a", "a/b.c", "a_b", "a.feed.csv"])
def test_names_of_inputs(name: str) -> None:
    assert is_input(name)


@pytest.mark.parametrize("name", [".a", "_a/b", "a/.b", "a.csv.feed/q/first/stage-1/x.parquet", "a.csv.quarantine/q/r"])
def test_names_of_no_input(name: str) -> None:
    assert not is_input(name)


def test_a_folder_that_is_not_there_is_not_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--queue", "q", "--type", "T", "--connection", "Endpoint=sb://x", "--for-s", "1"]
    assert main([*given, "--watch", str(tmp_path / "absent")]) == 1
    assert "absent to watch; make it, or mend its name" in capsys.readouterr().err


def test_what_is_kept_beside_an_input_or_under_a_hidden_name_is_apart(tmp_path: Path) -> None:
    within = [Folder(tmp_path / name) for name in ("in/x.feed", "in/_own", "inside", "in.quarantine")]
    check_apart(Folder(tmp_path / "in"), *within)


@pytest.mark.parametrize("option", ["--quarantine", "--progress"])
@pytest.mark.parametrize("source", ["--watch", "--input"])
@pytest.mark.parametrize("own", ["in/bad", "in", "in/", "in/sub/../bad", "link/bad"])
def test_what_a_feed_writes_does_not_lie_among_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, source: str, own: str
) -> None:
    put(tmp_path, "a.csv", "id\n1\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    given = ["--queue", "q", "--type", "T", "--connection", "Endpoint=sb://x", "--format", "csv", "--for-s", "1"]
    assert main([*given, source, str(tmp_path / "in"), option, f"{tmp_path}/{own}"]) == 1
    assert "lies in" in (told := capsys.readouterr().err) and "whose files are fed; give a place beside it" in told


def test_a_feed_has_one_input_or_one_watch(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([], ["--input", "a.csv", "--watch", "in"]):
        assert main(["--queue", "q", "--type", "T", "--connection", "Endpoint=sb://x", *given]) == 1
        assert "--input PATH, or --watch PLACE" in capsys.readouterr().err
    assert main(["--queue", "q", "--type", "T", "--connection", "Endpoint=sb://x", "--watch", "in"]) == 1
    assert "has an end: give --for-s SECONDS, --files COUNT, or both" in capsys.readouterr().err


@pytest.mark.parametrize(("failed", "code"), [({}, 0), ({"a.csv": "no id"}, 1)])
def test_a_watch_that_refused_a_file_ends_with_a_code(
    monkeypatch: pytest.MonkeyPatch, failed: dict[str, str], code: int
) -> None:
    monkeypatch.setattr("spark_jobs.feed.watched", lambda arguments: WatchReport(failed=failed))
    assert main(["--queue", "q", "--type", "T", "--watch", "in"]) == code


@pytest.mark.spark
@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_a_watch_feeds_a_folder_in_one_session(
    spark: Any, broker: Any, tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "one.csv", "id,amount\na,1\nb,2\n")
    put(tmp_path, "two.csv", "id,amount\nc,3\n,4\n")
    put(tmp_path, "odd.txt", "no table")
    command = ["--watch", str(tmp_path / "in"), "--queue", "watched", "--type", "Transfer", "--settle-s", "0", "--json"]
    command += ["--progress", joined(address, "/p"), "--quarantine", joined(address, "/q"), "--quiet"]
    assert main([*command, "--files", "2", "--connection", broker.connection]) in (0, 1)
    said = json.loads(capsys.readouterr().out)
    assert (said["files"], said["rows"], said["accepted"], said["quarantined"]) == (2, 4, 3, 1)
    put(tmp_path, "day=2/three.csv", "id,amount\nd,5\n")
    assert main([*command, "--for-s", "8", "--connection", broker.connection]) == 1  # because of odd.txt
    said = json.loads(capsys.readouterr().out)
    assert (said["files"], said["accepted"], list(said["failed"])) == (1, 1, ["odd.txt"])
    taken = broker.take("watched")
    sent = {message.message_id: json.loads(str(message)) for message in taken}
    assert Counter(message.message_id for message in taken) == dict.fromkeys("abcd", 1)
    assert sent["a"] == {"id": "a", "amount": 1} and sent["d"] == {"id": "d", "amount": 5, "day": 2}

"""Feed and landing over a folder, the Blob Storage emulator and Azurite: whoever is killed, nothing is lost."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage

from outbox.emulator.faults import FaultRule, drawn
from outbox.errors import Refused
from spark_jobs import feed as feed_job
from spark_jobs import reconcile as reconcile_job
from spark_jobs.common.identity import Access
from spark_jobs.common.places import Place, joined, place_of
from spark_jobs.common.staging import read_file
from spark_jobs.draining.landing import RESULT, Receiving, land_partition
from spark_jobs.feed import Pace, feed
from spark_jobs.feeding.plan import Manifest
from spark_jobs.ledger import merge
from tests.spark.crash import Kill
from tests.spark.lakes import PLACES, Lake
from tests.spark.ledgers import Died

pytestmark = pytest.mark.spark

NOW_MS = 1_790_000_000_000
COUNT = 60


@dataclass
class Crash:
    """A worker is killed at its points, once each; the driver dies at one."""

    kill: Kill
    dies_at: str

    def __call__(self, point: str) -> None:
        self.kill(point)
        if point == self.dies_at:
            raise Died


def frame_of(spark: Any, tmp_path: Path) -> Any:
    path = tmp_path / "transfers.csv"
    rows = [f"t{number},{number}\n" for number in range(COUNT)]
    path.write_text("id,amount\n" + "".join([*rows, *rows[:5], ",1\n", "x,1\nx,2\n"]))
    return spark.read.schema("id string, amount bigint").csv(str(path), header=True)


def disturb(lake: Lake | None, seed: int) -> None:
    if lake is not None and lake.emulator is not None:
        kinds: tuple[Any, ...] = ("lost-reply", "lost-reply", "throttled", "reset", "status")
        lake.plant(*drawn(seed, kinds, within=15, status=500))


@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_a_feed_is_killed_at_every_step_and_sends_each_row(
    spark: Any, broker: Any, tmp_path: Path, address: str, disturbed: Lake | None
) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    kill = Kill(str(markers), {"staging": 2, "staged file": 2})
    progress, quarantine = joined(address, "/progress"), joined(address, "/quarantine")
    given = {
        "queue": "laked", "type": "Transfer", "id": "id", "connection": broker.connection, "progress": progress,
        "quarantine": quarantine, "pace": Pace(chunks=3, tasks=2),
    }  # fmt: skip
    for run, point in enumerate(("staged", "planned", "sent", "recorded")):
        disturb(disturbed, run)
        with pytest.raises(Died):
            feed(frame_of(spark, tmp_path), **given, now_ms=partial(int, NOW_MS + run), crash_point=Crash(kill, point))
    assert kill.fired == {"staging", "staged file"}
    disturb(disturbed, 9)
    report = feed(frame_of(spark, tmp_path), **given)
    assert (report.rows, report.messages, report.duplicates) == (COUNT + 8, COUNT, 5)
    assert report.quarantined == {"conflicting-duplicates": 2, "missing-id": 1} and report.chunks_skipped >= 1

    messages = broker.take("laked")
    assert set(Counter(message.message_id for message in messages)) == {f"t{number}" for number in range(COUNT)}
    assert {message.application_properties[b"outbox-created"] for message in messages} == {NOW_MS + 1}
    assert all(json.loads(b"".join(m.body)) == {"amount": int(m.message_id[1:]), "id": m.message_id} for m in messages)
    check_kept(place_of(progress, os.environ) / "first", place_of(quarantine, os.environ))


@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_an_input_at_an_address_is_fed(
    spark: Any, broker: Any, tmp_path: Path, address: str, disturbed: Lake | None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Input, progress and quarantine lie there; a worker and the driver are killed once."""
    place = place_of(address, os.environ)
    for day in range(4):
        rows = [f"t{number},{number}\n" for number in range(day, COUNT, 4)]
        place.create(f"in/day={day}/rows.csv", f"id,amount\n{''.join(rows)}bad{day},1,2\n".encode())
    (markers := tmp_path / "markers").mkdir()
    kill = Kill(str(markers), {"staged file": 1})
    given = ["--input", joined(address, "/in"), "--format", "csv", "--json"]
    feeding = [*given, "--queue", "addressed", "--type", "Transfer", "--connection", broker.connection, "--chunks", "2"]
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(feed_job, "no_crash", Crash(kill, "sent"))
        disturb(disturbed, 3)
        feed_job.main(feeding)
    disturb(disturbed, 4)
    assert kill.fired == {"staged file"} and feed_job.main(feeding) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["messages"], told["quarantined"]) == (COUNT + 4, COUNT, {"malformed-row": 4})
    assert told["progress"] == joined(address, "/in.feed/addressed")
    sent = {m.message_id: json.loads(b"".join(m.body)) for m in broker.take("addressed")}
    assert sent == {f"t{n}": {"amount": n, "day": n % 4, "id": f"t{n}"} for n in range(COUNT)}
    aside = [json.loads(place.read(item.name) or b"") for item in place.list("in.quarantine/", ".json")]
    assert {(row["file"], row["line"]) for row in aside} == {
        (joined(address, f"/in/day={day}/rows.csv"), COUNT // 4 + 2) for day in range(4)
    }


@pytest.mark.soak  # test_a_day_is_compared_by_the_command_line is part of every run, without faults
@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_what_is_compared_may_lie_at_an_address(
    spark: Any, address: str, disturbed: Lake | None, capsys: pytest.CaptureFixture[str]
) -> None:
    place = place_of(address, os.environ)
    place.create("in/a.csv", b"id,amount\nt1,1\nt2,2\nt2,3\n")
    place.create("in.quarantine/q.first/rows/1.json", b'{"id":"t2","row":"t2,2"}\n{"id":"t2","row":"t2,3"}\n')
    place.create("dead.jsonl", b'{"id":"t1"}\n')
    merge(joined(address, "/ledger"))
    disturb(disturbed, 6)
    given = ["--input", joined(address, "/in"), "--format", "csv", "--ledger", joined(address, "/ledger")]
    assert reconcile_job.main([*given, "--dead-letters", joined(address, "/dead.jsonl"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["inputs"], told["quarantined"]) == (0, 2)  # counted by id


def check_kept(run: Place, quarantine: Place) -> None:
    """What the manifest names is all of it, once; what killed tasks and drivers left beside it counts for nothing."""
    manifest = msgspec.json.decode(run.read("manifest.json") or b"", type=Manifest)
    rows = [row["id"] for file in manifest.staged for part in read_file(run, file.name) for row in part.to_pylist()]
    assert sorted(rows) == sorted(f"t{number}" for number in range(COUNT))
    there = {item.name for item in run.list("stage-")}
    named = {file.name for file in (*manifest.staged, *manifest.rejected)}
    assert named < there  # the plan that died before its manifest, and a killed task's file
    aside = [quarantine.read(item.name) or b"" for item in quarantine.list(suffix=".json")]
    lines = [json.loads(line) for text in aside for line in text.splitlines()]
    assert Counter(line["reason"] for line in lines) == {"conflicting-duplicates": 2, "missing-id": 1}


@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_receivers_are_killed_at_every_step_and_land_each_message(
    spark: Any, broker: Any, tmp_path: Path, address: str, disturbed: Lake | None
) -> None:
    broker.send("landed-lake", *(ServiceBusMessage(b"{}", message_id=f"m{number}") for number in range(COUNT)))
    markers = tmp_path / "markers"
    markers.mkdir()
    kill = Kill(str(markers), {"received": 1, "encoded": 1, "landed": 1, "completing": 3})
    place = place_of(joined(address, "/landing"), os.environ)
    disturb(disturbed, 5)
    for _ in range(2):  # a second time for what a kill held under its lock
        settings = Receiving(
            Access(broker.connection), "landed-lake", place.lend(), (COUNT * 3,), 3.0, 60.0, 30.0, crash_point=kill
        )
        results = spark.range(0, 1, 1, 1).mapInArrow(partial(land_partition, settings), RESULT).collect()
        assert [row["failed"] for row in results] == [None]
    assert kill.fired == {"received", "encoded", "landed", "completing"}
    names = [item.name for item in place.list(suffix=".parquet")]
    landed = [row["message_id"] for name in names for part in read_file(place, name) for row in part.to_pylist()]
    assert set(landed) == {f"m{number}" for number in range(COUNT)} and not broker.take("landed-lake")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("address", PLACES, indirect=True)
@pytest.mark.parametrize("point", ["staged", "planned", "sent", "recorded"])
def test_a_process_that_is_killed_goes_on_where_it_was(
    spark: Any, broker: Any, tmp_path: Path, address: str, run_killed: Callable[..., SimpleNamespace], point: str
) -> None:
    frame = frame_of(spark, tmp_path)
    places = {"progress": joined(address, "/progress"), "quarantine": joined(address, "/quarantine")}
    given = {"queue": "laked", "type": "Transfer", "id": "id", "connection": broker.connection, **places}
    killed = run_killed("feed", point, 1, json.dumps({**given, "input": str(tmp_path / "transfers.csv")}))
    assert killed.fired and killed.returncode == -9, killed.output
    report = feed(frame, **given)
    assert report.chunks_skipped == (1 if point == "recorded" else 0)
    assert {message.message_id for message in broker.take("laked")} == {f"t{number}" for number in range(COUNT)}


@pytest.mark.parametrize("address", ["emulator"], indirect=True)
@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"status": 403, "code": "AuthorizationPermissionMismatch"}, "role Storage Blob Data Contributor"),
        ({"status": 404, "code": "ContainerNotFound"}, "there is no container 'lake'"),
    ],
)
def test_a_lake_that_takes_nothing_is_told_in_one_line_and_nothing_is_sent(
    spark: Any, broker: Any, tmp_path: Path, address: str, disturbed: Lake, rule: dict[str, Any], told: str
) -> None:
    disturbed.plant(FaultRule(kind="status", operation="blob.put", count=None, **rule))
    with pytest.raises(Refused, match=told) as caught:
        feed(
            frame_of(spark, tmp_path), queue="laked", type="Transfer", id="id", connection=broker.connection,
            progress=joined(address, "/p"), quarantine=joined(address, "/q"),
        )  # fmt: skip
    assert "\n" not in str(caught.value) and not broker.take("laked")

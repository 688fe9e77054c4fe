"""What is judged follows from what was given: whose effects, of which inputs, beside which dead letters, since when."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusMessage

from outbox.errors import Refused
from spark_jobs.common.identity import Access
from spark_jobs.common.places import joined, place_of
from spark_jobs.comparing.dead_letters import peeked
from spark_jobs.comparing.expectations import RULES, BalancesAgree, Books, Fields, finding
from spark_jobs.comparing.given import together
from spark_jobs.comparing.older import Older, causes_of
from spark_jobs.draining.entries import Progress
from spark_jobs.draining.merging import DATA, LEDGER_NAME
from spark_jobs.draining.parquet import DataFile, encoded
from spark_jobs.draining.received import ROW
from spark_jobs.draining.tables import Table
from spark_jobs.ledger import newest_version, read_files
from spark_jobs.reconcile import ReconcileReport, Sides, main, reconcile, with_older
from tests.spark.lakes import PLACES
from tests.spark.test_dead_letters import dead_letter

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Row = dict[str, Any]


def posting(cause: str, kind: str, *, id: str = "", amount: int = 1) -> Row:
    body = json.dumps({"kind": kind, "account": "a", "amount": amount})
    own = id or f"{cause}-{kind}-{uuid4().hex}"
    return {"message_id": own, "type": "Posting", "correlation_id": cause, "body": body, "fingerprint": kind}


def moved(cause: str) -> list[Row]:
    return [posting(cause, "withdraw", amount=-1), posting(cause, "deposit")]


def append(ledger: Path | str, *versions: Sequence[Row]) -> int:
    """Commit rows as they are, one version for each part, as no merge would; gives the newest."""
    place = place_of(str(ledger), os.environ)
    table = Table(place, LEDGER_NAME)
    for rows in versions:
        base, name = table.read_or_create(), f"{DATA}/{uuid4().hex}.parquet"
        data = encoded(pa.Table.from_pylist(list(rows), schema=ROW))
        assert place.create(name, data)
        progress = Progress(token=uuid4().hex, number=base.number + 1, files=1, consumed=[])
        assert table.commit(base, [DataFile(name, len(data), len(rows))], progress)
    return table.read_or_create().version


def ids(spark: Any, *names: str) -> Any:
    return spark.createDataFrame([(name,) for name in names], "id string")


def aside(spark: Any, **counts: int | None) -> Any:
    return spark.createDataFrame(list(counts.items()), "id string, count bigint")


def rows_of(spark: Any, ledger: Path | str) -> Any:
    version = newest_version(ledger)
    assert version is not None
    return read_files(spark, version.place, version.newer)


def found(report: ReconcileReport) -> set[tuple[str, str]]:
    return {(category, id) for category, each in report.examples.items() for id, _ in each}


def test_what_other_inputs_caused_is_counted_and_not_judged(spark: Any, tmp_path: Path) -> None:
    append(
        tmp_path,
        [*moved("t1"), posting("t1", "deposit"), posting("t2", "deposit"), posting("t4", "deposit"), *moved("y")],
        [posting("t5", "deposit", id="m"), posting("t5", "deposit", id="m"), posting("y", "x", id="m")],
        [*moved("y"), posting("o", "opened"), posting("y3", "deposit", id="n"), posting("y3", "deposit", id="n")],
    )
    seen: list[int] = []

    def counted(books: Books, fields: Fields) -> Any:
        seen.append(books.effects.count())
        return finding(books.effects.where("false").withColumnRenamed("message_id", "id"), "none", books.effects.kind)

    report = reconcile(
        ids(spark, "t1", "t2", "t3", "t4", "t5"),
        rows_of(spark, tmp_path),
        quarantined=aside(spark, t4=None, y=1),
        expectations=[*RULES["generic"], counted],
        everything=False,
    )
    assert found(report) == {("doubled", "t1"), ("lost", "t3"), ("phantom", "t4"), ("doubled", "m")}
    assert (report.inputs, report.quarantined) == (4, 1)
    assert "4 inputs (1 set aside), 7 rows in the ledger, of other inputs: 8" in report.text
    assert seen == [7]  # an expectation of one's own sees no others either


def test_a_dead_letter_excuses_an_input_and_one_that_was_applied_after_all_is_applied(
    spark: Any, tmp_path: Path
) -> None:
    append(tmp_path, [*moved("t1"), *moved("t2"), posting("t2", "deposit"), posting("t4", "withdraw"), *moved("t5")])
    given = ids(spark, "t1", "t2", "t3", "t4", "t5")
    dead = ids(spark, "t1", "t1", "t2", "t3", "t4", "t9")
    report = reconcile(given, rows_of(spark, tmp_path), dead_letters=dead, expectations=RULES["bank"])
    assert found(report) == {("doubled", "t2"), ("broken", "t2"), ("lost", "t4")}  # half of t4 is no refusal
    assert (report.inputs, report.quarantined) == (4, 1)


def test_an_id_of_several_inputs_is_one_and_set_aside_by_all_or_sent(spark: Any, tmp_path: Path) -> None:
    first = ids(spark, "t1", "t2", "t3", "t3", "t4", "t5", "t5"), aside(spark, t2=1, t3=None, t4=1, t5=1, t8=1)
    corrected = ids(spark, "t1", "t2", "t3", "t6"), None
    third = ids(spark, "t4", "t6"), aside(spark, t4=None, t6=1)
    given, quarantined = together([first, corrected, third])
    append(tmp_path, [*moved("t1"), *moved("t2"), *moved("t3"), *moved("t4"), *moved("t6")])
    report = reconcile(given, rows_of(spark, tmp_path), quarantined=quarantined, everything=False)
    assert found(report) == {("phantom", "t4"), ("lost", "t5")}
    assert (report.inputs, report.quarantined) == (5, 1)


def judged(given: Iterable[str], dead: set[str], aside: dict[str, int], rows: Sequence[Row]) -> set[tuple[str, str]]:
    """The generic rule in Python: of these inputs what is lost, doubled or phantom."""
    counts, wrong = Counter(given), set[tuple[str, str]]()
    for id, count in counts.items():
        own = [row for row in rows if row["correlation_id"] == id]
        sent = count > aside.get(id, 0)
        if sent and id not in dead and not own:
            wrong.add(("lost", id))
        if not sent and id not in dead and any(row["fingerprint"] != "opened" for row in own):
            wrong.add(("phantom", id))
        once = {row["message_id"]: row for row in own}
        wrong |= {("doubled", m) for m, n in Counter(row["message_id"] for row in own).items() if n > 1}
        effects = Counter((row["type"], row["fingerprint"]) for row in once.values())
        wrong |= {("doubled", id) for n in effects.values() if n > 1}
    return wrong


def drawn(chance: random.Random) -> tuple[list[str], set[str], dict[str, int], list[list[Row]]]:
    """Inputs, dead letters, quarantine, and versions of a ledger in which anything may be anywhere."""
    given = [f"t{chance.randrange(40)}" for _ in range(45)]
    dead = {f"t{n}" for n in range(40) if chance.random() < 0.1}
    aside = {f"t{n}": chance.choice([1, 2]) for n in range(40) if chance.random() < 0.15}
    rows: list[Row] = []
    for cause in sorted({*given, *(f"y{n}" for n in range(30))}):
        kinds = ("withdraw", "deposit", "opened") if chance.random() < 0.2 else ("withdraw", "deposit")
        own = [] if chance.random() < 0.1 else [posting(cause, kind) for kind in kinds]
        if own and chance.random() < 0.15:
            own.append(posting(cause, "deposit") if chance.random() < 0.5 else own[0])
        rows += own
    chance.shuffle(rows)
    cuts = sorted(chance.sample(range(len(rows)), 3))
    return given, dead, aside, [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_since_a_version_the_same_is_found(spark: Any, tmp_path: Path, seed: int) -> None:
    """A judge in Python that reads everything says what; a compacted ledger has old rows in newer files."""
    chance = random.Random(seed)
    given, dead, set_aside, versions = drawn(chance)
    append(tmp_path, *versions[:2])
    if seed != 3:
        Table(place_of(str(tmp_path), os.environ), LEDGER_NAME).read_or_create().handle.optimize.compact()
    newest = append(tmp_path, *versions[2:])
    rows = [row for part in versions for row in part]
    wanted = judged(given, dead, set_aside, rows)
    assert {category for category, _ in wanted} == {"lost", "doubled", "phantom"}
    reports = []
    for since in (None, chance.randrange(1, newest)):
        version = newest_version(tmp_path, since)
        assert version is not None
        report = reconcile(
            ids(spark, *given),
            read_files(spark, version.place, version.newer),
            quarantined=aside(spark, **set_aside),
            dead_letters=ids(spark, *dead),
            everything=False,
            older=None if since is None else Older(spark, version.place, version.older),
        )
        assert found(report) == wanted, f"since {since}: {report.text}"
        reports.append((report.found, report.examples, report.inputs, report.effects, report.others))
    assert reports[1] == reports[0] and sum(reports[0][3:]) == len(rows)


def test_of_older_files_only_causes_are_read_and_the_rows_of_those_that_are_hit(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, [*moved("t1"), *moved("y1")], moved("y2"), [posting("t2", "deposit")], moved("t2"))
    version = newest_version(tmp_path, 3)
    assert version is not None and (len(version.newer), len(version.older), version.number) == (1, 3, 4)
    asked: list[str] = []

    def reads(spark: Any, place: Any, files: Sequence[DataFile]) -> Any:
        asked.extend(file.name for file in files)
        return read_files(spark, place, files)

    monkeypatch.setattr("spark_jobs.comparing.older.read_files", reads)
    older = Older(spark, version.place, version.older)
    newer = read_files(spark, version.place, version.newer)
    sides = Sides(ids(spark, "t1", "t2", ""), newer, None, None, Fields(), everything=False)
    both, others = with_older(sides, older, lambda name, make: make())
    causes = sorted(row["correlation_id"] for row in both.ledger.collect())
    assert (causes, others, older.count) == (["t1", "t1", "t2", "t2", "t2"], 4, 7)
    first, second = [file for file in version.older if file.name in asked]  # y2's is read no further
    [read] = causes_of(version.place, [max(first, second, key=lambda file: file.rows or 0)], iter([numbered(0)]))
    assert read.to_pydict() == {"correlation_id": ["t1", "y1"], "file": [0, 0]}


def numbered(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(numbers)})


def test_a_version_that_cannot_be_compared_since_is_refused(tmp_path: Path) -> None:
    append(tmp_path, *([row] for cause in ("t1", "t2", "t3", "t4", "t5", "t6") for row in moved(cause)))
    for version in (-1, 13):
        with pytest.raises(Refused, match=f"has no version {version}, its newest is 12; give one that a report"):
            newest_version(tmp_path, version)
    for entry in range(10):  # expired: the checkpoint of version 10 sums them up
        (tmp_path / "_delta_log" / f"{entry:020}.json").unlink()
    with pytest.raises(Refused, match="version 3 cannot be read any more, as where its entries have expired"):
        newest_version(tmp_path, 3)
    found = newest_version(tmp_path, 11)
    assert found is not None and (len(found.newer), len(found.older)) == (1, 11)


def test_what_needs_all_rows_is_not_compared_since_a_version(spark: Any, tmp_path: Path) -> None:
    append(tmp_path, moved("t1"))
    older = Older(spark, place_of(str(tmp_path), os.environ), [])
    for needs in ({"everything": True}, {"everything": False, "expectations": [BalancesAgree(ids(spark))]}):
        with pytest.raises(Refused, match="need all of its rows"):
            reconcile(ids(spark, "t1"), rows_of(spark, tmp_path), older=older, **needs)


@pytest.mark.parametrize("address", PLACES, indirect=True)
def test_a_day_is_compared_by_the_command_line(
    spark: Any, broker: Any, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two inputs with quarantines of their own, dead letters of a queue and of a file, a ledger with other days."""
    place = place_of(address, os.environ)
    place.create("day/a.csv", b"id,amount\nt1,1\nt2,x\nt3,3\nt4,4\nt5,5\n")
    place.create("day.quarantine/q.first/rows/1.json", b'{"id":"t2","row":"t2,x"}\n')
    place.create("corrected.csv", b"id,amount\nt2,2\n")
    place.create("dead.jsonl", b'{"id":"o-1","correlation_id":"t3","reason":"late"}\n{"id":"t5"}\n')
    ledger = joined(address, "/ledger")
    before = append(ledger, [*moved("y1"), *moved("t1")])
    append(ledger, [*moved("t2"), *moved("t5")])
    if not peeked(Access(broker.connection), "refused"):
        dead_letter(broker.connection, "refused", ServiceBusMessage(b"{}", message_id="t4"))
    monkeypatch.setenv("OUTBOX_SERVICEBUS", broker.connection)
    given = ["--input", joined(address, "/day"), "--input", joined(address, "/corrected.csv"), "--format", "csv"]
    given += ["--ledger", ledger, "--dead-letters", joined(address, "/dead.jsonl"), "--json", "--quiet"]
    steps = ["--progress", joined(address, "/steps")]
    queues = ["--dead-letters", "queue:refused"]
    assert main([*given, *queues, "--since", str(before), *steps]) == 0, capsys.readouterr().out
    told = json.loads(capsys.readouterr().out)
    assert (told["inputs"], told["quarantined"], told["effects"], told["others"]) == (3, 2, 6, 2)
    assert told["version"] == before + 1
    assert main([*given, "--everything", *steps]) == 1  # without the queue it is another comparison
    told = json.loads(capsys.readouterr().out)
    assert told["found"] == {"lost": 1, "doubled": 0, "phantom": 2} and told["others"] == 0
    assert told["examples"]["lost"] == [["t4", "no row in the ledger"]]
    assert main([*given, "--quarantine", joined(address, "/day.quarantine")]) == 1
    assert "1 --quarantine for 2 --input; give one for each input" in capsys.readouterr().err
    for option in (["--everything"], ["--state", "x.jsonl"]):
        assert main([*given, "--since", "1", *option]) == 1
        assert "need all rows of the ledger; leave --since out" in capsys.readouterr().err

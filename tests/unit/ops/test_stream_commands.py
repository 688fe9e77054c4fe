"""Ordered logs on the command line: listed, read as stored and trimmed, with a host and without."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.errors import Refused, Trimmed
from outbox.ops.cli.parser import make_parser
from outbox.ops.streams.command import streams_text
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import ReadStatus
from outbox.ops.values.streams import ListStreams, ReadStream, StreamRow, TrimStream, Unregister
from outbox.ports import Create, DocumentKey, Replace
from outbox.streams import Inputs, OrderedLog, Position, Processor, Step
from tests.unit.messages import Reading, Seen
from tests.unit.ops.conftest import Cli
from tests.unit.ops.operators import on_folder
from tests.unit.streams.pipeline.counting import Counting


@dataclass
class Alarm:
    """An entry of another type."""

    sensor: str


def watch(seen: Seen, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        seen.count += 1
        step.emit("events", Alarm(entry.value.sensor))


async def fill(engine: Engine, *, steps: bool = False) -> None:
    """Two logs, three cells in one of them, and a reader of the first."""
    readings: OrderedLog[Reading] = OrderedLog("readings", engine, type=Reading)
    events: OrderedLog[Reading | Alarm] = OrderedLog("events", engine, type=Reading | Alarm)
    await readings.extend([Reading("a", 1.0), Reading("b", 2.0)], id="first")
    await readings.append(Reading("c", 3.0), id="second")
    await readings.append(Reading("d", 4.5), id="third")
    await readings.register("audit", Position(2))
    await events.append(Alarm("x"), id="e")
    if steps:
        inputs, outputs = {"readings": readings}, {"events": events}
        await Processor("watch", watch, state=Seen, register=engine, inputs=inputs, outputs=outputs).run_until_idle(
            seconds=5
        )


@pytest.fixture
def cli(disk_path: Path, cli: Cli) -> Cli:
    """Run a command on a folder with two logs: exit code, stdout, stderr."""
    on_folder(disk_path, fill)
    return cli


# On a folder


def test_logs_are_listed_with_floors_ends_and_lags(cli: Cli) -> None:
    found = json.loads(cli("stream", "list", "--json")[1])
    assert [(log["name"], log["type"]) for log in found["logs"]] == [
        ("events", "Alarm | Reading"),
        ("readings", "Reading"),
    ]
    (row,) = found["logs"][1]["rows"]
    assert row.pop("size_bytes") > 100
    assert row == {"row": "0.0", "floor": 0, "end": 3, "cells": 3, "readers": {"audit": 1}, "writers": {}}
    lines = cli("stream", "list")[1].splitlines()
    assert lines[0].split() == ["log", "row", "floor", "end", "cells", "bytes", "readers", "writers"]
    assert lines[2].split()[:5] == ["readings", "0.0", "0", "3", "3"] and lines[2].endswith("audit 1  -")


def test_entries_are_read_as_they_are_stored(cli: Cli) -> None:
    code, out, err = cli("stream", "read", "readings")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(line["position"], line["id"], line["value"]["sensor"]) for line in lines] == [
        ("0.0", "first", "a"),
        ("0.1", "first", "b"),
        ("1.0", "second", "c"),
        ("2.0", "third", "d"),
    ]
    assert all(line["row"] == "0.0" and line["at_ms"] > 1e12 and "type" not in line for line in lines)
    assert json.loads(cli("stream", "read", "events")[1])["type"] == "Alarm"


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--since", "1.0"], ["second", "third"]),
        (["--since", "0.1", "--limit", "2"], ["first", "second"]),
        (["--limit", "1"], ["first"]),
        (["--since", "3"], []),
        (["--since", "99.0"], []),
        (["--row", "0.0", "--since", "2"], ["third"]),
    ],
)
def test_a_part_is_read_by_position_and_count(cli: Cli, arguments: list[str], ids: list[str]) -> None:
    code, out, _ = cli("stream", "read", "readings", *arguments)
    assert (code, [json.loads(line)["id"] for line in out.splitlines()]) == (0, ids)


def test_a_trim_stops_at_the_slowest_reader_and_what_is_gone_is_refused(cli: Cli) -> None:
    assert cli("stream", "trim", "readings")[:2] == (0, "trimmed 2 cells of readings; floors: 0.0 at 2\n")
    assert make_parser().parse_args(["stream", "trim", "x", "--data", "d"]).margin == 86_400
    assert json.loads(cli("stream", "trim", "readings", "--json")[1]) == {"cells": 0, "floors": {"0.0": 2}}
    assert [json.loads(line)["id"] for line in cli("stream", "read", "readings")[1].splitlines()] == ["third"]
    code, out, err = cli("stream", "read", "readings", "--since", "0.0")
    assert (code, out) == (1, "") and "the first that is left is 2" in err


def test_a_reader_that_is_gone_is_forgotten_and_a_name_that_nobody_has_is_refused(cli: Cli) -> None:
    code, out, err = cli("stream", "unregister", "readings", "auditor")
    assert (code, out) == (1, "") and "log readings has no reader or writer 'auditor'; there are: audit" in err
    code, out, _ = cli("stream", "unregister", "readings", "audit")
    assert (code, out) == (0, "readings has forgotten audit, which was behind in row 0.0 by 1 cells\n")
    assert json.loads(cli("stream", "list", "--json")[1])["logs"][1]["rows"][0]["readers"] == {}
    assert cli("stream", "unregister", "readings", "audit")[0] == 1
    assert cli("stream", "unregister", "readings", "")[0] == 2


def test_a_trim_by_age_keeps_what_is_younger(cli: Cli) -> None:
    assert cli("stream", "trim", "readings", "--min-age", "7d")[1].startswith("trimmed 0 cells")
    assert cli("stream", "trim", "readings", "--min-age", "0s")[1].startswith("trimmed 2 cells")


def test_a_log_that_nobody_reads_is_trimmed_by_age_only(cli: Cli) -> None:
    code, _, err = cli("stream", "trim", "events")
    assert code == 1 and "--min-age" in err
    assert cli("stream", "trim", "events", "--min-age", "0s")[1].startswith("trimmed 1 cells")


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["stream", "read", "reading"], "there are: events, readings. Check the spelling"),
        (["stream", "trim", "log/readings"], "Check the spelling"),
        (["stream", "read", "readings", "--row", "1.0"], "has no row 1.0; there are: 0.0"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(cli: Cli, arguments: list[str], cure: str) -> None:
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (1, "", 1) and cure in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream"],
        ["stream", "read"],
        ["stream", "read", ""],
        ["stream", "read", "readings", "--since", "first"],
        ["stream", "read", "readings", "--since", "1."],
        ["stream", "read", "readings", "--limit", "0"],
        ["stream", "read", "readings", "--row", "1"],
        ["stream", "trim", "readings", "--min-age", "7"],
        ["stream", "trim", "readings", "--min-age", "-7d"],
        ["stream", "trim", "readings", "--min-age", "9" * 400 + "d"],
        ["stream", "trim", "readings", "--margin", "0s"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(cli: Cli, arguments: list[str]) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and "usage: outbox" in err and "Traceback" not in err


def test_a_folder_without_logs_says_so(cli: Cli, tmp_path: Path) -> None:
    Engine.open(tmp_path / "empty").close()
    code, out, err = cli("stream", "list", "--data", str(tmp_path / "empty"), data=False)
    assert (code, out) == (0, "no ordered logs\n") and "/empty; --cosmos, or --blobs and --blob-states" in err


# Directly and over HTTP


async def read(admin: Admin, name: str, **asked: Any) -> list[dict[str, Any]]:
    data = b"".join([piece async for piece in admin.stream(ReadStream(name, **asked))])
    return [json.loads(line) for line in data.splitlines()]


async def test_a_processor_is_listed_with_its_lag(engine: Engine, admin: Admin) -> None:
    await fill(engine, steps=True)
    found = await admin.ask(ListStreams())
    (processor,) = found.processors
    assert (processor.name, processor.phase, processor.failures) == ("processor/watch", "handling", 0)
    assert processor.serial > 0 and processor.at_ms > 1e12 and processor.lag == {"readings/0.0": 0}
    events = found.logs[0].rows[0]
    assert (events.end, events.writers) == (3, {"processor/watch": 0})
    assert "processor/watch  " in streams_text(found)
    assert (await admin.ask(Unregister("events", "processor/watch"))).behind == {"0.0": 0}
    with pytest.raises(LookupError, match="has no reader or writer 'processor/watch'"):
        await admin.ask(Unregister("events", "processor/watch"))


@pytest.mark.parametrize(
    ("registers", "rows_max", "looked_at", "more"),
    [(1, 2, 9, False), (1, 1, 9, True), (3, 2, 9, True), (5, 9, 5, True)],
)
async def test_what_a_list_leaves_out_it_says(
    engine: Engine,
    admin: Admin,
    registers: int,
    rows_max: int,
    looked_at: int,
    more: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A place with two rows, and this number of registers."""
    await fill(engine)
    for n in range(registers):
        await engine.store().write([Create(DocumentKey(f"processor/{n}", "register"), b"nonsense")])
    monkeypatch.setattr("outbox.ops.streams.logs.LISTED_MAX", rows_max)
    monkeypatch.setattr("outbox.ops.streams.logs.PARTITIONS_MAX", looked_at)
    assert (await admin.ask(ListStreams())).more == more


async def test_a_processor_is_as_far_behind_as_its_register_says(engine: Engine, admin: Admin) -> None:
    """It reports at the floor now and then, which would show a replica that keeps up as far behind."""
    readings: OrderedLog[Reading] = OrderedLog("readings", engine, type=Reading)
    events: OrderedLog[Reading | Alarm] = OrderedLog("events", engine, type=Reading | Alarm)
    inputs, outputs = {"readings": readings}, {"events": events}
    replica = Processor("watch", watch, state=Seen, register=engine, inputs=inputs, outputs=outputs).replica()
    for n in range(10):
        await readings.append(Reading("a", n), id=f"{n}")
        await replica.step()
    await readings.append(Reading("a", 10.0), id="last")
    found = await admin.ask(ListStreams())
    assert found.processors[0].lag == {"readings/0.0": 1}
    assert found.logs[1].rows[0].readers == {"processor/watch": 1}
    assert (await admin.ask(Unregister("readings", "processor/watch"))).behind == {"0.0": 11}
    with pytest.raises(LookupError, match="no reader or writer 'processor/watch'; there are: none"):
        await admin.ask(Unregister("readings", "processor/watch"))


async def test_a_pipeline_is_listed_as_far_behind_as_its_checkpoint(engine: Engine, admin: Admin) -> None:
    made = Counting(engine)
    await made.write("a b", "a", "b")
    await made.pipeline.run_until_idle(engine, seconds=10)
    await made.write("a", "b")
    found = await admin.ask(ListStreams())
    (pipeline,) = [each for each in found.processors if each.name == "pipeline/index"]
    assert (pipeline.phase, pipeline.lag) == ("checkpoint 1", {"pages/0.0": 2})
    rows = {log.name: log.rows[0] for log in found.logs}
    assert rows["pages"].readers == {"pipeline/index": 2}
    assert rows["changes"].writers == {"pipeline/index": 1}  # one bundle, since the oldest checkpoint that is kept


async def test_rows_are_read_one_after_the_other_or_one_alone_and_all_forget_a_reader(
    engine: Engine, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: OrderedLog[int] = OrderedLog("n", engine, type=int, writers=2, readers=2, partition=lambda n: n)
    for n in range(8):
        await log.writer(n % 2).append(n, id=f"n{n}")
    every = await read(admin, "n")
    assert sorted(line["value"] for line in every) == list(range(8))
    assert [line["row"] for line in every] == sorted(line["row"] for line in every)
    row = every[-1]["row"]
    assert await read(admin, "n", row=row, since="0.0") == [line for line in every if line["row"] == row]
    with pytest.raises(Refused, match="say by --row which"):
        await read(admin, "n", since="0.0")
    for shard in (0, 1):
        await log.reader(shard).register("gone", Position(0))
    assert len((await admin.ask(Unregister("n", "gone"))).behind) == 4
    assert [row.readers for row in (await admin.ask(ListStreams())).logs[0].rows] == [{}] * 4
    await log.reader(0).register("one", Position(0))
    with pytest.raises(Refused, match=r"log/n/0\.1 has no registered reader"):
        await admin.ask(TrimStream("n", None, 60.0))
    await log.unregister("one")
    await admin.ask(TrimStream("n", 0.0, 60.0))
    cells = [
        each for name, space in engine.state.documents.spaces.items() if "log/n/" in name for each in space.values()
    ]
    assert 0 < max(cell.expires_ms for cell in cells) - engine.now_ms() <= 60_000  # how long tombstones last
    with pytest.raises(Trimmed):
        await read(admin, "n", row=row, since="0.0")
    monkeypatch.setattr("outbox.ops.streams.logs.PARTITIONS_MAX", 1)  # never some of its rows
    with pytest.raises(Refused, match="over 1 partitions; name a row by --row"):
        await admin.ask(TrimStream("n", 0.0, 60.0))


async def test_a_long_log_and_a_large_entry_are_read_whole_and_what_comes_meanwhile_is_not(
    engine: Engine, admin: Admin
) -> None:
    log: OrderedLog[str] = OrderedLog("texts", engine, type=str)
    await log.append("x" * 1_500_000, id="large")
    for n in range(30):
        await log.extend([f"{n:04}" * 50] * 20, id=f"n{n}")
    data = bytearray()
    async for piece in admin.stream(ReadStream("texts")):
        data += piece
        await log.append("late", id=f"late {len(data)}")
    found = [json.loads(line) for line in data.splitlines()]
    assert len(found) == 601 and len(found[0]["value"]) == 1_500_000 and found[-1]["position"] == "30.19"


async def test_a_log_that_something_else_has_written_into_is_listed_with_what_is_wrong(
    engine: Engine, admin: Admin
) -> None:
    await fill(engine)
    store, broken = engine.store(), OrderedLog("broken", engine, type=int, readers=2, partition=lambda n: n)
    for n in range(4):  # in both rows
        await broken.append(n, id=f"{n}")
    floor = await store.read(DocumentKey("log/broken/0.0", "floor"))
    assert floor is not None
    await store.write([Replace(floor.key, b"nonsense", floor.version)])
    await store.write([Create(DocumentKey("processor/\x1b[2J", "register"), b"nonsense")])
    await store.write([Create(DocumentKey("log/elsewhere", "floor"), b"nonsense")])
    found = await admin.ask(ListStreams())
    assert [(log.name, bool(log.error), [row.row for row in log.rows]) for log in found.logs] == [
        ("broken", True, ["0.1"]),
        ("events", False, ["0.0"]),
        ("readings", False, ["0.0"]),
    ]
    assert "restore" in found.processors[0].error and "broken: " in streams_text(found)
    assert "\x1b" not in streams_text(found)


def test_status_has_logs_beside_what_it_had(cli: Cli) -> None:
    found = json.loads(cli("status", "--json")[1])
    assert found["queues"] == {} and found["pending"] == 0
    assert [log["name"] for log in found["streams"]["logs"]] == ["events", "readings"]
    assert found["streams"]["logs"][1]["rows"] == [
        {"row": "0.0", "floor": 0, "end": 3, "cells": 3, "readers": {"audit": 1}, "writers": {}}
    ]
    assert found["streams"]["processors"] == []
    *_, last, no_host = cli("status")[1].splitlines()
    assert no_host.startswith("no host runs on this folder")
    assert last.split() == ["readings", "0.0", "0", "3", "3", "audit", "1", "-"]


async def test_status_has_processors_and_only_where_there_are_any(engine: Engine, admin: Admin) -> None:
    assert (await admin.ask(ReadStatus())).streams is None
    await fill(engine, steps=True)
    found = (await admin.ask(ReadStatus())).streams
    assert found is not None and found.processors == (await admin.ask(ListStreams())).processors


async def test_a_listed_row_has_the_lags_of_its_log(engine: Engine, admin: Admin) -> None:
    await fill(engine)
    log: OrderedLog[Reading] = OrderedLog("readings", engine, type=Reading)
    (status,) = await log.status()
    (row,) = (await admin.ask(ListStreams())).logs[1].rows
    assert isinstance(row, StreamRow)
    assert (row.floor, row.end, row.readers, row.writers) == (status.floor, status.end, status.readers, status.writers)


@pytest.mark.parametrize(
    "place",
    [
        ("--blobs", "DefaultEndpointsProtocol=http;AccountName=x;BlobEndpoint=http://127.0.0.1:9/x;AccountKey="),
        ("--cosmos", "AccountEndpoint=http://127.0.0.1:9/;AccountKey="),
    ],
)
def test_an_account_that_does_not_answer_is_named_without_its_key(place: tuple[str, str], cli: Cli) -> None:
    option, address = place
    key = b64encode(b"k" * 64).decode()
    code, _, said = cli("stream", "list", option, address + key, data=False)
    assert (
        code == 1
        and "is 127.0.0.1:9 there and reachable?" in said
        and f"Look at {option} and" in said.replace(",", " and")
    )
    assert key not in said

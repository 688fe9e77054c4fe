"""What is wrong is found, with its cure, and nothing is found where nothing is wrong."""

from __future__ import annotations

import os
import shutil
import sys
from collections import namedtuple
from contextlib import closing
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.records import DocWrite, Modify
from outbox.engine.state.documents import STATES
from outbox.errors import OutcomeUnknown, Refused
from outbox.message import Message
from outbox.ops.cli.parser import main
from outbox.ops.messages import doctor
from outbox.ops.messages.doctor import examine, of_folder, of_pending, of_pipelines, of_signs, of_status, versions
from outbox.ops.shared import on_engine
from outbox.ops.values.messages import ListPending, PendingOutput, PendingView
from outbox.ops.values.requests import Admin
from outbox.ops.values.status import Handled, LargeState, QueueStatus, Signs, Status, WorkerSign
from outbox.ops.values.streams import PipelineView, ProcessorView, Streams, StreamView
from outbox.runtime.counts import PipelineFigures

Usage = namedtuple("Usage", "total used free")


def status(**more: Any) -> Status:
    known: dict[str, Any] = {"active": 0, "scheduled": 0, "deferred": 0, "dead_letters": 0, "oldest_s": None}
    return Status({"orders": QueueStatus(**(known | more))}, 0)


def wrong(found: Any) -> list[tuple[str, str]]:
    return [(one.level, one.about) for one in found if one.level != "ok"]


@pytest.mark.parametrize(
    ("counts", "hosted", "expected"),
    [
        ({}, True, []),
        ({"active": 5}, True, []),
        ({"active": 5}, False, [("error", "host")]),
        ({}, False, []),
        ({"standing": 1}, True, [("error", "orders")]),
        ({"dead_letters": 3}, True, [("warning", "orders")]),
        ({"active": 1, "oldest_s": 299.0}, True, []),
        ({"active": 1, "oldest_s": 301.0}, True, [("warning", "orders")]),
        ({"active": 1, "oldest_s": 301.0, "paused": True}, True, [("warning", "orders")] * 2),
        ({"unhandled": True}, True, []),
        ({"unhandled": True, "active": 1}, True, [("warning", "orders")]),
    ],
)
def test_counts_say_what_is_wrong(counts: dict[str, Any], hosted: bool, expected: list[tuple[str, str]]) -> None:
    assert wrong(of_status(status(**counts), hosted=hosted)) == expected


def test_a_stream_that_is_damaged_and_a_processor_that_fails_are_errors() -> None:
    processors = [ProcessorView(name, 1, "handling", count, 0, {}) for name, count in (("p", 2), ("q", 1), ("r", 0))]
    processors.append(ProcessorView("s", 0, "", 0, 0, {}, "its register is no register"))
    streams = Streams([StreamView("log", "", [], "a cell is gone")], processors)
    found = list(of_status(Status({}, 0, None, streams), hosted=True))
    assert wrong(found) == [("error", name) for name in ("log", "s", "p", "q")]
    assert "2 times" in found[2].what and "1 time " in found[3].what


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (PipelineView("index", figures=PipelineFigures(0, 0, 0, "3.0", 1, {})), []),
        (PipelineView("index", figures=PipelineFigures(2, 0, 941_000, "3.0", 1, {})), []),
        (PipelineView("index", figures=PipelineFigures(2, 2, 939_000, "3.0", 1, {})), ["warning"]),
        (PipelineView("index", figures=PipelineFigures(2, 2, 699_000, "3.0", 1, {})), ["error"]),
        (PipelineView("index", error="not a register"), ["error"]),
    ],
)
def test_a_pipeline_whose_entries_wait_for_a_checkpoint_is_named(found: PipelineView, expected: list[str]) -> None:
    named = list(of_pipelines([found], 1_000.0))
    assert [(one.level, one.about) for one in named] == [(level, "pipeline index") for level in expected]
    assert all(one.cure.startswith("`outbox pipeline ") for one in named)


def view(committed: float, why: str = "", outputs: int = 1, tx: str = "tx") -> PendingView:
    return PendingView(tx, "s/inbox:00", committed, why, [PendingOutput("a", "q", 1)] * outputs)


def test_outputs_that_have_not_left_for_ten_minutes_are_an_error() -> None:
    assert wrong(of_pending([view(1_000.0)], 1_599.0)) == []
    [found] = of_pending([view(1_000.0), view(500.0, tx="first"), view(900.0)], 1_601.0)
    assert (found.level, found.cure) == ("error", "`outbox pending finish first`") and "3 transactions" in found.what
    assert wrong(of_pending([view(0.0, outputs=0)], 1e9)) == []
    assert wrong(of_pending([view(0.0, "is not of this framework", 0)], 1e9)) == [("warning", "container")]


@pytest.mark.parametrize(("free", "level"), [(50 << 20, "error"), (500 << 20, "warning"), (2 << 30, "")])
def test_a_disk_that_is_nearly_full_is_named(
    free: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, free))
    assert wrong(of_folder(tmp_path)) == ([(level, "disk")] if level else [])


def test_a_key_that_others_may_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "access.key"
    key.write_text("x")
    key.chmod(0o640)
    [found] = of_folder(tmp_path)
    assert (found.level, found.cure) == ("error", f"`chmod 600 {key}`")
    key.chmod(0o600)
    assert list(of_folder(tmp_path)) == []
    monkeypatch.setattr(os, "getuid", lambda: key.stat().st_uid + 1)
    assert [(one.level, one.what) for one in of_folder(tmp_path)] == [("warning", "another user owns it")]


def test_an_sdk_that_is_too_old_or_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(versions(needs_azure=True)) == []
    monkeypatch.setattr(doctor, "version", lambda name: "7.14.9" if name == "azure-servicebus" else "4.17.0b1")
    assert wrong(versions(needs_azure=False)) == [("error", "azure-servicebus")]

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert wrong(versions(needs_azure=True)) == [("error", "azure-servicebus"), ("error", "azure-cosmos")]
    assert wrong(versions(needs_azure=False)) == []
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    assert wrong(versions(needs_azure=False)) == [("warning", "Python")]


WORKER = WorkerSign("shop", "host/1", ["other"], 1.0, 2.0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Signs(), []),
        (Signs(oldest={"orders": 299.0}), []),
        (Signs(oldest={"orders": 301.0}), [("warning", "orders")]),
        (Signs(unattended=["orders"]), []),
        (Signs(oldest={"orders": 59.0}, unattended=["orders"]), []),
        (Signs(oldest={"ORDERS": 61.0}, unattended=["orders"], workers=[WORKER]), [("warning", "orders")]),
        (Signs(oldest={"orders": 61.0}, unattended=["Orders"], workers=[WORKER]), [("warning", "Orders")]),
        (Signs(oldest={"orders": 450.0}, unattended=["orders"]), [("warning", "orders"), ("error", "orders")]),
        (Signs(blocked=1), [("error", "keys")]),
        (Signs(large=[LargeState("Account:a", 70_000)]), [("warning", "Account:a")]),
        (Signs(workers=[msgspec.structs.replace(WORKER, newer={"orders": 599.0})]), [("warning", "orders")]),
        (Signs(workers=[msgspec.structs.replace(WORKER, newer={"orders": 601.0})]), []),
    ],
)
def test_signs_say_what_is_wrong(found: Signs, expected: list[tuple[str, str]]) -> None:
    assert wrong(of_signs(found, status())) == expected


@pytest.mark.parametrize("name", ["orders", "Orders"])
def test_a_paused_queue_needs_no_worker(name: str) -> None:
    found = Signs(oldest={"orders": 450.0}, unattended=[name])
    assert wrong(of_signs(found, status(paused=True))) == [("warning", "orders")]


@pytest.mark.parametrize(("newer_s", "expected"), [(UNSET, []), (30.0, [("warning", "orders")]), (601.0, [])])
def test_a_host_that_puts_messages_back_for_a_newer_build_is_named(newer_s: Any, expected: Any) -> None:
    handled = Handled(0, 0, 0, 9, {}, 0, 9, newer_s)
    assert wrong(of_status(status(handled=handled), hosted=True)) == expected


async def test_a_large_state_is_named_with_its_size(bank: Any, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_engine, "SLICE_COUNT", 1)
    for key, size in (("small", 64 << 10), ("large", (64 << 10) + 1), ("larger", 80 << 10)):
        write = DocWrite(STATES, f"Account:{key}", b"x" * size, 0)
        assert bank.engine.documents.modify(Modify(documents=[write])) is not None
    found = [one for one in await examine(admin, bank.folder) if one.about.startswith("Account:")]
    assert [(one.level, one.about) for one in found] == [("warning", "Account:larger"), ("warning", "Account:large")]
    assert "80 kB" in found[0].what and "What must not grow in a state" in found[0].cure


class Unable:
    """An operator that may not count, over a store that does not answer."""

    async def ask(self, asked: Any) -> Any:
        raise OutcomeUnknown("no answer") if isinstance(asked, ListPending) else Refused("not allowed")


async def test_what_cannot_be_looked_at_is_a_finding_and_errors_come_first() -> None:
    unable: Any = Unable()
    found = await examine(unable, None)
    assert [(one.level, one.about) for one in found] == [
        ("error", "store"), ("warning", "counts"), ("warning", "signs"),
    ]  # fmt: skip


async def test_a_host_that_answers_counts_as_one(bank: Any, admin: Admin) -> None:
    bank.engine.broker.send("deposits", [Message(body=b"{}", outbox_id="m1")])
    found = [one for one in await examine(admin, bank.folder) if one.about == "host"]
    assert bool(found) is (type(admin).__name__ == "EngineAdmin")


def test_the_command_ends_with_one_where_there_is_an_error(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(*ids: str) -> None:
        with closing(Engine.open(disk_path)) as engine:
            engine.declare(QueueSettings("orders"))
            for id in ids:
                engine.broker.send("orders", [Message(body=b"{}", outbox_id=id)])

    prepare()
    assert main(["doctor", "--data", str(disk_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("ok")
    prepare("m1")
    assert main(["doctor", "--data", str(disk_path), "--json"]) == 1
    shown = capsys.readouterr()
    assert "no host runs, and 1 message wait" in shown.out
    assert "1 error; each line names its cure" in shown.err

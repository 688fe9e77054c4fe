"""The checks find what people get wrong; one fault at a time, in a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.infra.faults import FAULTS, MISSED, Fault
from tools.infra_check.checks import check
from tools.infra_check.code import Code, read_code

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("azure.yaml", "compose.yaml", "host.json", "local.settings.json.example", ".funcignore", "infra", "local")
LINKED = ("function_app", "outbox", "spark_jobs", "function_app.py", "requirements.txt")


@pytest.fixture(scope="module")
def code() -> Code:
    return read_code()


def copy_to(folder: Path) -> None:
    """What is checked as a copy, the rest as links."""
    for name in COPIED:
        source = ROOT / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)


def test_a_copy_without_a_fault_passes(tmp_path: Path, code: Code) -> None:
    copy_to(tmp_path)
    assert check(tmp_path, code) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path, code: Code) -> None:
    copy_to(tmp_path)
    file = tmp_path / fault.path
    source = file.read_text(encoding="utf-8")
    assert fault.old in source, "the fault is out of date"
    file.write_text(source.replace(fault.old, fault.new, 1), encoding="utf-8")
    said = [str(finding) for finding in check(tmp_path, code)]
    if fault.what in MISSED:
        assert said == []
    else:
        assert any(fault.said in line for line in said), said


DRIFTS: tuple[tuple[str, Callable[[Code], Code]], ...] = (
    ("the set of queues", lambda code: replace(code, queues={**code.queues, "audits": "unordered"})),
    ("transfers: the ordering", lambda code: replace(code, queues={**code.queues, "transfers": "per_key"})),
    ("topics", lambda code: replace(code, topics={"notices": ["audit"]})),
    ("reads is", lambda code: replace(code, triggers=code.triggers[1:])),
    ("OTHER_BUS__clientId", lambda code: replace(code, triggers=(replace(code.triggers[0], connection="OTHER_BUS"),))),
    ("container.defaultTtl", lambda code: replace(code, container={**code.container, "defaultTtl": 60})),
    ("blobContainer", lambda code: replace(code, blob_container="bodies")),
    ("OUTBOX_DATABASE is a setting that nothing", lambda code: replace(code, known_settings=frozenset())),
    ("lockDuration", lambda code: replace(code, lock_s=120.0)),
    ("maxDeliveryCount", lambda code: replace(code, delivery_count_max=50)),
    ("outbox-jobs", lambda code: replace(code, spark_zip="outbox-jobs-2.zip")),
)


@pytest.mark.parametrize(("said", "drift"), DRIFTS, ids=[said for said, _ in DRIFTS])
def test_code_that_moves_away_from_the_templates_is_found(said: str, drift: Callable[[Code], Code], code: Code) -> None:
    assert any(said in str(finding) for finding in check(ROOT, drift(code)))


def test_at_least_24_of_25_are_found() -> None:
    assert len(FAULTS) >= 25 and (len(FAULTS) - len(MISSED)) / len(FAULTS) >= 24 / 25
    assert {fault.what for fault in FAULTS} >= MISSED
